"""The sessions of this gateway in the data pool."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.contracts.marks import BudgetKind
from orchestrator.contracts.states import SessionState
from orchestrator.gateway.problems import Problem
from orchestrator.gateway.sessions.session import Session, SessionSpec
from orchestrator.gateway_client import Seal, SessionBudget
from orchestrator.pool.rows import member
from orchestrator.pool.sessions import (
    NewSession,
    SessionKey,
    SessionRow,
    current_lease,
    end_session,
    open_session,
    running_sessions,
    save_session_progress,
    seal_before,
    session_of_lease,
    session_of_token,
)
from orchestrator.pool.transact import transact


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    """A sessions row. `marks`, `exhausted`, `replayed`, `parted`, `deleted` and `responses` are the saved progress of an open session;
    `noted`: whether it had saved any; `seal` is set once it is over."""

    spec: SessionSpec
    state: SessionState
    marks: dict[int, set[str]]
    exhausted: BudgetKind | None
    seal: Seal | None
    replayed: tuple[int, ...] = ()
    parted: str | None = None
    noted: bool = False
    deleted: tuple[str, ...] = ()
    responses: Mapping[str, int] = field(default_factory=dict)


class SessionStore:
    """Sessions of one run. `gateway`: the name of this gateway in their rows."""

    def __init__(self, engine: AsyncEngine, run_id: int, gateway: str | None = None) -> None:
        self._engine = engine
        self._run_id = run_id
        self._gateway = gateway
        # The database's clock (seconds since 1970) minus this process's monotonic clock.
        self.ahead: float | None = None

    async def open(self, spec: SessionSpec, token_hash: bytes) -> None:
        """Insert the session, or give the one of the same lease epoch a new token; older epochs of the rollout are closed.

        Raises Problem 409 when the lease is not current, or the session of this epoch is over.
        """

        async def work(connection: AsyncConnection) -> None:
            lease = await current_lease(connection, self._run_id, spec.rollout)
            if lease is not None:
                self.ahead = lease.now_s - time.monotonic()
            if lease is None or (lease.attempt, lease.lease_epoch) != (spec.attempt, spec.epoch):
                raise Problem(
                    409, "stale_lease", f"attempt {spec.attempt} at epoch {spec.epoch} is not current"
                )
            new = NewSession(
                token_hash=token_hash,
                budget=_budget_json(spec),
                valid_s=spec.expires - time.monotonic(),
                replayable=spec.replayable,
                gateway=self._gateway,
            )
            if (state := await open_session(connection, self._run_id, _key(spec), new)) != SessionState.OPEN:
                raise Problem(409, "session_over", f"the session of epoch {spec.epoch} is {state}")

        await transact(self._engine, work, at="session.open")

    async def running(self, connection: AsyncConnection) -> int:
        """How many sessions of this gateway belong to a rollout that still runs under the same lease. Sealed sessions count too: the runner may
        request the seal again."""
        return await running_sessions(connection, self._run_id, self._gateway)

    async def by_token(self, token_hash: bytes) -> StoredSession | None:
        """The session of a token, in any state."""

        async def work(connection: AsyncConnection) -> SessionRow | None:
            return self._observed(await session_of_token(connection, self._run_id, token_hash))

        row = await transact(self._engine, work, at="gateway.read")
        return _stored(row) if row is not None else None

    async def by_lease(self, rollout: int, attempt: int, epoch: int) -> StoredSession | None:
        """The session of a lease epoch, in any state."""
        key = SessionKey(rollout=rollout, attempt=attempt, epoch=epoch)

        async def work(connection: AsyncConnection) -> SessionRow | None:
            return self._observed(await session_of_lease(connection, self._run_id, key))

        row = await transact(self._engine, work, at="gateway.read")
        return _stored(row) if row is not None else None

    async def marks_before(self, spec: SessionSpec) -> dict[int, set[str]]:
        """The marks that the newest earlier session of the attempt had saved, which include those of the sessions before it."""

        async def work(connection: AsyncConnection) -> Mapping[str, Any] | None:
            return await seal_before(connection, self._run_id, _key(spec))

        seal = await transact(self._engine, work, at="gateway.read")
        return _marks(seal or {})

    def _observed(self, row: SessionRow | None) -> SessionRow | None:
        if row is not None:
            self.ahead = row.now_s - time.monotonic()
        return row

    async def end(self, session: Session, seal: Seal, state: SessionState) -> None:
        """Make the seal durable; a session that is already over keeps the seal that it has."""

        async def work(connection: AsyncConnection) -> None:
            await end_session(connection, self._run_id, _key(session.spec), state, msgspec.to_builtins(seal))

        await transact(self._engine, work, at="session.end")

    async def save_progress(self, session: Session) -> None:
        """Save marks, exhaustion, ids and deletions of responses, and the progress of a replay. Step rows do not hold them, and they must outlive
        this process."""
        async with session.saving:  # otherwise an older state could be written last
            marks = {str(idx): sorted(reasons) for idx, reasons in session.marks.items() if reasons}
            progress: dict[str, Any] = {"marks": marks, "exhausted": session.exhausted}
            if session.responses:
                progress["responses"] = dict(session.responses)
            if session.deleted:
                progress["deleted"] = sorted(session.deleted)
            if (replay := session.replay) is not None:
                progress |= {"replayed": sorted(replay.replayed), "parted": replay.parted}

            async def work(connection: AsyncConnection) -> None:
                await save_session_progress(connection, self._run_id, _key(session.spec), progress)

            await transact(self._engine, work, at="session.progress")


def _key(spec: SessionSpec) -> SessionKey:
    return SessionKey(rollout=spec.rollout, attempt=spec.attempt, epoch=spec.epoch)


def _budget_json(spec: SessionSpec) -> dict[str, Any]:
    script = None if spec.script is None else [dict(reply) for reply in spec.script]
    value = {
        **asdict(spec.budget),
        "sampling": dict(spec.sampling),
        "script": script,
        "auxiliary": list(spec.auxiliary),
        "version": spec.version,
        "group": spec.group,
        "conversations": spec.conversations,
        "sub_agents": spec.sub_agents,
        "instructions": list(spec.instructions),
    }
    return json.loads(msgspec.json.encode(value))  # type: ignore[no-any-return]


def _stored(row: SessionRow) -> StoredSession:
    budget, seal = row.budget, row.seal or {}
    over = row.state != SessionState.OPEN
    spec = SessionSpec(
        rollout=row.rollout_id,
        attempt=row.attempt,
        epoch=row.epoch,
        budget=SessionBudget(
            max_turns=budget["max_turns"],
            max_context=budget["max_context"],
            max_total_tokens=budget["max_total_tokens"],
            max_auxiliary_calls=budget.get("max_auxiliary_calls"),
            max_auxiliary_tokens=budget.get("max_auxiliary_tokens"),
        ),
        expires=time.monotonic() + row.left_s,
        sampling=budget["sampling"],
        script=None if budget["script"] is None else tuple(budget["script"]),
        auxiliary=tuple(budget.get("auxiliary", ())),
        replayable=row.replayable,
        version=budget.get("version"),
        group=budget.get("group"),
        conversations=budget.get("conversations", "many"),
        sub_agents=None if (sub_agents := budget.get("sub_agents")) is None else tuple(sub_agents),
        instructions=tuple(budget.get("instructions", ())),
    )
    return StoredSession(
        spec=spec,
        state=member(SessionState, row.state),
        marks={} if over else _marks(seal),
        exhausted=None if seal.get("exhausted") is None else member(BudgetKind, seal["exhausted"]),
        seal=msgspec.convert(seal, Seal) if over and "digest" in seal else None,
        replayed=tuple(seal.get("replayed", ())) if not over else (),
        parted=seal.get("parted"),
        noted=bool(seal),
        deleted=tuple(seal.get("deleted", ())) if not over else (),
        responses=seal.get("responses", {}) if not over else {},
    )


def _marks(noted: Mapping[str, Any]) -> dict[int, set[str]]:
    """Marks by step, from the saved progress of an open session or of one that a later session closed, or from a seal."""
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
