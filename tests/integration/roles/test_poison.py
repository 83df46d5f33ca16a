"""Text of any kind and length in every field of every message: the roles live, the sender gets its answer, and the next message is handled."""

import json
import random
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.bus import subjects
from orchestrator.bus.base import Outgoing, StreamFull
from orchestrator.contracts.events import (
    ArtifactFile,
    Event,
    RolloutFinished,
    SubmissionAnswered,
    TaskSubmitted,
    TestResult,
    ToolCallTimed,
    VerdictReached,
)
from orchestrator.contracts.ids import b64
from orchestrator.contracts.states import FailureClass, Left, RolloutState, SubmissionStatus
from orchestrator.contracts.vetting import Level, Vetting
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.pool import leases
from orchestrator.pool.leases import Lease
from orchestrator.roles.dead_letters import store_dead_letters
from orchestrator.roles.ingest import ingest_results, ingest_steps, ingest_verdicts
from orchestrator.roles.intake import Intake
from tests.integration.audit.audited import no_violations
from tests.integration.pool.rig import OWNER, Tree, ended, running
from tests.integration.roles.rig import TASK, Stage, playing, staged, until

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("faults")]

HEX = random.Random(7)
TEXTS = {
    "empty": "",
    "NUL": "a\0b",
    "a lone surrogate": "a\ud800b",
    "control characters": "\x1b[2J\r\n\x07\x85\u2028",
    "multi-byte": "\U0001f30d" * 1_000,
    "incompressible": HEX.randbytes(1_400).hex(),
    "longer": HEX.randbytes(3_000).hex(),
    "very long": HEX.randbytes(50_000).hex(),
    "multi-byte, very long": "".join(HEX.choices("\u00e9\u0416\u4e2d\u20ac\U0001f30d\U00020000", k=100_000)),
}
Cases = Callable[[int], None]


@pytest.fixture
async def stage(engine: AsyncEngine, nats_server: EmbeddedNats) -> AsyncIterator[Stage]:
    async with staged(engine, nats_server.url, rollout={"lease_ttl_s": 600.0}) as stage:
        yield stage


def changed(value: Any, text: str) -> Iterator[Any]:
    """`value` with one of its texts, or one of the keys of its tables, replaced by `text`: each in turn."""
    if isinstance(value, str):
        yield text
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from ([*value[:i], other, *value[i + 1 :]] for other in changed(item, text))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield {text if name == key else name: inner for name, inner in value.items()}
            yield from ({**value, key: other} for other in changed(item, text))


def bodies(good: Event) -> list[bytes]:
    """Messages with each kind of text in each place. Half of a surrogate pair is written as JavaScript writes it, all else as UTF-8."""
    plain = msgspec.to_builtins(good)
    return [
        json.dumps(other, ensure_ascii="\ud800" in text).encode()
        for text in TEXTS.values()
        for other in changed(plain, text)
    ]


def about(body: bytes, rollout: int, lease: Lease) -> bytes:
    """A body about `rollout`, about that of `lease`."""
    return body.replace(b'"rollout": %d,' % rollout, b'"rollout": %d,' % lease.rollout_id)


async def send(stage: Stage, subject: str, event: Event, body: bytes) -> None:
    """Publish, as soon as the small stream of the test has room."""
    message = Outgoing(subject=subject, msg_id=secrets.token_hex(8), schema=event.schema(), body=body)

    async def sent() -> bool:
        try:
            await stage.bus.publish(message)
        except StreamFull:
            return False
        return True

    await until(sent)


async def intact(stage: Stage, *but: str) -> None:
    """The auditor finds nothing; `but` names checks of what the test itself wrote by hand: versions without batches, a
    blob that no process stored."""
    await no_violations(stage.context.engine, stage.run.name, but=but)


