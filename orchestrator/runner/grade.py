"""Grades an attempt's work: pristine environment + artifacts + tests + answer, in a fresh sandbox → tests/test.sh → reward file.

The only way to a verdict: the verifier runner uses it for rollouts, the probes and the checks of tasks for their attempts.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

from orchestrator.contracts.events import ArtifactFile, TestResult
from orchestrator.contracts.limits import MAX_KEPT_LOG
from orchestrator.contracts.network import Access
from orchestrator.contracts.no_verdict import NOTE, NoVerdict
from orchestrator.runner.kept_log import kept_log
from orchestrator.runner.open_sandbox import open_sandbox
from orchestrator.runner.verification_limits import (
    LEDGER_BYTES,
    LEDGER_FILE,
    Programs,
    draws,
    names_programs,
    programs,
    verification_limits,
    wrapper,
)
from orchestrator.runtime.log import get
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.artifact_modes import placeable
from orchestrator.tasks.artifacts import stayed_behind, with_artifacts
from orchestrator.tasks.collected import ANSWER_PATH
from orchestrator.tasks.environment import Environment
from orchestrator.tasks.verdict import (
    ANSWER_VARIABLE,
    LOGS_VARIABLE,
    PROCESS_FILE,
    RESULTS_FILE,
    REWARD_FILE,
    REWARD_JSON,
    SIGNALLED,
    TESTS_DIR,
    UNTRUSTED_FILE,
    UNTRUSTED_LIMITS,
    UNTRUSTED_VARIABLE,
    Described,
    Scores,
    parse_process,
    parse_results,
    parse_reward,
    shell_options,
)
from sandboxes.base import (
    AnyFile,
    ExecResult,
    File,
    KilledBy,
    MachineFault,
    PathRefused,
    Provider,
    RefusedReason,
    Sandbox,
    SandboxError,
    SandboxLost,
    SandboxSpent,
)
from sandboxes.text_files import left_text

ANSWER_FILE: Final = ANSWER_PATH
"""Path of the final message for the tests (empty without one); `$PENSTOCK_ANSWER` names it."""
LOGS_DIR: Final = "/logs"
MAX_TESTS: Final = 1000
REWARD_BYTES: Final = 64 << 10
"""`MAX_SIGNALS` names of `MAX_NAME` characters fit, each written as JSON escapes, with indentation."""
RESULTS_BYTES: Final = 400_000
PROCESS_BYTES: Final = 400_000
WRAPPER: Final = wrapper()
"""`$PENSTOCK_UNTRUSTED` and its imports, as files next to the tests."""
T = TypeVar("T")
log = get(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedWork:
    """The graded work and its tests. `stored`: the content of the artifacts that lie in blobs, by path. `tests`: path relative to /tests → body,
    including `test.sh`; `tests_links`, `tests_modes`: links and directories there.
    `env`: the task's variables for the tests. `performance`: the name of the number that is the reward, `partial`: the work is
    one step of several (`verdict.parse_reward`). `access`: what the tests may reach; None: no network."""

    answer: str
    artifacts: Sequence[ArtifactFile]
    tests: Mapping[str, AnyFile]
    tests_links: Mapping[str, str] = field(default_factory=dict)
    tests_modes: Mapping[str, int] = field(default_factory=dict)
    stored: Mapping[str, AnyFile] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    performance: str = ""
    partial: bool = False
    access: Access | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """The result of the test script. `reward` is None without a verdict, and `cause` and `reason` explain. `reason` also explains a reward of 0
    after a program under test used up a limit, or when some artifacts did not reach the tests. `exit_code`, `killed_by` and `log` are the script's;
    at the log's head, notes name what was odd and changed nothing. `programs`: how many ran under the wrapper. `wall_s`: seconds of the script.
    `components`: the named numbers of `reward.json`, None without any."""

    reward: float | None
    exit_code: int
    log: str
    wall_s: float = 0.0
    cause: NoVerdict | None = None
    killed_by: KilledBy = KilledBy.NONE
    reason: str | None = None
    tests: tuple[TestResult, ...] = ()
    programs: int = 0
    process: dict[str, float | list[float]] | None = None
    components: dict[str, float] | None = None


async def grade(
    provider: Provider,
    pristine: Environment,
    work: GradedWork,
    section: SandboxSection,
    *,
    timeout_s: float,
    seed: int,
) -> Grade:
    """Run the tests on an attempt's work. `section`: the limits of programs under test; the script's own limits are higher. `timeout_s` is the
    script's time, `seed` the source of its random draws.

    SandboxError and SandboxFull when the platform fails, ValueError or PathRefused when the files cannot be placed.
    """
    # Where they have no place, a reward of 0 says so.
    work = replace(work, artifacts=placeable(work.artifacts, built=pristine.build is not None))
    environment, tests = with_artifacts(pristine, work.artifacts, work.stored), work.tests
    held = verification_limits(
        section,
        timeout_s,
        environment,
        private=provider.isolated,
        tests_bytes=sum(file.size for file in tests.values()),
    )
    variables, drawn = draws(seed)
    files = dict(environment.files)
    files |= {f"{TESTS_DIR}/{path}": file for path, file in tests.items()}
    files |= WRAPPER | drawn | {UNTRUSTED_LIMITS: held.programs}
    files[ANSWER_FILE] = File(work.answer.encode(errors="replace"))
    # Processes that outlive the tests could change the verdict.
    spec = environment.spec(files, held.limits)
    links = {f"{TESTS_DIR}/{path}": target for path, target in work.tests_links.items()}
    modes = {f"{TESTS_DIR}/{path}": mode for path, mode in work.tests_modes.items()}
    spec = replace(spec, links={**spec.links, **links}, modes={**spec.modes, **modes}, background=False)
    variables |= {ANSWER_VARIABLE: ANSWER_FILE, LOGS_VARIABLE: LOGS_DIR, UNTRUSTED_VARIABLE: UNTRUSTED_FILE}
    found: Grade | None = None
    try:
        async with open_sandbox(provider, spec, work.access) as sandbox:
            command = ["bash", *_options(tests), f"{TESTS_DIR}/test.sh"]
            result = await sandbox.exec(command, timeout_s=timeout_s, env={**work.env, **variables})
            found = await _grade_of(sandbox, result, work)
    except (SandboxError, OSError, ExceptionGroup) as error:
        # What the tests reached, or why they reached nothing, holds: it also says that programs of the agent's ran.
        if found is None:
            raise
        log.warning("grade.sandbox_not_closed", error=str(error))
        found = _noted(found, [f"the sandbox of the tests could not be closed: {error}"])
    return found


async def _grade_of(sandbox: Sandbox, result: ExecResult, work: GradedWork) -> Grade:
    """The reward files that the script left, read after its end."""
    notes: list[str] = []
    ran = await _programs(sandbox, result, notes, wrapped=names_programs(work.tests, UNTRUSTED_VARIABLE))
    found = Grade(
        reward=None,
        exit_code=result.exit_code,
        killed_by=result.killed_by,
        log=kept_log(result),
        wall_s=result.wall_s,
        programs=ran.count,
    )
    if blamed := ran.blamed(result.killed_by, result.wall_s):
        return _answered(found, f"reward 0: {blamed}")
    if result.killed_by is not KilledBy.NONE and result.signal:
        return _without(found, NoVerdict.LIMIT, result.killed_by.value)
    if result.signal:
        return _without(found, NoVerdict.SIGNAL, result.signal)
    try:
        return await _verdict_of(sandbox, result, work, found, notes)
    except (SandboxLost, MachineFault):
        raise
    except SandboxError as error:
        if not ran.count:  # whether the agent's files are why, the tests over nothing show
            raise
        return _without(found, why_failed(error), error)


async def _verdict_of(
    sandbox: Sandbox, result: ExecResult, work: GradedWork, found: Grade, notes: list[str]
) -> Grade:
    """The verdict of a script that ended by itself."""
    try:
        scores = await _scores(sandbox, work)
    except (ValueError, PathRefused) as error:
        return _without(found, NoVerdict.REWARD, error)
    if result.killed_by is not KilledBy.NONE:
        notes.append(f"tests/test.sh ended by itself, over its limit ({result.killed_by.value})")
    elif result.exit_code >= SIGNALLED:
        notes.append(f"tests/test.sh ended by itself, with exit status {result.exit_code}")
    if scores.note is not None:
        notes.append(scores.note[:500])
    results = await _optional(sandbox, RESULTS_FILE, RESULTS_BYTES, parse_results, notes) or []
    if len(results) > MAX_TESTS:
        notes.append(f"left out: {len(results) - MAX_TESTS:,} of {len(results):,} tests of {RESULTS_FILE}")
    process = await _optional(sandbox, PROCESS_FILE, PROCESS_BYTES, parse_process, notes)
    found = replace(found, tests=tuple(results[:MAX_TESTS]), process=process, components=scores.components)
    found = _noted(found, notes)
    if scores.reward == 0.0 and (behind := stayed_behind(work.artifacts)):
        return _answered(found, f"reward 0, but the tests saw only part of the work: {behind}")
    return replace(found, reward=scores.reward)


async def _scores(sandbox: Sandbox, work: GradedWork) -> Scores:
    """The reward from the file that counts. The other one is not looked at, except next to a description: it changes nothing, whatever it is.
    ValueError, PathRefused."""
    text, reward_json = None, None
    named = names_programs(work.tests, REWARD_JSON.rpartition("/")[2])
    if named:
        reward_json = await _text(sandbox, REWARD_JSON, REWARD_BYTES)
    if reward_json is None:
        text = await _text(sandbox, REWARD_FILE, REWARD_BYTES)
    if text is None and not named:
        reward_json = await _text(sandbox, REWARD_JSON, REWARD_BYTES)
    parse = partial(parse_reward, named=named, performance=work.performance, partial=work.partial)
    try:
        return parse(text, reward_json)
    except Described:
        if not named:  # a text does not exist
            raise
        with suppress(ValueError, PathRefused):
            text = await _text(sandbox, REWARD_FILE, REWARD_BYTES)
        return parse(text, reward_json)


async def _optional(
    sandbox: Sandbox, path: str, most: int, parse: Callable[[str | None], T], notes: list[str]
) -> T | None:
    """The content of a file that a verdict need not have, None if it cannot be used: a note explains. Otherwise a long wrong answer quoted in it
    would remove the rollout from its group."""
    try:
        return parse(await _text(sandbox, path, most))
    except (ValueError, PathRefused, RecursionError) as error:
        notes.append(f"left out: {error}"[:500])
        return None


def why_failed(error: SandboxError) -> NoVerdict:
    """The cause of a verification whose sandbox failed."""
    match error:
        case SandboxSpent():
            return NoVerdict.SPENT
        case SandboxLost():
            return NoVerdict.LOST
        case MachineFault():
            return NoVerdict.MACHINE
        case _:
            return NoVerdict.SANDBOX


def _options(tests: Mapping[str, AnyFile]) -> tuple[str, ...]:
    try:
        return shell_options(tests["test.sh"].data)
    except ValueError:  # the task was accepted before this check existed
        return ()


def _without(found: Grade, cause: NoVerdict, detail: object) -> Grade:
    return replace(found, cause=cause, reason=cause.of(detail))


def _noted(found: Grade, notes: Sequence[str]) -> Grade:
    lines = "".join(f"{NOTE}{note}\n" for note in notes)
    return replace(found, log=f"{lines}{found.log}"[:MAX_KEPT_LOG])


def _answered(found: Grade, reason: str) -> Grade:
    """Reward 0, with the reason at the head of the log, which is stored with the verdict."""
    return replace(found, reward=0.0, reason=reason, log=f"{reason}\n{found.log}"[:MAX_KEPT_LOG])


async def _programs(sandbox: Sandbox, ended: ExecResult, notes: list[str], *, wrapped: bool) -> Programs:
    """The agent's programs that ran under the wrapper. `wrapped`: whether the tests mention it."""
    try:
        return programs(await _text(sandbox, LEDGER_FILE, LEDGER_BYTES))
    except (ValueError, PathRefused) as error:  # the script has replaced it
        notes.append(f"left out: the record of the agent's programs: {error}"[:500])
        return Programs(count=int(wrapped))
    except SandboxSpent:  # the sandbox was ended as a whole, so the ledger cannot be read
        if not wrapped or ended.killed_by is KilledBy.NONE:
            raise
        return Programs(count=1, running=True, at_s=ended.wall_s)


async def _text(sandbox: Sandbox, path: str, max_bytes: int) -> str | None:
    """The text of a file, None without one. PathRefused; ValueError if it is larger than `max_bytes`, which the sentence names."""
    try:
        return left_text(await sandbox.get(path, max_bytes=max_bytes))
    except FileNotFoundError:
        return None
    except PathRefused as error:
        if error.reason is not RefusedReason.TOO_LARGE:
            raise
        raise ValueError(f"{path} is larger than {max_bytes:,} bytes: write less into it") from None
