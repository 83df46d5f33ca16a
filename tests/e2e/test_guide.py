"""The guide "Bring your own agent", followed as a new user would: each form from `penstock scaffold new` to verdicts under `penstock up`."""

import json
from pathlib import Path

import pytest

from orchestrator.cli.scaffold_new import KINDS
from tests.e2e.stack_rig import Stack, until

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(400), pytest.mark.tier("stacks")]

GUIDE = Path(__file__).parents[2] / "ops/guides/bring-your-own-agent.md"
PLACES = {
    "manifest": "./a-manifest",
    "black-box": "./a-black-box/a_black_box.py",
    "white-box": "./a-white-box/a_white_box.py",
}


async def test_an_agent_of_each_form_works_at_a_task_to_a_verdict_and_leaves_exact_steps(
    stack: Stack, model: Path
) -> None:
    shares = ", ".join(f'"{place}" = 0.25' for place in PLACES.values())
    stack.configure(model, batches=0, more=f"scaffolds = {{ {shares}, shell = 0.25 }}\n")
    for kind in KINDS:
        made = stack.penstock_alone("scaffold", "new", str(stack.directory / f"a-{kind}"), "--kind", kind)
        assert made.returncode == 0, made.stderr
    tasks = stack.directory / "suite"
    assert (
        stack.penstock_alone("tasks", "generate", str(tasks), "--train", "1", "--heldout", "0").returncode
        == 0
    )
    await stack.up()
    for kind, place in PLACES.items():
        published = stack.penstock(
            "tasks",
            "publish",
            str(tasks / "train"),
            "--label",
            kind,
            "--purpose",
            "record",
            "--group-size",
            "1",
            "--scaffold",
            str(stack.directory / place),
        )
        assert published.stdout == "1 accepted, 0 rejected, 0 unanswered\n", published
    query = (
        "select a.scaffold, v.reward, count(s.idx) as steps from verdicts v"
        " join attempts a using (rollout_id) join steps s using (rollout_id) group by 1, 2"
    )

    def verdicts() -> list[dict[str, object]]:
        output = stack.penstock("sql", query, "--json").stdout
        return [json.loads(line) for line in output.splitlines()]

    await until(lambda: len(verdicts()) == len(PLACES), "every form has a verdict", 120.0)
    found = {str(row["scaffold"]): row for row in verdicts()}
    assert set(found) == {str((stack.directory / place).resolve()) for place in PLACES.values()}
    assert all(int(str(row["steps"])) >= 1 for row in found.values())
    assert stack.penstock("down").stdout == "stopped\n"
    assert (stack.left_running(), stack.sandboxes_left()) == ([], [])


def test_the_guide_names_what_there_is() -> None:
    text = GUIDE.read_text()
    for kind in KINDS[1:]:
        assert f"--kind {kind}" in text
    links = [part.partition(")")[0] for part in text.split("](")[1:]]
    assert links and all((GUIDE.parent / link.partition("#")[0]).exists() for link in links), links
    assert "ops/guides/bring-your-own-agent.md" in (GUIDE.parents[2] / "README.md").read_text()
