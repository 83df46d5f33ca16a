"""A verdict that was written is a verdict: the reward file counts after every end of the script's own doing, whatever lies next to it."""

import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.contracts.no_verdict import NOTE, NoVerdict
from orchestrator.runner.grade import Grade, GradedWork, _grade_of, grade
from orchestrator.runner.verification_limits import LEDGER_FILE
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.environment import Environment
from sandboxes.base import (
    ExecResult,
    File,
    KilledBy,
    MachineFault,
    Provider,
    Sandbox,
    SandboxError,
    SandboxLost,
    SandboxSpec,
    SandboxSpent,
)
from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.local import LocalProvider

pytestmark = [pytest.mark.anyio, pytest.mark.tier("tasks")]

GUIDE = Path(__file__).parents[3] / "ops/guides/write-tests.md"
PROVIDER = BubblewrapProvider()
V = "/logs/verifier"
REPORT = '{"tests": [], "summary": {"passed": 3}}'
FITS = '[{"name": "a", "passed": true}]'
LONG = "python3 -c 'print([0] * 300_000)' > "


async def graded(
    script: str,
    *,
    timeout_s: float = 300.0,
    provider: Provider = PROVIDER,
    section: SandboxSection | None = None,
) -> Grade:
    work = GradedWork(answer="", artifacts=[], tests={"test.sh": File(script.encode())})
    section = section or SandboxSection()
    return await grade(provider, Environment(files={}), work, section, timeout_s=timeout_s, seed=1)


def written(text: str, name: str) -> str:
    return f"printf %s {shlex.quote(text)} > {V}/{name}"


def odd(name: str) -> st.SearchStrategy[str]:
    """Commands that leave something odd, or nothing, at a file next to the reward."""
    path = f"{V}/{name}"
    texts = st.sampled_from(
        [
            "",
            "{",
            "null",
            "[null]",
            REPORT,
            '[{"name": "a", "passed": 1}]',
            '[{"name": "a", "passed": true, "message": null}]',
            "[" * 3000,
            '{"a": 7}',
            '{"a": 1e999}',
            "\\udcff",
            "\ufeff[]",
        ]
    )
    return st.one_of(
        st.just("true"),
        st.just(f"mkdir -p {path}/deep"),
        st.just(f"ln -s /etc/passwd {path}"),
        st.just(f"mkfifo {path}"),
        st.just(f"head -c 500000 /dev/zero | tr '\\0' x > {path}"),
        st.just(f"echo '[]' > {path}; chmod 0 {path}"),
        texts.map(lambda text: written(text, name)),
        st.text(max_size=30)
        .filter(lambda text: "\0" not in text and text.isprintable())
        .map(lambda text: written(text, name)),
    )


@dataclass(frozen=True, slots=True)
class End:
    command: str
    signal: int


ENDINGS = st.one_of(
    st.integers(0, 255).map(lambda code: End(f"exit {code}", 0)),
    st.sampled_from([1, 2, 6, 9, 11, 14, 15, 24, 25]).map(
        lambda number: End(f"bash -c 'kill -{number} $$'", 0)
    ),
    st.sampled_from([1, 9, 11, 14, 15]).map(lambda number: End(f"kill -{number} $$; sleep 30", number)),
    st.just(End("echo warning >&2; head -c 200000 /dev/zero; false", 0)),
)
REWARDS = st.sampled_from(
    [
        ("1", 1.0),
        ("0", 0.0),
        (" 0.25\n", 0.25),
        ("1e-1", 0.1),
        ("", None),
        ("nan", None),
        ("2", None),
        ("pass", None),
    ]
)
MODES = st.sampled_from(["644", "0", "222", "777"])


