"""The orchestrator reads all that a runner or verifier sends, whatever an agent leaves and an error says; files that do not cross are named."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from scaffolds.base import MAX_VERSION, Manifest, Scaffold, ScaffoldKind

from orchestrator.contracts.events import (
    ArtifactFile,
    RolloutFinished,
    StepMark,
    ToolCallTimed,
    VerdictReached,
    decode,
)
from orchestrator.contracts.ids import b64
from orchestrator.contracts.limits import MAX_KEPT_LOG, MAX_PATH, MAX_REASON, MAX_SYSTEM
from orchestrator.contracts.marks import MarkReason
from orchestrator.contracts.states import FailureClass, Left, Replay
from orchestrator.gateway_client import Seal
from orchestrator.pool.leases import Lease
from orchestrator.runner import verify_runner
from orchestrator.runner.attempt_result import AttemptRecord, result_of
from orchestrator.runner.collect import LIST_S, artifacts_of, declared
from orchestrator.runner.gateways import KnownGateway
from orchestrator.runner.outcome import AttemptOutcome
from orchestrator.runner.verify_runner import VerifyRunner
from orchestrator.runner.worker import Worker
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.artifact_blobs import carried, entries
from orchestrator.tasks.artifacts import MAX_BEHIND, limits_of, stayed_behind, too_much
from orchestrator.tasks.collected import CONVENTION, ArtifactSource, only_declared
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.message import Part
from orchestrator.tasks.multi_step import together
from orchestrator.tasks.validate_results import check_result, check_verdict
from sandboxes.base import (
    WORK,
    ArtifactLimits,
    Artifacts,
    ExecResult,
    File,
    KilledBy,
    Limits,
    RefusedReason,
    Sandbox,
    SandboxSpec,
    StoredFile,
)
from sandboxes.bubblewrap import BubblewrapProvider
from tests.builders import a_lease

pytestmark = pytest.mark.anyio

LIMITS = limits_of(SandboxSection())
RUN = "r" * 32
ODD = ["ж" * 100_000, "\0" * 5000, "\ud800" * 5000, "a\nb\t" * 5000]
MARKS = tuple(StepMark(idx=3, reason=reason) for reason in MarkReason)


def seal(steps: int) -> Seal:
    return Seal(
        steps=steps,
        last_idx=steps - 1,
        digest="f" * 64,
        marks=MARKS,
        queued_s=0.0,
        calls=steps,
        exhausted=None,
        sampled_tokens=0,
    )


def sent(
    outcome: AttemptOutcome, left: Sequence[ArtifactFile], limits: ArtifactLimits = LIMITS
) -> RolloutFinished:
    """The result of an attempt, as ingest reads it."""
    manifest = Manifest(
        name="a" * 32, version="v" * MAX_VERSION, kind=ScaffoldKind.BLACK, wire="chat", sha="f" * 64
    )
    found = carried(left, outcome.answer)
    record = AttemptRecord(
        gateway=cast(KnownGateway, None),
        scaffold=Scaffold(manifest, cast(Any, None)),
        artifacts=list(left),
        left=found,
        system="docker.io/" + "s" * 5000,
        tool_calls=[ToolCallTimed(step=0, call=0, name="n" * 100, start=0.0, end=1.0)],
    )
    lease: Lease = _lease("/" + "ж/" * 1000 + "x" * (MAX_PATH - 2001))
    message = result_of(RUN, lease, outcome, seal(4), record, {"agent": 1.0}, limits)
    event = decode(message.body, message.schema, RolloutFinished)
    assert (event.scaffold, event.scaffold_version) == (lease.scaffold, manifest.version)
    assert event.system is not None and len(event.system) == MAX_SYSTEM
    check_result(_with(event, left) if event.listing else event, limits)
    return event


def _lease(scaffold: str) -> Lease:
    return replace(a_lease(), scaffold=scaffold)


def _with(event: RolloutFinished, left: Sequence[ArtifactFile]) -> RolloutFinished:
    return msgspec.structs.replace(event, artifacts=list(left), listing=[])


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_a_result_of_any_words_is_read(odd: str) -> None:
    event = sent(
        AttemptOutcome(
            failure=FailureClass.INFRA_FAILURE,
            reason=odd,
            answer=odd,
            log=odd,
            ungradable=odd,
            resumable=True,
            replay=Replay.DIVERGED,
        ),
        [],
    )
    assert event.reason is not None and len(event.reason) == MAX_REASON and event.reason[-1] == "…"
    assert len(event.log) == MAX_KEPT_LOG


@pytest.mark.parametrize("many", [1, 1000])
@pytest.mark.parametrize(("failure", "graded"), [("completed", True), ("infra_failure", False)])
def test_a_result_that_its_reader_would_refuse_is_sent_without_its_work_and_graded_0(
    failure: str, graded: bool, many: int
) -> None:
    """Refused, it would give the agent another attempt."""
    odd = [ArtifactFile(path=f"../{number}", body=b64(b"x")) for number in range(many)]
    outcome = AttemptOutcome(failure=FailureClass(failure), reason="why", answer="yes")
    event = sent(outcome, odd)
    assert (event.artifacts, event.listing) == ([], [])
    assert event.failure_class == ("policy_failure" if graded else "infra_failure")
    assert (event.ungradable is not None and "not below the work directory" in event.ungradable) is graded


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
@pytest.mark.parametrize("ungradable", [True, False])
async def test_a_verdict_of_any_words_is_read(
    odd: str, ungradable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(*_: object, **__: object) -> tuple[str, list[ArtifactFile], str | None]:
        return "", [], odd if ungradable else None

    async def task(_: object) -> Task:
        raise ValueError(odd)

    monkeypatch.setattr(verify_runner, "transact", read)
    worker = cast(Worker, SimpleNamespace(run=RUN, engine=None, files=SimpleNamespace(task=task)))
    message = await VerifyRunner(worker).verify(a_lease())
    event = decode(message.body, message.schema, VerdictReached)
    check_verdict(event)
    assert event.reason is not None and len(event.reason) == MAX_REASON
    assert event.reward == (0.0 if ungradable else None)


def test_numbers_of_steps_have_a_finite_mean_that_is_exact_where_it_can_be() -> None:
    steps = "".join(f'[[steps]]\nname = "{n}"\n' for n in "abcdef")
    files = {"task.toml": steps.encode()} | {
        f"steps/{n}/{path}": b"exit 0\n" for n in "abcdef" for path in ("instruction.md", "tests/test.sh")
    }
    task = Task.from_files(files)
    found = together(task, [{"reward": 1.0, "large": 1.7e308}] * 6)
    assert found.reward == 1.0 and found.components is not None
    assert found.components["large"] == pytest.approx(1.7e308)


PIPE = RefusedReason.SPECIAL


def changed(**parts: Any) -> Artifacts:
    none: dict[str, Any] = {"added": {}, "modified": {}, "deleted": (), "refused": (), "complete": True}
    return Artifacts(**{**none, **parts})


def collected(count: int, size: int = 0) -> list[ArtifactFile]:
    body = b64(bytes(size))
    return [ArtifactFile(path=f"/tmp/{n}", body=body, kind=Left.COLLECTED) for n in range(count)]


SMALL = ArtifactLimits(files=20, file_bytes=1000, total_bytes=1000, memory_bytes=10)
LEFT: Mapping[str, tuple[Artifacts, list[ArtifactFile], bool]] = {
    "all that fits": (changed(added={"a": File(bytes(1000))}, deleted=tuple(map(str, range(19)))), [], False),
    "files that are gone, and collected ones": (
        changed(deleted=tuple(map(str, range(15)))),
        collected(6),
        True,
    ),
    "links, and collected files": (changed(links={str(n): "x" for n in range(10)}), collected(11), True),
    "directories, and collected files": (
        changed(directories={str(n): 0o700 for n in range(10)}),
        collected(11),
        True,
    ),
    "what stays behind, and collected files": (
        changed(refused=tuple((str(n), PIPE) for n in range(20)), complete=False),
        collected(1),
        True,
    ),
    "targets of links": (changed(links={str(n): "x" * 100 for n in range(11)}), [], True),
    "targets of links, and a file": (changed(added={"a": File(bytes(950))}, links={"b": "ж" * 26}), [], True),
    "targets of links, and collected files": (changed(links={"b": "x" * 501}), collected(1, 500), True),
    "exactly as much": (changed(links={"b": "x" * 500}), collected(1, 500), False),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_a_runner_lets_through_is_within_the_limits_of_its_reader(name: str) -> None:
    difference, more, over = LEFT[name]
    assert (too_much(difference, more, None, SMALL) is not None) is over
    if not over:
        found, _ = entries(difference, more)
        sent(AttemptOutcome(failure=FailureClass.COMPLETED), found, SMALL)


def test_a_file_with_the_name_of_something_that_stays_behind_crosses_once(tmp_path: Path) -> None:
    (tmp_path / "spooled").write_bytes(b"x" * 20)
    stored = StoredFile(source=tmp_path / "spooled", size=20, mode=0o644)
    difference = changed(
        added={"caf\\xe9": stored}, refused=(("caf\udce9", RefusedReason.NAME),), complete=False
    )
    found, _ = entries(difference, [])
    assert [(file.path, file.kind) for file in found] == [("caf\\xe9", Left.FILE)]
    sent(AttemptOutcome(failure=FailureClass.COMPLETED), found)


AGENT = f"""
import os, socket
os.makedirs("{CONVENTION}/seen", exist_ok=True)
for place in ("{CONVENTION}", "/app"):
    os.chdir(place)
    open(b"caf\\xe9.txt", "w").close()
    open("good", "w").write("1")
    os.symlink("good", "link")
    os.mkfifo("pipe")
    socket.socket(socket.AF_UNIX).bind("socket")
    open("new\\nline \\u202e", "w").close()
    for n in range(24):
        os.mkdir("d" * 255)
        os.chdir("d" * 255)
    open("deep", "w").close()
