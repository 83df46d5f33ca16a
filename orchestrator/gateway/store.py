"""The sessions of this gateway in the data pool."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import msgspec
from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.contracts.states import RolloutState
from orchestrator.gateway.problems import Problem
from orchestrator.gateway.sessions import Session, Terms
from orchestrator.gateway_client import Budget, Seal
from orchestrator.pool.columns import in_state
from orchestrator.pool.tables import rollouts, sessions
from orchestrator.pool.transact import transact


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A sessions row. `marks`, `exhausted`, `replayed` and `parted` are what an open session had noted, `noted` whether it had noted
    anything; `seal` is set once it is over."""

    terms: Terms
    state: str
    marks: dict[int, set[str]]
    exhausted: str | None
    seal: Seal | None
    replayed: tuple[int, ...] = ()
    parted: str | None = None
    noted: bool = False


class SessionStore:
    """Sessions of one run. `gateway`: the name of this one in their rows."""

    def __init__(self, engine: AsyncEngine, run_id: int, gateway: str = "") -> None:
        self._engine = engine
        self._run_id = run_id
        self._gateway = gateway

    async def open(self, terms: Terms, token_hash: bytes) -> None:
        """Insert the session, or give the one of the same lease epoch a new token; older epochs of the rollout are closed.

        Raises Problem 409 when the lease is not current, or the session of this epoch is over.
        """

        async def work(connection: AsyncConnection) -> None:
            lease = (
                await connection.execute(
                    select(rollouts.c.attempt, rollouts.c.lease_epoch).where(
                        rollouts.c.rollout_id == terms.rollout, rollouts.c.run_id == self._run_id
                    )
                )
            ).first()
            if lease is None or (lease.attempt, lease.lease_epoch) != (terms.attempt, terms.epoch):
                raise Problem(
                    409, "stale_lease", f"attempt {terms.attempt} at epoch {terms.epoch} is not current"
                )
            mine = (
                sessions.c.rollout_id == terms.rollout,
                sessions.c.attempt == terms.attempt,
                sessions.c.epoch == terms.epoch,
            )
            await connection.execute(
                update(sessions)
                .where(sessions.c.rollout_id == terms.rollout, sessions.c.state == "open")
                .where((sessions.c.epoch < terms.epoch) | (sessions.c.attempt < terms.attempt))
                .values(state="closed")
            )
            values = {
                "token_hash": token_hash,
                "budget": _budget_json(terms),
                "expires": func.clock_timestamp() + timedelta(seconds=terms.expires - time.monotonic()),
                "replayable": terms.replayable,
                "gateway": self._gateway,
            }
            known = (
                await connection.execute(select(sessions.c.session_id, sessions.c.state).where(*mine))
            ).first()
            if known is None:
                await connection.execute(
                    insert(sessions).values(
                        run_id=self._run_id,
                        rollout_id=terms.rollout,
                        attempt=terms.attempt,
                        epoch=terms.epoch,
                        **values,
                    )
                )
            elif known.state == "open":
                await connection.execute(
                    update(sessions).where(sessions.c.session_id == known.session_id).values(**values)
                )
            else:
                raise Problem(409, "session_over", f"the session of epoch {terms.epoch} is {known.state}")

        await transact(self._engine, work, at="session.open")

    async def running(self, connection: AsyncConnection) -> int:
        """How many sessions of this gateway belong to a rollout that still runs under the same lease, sealed ones too: its runner may ask for
        the seal again."""
        open_rollouts = (
            in_state(rollouts.c.state, RolloutState.RUNNING),
            rollouts.c.state.not_in([RolloutState.VERIFIED, RolloutState.LOST]),
        )
        query = (
            select(func.count())
            .select_from(rollouts.join(sessions, sessions.c.rollout_id == rollouts.c.rollout_id))
            .where(
                rollouts.c.run_id == self._run_id,
                *open_rollouts,
                sessions.c.attempt == rollouts.c.attempt,
                sessions.c.epoch == rollouts.c.lease_epoch,
                sessions.c.gateway == self._gateway,
            )
        )
        return int(await connection.scalar(query) or 0)

    async def by_token(self, token_hash: bytes) -> StoredSession | None:
        """The session of a token, whatever its state."""
        return await self._find(sessions.c.token_hash == token_hash)

    async def by_lease(self, rollout: int, attempt: int, epoch: int) -> StoredSession | None:
        """The session of a lease epoch, whatever its state."""
        return await self._find(
            (sessions.c.rollout_id == rollout) & (sessions.c.attempt == attempt) & (sessions.c.epoch == epoch)
        )

    async def marks_before(self, terms: Terms) -> dict[int, set[str]]:
        """What the newest earlier session of the attempt had noted of its steps, those of the sessions before it among them."""

        async def work(connection: AsyncConnection) -> Any:
            return await connection.scalar(
                select(sessions.c.seal)
                .where(
                    sessions.c.run_id == self._run_id,
                    sessions.c.rollout_id == terms.rollout,
                    sessions.c.attempt == terms.attempt,
                    sessions.c.epoch < terms.epoch,
                    sessions.c.seal.is_not(None),
                )
                .order_by(sessions.c.epoch.desc())
                .limit(1)
            )

        noted = await transact(self._engine, work, at="gateway.read")
        return _marks(noted or {})

    async def _find(self, condition: Any) -> StoredSession | None:
        async def work(connection: AsyncConnection) -> Any:
            left_s = func.extract("epoch", sessions.c.expires - func.clock_timestamp()).label("left_s")
            query = select(sessions, left_s).where(sessions.c.run_id == self._run_id, condition)
            return (await connection.execute(query)).first()

        row = await transact(self._engine, work, at="gateway.read")
        return _stored(row) if row is not None else None

    async def end(self, session: Session, seal: Seal, state: str) -> None:
        """Make the seal durable; a session that is already over keeps the seal that it has."""

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(
                update(sessions)
                .where(_is(session), sessions.c.run_id == self._run_id, sessions.c.state == "open")
                .values(state=state, seal=msgspec.to_builtins(seal))
            )

        await transact(self._engine, work, at="session.end")

    async def save_progress(self, session: Session) -> None:
        """Marks, exhaustion and the progress of a replay, which no step row tells, so that they outlive this process."""
        async with session.saving:  # else an older state could be written last
            marks = {str(idx): sorted(reasons) for idx, reasons in session.marks.items() if reasons}
            progress: dict[str, Any] = {"marks": marks, "exhausted": session.exhausted}
            if (replay := session.replay) is not None:
                progress |= {"replayed": sorted(replay.replayed), "parted": replay.parted}

            async def work(connection: AsyncConnection) -> None:
                await connection.execute(
                    update(sessions)
                    .where(_is(session), sessions.c.run_id == self._run_id, sessions.c.state == "open")
                    .values(seal=progress)
                )

            await transact(self._engine, work, at="session.progress")


