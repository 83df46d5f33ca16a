"""Late, duplicate, contradictory and forged messages on real streams: refused with a reason or counted, and nothing is changed.

One by one, each with the sentence of its refusal.
"""

import re
from functools import partial
from typing import Any

import anyio
import msgspec
import pytest
from structlog.testing import capture_logs

from orchestrator.bus import subjects
from orchestrator.bus.base import Outgoing
from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.events import (
    ArtifactFile,
    Event,
    PolicyPublished,
    StepMark,
    StepRecorded,
    StepTimings,
    ToolCallTimed,
    VerdictReached,
    encode,
)
from orchestrator.contracts.ids import NO_PARENT, b64, chain_sha, ids_to_bytes, logprobs_to_bytes
from orchestrator.contracts.marks import Finish, ParseStatus
from orchestrator.contracts.spans import VersionSpan
from orchestrator.contracts.states import FailureClass, Left, StepKind
from orchestrator.gateway.metrics import GatewayMetrics
from orchestrator.gateway.servers.targets import TargetVersion, announcements
from orchestrator.pool.ingest import decode_step
from orchestrator.pool.leases import Lease
from orchestrator.pool.policy_versions import newest_version
from orchestrator.roles.ingest import ingest_results, ingest_steps, ingest_verdicts
from orchestrator.roles.stale_log import MAX_LINES, Stale
from orchestrator.settings.timeouts import timeouts
from tests import builders
from tests.builders import a_lease
from tests.integration.pool.rig import counter, ended, resealed, running, small
from tests.integration.roles.rig import Stage, everything, has_counted, has_state, playing, until

pytestmark = [pytest.mark.anyio, pytest.mark.services]


