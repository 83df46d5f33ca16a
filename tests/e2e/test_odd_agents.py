"""Drawn texts, 1 to 100,000 characters of every kind, in everything that an agent can name or write, on a running stack.

Each request gets a clear answer, each rollout ends, the next ordinary one is served, no process ends, and the auditor finds nothing. The policy is
scripted, so that its replies are drawn as well, and so that a context may have as many tokens as a long text.
"""

import json
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator.contracts.events import TaskSubmitted
from orchestrator.contracts.states import Purpose
from orchestrator.publish import publish_tasks
from orchestrator.scripted.reply import TURN, Reply
from orchestrator.scripted.server import ScriptedServer
from orchestrator.scripted.services import CONTEXT
from orchestrator.tasks.harbor import Task
from tests.e2e.observer import PATIENCE_S, Observer, observing
from tests.e2e.odd_program.texts import FILES, text, texts
from tests.e2e.stack_rig import Stack, until
from tests.violations import command_found_nothing

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(1200), pytest.mark.tier("stacks")]

SEED = 11
HERE = Path(__file__).parent
PROGRAM_PARTS = ("chat", "responses", "messages", "native", "files")
CALL_PARTS = ("calls", "answer", "fault", "error")
COMMANDS = "Odd commands"  # the built-in shell, whose policy draws its commands
NEXT = "Say 1."
TURNS = 8
LONGEST_REPLY, LONGEST_COMMAND = 20_000, 900
KINDS = (
    "incompressible",
    "multi-byte",
    "control characters",
    "U+0000",
)  # a reply of tokens has no lone surrogates
SETTINGS = (
    "queue.breaker_rate=1.0",  # failures are the test's doing
    "queue.max_attempts=2",
    "gateway.canary_tolerance=1000",  # the script has no weights
    "stage.max_turns=2000",
    "stage.max_context=200000",
    "sampling.max_new_tokens=30000",
    "rollout.timeout_s=900",
    "rollout.completion_s=900",
    "rollout.tool_timeout_s=20",
    "rollout.lease_ttl_s=60",
    "servers.silence_s=60",  # it tokenizes long replies in the loop of this process
)
TEST = b"""find . -type f -exec head -c 100000 {} + | head -c 1000000; find . -print0 | tr '\\0' ' '
mkdir -p /logs/verifier; echo 0.5 > /logs/verifier/reward.txt
"""


def replies(prompt: str) -> Reply:
    """One of four is drawn; a plain question gets a plain answer, the built-in shell a drawn command for each turn."""
    turn = prompt.count(TURN)
    if COMMANDS in prompt:
        dice = random.Random(f"{SEED}:{turn}")
        return drawn_command(dice, LONGEST_COMMAND) if turn < TURNS else Reply(text=text(dice, KINDS[1], 300))
    dice = random.Random(f"{SEED}:{len(prompt)}")
    if "Say 1." in prompt or (lot := dice.random()) < 0.75:
        return Reply(text="done")
    return drawn_reply(dice, LONGEST_REPLY) if lot < 0.9 else Reply(raw=text(dice, dice.choice(KINDS), 1_000))