@settings(max_examples=60)
@given(
    reward=REWARDS,
    ending=ENDINGS,
    mode=MODES,
    results=odd("results.json"),
    process=odd("process.json"),
    other=odd("reward.json"),
)
@example(("1", 1.0), End("exit 137", 0), "644", "true", "true", "true")
@example(("1", 1.0), End("exit 152", 0), "0", f"{LONG}{V}/results.json", "true", f"mkdir {V}/reward.json")
@example(
    ("0", 0.0),
    End("exit 153", 0),
    "644",
    written(REPORT, "results.json"),
    written('{"a": 7}', "process.json"),
    "true",
)
def test_a_valid_reward_of_a_script_that_ended_by_itself_is_its_verdict(
    reward: tuple[str, float | None], ending: End, mode: str, results: str, process: str, other: str
) -> None:
    # The tests do not name the second reward file, so only the first one counts.
    hidden = other.replace("reward.json", "rew'ard.js'on")
    closed = f"chmod {mode} {V}/reward.txt; chmod 0 {V}"
    lines = (
        f"mkdir -p {V}",
        written(reward[0], "reward.txt"),
        results,
        process,
        hidden,
        closed,
        ending.command,
    )
    script = "\n".join(lines)
    found = anyio.run(graded, script)
    if ending.signal:
        assert (found.reward, found.cause) == (None, NoVerdict.SIGNAL), found
        assert found.reason == f"tests/test.sh was ended by signal {ending.signal}"
    elif reward[1] is None:
        assert (found.reward, found.cause) == (None, NoVerdict.REWARD), found
    else:
        assert (found.reward, found.cause, found.reason) == (reward[1], None, None), found


async def test_what_is_odd_next_to_a_reward_is_noted_in_the_verdicts_log() -> None:
    odd_files = f"{written(REPORT, 'results.json')}; mkdir {V}/process.json; rm -rf /logs/.penstock; mkdir -p /logs/.penstock/programs"
    found = await graded(f"mkdir -p {V}; echo 1 > {V}/reward.txt; {odd_files}; echo seen; exit 137")
    assert (found.reward, found.tests, found.process) == (1.0, (), None)
    *notes, last = found.log.splitlines()
    assert last == "seen" and all(line.startswith(NOTE) for line in notes)
    for sentence in (
        "tests/test.sh ended by itself, with exit status 137",
        "left out: /logs/verifier/results.json: Expected `array`",
        "left out: verifier/process.json: is not a regular file",
        "left out: the record of the agent's programs: .penstock/programs: is not a regular file",
    ):
        assert any(sentence in note for note in notes), notes
    usual = await graded(f"mkdir -p {V}; echo 1 > {V}/reward.txt; {written(FITS, 'results.json')}; exit 1")
    assert usual.log == "" and len(usual.tests) == 1


@pytest.mark.parametrize(
    ("text", "json_text", "reward"),
    [
        ("1", '{"score": 1, "status": "pass"}', 1.0),
        ("0", '{"reward": 0, "failures": []}', 0.0),
        ("1", '{"reward": 0.5, "failures": []}', None),
        ("pass", '{"score": 1, "status": "pass"}', None),
        (None, '{"score": 1, "status": "pass"}', None),
    ],
)
async def test_a_number_next_to_a_description_is_the_verdict_with_a_note(
    text: str | None, json_text: str, reward: float | None
) -> None:
    number = "true" if text is None else written(text, "reward.txt")
    found = await graded(f"mkdir -p {V}; {number}; {written(json_text, 'reward.json')}; exit 0")
    assert found.reward == reward
    if reward is None:
        assert found.cause is NoVerdict.REWARD
        assert found.reason is not None and "/logs/verifier/reward.json: '" in found.reason
    else:
        assert found.log.startswith(f"{NOTE}the reward is the number in /logs/verifier/reward.txt: ")


@pytest.mark.filterwarnings("ignore::sandboxes.local.NoIsolationWarning")
@pytest.mark.parametrize(
    "provider", [BubblewrapProvider(use_cgroups=False), LocalProvider()], ids=["no groups", "local"]
)
async def test_every_way_to_run_the_tests_tells_a_signal_from_an_exit_status(provider: Provider) -> None:
    begin = "mkdir -p $PENSTOCK_LOGS/verifier; echo 1 > $PENSTOCK_LOGS/verifier/reward.txt; "
    rewards = {
        end: (await graded(begin + end, provider=provider)).reward
        for end in ("exit 137", "exit 143", "bash -c 'kill -9 $$'", "kill -9 $$", "kill -TERM $$; sleep 9")
    }
    assert [*rewards.values()] == [1.0, 1.0, 1.0, None, None], rewards


async def test_a_script_whose_memory_ran_out_has_none_although_its_reward_was_written() -> None:
    greedy = "python3 -c 'x = []\nwhile True: x.append(b\"1\" * 10_000_000)'"
    found = await graded(
        f"mkdir -p {V}; echo 1 > {V}/reward.txt; {greedy}; exit 0", section=SandboxSection(memory_mb=64)
    )
    assert (found.reward, found.cause, found.reason) == (
        None,
        NoVerdict.LIMIT,
        "tests/test.sh was ended: memory",
    )


