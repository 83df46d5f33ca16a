"""Late, duplicate, contradictory and forged messages on real streams: refused with a reason or counted, and nothing is changed.

First one by one, each with the sentence that it is refused with; then anything at all (hypothesis makes it), beside which good ones pass.
"""

import json
import os
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from orchestrator.bus import subjects
from orchestrator.bus.base import Outgoing
from orchestrator.clock import clock
from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.events import (
    EVENTS,
    ArtifactFile,
    Event,
    PolicyPublished,
    RolloutFinished,
    StepMark,
    StepRecorded,
    TaskSubmitted,
    ToolCallTimed,
    VerdictReached,
    VersionSpan,
    decode,
    encode,
)
from orchestrator.contracts.ids import NO_PARENT, b64, chain_sha, ids_to_bytes, logprobs_to_bytes
from orchestrator.embedded.nats import EmbeddedNats
from orchestrator.flow.ingest import ingest_results, ingest_steps, ingest_verdicts
from orchestrator.flow.intake import Intake
from orchestrator.flow.plausible import check_result, check_verdict
from orchestrator.flow.stale import MOST, Stale
from orchestrator.gateway.metrics import Metrics
from orchestrator.gateway.sync import PublishedVersions
from orchestrator.pool.ingest import decode_step
from orchestrator.pool.leases import Lease
from tests.integration.flow_rig import TASK, Stage, playing, staged, until
from tests.integration.pool_rig import (
    Tree,
    builders,
    counter,
    ended,
    engine,
    resealed,
    rollout_row,
    running,
    small,
)

__all__ = ["engine"]
pytestmark = [pytest.mark.anyio, pytest.mark.services]