def drawn_reply(dice: random.Random, longest: int) -> Reply:
    """Words of each kind in its text, and as the name and the arguments of a call."""
    words = [text(dice, kind, dice.choice([1, 30, longest // 3])) for kind in KINDS]
    words.append(text(dice, dice.choice(KINDS), longest))
    dice.shuffle(words)
    return Reply(text=words[0], calls=[(words[1], {words[2]: words[3]}), ("bash", {"command": words[4]})])


def drawn_command(dice: random.Random, longest: int) -> Reply:
    """The same, but a call that the built-in shell runs."""
    reply = drawn_reply(dice, longest)
    (_, more), (name, given) = reply.calls
    return Reply(text=reply.text, calls=[(name, {**more, "command": f": {given['command']}"})])


def a_task(instruction: str) -> Task:
    return Task.from_files(
        {
            "task.toml": b'[metadata]\ndomain = "general"\n',
            "instruction.md": instruction.encode(),
            "tests/test.sh": TEST,
        }
    )


def with_a_long_context(model: Path, directory: Path) -> Path:
    """A copy of the policy whose contexts may have as many tokens as a long text."""
    copied = Path(shutil.copytree(model, directory / "long"))
    for name, key in (
        ("config.json", "max_position_embeddings"),
        ("tokenizer_config.json", "model_max_length"),
    ):
        content = json.loads((copied / name).read_text())
        (copied / name).write_text(json.dumps({**content, key: CONTEXT}))
    return copied


def scaffolds(directory: Path) -> tuple[str, str]:
    """(the program, the scaffold next to the runner), each in a directory that sandboxes can read."""
    calls = directory / "calls"
    calls.mkdir()
    shutil.copy(HERE / "odd_calls.py", calls)
    program = shutil.copytree(HERE / "odd_program", directory / "program", ignore=lambda *_: ["__pycache__"])
    return str(program), str(calls)


def named(instruction: str) -> str:
    """The id of its submission."""
    return instruction.replace(" ", "-").replace(".", "")


async def publish(seen: Observer, wanted: dict[str, str]) -> None:
    """Publish instruction → scaffold, a group of one rollout each."""
    events = []
    for instruction, scaffold in wanted.items():
        submission = named(instruction)
        seen.ledger.append(submission)
        task = a_task(instruction).to_message()
        event = TaskSubmitted(task=task, submission=submission, purpose=Purpose.RECORD, scaffold=scaffold)
        events.append(("general", event))
    answers = await publish_tasks(seen.bus, seen.run, events, timeout_s=PATIENCE_S)
    assert set(answers.values()) == {("accepted", None)}, answers


ROLLOUTS = """select g.submission, r.rollout_id, r.state, a.failure_class, a.reason, a.answer,
  (select count(*) from steps s where s.rollout_id = r.rollout_id) as steps from groups g join rollouts r using (group_id)
  left join attempts a on a.rollout_id = r.rollout_id and a.attempt = r.attempt where g.run_id = :run"""
OPEN = "select count(*) from rollouts where run_id = :run and state not in ('verified', 'lost')"


async def ended(seen: Observer) -> bool:
    return bool(await seen.value(OPEN) == 0)


async def test_drawn_texts_in_everything_that_an_agent_names_or_writes_leave_the_run_whole(
    stack: Stack, model: Path, record_property: Callable[[str, object], None]
) -> None:
    program, calls = scaffolds(stack.directory)
    odd = {f"{part} {SEED}": program for part in PROGRAM_PARTS} | {
        f"{part} {SEED}": calls for part in CALL_PARTS
    }
    odd |= {f"{part} {SEED + 1}": calls for part in ("answer", "fault")} | {f"files {SEED + 1}": program}
    odd |= {f"{COMMANDS} {SEED}": "shell"}
    stack.configure(
        with_a_long_context(model, stack.directory),
        batches=1,
        more=f'scaffolds = {{ "shell" = 1.0, "{program}" = 0.1, "{calls}" = 0.1 }}\n',
    )
    async with ScriptedServer(stack.directory / "long", replies).serving() as server:
        await stack.up(
            *(part for each in (*SETTINGS, f'servers.urls=["{server.url}"]') for part in ("--set", each))
        )
        async with observing(stack.home) as seen:
            await publish(seen, odd)
            await until(partial(ended, seen), "every odd rollout has ended", 4 * PATIENCE_S)
            await publish(seen, {NEXT: "shell"})
            await until(partial(ended, seen), "the next one has ended", PATIENCE_S)
            rows = {row.submission: row for row in await seen.rows(ROLLOUTS)}
            cases, ends = of_rollouts(rows)
            artifacts = await seen.value("select count(*) from artifacts where run_id = :run")
            untold = "select count(*) from dead_letters where run_id = :run and coalesce(reason, '') = ''"
            assert await seen.value(untold) == 0
            await seen.nothing_lost()
            restarts = {process.name: process.restarts for process in stack.status().processes}
            command_found_nothing(stack.penstock("audit", timeout_s=PATIENCE_S))
        assert not any(restarts.values()), restarts
        assert rows[named(NEXT)].failure_class == "completed"
        assert artifacts > FILES // 4  # most names are no UTF-8, and such files do not cross
        record_property("cases", cases)
        print(json.dumps({"cases": cases, "ends": ends}))
        assert stack.signalled(signal.SIGTERM) == 0
    unforeseen = [each for each in stack.tracebacks() if "odd_calls.py" not in each]
    assert (unforeseen, stack.left_running(), stack.sandboxes_left()) == ([], [], [])


def of_rollouts(rows: dict[str, Any]) -> tuple[int, Counter[str]]:
    """(the number of cases, the answers by kind). Each odd request had a clear answer."""
    ends, unclear = Counter[str](), list[str]()
    for part in (*PROGRAM_PARTS[:-1], "calls"):
        row = rows[named(f"{part} {SEED}")]
        assert row.failure_class == "completed", row
        found = json.loads(row.answer)
        ends.update(found["answers"])
        unclear += [f"{part}: {each}" for each in found["unclear"]]
    assert not unclear, unclear[:20]
    assert ends["200"] > 100 and ends["400"] > 20 and ends["done"] > 20, ends
    assert {rows[named(f"files {seed}")].failure_class for seed in (SEED, SEED + 1)} == {"completed"}, rows
    steps = rows[named(f"{COMMANDS} {SEED}")].steps
    assert 1 <= steps <= TURNS, rows[named(f"{COMMANDS} {SEED}")]
    contents = len([*texts(random.Random(SEED))])
    left = (
        2 * (FILES + 3 * contents) + steps + len(CALL_PARTS) + 1
    )  # files and outputs, turns of the shell, ends
    return sum(ends.values()) + left, ends
