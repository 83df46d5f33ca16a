"""One attempt of a run that checks a scaffold: how it ended, its reward, and the columns of its steps that the check judges."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.marks import Finish, ParseStatus
from orchestrator.contracts.states import FailureClass, RolloutState
from orchestrator.pool.rows import from_row

_ROLLOUT = text("SELECT rollout_id FROM rollouts JOIN groups USING (group_id) WHERE submission = :name")
_STATE = text("SELECT state FROM rollouts WHERE rollout_id = :id")
_ATTEMPT = text("SELECT attempt, failure_class, reason, log FROM attempts WHERE rollout_id = :id")
_REWARD = text("SELECT reward FROM verdicts WHERE rollout_id = :id")
_STEPS = text(
    "SELECT idx, request_digest, parse, finish, agent, full_len FROM steps WHERE rollout_id = :id ORDER BY idx"
)
_MARKS = text("SELECT idx, reason FROM step_marks WHERE rollout_id = :id")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedStep:
    """A recorded step. `request_digest`: sha256 of the request; `full_len`: tokens of state and action."""

    idx: int
    request_digest: bytes
    parse: ParseStatus
    finish: Finish
    agent: str
    full_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedAttempt:
    """The only attempt of a rollout. `reward`: None without a verdict; `marked`: reasons by the idx of a step."""

    attempt: int
    failure_class: FailureClass
    reason: str | None
    log: str | None
    reward: float | None
    steps: Sequence[PlayedStep]
    marked: dict[int, set[str]]


async def rollout_of(connection: AsyncConnection, submission: str) -> int:
    """The first rollout of an accepted submission, whose name no other run uses."""
    found = await connection.scalar(_ROLLOUT, {"name": submission})
    assert found is not None
    return int(found)


async def state_of(connection: AsyncConnection, rollout: int) -> RolloutState:
    """The state of a rollout."""
    return RolloutState(await connection.scalar(_STATE, {"id": rollout}))


async def played_attempt(connection: AsyncConnection, rollout: int) -> PlayedAttempt:
    """The attempt of an ended rollout."""
    parameters = {"id": rollout}
    attempt = (await connection.execute(_ATTEMPT, parameters)).one()
    rewards = (await connection.scalars(_REWARD, parameters)).all()
    steps = [from_row(PlayedStep, row) for row in await connection.execute(_STEPS, parameters)]
    marked: dict[int, set[str]] = {}
    for mark in await connection.execute(_MARKS, parameters):
        marked.setdefault(mark.idx, set()).add(mark.reason)
    return from_row(
        PlayedAttempt, attempt, reward=float(rewards[0]) if rewards else None, steps=steps, marked=marked
    )