def _is(session: Session) -> Any:
    return (
        (sessions.c.rollout_id == session.terms.rollout)
        & (sessions.c.attempt == session.terms.attempt)
        & (sessions.c.epoch == session.terms.epoch)
    )


def _budget_json(terms: Terms) -> dict[str, Any]:
    script = None if terms.script is None else [dict(reply) for reply in terms.script]
    value = {
        **asdict(terms.budget),
        "sampling": dict(terms.sampling),
        "script": script,
        "auxiliary": list(terms.auxiliary),
        "version": terms.version,
        "group": terms.group,
    }
    return json.loads(msgspec.json.encode(value))  # type: ignore[no-any-return]


def _stored(row: Any) -> StoredSession:
    budget, noted = row.budget, row.seal or {}
    over = row.state != "open"
    terms = Terms(
        rollout=row.rollout_id,
        attempt=row.attempt,
        epoch=row.epoch,
        budget=Budget(budget["max_turns"], budget["max_context"], budget["max_total_tokens"]),
        expires=time.monotonic() + float(row.left_s),
        sampling=budget["sampling"],
        script=None if budget["script"] is None else tuple(budget["script"]),
        auxiliary=tuple(budget.get("auxiliary", ())),
        replayable=row.replayable,
        version=budget.get("version"),
        group=budget.get("group"),
    )
    return StoredSession(
        terms,
        row.state,
        {} if over else _marks(noted),
        noted.get("exhausted"),
        msgspec.convert(noted, Seal) if over and "digest" in noted else None,
        tuple(noted.get("replayed", ())) if not over else (),
        noted.get("parted"),
        bool(noted),
    )


def _marks(noted: Mapping[str, Any]) -> dict[int, set[str]]:
    """Marks by step, from the notes of an open session or of one that was closed by a later one, or from a seal."""
    found: dict[int, set[str]] = {}
    marks = noted.get("marks", {})
    listed = (
        ((int(idx), reason) for idx, reasons in marks.items() for reason in reasons)
        if isinstance(marks, dict)
        else ((mark["idx"], mark["reason"]) for mark in marks)
    )
    for idx, reason in listed:
        found.setdefault(idx, set()).add(reason)
    return found