SHA = "ab" * 32
FORGED_RESULTS: list[tuple[dict[str, Any], str]] = [
    ({"steps": -1, "last_idx": -2}, "steps is -1, it must not be negative"),
    (
        {"steps": 3, "last_idx": 5, "digest": SHA},
        "last_idx is 5 after 3 steps: a session counts them without gaps",
    ),
    ({"steps": 1, "last_idx": 0, "digest": "xyz"}, "digest is not the hex of a sha256"),
    ({"steps": 1, "last_idx": 0, "digest": SHA.upper()}, "digest is not the hex of a sha256"),
    ({"agent_s": -1.0}, "agent_s is -1.0, it must be seconds from 0 on"),
    ({"agent_s": 1e300}, "agent_s is 1e+300, it must be seconds"),
    ({"queued_s": -0.5}, "queued_s is -0.5, it must be seconds from 0 on"),
    ({"generation_s": 1e300}, "generation_s is 1e+300, it must be seconds from 0 on"),
    ({"system": "x" * 600}, "system has 600 characters, it may have 512"),
    ({"waiting_s": -1.0}, "waiting_s is -1.0, it must be seconds from 0 on"),
    ({"spent": {"agent": -1.0}}, "spent on 'agent' is -1.0, it must be seconds from 0 on"),
    (
        {"spent": {"lunch": 1.0}},
        "spent has 'lunch', the phases are session, sandbox, agent, changes, seal, other",
    ),
    ({"marks": [StepMark(4, "undelivered")]}, "step 4 is marked, of 0 steps"),
    ({"marks": [StepMark(-1, "undelivered")]}, "step -1 is marked, of 0 steps"),
    (
        {"artifacts": [ArtifactFile(path="../../etc/passwd", body="eA==")]},
        "an artifact lies at '../../etc/passwd', which is not below",
    ),
    (
        {"artifacts": [ArtifactFile(path="/etc/passwd", body="eA==")]},
        "an artifact lies at '/etc/passwd', which is not below",
    ),
    (
        {"artifacts": [ArtifactFile(path="a//b", body=None)]},
        "an artifact lies at 'a//b', which is not below the work directory",
    ),
    ({"artifacts": [ArtifactFile(path="a", body="no base64!")]}, "an artifact is not base64"),
    ({"artifacts": [ArtifactFile(path="a", body="eA==", mode=0o4755)]}, "an artifact has mode 4755"),
    (
        {"artifacts": [msgspec.structs.replace(ArtifactFile(path="a", body="eA=="), kind="device")]},
        "artifacts[0].kind is 'device', it must be one of file, link, directory, behind",
    ),
    (
        {"artifacts": [ArtifactFile(path="a", body=b64(b"/logs/verifier/reward.txt"), kind=Left.LINK)]},
        "the link at 'a' leads out of the work directory",
    ),
    (
        {"artifacts": [ArtifactFile(path="a", body=b64(b"b/../../tests"), kind=Left.LINK)]},
        "the link at 'a' leads out of the work directory",
    ),
    (
        {"artifacts": [ArtifactFile(path="a", body=None, kind=Left.LINK)]},
        "the link at 'a' leads out of the work directory",
    ),
    (
        {"artifacts": [ArtifactFile(path="a", body="eA==", kind=Left.DIRECTORY)]},
        "an artifact is a directory and has a body",
    ),
    (
        {"artifacts": [ArtifactFile(path="a", body="eA==", kind=Left.BEHIND)]},
        "an artifact stayed behind and has a body",
    ),
    (
        {"artifacts": [ArtifactFile(path="a", body="eA=="), ArtifactFile(path="a", body="eQ==")]},
        "an artifact comes twice",
    ),
    (
        {"artifacts": [ArtifactFile(path=str(n), body="") for n in range(20_001)]},
        "20,001 artifacts are more than the 20,000 that may cross",
    ),
    (
        {
            "artifacts": [
                ArtifactFile(path=str(n), body=None, parts=["0" * 64], size=64 << 20) for n in range(5)
            ]
        },
        "5 artifacts of 335,544,320 bytes are more than may cross",
    ),
    (
        {"artifacts": [ArtifactFile(path="a", body=None, parts=["0" * 64], size=-1)]},
        "an artifact has -1 bytes",
    ),
    (
        {"artifacts": [ArtifactFile(path="a", body="eA==", parts=["0" * 64], size=1)]},
        "has blobs and a body, or is not a file",
    ),
    (
        {"artifacts": [ArtifactFile(path="a", body=None, parts=["x"], size=1)]},
        "which is not a sha256 in 64 digits",
    ),
    ({"listing": ["0" * 64]}, "of its artifacts is not stored"),
    ({"listing": ["0" * 64] * 257}, "has 257 blobs, more than 256"),
    ({"listing": ["x"]}, "a blob of its artifacts is not a sha256"),
    (
        {"tool_calls": [ToolCallTimed(step=-1, call=0, name="bash", start=0.0, end=1.0)]},
        "tool call 0 of step -1 does not exist",
    ),
    (
        {"tool_calls": [ToolCallTimed(step=0, call=0, name="bash", start=-9.0, end=1.0)]},
        "a tool call's start is -9.0",
    ),
    ({"failure_class": "glory"}, "failure_class is 'glory', it must be one of"),
    ({"failure_class": "poison"}, "failure_class is 'poison', it must be one of"),
    ({"run": "another"}, "names run 'another' but came on the subject of"),
    ({"epoch": 0}, "does not exist"),
    ({"epoch": 2**40}, "does not exist"),
    ({"attempt": -1}, "does not exist"),
    ({"rollout": 0}, "rollout 0, attempt 1, epoch 1 does not exist"),
]
FORGED_VERDICTS: list[tuple[dict[str, Any], str]] = [
    ({"reward": -0.1}, "reward is -0.1, it must lie in [0, 1]"),
    ({"reward": 1.0000001}, "reward is 1.0000001, it must lie in [0, 1]"),
    ({"reward": None}, "reward is None, it must lie in [0, 1]"),
    (
        {"failure_class": "verifier_failure", "reward": 1.0},
        "a verification that ended as 'verifier_failure' has no reward, and it says 1.0",
    ),
    (
        {"failure_class": "infra_failure", "reward": 0.0},
        "a verification that ended as 'infra_failure' has no reward",
    ),
    ({"failure_class": "timeout", "reward": None}, "failure_class is 'timeout', it must be one of"),
    ({"verify_s": -1.0}, "verify_s is -1.0, it must be seconds from 0 on"),
    ({"exit_code": 2**40}, "exit_code is 1099511627776"),
    ({"run": "another"}, "names run 'another' but came on the subject of"),
    ({"epoch": -3}, "does not exist"),
]
WORDS_OF_NO_NUMBER = [b"NaN", b"Infinity", b"-Infinity", b"1e999", b'"1.0"', b"[1]", b"true"]