EXAMPLES = int(os.environ.get("PENSTOCK_FUZZ_EXAMPLES", "60"))
hurried = settings(deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture
async def stage(engine: AsyncEngine, nats_server: EmbeddedNats) -> AsyncIterator[Stage]:
    async with staged(engine, nats_server.url) as stage:
        yield stage


SHA = "ab" * 32
FORGED_RESULTS: list[tuple[dict[str, Any], str]] = [
    ({"steps": -1, "last_idx": -2}, "steps is -1, it must not be negative"),
    ({"steps": 3, "last_idx": 5, "digest": SHA}, "last_idx is 5 after 3 steps: a session counts them without gaps"),
    ({"steps": 1, "last_idx": 0, "digest": "xyz"}, "digest is not the hex of a sha256"),
    ({"steps": 1, "last_idx": 0, "digest": SHA.upper()}, "digest is not the hex of a sha256"),
    ({"agent_s": -1.0}, "agent_s is -1.0, it must be seconds from 0 on"),
    ({"agent_s": 1e300}, "agent_s is 1e+300, it must be seconds"),
    ({"queued_s": -0.5}, "queued_s is -0.5, it must be seconds from 0 on"),
    ({"spent": {"agent": -1.0}}, "spent on 'agent' is -1.0, it must be seconds from 0 on"),
    ({"spent": {"lunch": 1.0}}, "spent has 'lunch', the phases are session, sandbox, agent, changes, seal, other"),
    ({"marks": [StepMark(4, "undelivered")]}, "step 4 is marked, of 0 steps"),
    ({"marks": [StepMark(-1, "undelivered")]}, "step -1 is marked, of 0 steps"),
    ({"artifacts": [ArtifactFile("../../etc/passwd", "eA==")]}, "an artifact lies at '../../etc/passwd', which is not below"),
    ({"artifacts": [ArtifactFile("/etc/passwd", "eA==")]}, "an artifact lies at '/etc/passwd', which is not below"),
    ({"artifacts": [ArtifactFile("a//b", None)]}, "an artifact lies at 'a//b', which is not below the work directory"),
    ({"artifacts": [ArtifactFile("a", "no base64!")]}, "an artifact is not base64"),
    ({"artifacts": [ArtifactFile("a", "eA==", 0o4755)]}, "an artifact has mode 4755"),
    ({"artifacts": [ArtifactFile("a", "eA=="), ArtifactFile("a", "eQ==")]}, "an artifact comes twice"),
    ({"artifacts": [ArtifactFile(str(n), "") for n in range(501)]}, "501 artifacts of 0 bytes are more than may cross"),
    ({"artifacts": [ArtifactFile("a", "AAAA" * 140_000)]}, "1 artifacts of 420,000 bytes are more than may cross"),
    ({"tool_calls": [ToolCallTimed(-1, 0, "bash", 0.0, 1.0)]}, "there is no tool call 0 of step -1"),
    ({"tool_calls": [ToolCallTimed(0, 0, "bash", -9.0, 1.0)]}, "a tool call's start is -9.0"),
    ({"failure_class": "glory"}, "failure_class is 'glory', it must be one of"),
    ({"failure_class": "poison"}, "failure_class is 'poison', it must be one of"),
    ({"run": "another"}, "names run 'another' but came on the subject of"),
    ({"epoch": 0}, "there is no rollout"),
    ({"epoch": 2**40}, "there is no rollout"),
    ({"attempt": -1}, "there is no rollout"),
    ({"rollout": 0}, "there is no rollout 0, attempt 1, epoch 1"),
]  # fmt: skip
FORGED_VERDICTS: list[tuple[dict[str, Any], str]] = [
    ({"reward": -0.1}, "reward is -0.1, it must lie in [0, 1]"),
    ({"reward": 1.0000001}, "reward is 1.0000001, it must lie in [0, 1]"),
    ({"reward": None}, "reward is None, it must lie in [0, 1]"),
    ({"failure_class": "verifier_failure", "reward": 1.0}, "a verification that ended as 'verifier_failure' has no reward, and it says 1.0"),
    ({"failure_class": "infra_failure", "reward": 0.0}, "a verification that ended as 'infra_failure' has no reward"),
    ({"failure_class": "timeout", "reward": None}, "failure_class is 'timeout', it must be one of"),
    ({"verify_s": -1.0}, "verify_s is -1.0, it must be seconds from 0 on"),
    ({"exit_code": 2**40}, "exit_code is 1099511627776"),
    ({"run": "another"}, "names run 'another' but came on the subject of"),
    ({"epoch": -3}, "there is no rollout"),
]  # fmt: skip
WORDS_OF_NO_NUMBER = [b"NaN", b"Infinity", b"-Infinity", b"1e999", b'"1.0"', b"[1]", b"true"]

EVERYTHING = """SELECT (SELECT string_agg(t::text, ';' ORDER BY rollout_id) FROM rollouts t),
    (SELECT string_agg(t::text, ';' ORDER BY rollout_id, attempt) FROM attempts t), (SELECT string_agg(t::text, ';') FROM groups t),
    (SELECT count(*) FROM steps), (SELECT count(*) FROM verdicts), (SELECT count(*) FROM rewards), (SELECT count(*) FROM artifacts),
    (SELECT count(*) FROM step_marks), (SELECT count(*) FROM tool_calls), (SELECT count(*) FROM transitions),
    (SELECT count(*) FROM batches), (SELECT string_agg(t::text, ';') FROM queue t)"""


async def everything(stage: Stage) -> Any:
    """All that a result or a verdict could change."""
    async with stage.flow.engine.connect() as connection:
        return (await connection.execute(text(EVERYTHING))).one()


async def refused(
    stage: Stage, subject: str, good: Event, forged: list[tuple[dict[str, Any], str]], role: Any
) -> None:
    """Each of `forged` becomes a dead letter with its sentence, and nothing else changes."""
    before = await everything(stage)
    for changes, _ in forged:
        await stage.send(subject, msgspec.structs.replace(good, **changes))
    async with playing([partial(role, stage.flow)]):
        await stage.reaches(len(forged), "dead_letters")
    reasons = await stage.reasons()
    for (changes, sentence), reason in zip(forged, reasons, strict=True):
        assert sentence in reason and "\n" not in reason, (changes, reason)
    assert await everything(stage) == before


async def test_a_forged_result_is_refused_with_its_reason_and_changes_nothing(stage: Stage) -> None:
    held, _ = await running(stage.flow.engine, stage.run, 2)
    good = ended(stage.run.name, held, [], digest="")
    await refused(stage, subjects.results_rollout(stage.run.name), good, FORGED_RESULTS, ingest_results)


async def test_a_forged_verdict_is_refused_with_its_reason_and_changes_nothing(stage: Stage) -> None:
    held, _ = await running(stage.flow.engine, stage.run, 2)
    good = VerdictReached(
        run=stage.run.name, rollout=held.rollout_id, attempt=1, epoch=1, failure_class="completed", reward=1.0
    )
    await refused(stage, subjects.results_verdict(stage.run.name), good, FORGED_VERDICTS, ingest_verdicts)


async def test_a_reward_that_is_no_number_is_refused_as_it_is_read(stage: Stage) -> None:
    before = await everything(stage)
    subject = subjects.results_verdict(stage.run.name)
    body = (
        b'{"run": "%b", "rollout": 1, "attempt": 1, "epoch": 1, "failure_class": "completed", "reward": %b}'
    )
    for n, word in enumerate(WORDS_OF_NO_NUMBER):
        await stage.bus.publish(
            Outgoing(subject, f"n{n}", "VerdictReached/1", body % (stage.run.name.encode(), word))
        )
    async with playing([partial(ingest_verdicts, stage.flow)]):
        await stage.reaches(len(WORDS_OF_NO_NUMBER), "dead_letters")
    assert all("VerdictReached: " in reason for reason in await stage.reasons())
    assert await everything(stage) == before


async def test_late_repeated_and_foreign_results_are_counted_and_change_nothing(stage: Stage) -> None:
    engine, run = stage.flow.engine, stage.run.name
    held, other = await running(engine, stage.run, 2)
    good = ended(run, held, [], digest="")
    subject = subjects.results_rollout(run)
    await stage.send(subject, good)
    with capture_logs() as logs:
        async with playing([partial(ingest_results, stage.flow)]):
            await until(lambda: _is(stage, held.rollout_id, "finished"))
            before = await everything(stage)
            for changes in (
                {},  # again
                {"failure_class": "policy_failure", "reason": "or was it?"},  # contradicts what was said
                {"epoch": 3},
                {"attempt": 2},
                {"rollout": other.rollout_id, "epoch": 7},
                {"rollout": 10**12},
            ):
                await stage.send(subject, msgspec.structs.replace(good, **changes))
            await until(lambda: _counts(stage, "results_stale", 6))
            await until(lambda: _said(logs, "results.stale", 5))
    assert await everything(stage) == before and await stage.count("dead_letters") == 0
    assert {line["reason"] for line in logs if line["event"] == "results.stale"} == {
        "lease epoch 1 is over: the rollout is at epoch 2",
        "lease epoch 3 was never given: the rollout is at epoch 2",
        "attempt 2 is not current: the rollout is at attempt 1",
        "lease epoch 7 was never given: the rollout is at epoch 1",
        "this run has no such rollout",
    }


async def test_late_and_foreign_steps_are_counted_and_said_with_their_reasons_and_change_nothing(
    stage: Stage,
) -> None:
    run = stage.run.name
    await stage.serves(3)
    held, _ = await running(stage.flow.engine, stage.run, 2)
    theirs = await builders.make_run(stage.flow.engine, small("theirs"))
    [foreign, _] = await running(stage.flow.engine, theirs, 2)
    good = a_root(held, run, 0, [-1.0, -1.0])
    before = await everything(stage)
    with capture_logs() as logs:
        async with playing([partial(ingest_steps, stage.flow)]):
            for changes in (
                {"epoch": 2},
                {"idx": 1, "root": 1, "epoch": 2},
                {"attempt": 2},
                {"rollout": foreign.rollout_id},
            ):
                await stage.send(
                    subjects.steps(run, str(held.rollout_id)), msgspec.structs.replace(good, **changes)
                )
            await until(lambda: _counts(stage, "steps_stale", 4))
            await until(lambda: _said(logs, "steps.stale", 3))
    assert await everything(stage) == before and await stage.count("dead_letters") == 0
    assert {line["reason"] for line in logs if line["event"] == "steps.stale"} == {
        "lease epoch 2 was never given: the rollout is at epoch 1",
        "attempt 2 is not current: the rollout is at attempt 1",
        "this run has no such rollout",
    }


async def test_a_late_verdict_is_counted_and_said_with_its_reason_and_changes_nothing(stage: Stage) -> None:
    held, _ = await running(stage.flow.engine, stage.run, 2)
    before = await everything(stage)
    late = VerdictReached(
        run=stage.run.name, rollout=held.rollout_id, attempt=1, epoch=1, failure_class="completed", reward=1.0
    )
    failed = msgspec.structs.replace(late, epoch=2, failure_class="verifier_failure", reward=None)
    with capture_logs() as logs:
        async with playing([partial(ingest_verdicts, stage.flow)]):
            await stage.send(subjects.results_verdict(stage.run.name), late)
            await stage.send(subjects.results_verdict(stage.run.name), failed)
            await until(lambda: _said(logs, "verdicts.stale", 2))
    assert {line["reason"] for line in logs if line["event"] == "verdicts.stale"} == {
        "the rollout is running and waits for none",
        "lease epoch 2 was never given: the rollout is at epoch 1",
    }
    assert await _counts(stage, "verdicts_stale", 2) and await everything(stage) == before


async def _said(logs: list[Any], event: str, least: int) -> bool:
    return len({line["reason"] for line in logs if line["event"] == event}) >= least


async def test_of_a_flood_of_stale_messages_some_are_said_and_how_many_are_not() -> None:
    event = VerdictReached(run="r", rollout=1, attempt=1, epoch=1, failure_class="completed", reward=1.0)
    stale = Stale("verdicts")
    with capture_logs() as logs:
        for n in range(MOST + 5):
            stale.begin()
            stale.add(msgspec.structs.replace(event, rollout=n), "late")
            await stale.tell()
        assert len(logs) == MOST
        stale._since -= clock().refusals_s
        stale.add(event, "late")
        await stale.tell()
    assert (len(logs), logs[-1]["left_out"]) == (MOST + 1, 5)


NO_LOGPROBS = {
    "nan": "logprob of token 1 is nan, it must be finite",
    "inf": "logprob of token 1 is inf, it must be finite",
    "-inf": "logprob of token 1 is -inf, it must be finite",
    "0.01": "logprob of token 1 is 0.01, it must be at most 0",
}
GOOD_LOGPROBS = [
    0.0,
    -0.0,
    1.2e-7,
    -80.0,
]  # a script's and a certain token's; one rounded up; an unlikely one


def a_root(lease: Lease, run: str, idx: int, logprobs: list[float], **changes: Any) -> StepRecorded:
    """A root of two tokens of version 3 without a prompt, with the digests that belong to it."""
    ids, raw = ids_to_bytes([5, 6]), logprobs_to_bytes(logprobs)
    event = StepRecorded(
        run=run, rollout=lease.rollout_id, attempt=1, epoch=1, idx=idx, kind="root", parent=None, root=idx, keep_len=0, state_len=0,
        full_len=2, delta="", action=b64(ids), logprobs=b64(raw), spans=[VersionSpan(3, 0, 2)], row_sha="",
        chain_sha=chain_sha(NO_PARENT, 0, b"", ids).hex(), sampling={"temperature": 1.0}, finish="stop", parse="ok",
    )  # fmt: skip
    return resealed(event, **changes)


async def test_a_step_whose_logprobs_are_no_logprobs_is_refused_with_its_reason_and_counted(
    stage: Stage,
) -> None:
    run = stage.run.name
    await stage.serves(3)
    held, _ = await running(stage.flow.engine, stage.run, 2)
    subject = subjects.steps(run, str(held.rollout_id))
    for idx, value in enumerate(GOOD_LOGPROBS):
        await stage.send(subject, a_root(held, run, idx, [-1.0, value]))
    for idx, value in enumerate(NO_LOGPROBS):
        await stage.send(subject, a_root(held, run, len(GOOD_LOGPROBS) + idx, [-1.0, float(value)]))
    async with playing([partial(ingest_steps, stage.flow)]):
        await stage.reaches(len(NO_LOGPROBS), "dead_letters")
        await stage.reaches(len(GOOD_LOGPROBS), "steps")
    for sentence, reason in zip(NO_LOGPROBS.values(), sorted_by_idx(await stage.reasons()), strict=True):
        assert sentence in reason, reason
    assert await counter(stage.flow.engine, stage.run, "steps_refused") == len(NO_LOGPROBS)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"spans": [VersionSpan(2**40, 0, 2)]}, "there is no policy version 1099511627776"),
        ({"spans": [VersionSpan(-1, 0, 2)]}, "there is no policy version -1"),
        ({"keep_len": 2**40}, "keep_len, state_len and full_len must ascend from 0"),
        (
            {"keep_len": 2**40, "state_len": 2**40, "full_len": 2**40 + 2},
            "keep_len is longer than the prompt",
        ),
    ],
)
def test_a_step_of_numbers_that_no_digest_is_over_is_refused(changes: dict[str, Any], sentence: str) -> None:
    lease = Lease(1, 7, 1, 0, 1, 1, 0, "train", "shell", None, "coding", "t", {})
    with pytest.raises(MessageError, match=sentence):
        decode_step(msgspec.structs.replace(a_root(lease, "run", 0, [-1.0, -1.0]), **changes))