class Left:
    """A sandbox after a test script that wrote its reward."""

    async def get(self, path: str, *, max_bytes: int = 0) -> bytes:
        if not path.endswith("/reward.txt"):
            raise FileNotFoundError(path)
        return b"1"


@pytest.mark.parametrize("limit", [KilledBy.CPU, KilledBy.DISK])
async def test_a_script_that_ended_by_itself_over_its_limit_has_a_verdict_and_one_that_was_ended_has_none(
    limit: KilledBy,
) -> None:
    sandbox = cast(Sandbox, Left())
    work = GradedWork(answer="", artifacts=[], tests={"test.sh": File(b"")})
    result = ExecResult(
        exit_code=137, stdout=b"", stderr=b"", truncated=False, killed_by=limit, wall_s=1.0, cpu_s=1.0
    )
    itself = await _grade_of(sandbox, result, work)
    assert itself.reward == 1.0
    assert itself.log == f"note: tests/test.sh ended by itself, over its limit ({limit.value})\n"
    was_ended = await _grade_of(sandbox, replace(result, signal=9), work)
    assert (was_ended.reward, was_ended.cause) == (None, NoVerdict.LIMIT)


class Unclosing(BubblewrapProvider):
    """A provider whose sandboxes fail as they close."""

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        async with super().open(spec) as sandbox:
            yield sandbox
            ends = sandbox.end_session  # type: ignore[attr-defined]

            async def ends_badly() -> None:
                await ends()
                raise SandboxError("process 5 does not die")

            sandbox.end_session = ends_badly  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("end", "reward", "cause"),
    [
        ("exit 0", 1.0, None),
        ("kill -9 $$", None, NoVerdict.SIGNAL),
        ("rm $PENSTOCK_LOGS/verifier/reward.txt", None, NoVerdict.REWARD),
    ],
)
async def test_a_sandbox_that_cannot_be_closed_changes_nothing_of_what_its_tests_reached(
    end: str, reward: float | None, cause: NoVerdict | None
) -> None:
    ran = 'python3 -I "$PENSTOCK_UNTRUSTED" 5 true'
    found = await graded(f"mkdir -p {V}; echo 1 > {V}/reward.txt; {ran}; {end}", provider=Unclosing())
    assert (found.reward, found.cause, found.programs) == (reward, cause, 1)
    assert found.log.startswith(
        "note: the sandbox of the tests could not be closed: process 5 does not die\n"
    )


class Failing(Left):
    """A sandbox that fails as the reward is read, after programs ran in it, or not."""

    def __init__(self, error: SandboxError, ran: bool) -> None:
        self._error, self._ran = error, ran

    async def get(self, path: str, *, max_bytes: int = 0) -> bytes:
        if path == LEDGER_FILE and self._ran:
            return b"begin 1 0.5\nend 1 0.6 0 0 -\n"
        if path == LEDGER_FILE:
            raise FileNotFoundError(path)
        raise self._error


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (SandboxSpent("its disk"), NoVerdict.SPENT),
        (SandboxError("no process can be started"), NoVerdict.SANDBOX),
        (SandboxLost("killed"), None),
        (MachineFault("no descriptors"), None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
@pytest.mark.parametrize("ran", [True, False])
async def test_a_sandbox_that_fails_as_the_reward_is_read_does_not_hide_that_programs_ran(
    error: SandboxError, cause: NoVerdict | None, ran: bool
) -> None:
    sandbox = cast(Sandbox, Failing(error, ran))
    work = GradedWork(answer="", artifacts=[], tests={"test.sh": File(b"")})
    ended = ExecResult(
        exit_code=0,
        stdout=b"",
        stderr=b"",
        truncated=False,
        killed_by=KilledBy.NONE,
        wall_s=1.0,
        cpu_s=1.0,
    )
    if cause is None or not ran:
        with pytest.raises(type(error)):
            await _grade_of(sandbox, ended, work)
        return
    found = await _grade_of(sandbox, ended, work)
    assert (found.reward, found.cause, found.programs) == (None, cause, 1)
    assert found.reason == cause.of(error)
