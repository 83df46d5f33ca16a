"""When a client gives up that waits for rollouts: after a time in which none of them advanced, however long an attempt of theirs may take."""

from dataclasses import dataclass

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.states import Purpose
from orchestrator.pool.dispatch import dispatch_other
from orchestrator.queries.silence import STUCK_S, Patience, silent_s
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.longest_silence import longest_s
from tests import builders
from tests.integration.pool.rig import record, running, small, take

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("look")]

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """`aged`: seconds since the state changed; `stepped`: a step was recorded just now; `delayed`: until a retry begins; `queued`: no worker has it;
    `training`: seconds since a training rollout of the run advanced."""

    aged: float = DAY_S
    stepped: bool = False
    delayed: float | None = None
    queued: bool = False
    training: float | None = None
    silent: float


@pytest.mark.parametrize(
    "seen",
    [
        Seen(silent=DAY_S),
        Seen(aged=50.0, silent=50.0),
        Seen(stepped=True, silent=0.0),
        Seen(delayed=100.0, queued=True, silent=-100.0),
        Seen(training=30.0, silent=DAY_S),
        Seen(training=30.0, queued=True, silent=30.0),
        Seen(training=DAY_S, queued=True, aged=500.0, silent=500.0),
    ],
)
async def test_progress_is_a_changed_state_a_step_or_the_others_for_which_a_rollout_waits(
    engine: AsyncEngine, seen: Seen
) -> None:
    run = await builders.make_run(engine, small())
    author = builders.Author(turns=1)
    if seen.training is not None:
        await running(engine, run, name="training")
    await builders.accepted(
        engine, run, ["held"], size=1, purpose=Purpose.EVAL, pinned_version=0, label="held"
    )
    async with engine.begin() as connection:
        (assigned,) = await dispatch_other(connection, run.run_id, 8)
        lease = None if seen.queued else await take(connection, assigned.rollout_id)
    if lease is not None and seen.stepped:
        await record(engine, run, author.trajectory(lease, run.name, author.ids(4, 6)))
    async with engine.begin() as connection:
        for statement, ago in (
            ("UPDATE rollouts SET changed = now() - make_interval(secs => :ago)", seen.training),
            (
                "UPDATE rollouts SET changed = now() - make_interval(secs => :ago) WHERE rollout_id = :id",
                seen.aged,
            ),
            (
                "UPDATE rollouts SET not_before = now() + make_interval(secs => :ago) WHERE rollout_id = :id",
                seen.delayed,
            ),
        ):
            if ago is not None:
                values = {"ago": ago} | ({"id": assigned.rollout_id} if ":id" in statement else {})
                await connection.execute(text(statement), values)
        found = await silent_s(connection, run.run_id, Purpose.EVAL, "held", 0)
        assert found == pytest.approx(seen.silent, abs=5.0)
        assert await silent_s(connection, run.run_id, Purpose.EVAL, "held", 1) == float("inf")


@pytest.mark.parametrize(("aged", "gives_up"), [(STUCK_S + 800, False), (STUCK_S + 1000, True)])
async def test_a_client_waits_as_long_as_an_attempt_may_record_nothing(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, aged: float, gives_up: bool
) -> None:
    run = await builders.make_run(engine, small())
    await builders.accepted(
        engine, run, ["held"], size=1, purpose=Purpose.EVAL, pinned_version=0, label="held"
    )
    async with engine.begin() as connection:
        (assigned,) = await dispatch_other(connection, run.run_id, 8)
        await take(connection, assigned.rollout_id)
        await connection.execute(
            text("UPDATE rollouts SET changed = now() - make_interval(secs => :ago)"), {"ago": aged}
        )
    patience = Patience(
        engine=engine, run_id=run.run_id, purpose=Purpose.EVAL, label="held", version=0, longest_s=900.0
    )
    assert await patience.over(0) is None, "the clock of what ended begins with the first look"
    monkeypatch.setattr(patience, "_ask_at", 0.0)
    silent = await patience.over(0)
    assert (silent is not None) is gives_up
    if silent is not None:
        assert silent == pytest.approx(aged, abs=5.0)


@pytest.mark.parametrize(
    ("toml", "seconds"),
    [
        ("", 900.0),
        ("[agent]\ntimeout_sec = 14400.0\n", 14_400.0),
        ("[verifier]\ntimeout_sec = 2000.0\n", 2000.0),
        ('[environment.healthcheck]\ncommand = "true"\ntimeout_sec = 100.0\nretries = 1\n', 900.0 + 5 + 210),
        (
            '[agent]\ntimeout_sec = 60.0\n[[steps]]\nname = "a"\n[[steps]]\nname = "b"\nagent = { timeout_sec = 1800.0 }\n',
            1860.0,
        ),
    ],
)
def test_the_longest_silence_of_a_task_is_that_of_its_attempt_or_its_verification(
    toml: str, seconds: float
) -> None:
    parts = {"instruction.md": b"Say 7.", "tests/test.sh": b"exit 0\n"}
    if "steps" in toml:
        parts = {f"steps/{name}/{path}": data for name in "ab" for path, data in parts.items()}
    assert longest_s(Task.from_files({"task.toml": toml.encode(), **parts})) == seconds