def sorted_by_idx(reasons: list[str]) -> list[str]:
    return sorted(reasons, key=lambda reason: int(reason.partition(": ")[0].rpartition(":")[2]))


async def test_a_step_of_a_version_that_was_never_published_is_refused_unless_it_cannot_train(
    stage: Stage,
) -> None:
    run = stage.run.name
    await stage.serves(3)
    held, _ = await running(stage.flow.engine, stage.run, 2)
    subject = subjects.steps(run, str(held.rollout_id))
    foreign = [VersionSpan(3, 0, 1), VersionSpan(4, 1, 2)]
    good = [
        a_root(held, run, 0, [-1.0, -1.0]),
        a_root(held, run, 1, [-1.0, -1.0], spans=foreign, marks=["version_suspect"]),
        a_root(held, run, 2, [0.0, 0.0], spans=[VersionSpan(0, 0, 2)], sampling={"scripted": True}),
    ]
    forged = [a_root(held, run, 3, [-1.0, -1.0], spans=foreign)]
    for event in (*good, *forged):
        await stage.send(subject, event)
    async with playing([partial(ingest_steps, stage.flow)]):
        await stage.reaches(len(good), "steps")
        await stage.reaches(len(forged), "dead_letters")
        (reason,) = await stage.reasons()
        assert reason.endswith("is of policy version 4, which was never published")
        await stage.serves(4)  # from now on it is one
        await stage.send(subject, msgspec.structs.replace(forged[0], idx=5, root=5))
        await stage.reaches(len(good) + 1, "steps")


