"""Sessions of gateways: the rows that give a token its rollout, and keep what a session must not lose when its gateway ends."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import RolloutState, SessionState
from orchestrator.pool.columns import in_state
from orchestrator.pool.rows import from_wide_row, member
from orchestrator.pool.tables import rollouts, sessions

_NOW = func.extract("epoch", func.clock_timestamp()).label("now_s")
_OPEN = sessions.c.state == SessionState.OPEN


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKey:
    """The lease that a session serves."""

    rollout: int
    attempt: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSession:
    """A session to open. `valid_s`: seconds until its token expires; `gateway`: the name of the gateway that opens it; `budget`: JSON."""

    token_hash: bytes
    budget: Mapping[str, Any]
    valid_s: float
    replayable: bool
    gateway: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentLease:
    """A rollout's lease. `now_s`: the database's clock, seconds since 1970."""

    attempt: int
    lease_epoch: int
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """A sessions row. `seal`: saved progress while the state is open, then the seal. `left_s`: seconds until its token expires; `now_s`: the
    database's clock, seconds since 1970."""

    rollout_id: int
    attempt: int
    epoch: int
    state: SessionState
    budget: Mapping[str, Any]
    seal: Mapping[str, Any] | None
    replayable: bool
    left_s: float
    now_s: float


async def current_lease(connection: AsyncConnection, run_id: int, rollout: int) -> CurrentLease | None:
    """The lease of a rollout; None if the run has no such rollout."""
    row = (
        await connection.execute(
            select(rollouts.c.attempt, rollouts.c.lease_epoch, _NOW).where(
                rollouts.c.rollout_id == rollout, rollouts.c.run_id == run_id
            )
        )
    ).first()
    return from_wide_row(CurrentLease, row, now_s=float(row.now_s)) if row is not None else None


async def open_session(
    connection: AsyncConnection, run_id: int, key: SessionKey, new: NewSession
) -> SessionState:
    """Insert the session, or give the open one of the same lease epoch a new token; older epochs of the rollout are closed. Returns the state of
    the session: other than open if it is over, and then it stays as it is."""
    await connection.execute(
        update(sessions)
        .where(sessions.c.rollout_id == key.rollout, sessions.c.state == SessionState.OPEN)
        .where((sessions.c.epoch < key.epoch) | (sessions.c.attempt < key.attempt))
        .values(state=SessionState.CLOSED)
    )
    values = {
        "token_hash": new.token_hash,
        "budget": new.budget,
        "expires": func.clock_timestamp() + timedelta(seconds=new.valid_s),
        "replayable": new.replayable,
        "gateway": new.gateway,
    }
    known = (
        await connection.execute(select(sessions.c.session_id, sessions.c.state).where(_of(key)))
    ).first()
    if known is None:
        await connection.execute(
            insert(sessions).values(
                run_id=run_id, rollout_id=key.rollout, attempt=key.attempt, epoch=key.epoch, **values
            )
        )
        return SessionState.OPEN
    if known.state == SessionState.OPEN:
        await connection.execute(
            update(sessions).where(sessions.c.session_id == known.session_id).values(**values)
        )
    return member(SessionState, known.state)


async def running_sessions(connection: AsyncConnection, run_id: int, gateway: str | None) -> int:
    """How many sessions of this gateway belong to a rollout that still runs under the same lease, including sealed ones."""
    open_rollouts = (
        in_state(rollouts.c.state, RolloutState.RUNNING),
        rollouts.c.state.not_in([RolloutState.VERIFIED, RolloutState.LOST]),
    )
    query = (
        select(func.count())
        .select_from(rollouts.join(sessions, sessions.c.rollout_id == rollouts.c.rollout_id))
        .where(
            rollouts.c.run_id == run_id,
            *open_rollouts,
            sessions.c.attempt == rollouts.c.attempt,
            sessions.c.epoch == rollouts.c.lease_epoch,
            sessions.c.gateway == gateway,
        )
    )
    return int(await connection.scalar(query) or 0)


async def session_of_token(connection: AsyncConnection, run_id: int, token_hash: bytes) -> SessionRow | None:
    """The session of a token, in any state."""
    return await _find(connection, run_id, sessions.c.token_hash == token_hash)


async def session_of_lease(connection: AsyncConnection, run_id: int, key: SessionKey) -> SessionRow | None:
    """The session of a lease epoch, in any state."""
    return await _find(connection, run_id, _of(key))


async def seal_before(connection: AsyncConnection, run_id: int, key: SessionKey) -> Mapping[str, Any] | None:
    """The seal, or the saved progress, of the newest earlier session of the attempt that has one."""
    found: Mapping[str, Any] | None = await connection.scalar(
        select(sessions.c.seal)
        .where(
            sessions.c.run_id == run_id,
            sessions.c.rollout_id == key.rollout,
            sessions.c.attempt == key.attempt,
            sessions.c.epoch < key.epoch,
            sessions.c.seal.is_not(None),
        )
        .order_by(sessions.c.epoch.desc())
        .limit(1)
    )
    return found


async def save_session_progress(
    connection: AsyncConnection, run_id: int, key: SessionKey, progress: Mapping[str, Any]
) -> None:
    """Write the progress of an open session. A session that is over is unchanged."""
    await connection.execute(
        update(sessions).where(_of(key), sessions.c.run_id == run_id, _OPEN).values(seal=progress)
    )


async def end_session(
    connection: AsyncConnection, run_id: int, key: SessionKey, state: str, seal: Mapping[str, Any]
) -> None:
    """Write the state and the seal of an open session. A session that is over keeps the seal that it has."""
    await connection.execute(
        update(sessions).where(_of(key), sessions.c.run_id == run_id, _OPEN).values(state=state, seal=seal)
    )


def _of(key: SessionKey) -> ColumnElement[bool]:
    return (
        (sessions.c.rollout_id == key.rollout)
        & (sessions.c.attempt == key.attempt)
        & (sessions.c.epoch == key.epoch)
    )


async def _find(
    connection: AsyncConnection, run_id: int, condition: ColumnElement[bool]
) -> SessionRow | None:
    left_s = func.extract("epoch", sessions.c.expires - func.clock_timestamp()).label("left_s")
    query = select(sessions, left_s, _NOW).where(sessions.c.run_id == run_id, condition)
    row = (await connection.execute(query)).first()
    if row is None:
        return None
    return from_wide_row(SessionRow, row, left_s=float(row.left_s), now_s=float(row.now_s))