"""
NAMES = {
    f"{CONVENTION}/caf\\xe9.txt": RefusedReason.NAME,
    f"{CONVENTION}/link": RefusedReason.LINK,
    f"{CONVENTION}/pipe": RefusedReason.SPECIAL,
    f"{CONVENTION}/socket": RefusedReason.SPECIAL,
}


async def kept(parts: Mapping[str, Part]) -> None:
    pass


async def test_what_cannot_be_collected_is_left_out_by_name_and_the_rest_crosses() -> None:
    source = ArtifactSource(source=CONVENTION)
    async with BubblewrapProvider().open(SandboxSpec(limits=Limits())) as sandbox:
        made = await sandbox.exec(["python3", "-Ic", AGENT], cwd=WORK)
        assert made.ok, made.stderr
        outcome, left = await artifacts_of(
            sandbox, AttemptOutcome(failure=FailureClass.COMPLETED), "token", LIMITS, kept, sources=[source]
        )
    assert outcome.ungradable is None
    event = sent(outcome, left)
    assert event.listing == []
    there = {file.path: file for file in left if file.path.startswith(CONVENTION)}
    assert {path: there[path].why for path in NAMES} == {path: why.value for path, why in NAMES.items()}
    (deep,) = [file for file in there.values() if file.why == RefusedReason.LONG.value]
    assert deep.path.startswith(f"{CONVENTION}/{'d' * 255}/") and len(deep.path) < MAX_PATH
    assert {path for path, file in there.items() if not file.deleted} == {
        f"{CONVENTION}/good",
        f"{CONVENTION}/new\nline \u202e",
    }
    assert only_declared(left, (source,), WORK, built=False) == list(there.values())
    note = str(stayed_behind(list(there.values())))
    assert note.endswith("did not reach the tests, nor did 4 others") and "caf\\\\xe9.txt' has a name" in note


MANY = "cd {0}; for n in $(seq 1 {1}); do ln -s x link$n; done; echo 1 > good"


@pytest.mark.parametrize("first", [0, 15])
async def test_of_many_that_cannot_be_collected_the_number_is_given(first: int) -> None:
    sources = [ArtifactSource(source="/tmp/first"), ArtifactSource(source="/tmp/then", exclude=("link1",))]
    async with BubblewrapProvider().open(SandboxSpec(limits=Limits())) as sandbox:
        for place, count in (("/tmp/first", first), ("/tmp/then", 31)):
            assert (await sandbox.exec(["bash", "-c", f"mkdir {place}; {MANY.format(place, count)}"])).ok
        left = {file.path: file for file in await declared(sandbox, sources, LIMITS)}
    behind = [file for file in left.values() if file.kind is Left.BEHIND]
    assert len(behind) == MAX_BEHIND + 1
    assert left["/tmp/then/…"].why == f"holds {first + 30 - MAX_BEHIND} more that cannot be copied"
    assert {"/tmp/first/good", "/tmp/then/good"} <= left.keys() and "/tmp/then/link1" not in left
    assert str(stayed_behind(behind)).endswith(f"nor did {first + 29} others")


async def test_entries_with_one_beginning_are_counted_each() -> None:
    deep = "/".join(["d" * 200] * 6)
    made = f"mkdir -p /tmp/a/{deep}; cd /tmp/a/{deep}; for n in 1 2 3 4 5; do mkfifo $n; done"
    async with BubblewrapProvider().open(SandboxSpec(limits=Limits())) as sandbox:
        assert (await sandbox.exec(["bash", "-c", made])).ok
        left = await declared(sandbox, [ArtifactSource(source="/tmp/a")], LIMITS)
    assert len(left) == len({file.path for file in left}) == 5
    assert str(stayed_behind(left)).endswith("nor did 4 others")


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("true", None),
        ("rmdir {0} 2>/dev/null; true", None),
        ("mkdir -p {0}/shut/in; chmod 0 {0}/shut", "holds something that cannot be read"),
        ("rm -rf {0}; echo 1 > {0}", "is not a directory"),
        ("rm -rf {0}; ln -s /app {0}", "is not a directory"),
    ],
)
async def test_a_source_that_cannot_be_read_as_a_whole_is_named(script: str, why: str | None) -> None:
    place = CONVENTION if why == "is not a directory" else "/tmp/out"
    async with BubblewrapProvider().open(SandboxSpec(limits=Limits())) as sandbox:
        made = await sandbox.exec(["bash", "-c", f"mkdir -p {place}; {script.format(place)}"])
        if not made.ok:
            pytest.skip(f"the sandbox does not allow it: {made.stderr!r}")
        left = await declared(sandbox, [ArtifactSource(source=place)], LIMITS)
    assert [(file.path, file.why) for file in left] == ([] if why is None else [(f"{place}/…", why)])


class Listed:
    """A sandbox whose listing ends like this."""

    def __init__(self, **ended: Any) -> None:
        whole: dict[str, Any] = {
            "exit_code": 0,
            "stderr": b"",
            "truncated": False,
            "killed_by": KilledBy.NONE,
        }
        self._ended = ExecResult(**{**whole, "wall_s": 1.0, "cpu_s": 1.0, **ended})

    def path(self, inside: str) -> str:
        return inside

    async def exec(self, *_: object, timeout_s: float, **__: object) -> ExecResult:
        assert timeout_s == LIST_S
        return self._ended


A_FILE = b"files\0/tmp/out/a\0"


@pytest.mark.parametrize(
    ("ended", "why"),
    [
        (
            {"stdout": A_FILE, "killed_by": KilledBy.TIMEOUT, "exit_code": 137},
            "could not be listed to its end (timeout)",
        ),
        ({"stdout": A_FILE + b"end\0", "truncated": True}, "could not be listed to its end"),
        ({"stdout": A_FILE, "exit_code": 137, "signal": 9}, "could not be listed to its end"),
        ({"stdout": b"files\0/tmp/out/en", "exit_code": 0}, "could not be listed to its end"),
        ({"stdout": b"", "exit_code": 127}, "could not be listed to its end"),
        (
            {"stdout": A_FILE + b"end\0", "exit_code": 137},
            "could not be listed, so nothing of it is copied: ''",
        ),
        (
            {"stdout": b"files\0end\0", "exit_code": 127, "stderr": b"sh: find: not found\n\xff"},
            "could not be listed, so nothing of it is copied: 'sh: find: not found\\n\ufffd'",
        ),
    ],
)
async def test_nothing_of_a_list_that_did_not_come_to_its_end_crosses_in_silence(
    ended: dict[str, Any], why: str
) -> None:
    sandbox = cast(Sandbox, Listed(**ended))
    (left,) = await declared(sandbox, [ArtifactSource(source="/tmp/out")], LIMITS)
    assert (left.path, left.kind) == ("/tmp/out/…", Left.BEHIND)
    assert left.why == (why if "nothing" in why else f"{why}, so nothing of it is copied")
    sent(AttemptOutcome(failure=FailureClass.COMPLETED), [left])