async def refused(
    stage: Stage, subject: str, good: Event, forged: list[tuple[dict[str, Any], str]], role: Any
) -> None:
    """Each of `forged` becomes a dead letter with its sentence, and nothing else changes."""
    before = await everything(stage)
    for changes, _ in forged:
        await stage.send(subject, msgspec.structs.replace(good, **changes))
    async with playing([partial(role, stage.context)]):
        await stage.reaches(len(forged), "dead_letters")
    reasons = await stage.reasons()
    for (changes, sentence), reason in zip(forged, reasons, strict=True):
        assert sentence in reason and "\n" not in reason, (changes, reason)
    assert await everything(stage) == before


async def test_a_forged_result_is_refused_with_its_reason_and_changes_nothing(stage: Stage) -> None:
    held, _ = await running(stage.context.engine, stage.run, 2)
    good = ended(stage.run.name, held, [], digest="")
    await refused(stage, subjects.results_rollout(stage.run.name), good, FORGED_RESULTS, ingest_results)


async def test_a_forged_verdict_is_refused_with_its_reason_and_changes_nothing(stage: Stage) -> None:
    held, _ = await running(stage.context.engine, stage.run, 2)
    good = VerdictReached(
        run=stage.run.name,
        rollout=held.rollout_id,
        attempt=1,
        epoch=1,
        failure_class=FailureClass.COMPLETED,
        reward=1.0,
    )
    await refused(stage, subjects.results_verdict(stage.run.name), good, FORGED_VERDICTS, ingest_verdicts)


async def test_a_reward_that_is_not_a_number_is_refused_when_it_is_read(stage: Stage) -> None:
    before = await everything(stage)
    subject = subjects.results_verdict(stage.run.name)
    body = (
        b'{"run": "%b", "rollout": 1, "attempt": 1, "epoch": 1, "failure_class": "completed", "reward": %b}'
    )
    for n, word in enumerate(WORDS_OF_NO_NUMBER):
        await stage.bus.publish(
            Outgoing(
                subject=subject,
                msg_id=f"n{n}",
                schema="VerdictReached/1",
                body=body % (stage.run.name.encode(), word),
            )
        )
    async with playing([partial(ingest_verdicts, stage.context)]):
        await stage.reaches(len(WORDS_OF_NO_NUMBER), "dead_letters")
    assert all("VerdictReached: " in reason for reason in await stage.reasons())
    assert await everything(stage) == before


async def test_late_repeated_and_foreign_results_are_counted_and_change_nothing(stage: Stage) -> None:
    engine, run = stage.context.engine, stage.run.name
    held, other = await running(engine, stage.run, 2)
    good = ended(run, held, [], digest="")
    subject = subjects.results_rollout(run)
    await stage.send(subject, good)
    with capture_logs() as logs:
        async with playing([partial(ingest_results, stage.context)]):
            await until(lambda: has_state(stage, held.rollout_id, "finished"))
            before = await everything(stage)
            for changes in (
                {},  # again
                {"failure_class": "policy_failure", "reason": "or was it?"},  # contradicts the earlier report
                {"epoch": 3},
                {"attempt": 2},
                {"rollout": other.rollout_id, "epoch": 7},
                {"rollout": 10**12},
            ):
                await stage.send(subject, msgspec.structs.replace(good, **changes))
            await until(lambda: has_counted(stage, "results_stale", 6))
            await until(lambda: _logged(logs, "results.stale", 5))
    assert await everything(stage) == before and await stage.count("dead_letters") == 0
    assert {line["reason"] for line in logs if line["event"] == "results.stale"} == {
        "lease epoch 1 is over: the rollout is at epoch 2",
        "lease epoch 3 was never given: the rollout is at epoch 2",
        "attempt 2 is not current: the rollout is at attempt 1",
        "lease epoch 7 was never given: the rollout is at epoch 1",
        "this run has no such rollout",
    }


