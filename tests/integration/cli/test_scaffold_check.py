"""`penstock scaffold check`: the guide's examples pass it, and a scaffold that does something wrong does not."""

from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
import scaffolds.examples
from scaffolds.examples import agent

from orchestrator.scaffold_check.run import check
from orchestrator.scaffold_check.scenarios import Finding

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(400), pytest.mark.tier("stacks")]

EXAMPLES = Path(scaffolds.examples.__file__).parent


async def findings(name: str, only: Collection[str]) -> tuple[bool, Mapping[str, Finding]]:
    found: list[Finding] = []
    passed = await check(name, found.append, only=only, silence_s=6.0, timeout_s=60.0, provider="bubblewrap")
    assert passed == all(finding.verdict != "FAIL" for finding in found)
    return passed, {finding.question: finding for finding in found}


async def test_the_guides_manifest_passes_every_question() -> None:
    passed, found = await findings(str(EXAMPLES), ())
    assert passed, found
    assert {q for q, f in found.items() if f.verdict == "n/a"} <= {
        "stream",
        "concurrent sub-agent",
        "compaction",
    }
    assert len(found) == 17


@pytest.mark.parametrize("file", ["black_box.py", "white_box.py"])
async def test_the_guides_classes_do_their_task_and_survive_a_refusal_and_parallel_calls(file: str) -> None:
    passed, found = await findings(str(EXAMPLES / file), ("unavailable", "parallel_tools", "unknown_session"))
    assert passed and found["one task, to a verdict"].verdict == found["zero drift"].verdict == "pass", found


async def test_a_program_with_bad_manners_fails_where_they_are_bad(tmp_path: Path) -> None:
    """It runs only the first of several calls, stops at the first refusal, and requests a title without declaring so."""
    source = Path(agent.__file__).read_text()
    rude = source.replace('in reply["tool_calls"]:', 'in reply["tool_calls"][:1]:').replace(
        "TRIES = 30", "TRIES = 1"
    )
    title = '    global BASH\n    tool, BASH = BASH, None\n    complete([{"role": "user", "content": "name this"}])\n    BASH = tool\n'
    rude = rude.replace('"tools": [BASH]}', '"tools": [BASH] if BASH else []}').replace(
        "def main() -> None:\n", "def main() -> None:\n" + title
    )
    (tmp_path / "agent.py").write_text(rude)
    (tmp_path / "scaffold.toml").write_text((EXAMPLES / "scaffold.toml").read_text())
    passed, found = await findings(str(tmp_path), ("unavailable", "parallel_tools", "disconnect"))
    assert not passed
    failed = {question for question, finding in found.items() if finding.verdict == "FAIL"}
    assert failed == {"auxiliary calls", "5xx", "parallel tools", "disconnect"}, found
    assert "'name this'" in found["auxiliary calls"].detail


async def test_a_side_conversation_is_reported_to_take_turns_and_not_to_train(tmp_path: Path) -> None:
    source = Path(agent.__file__).read_text()
    title = '    complete([{"role": "user", "content": "name this"}])\n    with open("/logs/answer.txt"'
    (tmp_path / "agent.py").write_text(source.replace('    with open("/logs/answer.txt"', title))
    (tmp_path / "scaffold.toml").write_text((EXAMPLES / "scaffold.toml").read_text())
    _, found = await findings(str(tmp_path), ("task",))
    assert found["auxiliary calls"].verdict == "FAIL"
    assert found["auxiliary calls"].detail == (
        "1 call takes a turn and does not train (side_conversation), the first begins with 'name this': "
        'name such calls in `auxiliary`, or say conversations = "many"'
    )


async def test_a_program_that_compresses_its_requests_passes(tmp_path: Path) -> None:
    source = Path(agent.__file__).read_text()
    packed = source.replace(
        '"tools": [BASH]}).encode()', '"tools": [BASH]}).encode()\n    body = gzip.compress(body)'
    )
    packed = packed.replace("import json\n", "import gzip\nimport json\n", 1)
    packed = packed.replace('"Content-Type": ', '"Content-Encoding": "gzip", "Content-Type": ')
    assert packed.count("gzip") == 3
    (tmp_path / "agent.py").write_text(packed)
    (tmp_path / "scaffold.toml").write_text((EXAMPLES / "scaffold.toml").read_text())
    passed, found = await findings(str(tmp_path), ("task", "unavailable"))
    assert passed and found["one task, to a verdict"].verdict == found["5xx"].verdict == "pass", found


async def test_an_unknown_question_and_a_program_that_is_not_there_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown question 'x'; known: task, unknown_session"):
        await findings(str(EXAMPLES), ("x",))
    (tmp_path / "requirements.lock").write_text("absent==1\n")
    (tmp_path / "scaffold.toml").write_text(
        'name = "absent"\nversion = "1"\nargv = ["x"]\n[program]\npython = "requirements.lock"\ninside = "/opt/absent"\n'
    )
    with pytest.raises(ValueError, match="is not installed on this machine: run `penstock scaffold install"):
        await findings(str(tmp_path), ())