async def test_an_announcement_that_is_none_is_counted_and_said_and_the_versions_stay_those_of_the_data_pool(
    stage: Stage,
) -> None:
    run, metrics = stage.run.name, Metrics()
    await stage.serves(3)
    versions = PublishedVersions(stage.flow.engine, stage.run.run_id, metrics, look_s=3600.0)
    good = PolicyPublished(run=run, version=9, path="", manifest_sha="", batch_no=None, revision=9)

    async def refused_so_far(n: int) -> bool:
        return metrics.registry.get_sample_value("penstock_gateway_announcements_refused_total") == n

    async with playing([partial(versions.follow, stage.bus, run)]):
        with capture_logs() as logs:
            bodies = [b"", b"\xff", b'{"run": 7}', encode(msgspec.structs.replace(good, run="another"))]
            for n, body in enumerate([*bodies, encode(msgspec.structs.replace(good, version=-1))], 1):
                await stage.bus.publish(Outgoing(subjects.policy(run), f"p{n}", "PolicyPublished/1", body))
                await until(partial(refused_so_far, n))  # the stream keeps the newest alone
        await stage.serves(4)
        await stage.send(subjects.policy(run), good)
        with anyio.fail_after(20):
            while versions.newest is None or versions.newest.version != 4:
                await versions.moved.wait()
    reasons = [line["reason"] for line in logs if line["event"] == "announcement.refused"]
    assert [reason.partition(":")[0] for reason in reasons] == ["PolicyPublished"] * 5
    assert reasons[-1] == "PolicyPublished: there is no version -1"
    assert await refused_so_far(5)