async def test_late_and_foreign_steps_are_counted_and_logged_with_their_reasons_and_change_nothing(
    stage: Stage,
) -> None:
    run = stage.run.name
    await stage.serves(3)
    held, _ = await running(stage.context.engine, stage.run, 2)
    theirs = await builders.make_run(stage.context.engine, small("theirs"))
    [foreign, _] = await running(stage.context.engine, theirs, 2)
    good = a_root(held, run, 0, [-1.0, -1.0])
    before = await everything(stage)
    with capture_logs() as logs:
        async with playing([partial(ingest_steps, stage.context)]):
            for changes in (
                {"epoch": 2},
                {"idx": 1, "root": 1, "epoch": 2},
                {"attempt": 2},
                {"rollout": foreign.rollout_id},
            ):
                await stage.send(
                    subjects.steps(run, str(held.rollout_id)), msgspec.structs.replace(good, **changes)
                )
            await until(lambda: has_counted(stage, "steps_stale", 4))
            await until(lambda: _logged(logs, "steps.stale", 3))
    assert await everything(stage) == before and await stage.count("dead_letters") == 0
    assert {line["reason"] for line in logs if line["event"] == "steps.stale"} == {
        "lease epoch 2 was never given: the rollout is at epoch 1",
        "attempt 2 is not current: the rollout is at attempt 1",
        "this run has no such rollout",
    }


async def test_a_late_verdict_is_counted_and_logged_with_its_reason_and_changes_nothing(stage: Stage) -> None:
    held, _ = await running(stage.context.engine, stage.run, 2)
    before = await everything(stage)
    late = VerdictReached(
        run=stage.run.name,
        rollout=held.rollout_id,
        attempt=1,
        epoch=1,
        failure_class=FailureClass.COMPLETED,
        reward=1.0,
    )
    failed = msgspec.structs.replace(late, epoch=2, failure_class="verifier_failure", reward=None)
    with capture_logs() as logs:
        async with playing([partial(ingest_verdicts, stage.context)]):
            await stage.send(subjects.results_verdict(stage.run.name), late)
            await stage.send(subjects.results_verdict(stage.run.name), failed)
            await until(lambda: _logged(logs, "verdicts.stale", 2))
    assert {line["reason"] for line in logs if line["event"] == "verdicts.stale"} == {
        "the rollout is running and waits for none",
        "lease epoch 2 was never given: the rollout is at epoch 1",
    }
    assert await has_counted(stage, "verdicts_stale", 2) and await everything(stage) == before


async def _logged(logs: list[Any], event: str, least: int) -> bool:
    return len({line["reason"] for line in logs if line["event"] == event}) >= least


async def test_a_flood_of_stale_messages_is_logged_in_part_and_the_rest_is_counted() -> None:
    event = VerdictReached(
        run="r", rollout=1, attempt=1, epoch=1, failure_class=FailureClass.COMPLETED, reward=1.0
    )
    stale = Stale("verdicts")
    with capture_logs() as logs:
        for n in range(MAX_LINES + 5):
            stale.begin()
            stale.add(msgspec.structs.replace(event, rollout=n), "late")
            await stale.tell()
        assert len(logs) == MAX_LINES
        stale._since -= timeouts().stale_log_interval_s
        stale.add(event, "late")
        await stale.tell()
    assert (len(logs), logs[-1]["left_out"]) == (MAX_LINES + 1, 5)


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
    """A root of a state of one token and two tokens of version 3, without a prompt, with the digests that belong to it."""
    state, ids, raw = ids_to_bytes([4]), ids_to_bytes([5, 6]), logprobs_to_bytes(logprobs)
    event = StepRecorded(
        run=run, rollout=lease.rollout_id, attempt=1, epoch=1, idx=idx, kind=StepKind.ROOT, parent=None, root=idx, keep_len=0, state_len=1,
        full_len=3, delta=b64(state), action=b64(ids), logprobs=b64(raw), spans=[VersionSpan(3, 0, 2)], row_sha="",
        chain_sha=chain_sha(NO_PARENT, 0, state, ids).hex(), sampling={"temperature": 1.0}, finish=Finish.STOP, parse=ParseStatus.OK,
    )  # fmt: skip
    return resealed(event, **changes)