async def test_a_task_with_any_text_anywhere_is_answered_and_the_next_one_is_accepted(
    stage: Stage, cases: Cases
) -> None:
    task = TASK | {"files_b64": {"data/raw": "AAE="}}
    task["files"] = task["files"] | {
        "task.toml": '[metadata]\nname = "a"\ndifficulty = "easy"\ntags = ["x"]\n'
    }
    good = TaskSubmitted(
        task=task,
        submission="s",
        purpose="eval",  # type: ignore[arg-type]
        scaffold="shell",
        label="held",
        version=None,
        sampling={"temperature": 0.5},
        vetting=Vetting(sha256="0" * 64, level=Level.BUILDS, provider="local", times=1),
    )
    sent = bodies(good)
    answers: set[str] = set()
    async with (
        stage.bus.listen(subjects.every_answer(stage.run.name)) as notices,
        playing([Intake(stage.context, ["shell"]).run]),
    ):
        for n, body in enumerate(sent):
            # An id of its own where the message still has a valid one.
            await send(
                stage,
                subjects.tasks(stage.run.name, "coding"),
                good,
                body.replace(b'"submission": "s"', b'"submission": "s%d"' % n),
            )
        await stage.submit("next")
        async for notice in notices:
            answer = msgspec.json.decode(notice.body, type=SubmissionAnswered)
            answers.add(answer.submission)
            if answer.submission == "next":
                assert answer.status is SubmissionStatus.ACCEPTED
                break
    named = {f"s{n}" for n, body in enumerate(sent) if b'"submission": "s"' in body}
    assert named <= answers and len(sent) > 100
    await intact(stage)
    cases(len(sent))


async def test_a_step_with_any_text_anywhere_is_stored_or_refused_and_the_next_one_is_stored(
    stage: Stage, cases: Cases
) -> None:
    await stage.serves(3, 4)
    held, _ = await running(stage.context.engine, stage.run, 2)
    grown = Tree(seed=3).grow(stage.run.name, held, 1)[0].event
    good = msgspec.structs.replace(
        grown,
        agent="main/sub",
        request_digest="ab" * 32,
        branch_reason="sibling",
        branch={"near": 0, "field": "content"},
        marks=["drift"],
        appended=[
            {"role": "user", "content": "x", "tool_calls": [{"name": "bash", "arguments": {"cmd": "ls"}}]}
        ],
        reply={"content": "y"},
    )
    subject = subjects.steps(stage.run.name, str(held.rollout_id))
    async with playing([partial(ingest_steps, stage.context)]):
        sent = bodies(good)
        for n, body in enumerate(sent, 1):
            own = body.replace(b'"idx": 0', b'"idx": %d' % n).replace(b'"root": 0', b'"root": %d' % n)
            await send(stage, subject, good, own)
        await stage.send(subject, grown)
        await stage.reaches(1, "steps", idx=0)
        await stage.emptied("STEPS")
    assert await stage.count("steps") > 10 and await stage.count("dead_letters") > 10
    await intact(stage, "versions have parents", "versions follow their batches")
    cases(len(sent))


def full_result(run: str, held: Lease) -> RolloutFinished:
    return msgspec.structs.replace(
        ended(run, held, [], digest=""),
        reason="r",
        marks=[],
        answer="a",
        artifacts=[
            ArtifactFile(path="a/b", body="eA=="),
            ArtifactFile(path="l", body=b64(b"a/b"), kind=Left.LINK),
            ArtifactFile(path="s", body=None, kind=Left.BEHIND, why="lies too deep"),
            ArtifactFile(path="p", body=None, parts=["0" * 64], size=1),
        ],
        tool_calls=[ToolCallTimed(step=0, call=0, name="bash", start=0.0, end=1.0)],
        log="l",
        scaffold="shell",
        scaffold_version="1",
        scaffold_sha="0" * 64,
        spent={"agent": 1.0},
        ungradable="u",
        system="host: debian",
    )