async def _is(stage: Stage, rollout_id: int, state: str) -> bool:
    return bool((await rollout_row(stage.flow.engine, rollout_id)).state == state)


async def _counts(stage: Stage, name: str, n: int) -> bool:
    return await counter(stage.flow.engine, stage.run, name) == n


# --- anything at all ------------------------------------------------------------------------------------------

odd = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8) | st.sampled_from(["", "\x00", "\ud800", "a" * 999]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
schemas = (
    st.none()
    | st.sampled_from([f"{name}/1" for name in EVENTS])
    | st.sampled_from(["", "/", "StepRecorded/", "StepRecorded/x", "X/1", "StepRecorded/2", "é/1"])
)


def bodies(kind: type[Event], good: Event) -> st.SearchStrategy[bytes]:
    """Bytes; or the JSON of a good event with some of its fields replaced or missing."""
    fields = list(msgspec.structs.fields(kind))
    whole: dict[str, Any] = json.loads(encode(good))

    def made(changes: dict[str, Any], gone: set[str]) -> bytes:
        return json.dumps({k: v for k, v in {**whole, **changes}.items() if k not in gone}).encode()

    names = st.sampled_from([field.encode_name for field in fields])
    changed = st.builds(made, st.dictionaries(names, odd, max_size=3), st.sets(names, max_size=2))
    return st.binary(max_size=60) | odd.map(lambda value: json.dumps(value).encode()) | changed


def an_event(kind: type[Event]) -> Event:
    lease = Lease(1, 7, 1, 0, 1, 1, 0, "train", "shell", None, "coding", "t", {})
    if kind is TaskSubmitted:
        return TaskSubmitted(task=TASK, submission="s")
    if kind is VerdictReached:
        return VerdictReached(run="run", rollout=7, attempt=1, epoch=1, failure_class="completed", reward=1.0)
    if kind is RolloutFinished:
        return ended("run", lease, [], digest="")
    return Tree(2).grow("run", lease, 2)[-1].event


@pytest.mark.parametrize("kind", [EVENTS["StepRecorded"], RolloutFinished, VerdictReached, TaskSubmitted])
def test_any_bytes_are_an_event_or_refused_in_one_sentence(kind: type[Event]) -> None:
    checks: dict[str, Any] = {
        "StepRecorded": decode_step,
        "RolloutFinished": check_result,
        "VerdictReached": check_verdict,
    }

    @hurried
    @given(body=bodies(kind, an_event(kind)), schema=schemas)
    def tried(body: bytes, schema: str | None) -> None:
        try:
            event = decode(body, schema, kind)
            checks.get(kind.__name__, lambda _: None)(event)
        except MessageError as error:
            assert str(error) and "\n" not in str(error), str(error)
        except RecursionError:
            pass  # which the loop takes for a message that is nested too deeply

    tried()


SUBJECTS = {
    "TaskSubmitted": lambda run: subjects.tasks(run, "coding"),
    "StepRecorded": lambda run: subjects.steps(run, "7"),
    "RolloutFinished": subjects.results_rollout,
    "VerdictReached": subjects.results_verdict,
}


@pytest.mark.parametrize("name", SUBJECTS)
async def test_beside_anything_at_all_the_loop_lives_and_good_messages_pass(stage: Stage, name: str) -> None:
    run, flow = stage.run.name, stage.flow
    await stage.serves(3, 4)
    held, _ = await running(flow.engine, stage.run, 2)
    before = await everything(stage)
    kind = EVENTS[name]
    good: dict[str, Event] = {
        "TaskSubmitted": TaskSubmitted(task=TASK, submission="good"),
        "StepRecorded": Tree(1).grow(run, held, 1)[0].event,
        "RolloutFinished": ended(run, held, [], digest=""),
    }
    sample = good.get(name) or VerdictReached(
        run=run, rollout=held.rollout_id, attempt=1, epoch=1, failure_class="completed", reward=1.0
    )
    messages: list[tuple[bytes, str | None]] = []

    @settings(
        deadline=None, max_examples=min(EXAMPLES, 300), database=None, suppress_health_check=list(HealthCheck)
    )
    @given(body=bodies(kind, sample), schema=schemas)
    def collect(body: bytes, schema: str | None) -> None:
        # What is by chance a good message is not what is tried here.
        try:
            decode(body, schema, kind)
        except (MessageError, RecursionError):
            messages.append((body, schema))

    collect()
    subject = SUBJECTS[name](run)
    for n, (body, schema) in enumerate(messages):
        safe = schema if schema is None or schema.isascii() else "odd/1"
        await stage.bus.publish(Outgoing(subject, f"odd{n}", safe or "", body))
    await stage.send(subject, sample)
    roles: dict[str, Any] = {
        "StepRecorded": ingest_steps,
        "RolloutFinished": ingest_results,
        "VerdictReached": ingest_verdicts,
    }
    role = Intake(flow, ["shell"]).run if name == "TaskSubmitted" else partial(roles[name], flow)
    async with playing([role]):
        await stage.reaches(len(messages), "dead_letters")
        match name:
            case "TaskSubmitted":
                await stage.reaches(1, "groups", submission="good")
            case "StepRecorded":
                await stage.reaches(1, "steps")
            case "RolloutFinished":
                await until(lambda: _is(stage, held.rollout_id, "finished"))
            case "VerdictReached":
                await until(lambda: _counts(stage, "verdicts_stale", 1))
                assert await everything(stage) == before
    assert len(messages) > 10 and all(reason and "\n" not in reason for reason in await stage.reasons())