async def test_a_step_with_invalid_logprobs_is_refused_with_its_reason_and_counted(
    stage: Stage,
) -> None:
    run = stage.run.name
    await stage.serves(3)
    held, _ = await running(stage.context.engine, stage.run, 2)
    subject = subjects.steps(run, str(held.rollout_id))
    for idx, value in enumerate(GOOD_LOGPROBS):
        await stage.send(subject, a_root(held, run, idx, [-1.0, value]))
    for idx, literal in enumerate(NO_LOGPROBS):
        await stage.send(subject, a_root(held, run, len(GOOD_LOGPROBS) + idx, [-1.0, float(literal)]))
    async with playing([partial(ingest_steps, stage.context)]):
        await stage.reaches(len(NO_LOGPROBS), "dead_letters")
        await stage.reaches(len(GOOD_LOGPROBS), "steps")
    for sentence, reason in zip(NO_LOGPROBS.values(), sorted_by_idx(await stage.reasons()), strict=True):
        assert sentence in reason, reason
    assert await counter(stage.context.engine, stage.run, "steps_refused") == len(NO_LOGPROBS)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"spans": [VersionSpan(2**40, 0, 2)]}, "policy version 1099511627776 does not exist"),
        ({"spans": [VersionSpan(-1, 0, 2)]}, "policy version -1 does not exist"),
        ({"keep_len": 2**40}, "keep_len, state_len and full_len must ascend from 0"),
        ({"timings": StepTimings(ended=1e300)}, "timings.ended is 1e+300, it must be seconds since 1970"),
        (
            {"timings": StepTimings(generation=1e300)},
            "timings.generation is 1e+300, it must be seconds from 0 on",
        ),
        ({"timings": StepTimings(queue=-1.0)}, "timings.queue is -1.0, it must be seconds from 0 on"),
        (
            {"keep_len": 2**40, "state_len": 2**40, "full_len": 2**40 + 2},
            "keep_len is longer than the prompt",
        ),
        (
            {"full_len": 1, "action": "", "logprobs": "", "spans": []},
            "step 7:1:0: an action has at least one token",
        ),
        ({"state_len": 0, "full_len": 2, "delta": ""}, "an action of 2 tokens has an empty state"),
    ],
)
def test_a_step_of_numbers_that_no_digest_is_over_is_refused(changes: dict[str, Any], sentence: str) -> None:
    lease = a_lease()
    with pytest.raises(MessageError, match=re.escape(sentence)):
        decode_step(msgspec.structs.replace(a_root(lease, "run", 0, [-1.0, -1.0]), **changes))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"sampling": {"temperature": None}}, "sampling.temperature must be a number from 0 to 100, got None"),
        ({"sampling": {"temperature": "1"}}, "sampling.temperature must be a number from 0 to 100, got '1'"),
        ({"sampling": {"temperature": [1.0]}}, "sampling.temperature must be a number"),
        ({"sampling": {"temperature": True}}, "sampling.temperature must be a number"),
        ({"sampling": {"temperature": 101.0}}, "sampling.temperature must be a number"),
        ({"sampling": {"temperature": -0.0}}, "sampling.'temperature' is -0, which the data pool does not keep"),
        ({"sampling": {"of_tomorrow": 1e22}}, "sampling.'of_tomorrow' is 1e+22, which the data pool does not"),
        ({"sampling": {"top_k": 1.5}}, "sampling.top_k must be -1, for all tokens, or a whole number"),
        ({"sampling": {"scripted": 1}}, "sampling.scripted must be true or false, got 1"),
        ({"sampling": {"stop": "x"}}, "sampling.stop must be a list of texts, got 'x'"),
        ({"sampling": {"tool_choice": 7}}, "sampling.tool_choice must be a text or an object, got 7"),
        ({"reply": {"content": ["x"]}}, "reply.content must be a text, got ['x']"),
        ({"reply": {"reasoning": 7}}, "reply.reasoning must be a text, got 7"),
        ({"reply": {"tool_calls": 5}}, "reply.tool_calls must be a list of objects with name and arguments, got 5"),
        ({"reply": {"tool_calls": ["bash"]}}, "reply.tool_calls must be a list of objects"),
        ({"reply": {"tool_calls": [{"name": "bash"}]}}, "reply.tool_calls must be a list of objects"),
        ({"reply": {"tool_calls": [{"name": "b", "arguments": {}, "function": None}]}}, "reply.tool_calls must be"),
        ({"appended": [{"role": 1}]}, "appended[0].role must be a text, got 1"),
        ({"appended": [{"role": "tool", "answers": {"call": -9, "name": "b"}}]}, "appended[0].answers must name a call"),
        ({"appended": [{"role": "tool", "answers": {"call": 0, "back": -9, "name": "b"}}]}, "appended[0].answers"),
        ({"appended": [{}, {"left_out": [1]}]}, "appended[1].left_out must be a list of texts, got [1]"),
        ({"appended": [{"role": "tools", "tools": [{"type": "function"}]}]}, "appended[0].tools must be a list of"),
        ({"branch": {"near": "x"}}, "branch.near is 'x', it must be a whole number from 0 on"),
        ({"branch": {"turn": 2**31}}, "branch.turn is 2147483648, it must be a whole number"),
        ({"action": b64(ids_to_bytes([5, -6]))}, "action holds a negative id"),
        ({"prompt": b64(b"12345"), "prompt_sha": SHA}, "prompt does not hold whole ids"),
        ({"idx": -1, "root": -1}, "idx -1 does not exist"),
    ],
)  # fmt: skip
def test_a_step_of_content_that_its_readers_cannot_use_is_refused(
    changes: dict[str, Any], sentence: str
) -> None:
    good = a_root(a_lease(), "run", 0, [-1.0, -1.0])
    decode_step(good)
    with pytest.raises(MessageError, match=re.escape(sentence)):
        decode_step(resealed(good, **changes))