async def test_a_result_with_any_text_anywhere_is_taken_or_refused_and_the_next_one_is_taken(
    stage: Stage, cases: Cases
) -> None:
    """Each message is about a rollout of its own, so that it would be stored."""
    run, subject = stage.run.name, subjects.results_rollout(stage.run.name)
    first = (await running(stage.context.engine, stage.run, 2))[0]
    sample = bodies(full_result(run, first))
    held = await running(stage.context.engine, stage.run, len(sample), "all")
    async with playing([partial(ingest_results, stage.context)]):
        for lease, body in zip(held, sample, strict=True):
            await send(stage, subject, full_result(run, lease), about(body, first.rollout_id, lease))
        await stage.emptied("RESULTS")
        last, _ = await running(stage.context.engine, stage.run, 2, "last")
        await stage.send(subject, ended(run, last, [], digest=""))
        await stage.reaches(1, "rollouts", rollout_id=last.rollout_id, state="finished")
    assert await stage.count("artifacts") > 0 and await stage.count("dead_letters") > 0
    await intact(stage, "blobs of tasks and attempts are stored")
    cases(len(sample))


async def test_a_verdict_with_any_text_anywhere_is_taken_or_refused_and_the_next_one_is_taken(
    stage: Stage, cases: Cases
) -> None:
    run, subject = stage.run.name, subjects.results_verdict(stage.run.name)

    def verdict(rollout: int) -> VerdictReached:
        return VerdictReached(
            run=run,
            rollout=rollout,
            attempt=1,
            epoch=2,
            failure_class=FailureClass.COMPLETED,
            reward=1.0,
            reason="r",
            tests=[TestResult("t", True, "m")],
            log="l",
            process={"a": [0.5], "b": 1.0},
            components={"reward": 1.0},
        )

    sample = bodies(verdict(10**12))
    held = await running(stage.context.engine, stage.run, len(sample) + 1)
    async with playing([partial(ingest_results, stage.context), partial(ingest_verdicts, stage.context)]):
        for lease in held:
            await stage.send(subjects.results_rollout(run), ended(run, lease, [], digest=""))
        await stage.reaches(len(held), "rollouts", state="finished")
        async with stage.context.engine.begin() as connection:
            for lease in held:
                assert await leases.lease(
                    connection,
                    stage.run.run_id,
                    lease.rollout_id,
                    2,
                    OWNER,
                    600.0,
                    before=RolloutState.FINISHED,
                )
        for i, lease in enumerate(held[:-1]):
            await send(stage, subject, verdict(lease.rollout_id), about(sample[i], 10**12, lease))
        await stage.emptied("RESULTS")
        await stage.send(subject, verdict(held[-1].rollout_id))
        await stage.reaches(1, "rollouts", rollout_id=held[-1].rollout_id, state="verified")
    assert await stage.count("dead_letters") > 10
    await intact(stage)
    cases(len(sample))


async def test_a_dead_letter_with_any_header_is_stored(stage: Stage, cases: Cases) -> None:
    """A letter comes from any process, and says of any message what was wrong with it."""
    headers = {
        subjects.HEADER_DEAD_REASON: "r",
        subjects.HEADER_DEAD_SUBJECT: "tasks.x.y",
        subjects.HEADER_DEAD_DELIVERIES: "1",
        subjects.HEADER_DEAD_BODY_BYTES: "1",
        subjects.HEADER_DEAD_MSG_ID: "m",
        subjects.HEADER_DEAD_KEPT: "no",
    }
    letters = [
        headers | {key: "".join(c if c.isprintable() else "?" for c in text)[:20_000]}
        for text in TEXTS.values()
        for key in headers
    ]
    for n, letter in enumerate(letters):
        await stage.bus.publish(
            Outgoing(
                subject=subjects.dead("tasks"),
                msg_id=f"d{n}",
                schema="TaskSubmitted/1",
                body=b"x%d" % n,
                headers=letter,
            )
        )
    owed = sum(letter[subjects.HEADER_DEAD_KEPT] == "no" for letter in letters)  # else it is stored already
    async with playing([partial(store_dead_letters, stage.context)]):

        async def all_stored() -> bool:
            return len(await stage.reasons()) == owed

        await until(all_stored)
    cases(len(letters))
