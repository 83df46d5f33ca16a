"""Traps of test scripts: each pays without the work, `penstock tasks check` names its line, and its safe form pays for the work alone."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli.tasks import app
from orchestrator.probing import ProbeRun
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.bundle import EMPTY
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.probes import PROBES, probe
from orchestrator.tasks.suite import generate
from orchestrator.tasks.traps import ADVICE, Rule, traps_of
from orchestrator.tasks.traps.shellcheck import RULES
from sandboxes.base import Limits
from sandboxes.bubblewrap import BubblewrapProvider
from tests.integration.tasks.trap_examples import END, EXAMPLES, START, Example

pytestmark = pytest.mark.tier("probes")

LIMITS = Limits(memory_mb=256, processes=64, cpu_s=10.0, disk_mb=48)
SECTION = SandboxSection(memory_mb=256, processes=64, cpu_s=10, disk_mb=48)
NAMES = {known.name for known in PROBES}


def a_task(example: Example, middle: str, files: Mapping[str, str]) -> Task:
    body = {
        "task.toml": "[verifier]\ntimeout_sec = 30.0",
        "instruction.md": "answer",
        "solution/solve.sh": example.oracle,
        "tests/want": "42",
        "tests/test.sh": START + middle + END,
        **example.files,
        **files,
    }
    return Task.from_files({path: text.encode() for path, text in body.items()})


async def paid(task: Task, command: str) -> float | None:
    probe_run = ProbeRun(task, BubblewrapProvider(), section=SECTION, agent_s=10.0)
    return (await probe_run.judged(await probe_run.attempt(lambda _: (command, EMPTY), LIMITS))).reward


@pytest.mark.anyio
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
async def test_a_trap_pays_without_the_work_is_named_by_line_and_its_safe_form_pays_for_the_work_alone(
    example: Example,
) -> None:
    trap, safe = a_task(example, example.trap, example.trap_files), a_task(example, example.safe, {})
    named = [(found.rule, found.text) for found in traps_of(trap)]
    assert any(rule == example.rule and example.line in text for rule, text in named), named
    assert [(found.rule, found.line, found.text) for found in traps_of(safe)] == []
    attack = (
        probe(example.attack).acts("out", "", ("total.py",)) if example.attack in NAMES else example.attack
    )
    assert await paid(trap, attack) == 1.0, "it does not pay: not a trap"
    assert await paid(safe, attack) == 0.0
    assert await paid(safe, example.oracle) == 1.0


def test_every_rule_that_pays_has_an_example() -> None:
    pay_nothing = {Rule.UNREADABLE, Rule.DRAWS, Rule.SHELLCHECK, Rule.IMAGE_DATA}
    assert {example.rule for example in EXAMPLES} == set(Rule) - pay_nothing
    assert set(ADVICE) == set(Rule)


def test_the_scripts_of_the_suite_have_no_trap() -> None:
    found = [(t.rule, t.line, t.text) for item in generate("train", 100, seed=5) for t in traps_of(item.task)]
    assert found == []


def script(text: str) -> Task:
    files = {"task.toml": "", "instruction.md": "x", "tests/test.sh": text}
    return Task.from_files({path: body.encode() for path, body in files.items()})


@pytest.mark.parametrize("page", ["task-directory.md", "write-tests.md", "security.md", "start.md"])
def test_the_scripts_of_the_guides_have_no_trap(page: str) -> None:
    text = (Path("ops/guides") / page).read_text()
    scripts = [part.partition("END\n")[0] for part in text.split("tests/test.sh <<'END'\n")[1:]]
    assert [(t.rule, t.text) for s in scripts for t in traps_of(script(s))] == []


@pytest.mark.parametrize(
    "text",
    [
        "n=$(wc -l < out); (( n == 3 )) && echo 1\n",
        'want=$(cat /tests/want); [[ "$(cat out)" == "$want" ]] && echo 1\n',
        "for i in 1 2 3; do echo $(( i * 2 )); done\n",
        "while read -r a b; do (( a + b )); done < /tests/pairs\n",
        "a=$RANDOM b=$RANDOM; echo $((a + b))\n",
        "[ -s out ] && ! grep -q secret out && echo 1\n",
        "head -n 1 out | grep -qx hi && echo 1\n",
        "find . -type f -print0 | xargs -0 sha256sum > /tmp/sums\n",
        "case $1 in -v) echo;; *) echo;; esac\n",
        "python3 -I /tests/check.py && python3 /tests/check.py\n",
        "grep -q 3 /tests/want && echo 1\n",
    ],
)
def test_sound_scripts_cause_no_warning(text: str) -> None:
    assert [(t.rule, t.text) for t in traps_of(script(text))] == []


def test_a_comment_with_a_reason_allows_a_rule_on_its_line_and_the_next_and_none_without() -> None:
    line = "grep -q hi out && echo 1"
    assert [t.line for t in traps_of(script(f"{line}\n"))] == [1]
    assert traps_of(script(f"{line} # penstock-allow PT106: any text with hi will do\n")) == []
    assert traps_of(script(f"# penstock-allow PT104, PT106: any text with hi will do\n{line}\n")) == []
    assert [t.line for t in traps_of(script(f"# penstock-allow PT106:\n{line}\n"))] == [2]
    assert (
        traps_of(
            script(f"\f# page\x0b two\n# penstock-allow PT104, PT106: any text with hi will do\n{line}\n")
        )
        == []
    )
    assert [t.line for t in traps_of(script(f"# penstock-allow PT101: no\n{line}\n"))] == [2]


def test_an_unreadable_script_is_reported() -> None:
    found = traps_of(script("echo one\nif then ((\necho two\n"))
    assert Rule.UNREADABLE in {t.rule for t in found}


def test_shellchecks_own_rules_are_added_where_it_is_installed() -> None:
    (found,) = traps_of(script('for f in $(ls /tests); do echo "$f"; done\n'))
    assert found.rule == Rule.SHELLCHECK and found.says.startswith("SC2045") and "SC2045" in RULES


def test_the_command_warns_by_file_and_line_refuses_only_when_strict_and_speaks_json(tmp_path: Path) -> None:
    script("mkdir -p /logs/verifier\ngrep -q hi out && echo 1 > /logs/verifier/reward.txt\n").write(
        tmp_path / "lax"
    )
    done = CliRunner().invoke(app, ["check", str(tmp_path / "lax")])
    assert done.exit_code == 0 and "tests/test.sh line 2: PT106" in done.output and "safe: " in done.output
    assert "1 task is well-formed" in done.output
    assert CliRunner().invoke(app, ["check", str(tmp_path / "lax"), "--strict"]).exit_code == 1
    answer = json.loads(CliRunner().invoke(app, ["check", str(tmp_path / "lax"), "--json"]).stdout)
    (warning,) = answer["warnings"]
    assert answer["tasks"] == 1 and warning["rule"] == "PT106"
    assert (warning["file"], warning["line"]) == ("tests/test.sh", 2) and warning["safe"]