def test_a_step_of_content_that_gateways_record_is_taken() -> None:
    call = {"name": "bash", "arguments": {"n": [1, None]}}
    for changes in (
        {"sampling": {"scripted": True}},
        {"sampling": {"temperature": 0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 5.0, "seed": 2**53}},
        {"sampling": {"stop": ["a"], "tool_choice": {"most": 1}, "repetition_stop": True, "of_tomorrow": {}}},
        {"reply": {"role": "assistant", "content": "", "reasoning": None, "tool_calls": [call]}},
        {"appended": [{"role": "tool", "content": "", "answers": None, "left_out": ["image"]}]},
        {"appended": [{"role": "tools", "sha": SHA, "tools": [{"type": "function", "function": {"name": "b"}}]}]},
        {"branch": {"near": 0, "turn": None, "field": "text"}},
    ):  # fmt: skip
        decode_step(resealed(a_root(a_lease(), "run", 0, [-1.0, -1.0]), **changes))


def sorted_by_idx(reasons: list[str]) -> list[str]:
    return sorted(reasons, key=lambda reason: int(reason.partition(": ")[0].rpartition(":")[2]))


async def test_a_step_of_a_version_that_was_never_published_is_refused_unless_it_cannot_train(
    stage: Stage,
) -> None:
    run = stage.run.name
    await stage.serves(3)
    held, _ = await running(stage.context.engine, stage.run, 2)
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
    async with playing([partial(ingest_steps, stage.context)]):
        await stage.reaches(len(good), "steps")
        await stage.reaches(len(forged), "dead_letters")
        (reason,) = await stage.reasons()
        assert reason.endswith("is of policy version 4, which was never published")
        await stage.serves(4)  # from now on it is published
        await stage.send(subject, msgspec.structs.replace(forged[0], idx=5, root=5))
        await stage.reaches(len(good) + 1, "steps")


async def test_a_false_announcement_is_counted_and_logged_and_the_versions_stay_those_of_the_data_pool(
    stage: Stage,
) -> None:
    run, metrics = stage.run.name, GatewayMetrics()
    await stage.serves(3)
    target = TargetVersion(stage.context.engine, stage.run.run_id, newest_version, poll_interval_s=3600.0)
    good = PolicyPublished(run=run, version=9, path="", manifest_sha="", batch_no=None, revision=9)

    async def refused_so_far(n: int) -> bool:
        return metrics.registry.get_sample_value("penstock_gateway_announcements_refused_total") == n

    async with playing([partial(announcements, target, stage.bus, run, metrics)]):
        with capture_logs() as logs:
            bodies = [b"", b"\xff", b'{"run": 7}', encode(msgspec.structs.replace(good, run="another"))]
            for n, body in enumerate([*bodies, encode(msgspec.structs.replace(good, version=-1))], 1):
                await stage.bus.publish(
                    Outgoing(
                        subject=subjects.policy(run), msg_id=f"p{n}", schema="PolicyPublished/1", body=body
                    )
                )
                await until(partial(refused_so_far, n))  # the stream keeps only the newest message
        await stage.serves(4)
        await stage.send(subjects.policy(run), good)
        with anyio.fail_after(60):
            while target.version is None or target.version.version != 4:
                await target.changed.wait()
    reasons = [line["reason"] for line in logs if line["event"] == "announcement.refused"]
    assert [reason.partition(":")[0] for reason in reasons] == ["PolicyPublished"] * 5
    assert reasons[-1] == "PolicyPublished: version -1 does not exist"
    assert await refused_so_far(5)
