"""Arbitrary bytes on real streams (from hypothesis): they are refused in one sentence, and good messages next to them pass."""

import json
import os
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.bus import subjects
from orchestrator.bus.base import Outgoing
from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.events import (
    EVENTS,
    Event,
    RolloutFinished,
    TaskSubmitted,
    VerdictReached,
    decode,
    encode,
)
from orchestrator.contracts.states import FailureClass
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.pool.ingest import decode_step
from orchestrator.roles.ingest import ingest_results, ingest_steps, ingest_verdicts
from orchestrator.roles.intake import Intake
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.artifacts import limits_of
from orchestrator.tasks.validate_results import check_result, check_verdict
from tests.builders import a_lease
from tests.integration.pool.rig import Tree, ended, running
from tests.integration.roles.rig import (
    TASK,
    Stage,
    everything,
    has_counted,
    has_state,
    playing,
    staged,
    until,
)

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("roles")]

EXAMPLES = int(os.environ.get("PENSTOCK_FUZZ_EXAMPLES", "60"))
hurried = settings(deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture
async def stage(engine: AsyncEngine, nats_server: EmbeddedNats) -> AsyncIterator[Stage]:
    async with staged(engine, nats_server.url) as stage:
        yield stage


odd = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["", "\x00", "\ud800", "a" * 999]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
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
    lease = a_lease()
    if kind is TaskSubmitted:
        return TaskSubmitted(task=TASK, submission="s")
    if kind is VerdictReached:
        return VerdictReached(
            run="run", rollout=7, attempt=1, epoch=1, failure_class=FailureClass.COMPLETED, reward=1.0
        )
    if kind is RolloutFinished:
        return ended("run", lease, [], digest="")
    return Tree(2).grow("run", lease, 2)[-1].event


@pytest.mark.parametrize("kind", [EVENTS["StepRecorded"], RolloutFinished, VerdictReached, TaskSubmitted])
def test_any_bytes_are_an_event_or_refused_in_one_sentence(kind: type[Event]) -> None:
    checks: dict[str, Any] = {
        "StepRecorded": decode_step,
        "RolloutFinished": partial(check_result, limits=limits_of(SandboxSection())),
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
            pass  # the loop treats it as a message that is nested too deeply

    tried()


@pytest.mark.parametrize(
    ("name", "value"), [("rollout", 2**63), ("attempt", 2**15), ("epoch", -(2**31)), ("idx", 2**31)]
)
def test_a_number_of_a_step_that_no_column_holds_is_refused_by_its_name(name: str, value: int) -> None:
    step = msgspec.structs.replace(an_event(EVENTS["StepRecorded"]), **{name: value})
    with pytest.raises(MessageError, match=f"{name} {value} does not exist"):
        decode_step(step)  # type: ignore[arg-type]


SUBJECTS = {
    "TaskSubmitted": lambda run: subjects.tasks(run, "coding"),
    "StepRecorded": lambda run: subjects.steps(run, "7"),
    "RolloutFinished": subjects.results_rollout,
    "VerdictReached": subjects.results_verdict,
}


@pytest.mark.parametrize("name", SUBJECTS)
async def test_the_loop_lives_and_good_messages_pass_whatever_else_arrives(stage: Stage, name: str) -> None:
    run, context = stage.run.name, stage.context
    await stage.serves(3, 4)
    held, _ = await running(context.engine, stage.run, 2)
    before = await everything(stage)
    kind = EVENTS[name]
    good: dict[str, Event] = {
        "TaskSubmitted": TaskSubmitted(task=TASK, submission="good"),
        "StepRecorded": Tree(1).grow(run, held, 1)[0].event,
        "RolloutFinished": ended(run, held, [], digest=""),
    }
    sample = good.get(name) or VerdictReached(
        run=run, rollout=held.rollout_id, attempt=1, epoch=1, failure_class=FailureClass.COMPLETED, reward=1.0
    )
    messages: list[tuple[bytes, str | None]] = []

    @settings(
        deadline=None, max_examples=min(EXAMPLES, 300), database=None, suppress_health_check=list(HealthCheck)
    )
    @given(body=bodies(kind, sample), schema=schemas)
    def collect(body: bytes, schema: str | None) -> None:
        # Bytes that happen to be a good message are not the subject here.
        try:
            decode(body, schema, kind)
        except (MessageError, RecursionError):
            messages.append((body, schema))

    collect()
    subject = SUBJECTS[name](run)
    for n, (body, schema) in enumerate(messages):
        safe = schema if schema is None or schema.isascii() else "odd/1"
        await stage.bus.publish(Outgoing(subject=subject, msg_id=f"odd{n}", schema=safe or "", body=body))
    await stage.send(subject, sample)
    roles: dict[str, Any] = {
        "StepRecorded": ingest_steps,
        "RolloutFinished": ingest_results,
        "VerdictReached": ingest_verdicts,
    }
    role = Intake(context, ["shell"]).run if name == "TaskSubmitted" else partial(roles[name], context)
    async with playing([role]):
        await stage.reaches(len(messages), "dead_letters")
        match name:
            case "TaskSubmitted":
                await stage.reaches(1, "groups", submission="good")
            case "StepRecorded":
                await stage.reaches(1, "steps")
            case "RolloutFinished":
                await until(lambda: has_state(stage, held.rollout_id, "finished"))
            case "VerdictReached":
                await until(lambda: has_counted(stage, "verdicts_stale", 1))
                assert await everything(stage) == before
    assert len(messages) > 10 and all(reason and "\n" not in reason for reason in await stage.reasons())
