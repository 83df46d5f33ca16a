"""The registry of sessions: opening, finding by token, sealing. A session that is not in memory is rebuilt from the data pool and the journal."""

import secrets
import time
from dataclasses import replace

import anyio
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.bus.journal import Journal
from orchestrator.contracts.states import SessionState
from orchestrator.gateway.metrics import GatewayMetrics
from orchestrator.gateway.problems import Problem, session_over, unknown_session
from orchestrator.gateway.render import Renderer
from orchestrator.gateway.sessions.forest import Forest
from orchestrator.gateway.sessions.rebuild import load_forest
from orchestrator.gateway.sessions.session import (
    Session,
    SessionSpec,
    new_token,
    token_hash,
)
from orchestrator.gateway.sessions.store import SessionStore, StoredSession
from orchestrator.gateway_client import Activity, Seal
from orchestrator.pool.drain_requests import DrainRequests
from orchestrator.runtime.liveness import pause
from orchestrator.runtime.log import get
from orchestrator.settings.timeouts import timeouts

log = get(__name__)

LOOKUPS = 2
"""Tokens that are not in memory are looked up in the data pool, so many at a time."""


class SessionRegistry:
    """Sessions of one run in this gateway."""

    def __init__(
        self,
        engine: AsyncEngine,
        run_id: int,
        *,
        renderer: Renderer,
        journal: Journal,
        store: SessionStore,
        metrics: GatewayMetrics,
        orders: DrainRequests | None = None,
    ) -> None:
        self._orders = orders or DrainRequests()
        self._engine = engine
        self._run_id = run_id
        self._renderer = renderer
        self._journal = journal
        self._store = store
        self._metrics = metrics
        self._by_hash: dict[bytes, Session] = {}
        self._hash_of: dict[tuple[int, int], bytes] = {}  # (rollout, attempt) → the current token's hash
        self._opening = anyio.Lock()
        self._looking_up = anyio.Semaphore(LOOKUPS)
        self.instance = secrets.token_hex(8)

    async def open(self, spec: SessionSpec) -> str:
        """Open a session and return its token. For the same lease epoch again, it returns the same session under a new token.

        Raises Problem 409 when the lease is stale or the session of this epoch is over, 503 for a new one while this gateway drains.
        """
        token = new_token()
        async with self._opening:
            if self._orders.draining and (
                await self._store.by_lease(spec.rollout, spec.attempt, spec.epoch) is None
            ):
                raise Problem(503, "draining", "this gateway drains: it opens no new session")
            await self._store.open(spec, token_hash(token))
            for key, digest in list(self._hash_of.items()):
                if key[0] == spec.rollout and self._by_hash[digest].spec.epoch < spec.epoch:
                    await self._close(self._by_hash[digest], SessionState.CLOSED)
            session = self.current(spec.rollout, spec.attempt, spec.epoch)
            if session is None:
                stored = await self._store.by_lease(spec.rollout, spec.attempt, spec.epoch)
                assert stored is not None, "it was opened above"
                session = await self._rebuild(replace(stored, spec=spec))
                if session.replay is not None and not stored.noted:
                    # Marks of earlier leases now belong to this session.
                    await self._store.save_progress(session)
            else:
                self._forget(session)
                session.spec = spec
            self._remember(session, token_hash(token))
        log.info("session.opened", **session.ids, recorded=len(session.forest.nodes))
        return token

    async def find(self, token: str) -> Session:
        """The open session of a token. Raises Problem 401 for an unknown one, 409 for one that is over."""
        digest = token_hash(token)
        session = self._by_hash.get(digest)
        if session is None:
            await self._look_up(digest)
            async with self._opening:
                # Read again: it may have been sealed, and what is over must not be rebuilt as open.
                session = self._by_hash.get(digest) or await self._restore(
                    _open(await self._store.by_token(digest)), digest
                )
        session.check_open()
        return session

    async def _look_up(self, digest: bytes) -> None:
        """Raise Problem for a token that no open session has. Anyone can send such tokens: their reads hold up neither sessions that are opened or
        sealed nor the other transactions of this gateway."""
        async with self._looking_up:
            _open(await self._store.by_token(digest))

    async def end(self, rollout: int, attempt: int, epoch: int, state: SessionState) -> Seal:
        """Seal (or close) the session of a lease epoch; again: the same seal. Raises Problem 404 when there never was a session."""
        # Without the lock a late call could find the session open and commit after its seal.
        async with self._opening:
            session = self.current(rollout, attempt, epoch)
            if session is None:
                stored = await self._store.by_lease(rollout, attempt, epoch)
                if stored is None:
                    raise Problem(
                        404,
                        "unknown_session",
                        f"no session of rollout {rollout}, attempt {attempt}, epoch {epoch}",
                    )
                if stored.seal is not None:
                    return stored.seal
                session = await self._rebuild(stored)
                session.over = stored.state if stored.state != SessionState.OPEN else None
            seal = await self._close(session, state)
            await self._store.end(session, seal, state)
        log.info(f"session.{state}", **session.ids, steps=seal.steps)
        return seal

    async def expire(self) -> None:
        """Forget expired sessions periodically, until cancelled: a session stays unsealed if its runner died before its last attempt ended."""
        while True:
            await pause(timeouts().session_sweep_s)
            if forgotten := await self.forget_expired(timeouts().session_sweep_s):
                log.info("sessions.forgotten", sessions=forgotten)

    async def forget_expired(self, ago_s: float) -> int:
        """Free sessions that expired `ago_s` seconds ago and have no call under way; return their number. A session that is sealed or opened
        later is rebuilt, as after a restart."""
        async with self._opening:
            expired_before = time.monotonic() - ago_s
            expired = [
                session
                for session in self._by_hash.values()
                if session.spec.expires < expired_before and not session.calls
            ]
            for session in expired:
                self._forget(session)
        return len(expired)

    def activity(self, rollout: int, attempt: int, epoch: int) -> Activity:
        """The activity of the session of a lease epoch, as far as this process knows it."""
        session = self.current(rollout, attempt, epoch)
        if session is None:
            return Activity(
                in_flight=0, calls=0, queued_s=0.0, instance=self.instance, draining=self._orders.draining
            )
        now, calls = time.monotonic(), session.calls.values()
        waits = [call.in_flight.waiting_s for call in calls]
        waits += [now - times.began for times in session.in_preparation]
        replayed_s = session.replay.replayed_s if session.replay is not None else 0.0
        times = session.account.totals(now)
        return Activity(
            in_flight=len(calls) + len(session.in_preparation),
            calls=session.requests,
            queued_s=times.waiting,
            instance=self.instance,
            held_s=max(waits, default=0.0),
            replayed_s=replayed_s,
            draining=self._orders.draining,
            generation_s=times.generation,
            undecided_s=times.undecided,
            worked_s=session.worked_s,
        )

    async def _close(self, session: Session, state: SessionState) -> Seal:
        """Cancel the calls in flight. From here on the session commits no steps."""
        async with session.lock:  # a commit that has started is finished first
            session.over = session.over or state
            for call in list(session.calls.values()):
                call.scope.cancel()
            seal = session.seal()
        self._forget(session)
        return seal

    def current(self, rollout: int, attempt: int, epoch: int) -> Session | None:
        """The session of a lease epoch, if it is in memory."""
        digest = self._hash_of.get((rollout, attempt))
        session = self._by_hash.get(digest) if digest is not None else None
        return session if session is not None and session.spec.epoch == epoch else None

    def _remember(self, session: Session, digest: bytes) -> None:
        self._by_hash[digest] = session
        self._hash_of[session.key] = digest
        self._metrics.sessions.set(len(self._by_hash))

    def _forget(self, session: Session) -> None:
        digest = self._hash_of.get(session.key)
        # A resume has the same key as the session before it, which may be closed late.
        if digest is not None and self._by_hash.get(digest) is session:
            del self._hash_of[session.key], self._by_hash[digest]
        self._metrics.sessions.set(len(self._by_hash))

    async def _forest(self, spec: SessionSpec) -> tuple[Forest, int]:
        return await load_forest(
            self._engine,
            self._run_id,
            self._renderer,
            (spec.rollout, spec.attempt, spec.epoch),
            self._journal.pending(),
        )

    async def _rebuild(self, stored: StoredSession) -> Session:
        forest, recorded = await self._forest(stored.spec)
        marks, replayed = stored.marks, stored.replayed if stored.noted else None
        if recorded and not stored.noted:
            marks = await self._store.marks_before(stored.spec)
        session = Session(
            stored.spec, forest, marks=marks, recorded=recorded, replayed=replayed, ahead=self._store.ahead
        )
        session.exhausted = stored.exhausted
        session.deleted = set(stored.deleted)
        session.responses = dict(stored.responses)
        if session.replay is not None:
            session.replay.parted = stored.parted
        return session

    async def _restore(self, stored: StoredSession, digest: bytes) -> Session:
        session = await self._rebuild(stored)
        self._remember(session, digest)
        return session


def _open(stored: StoredSession | None) -> StoredSession:
    """The stored session of a token, if it is open. Raises Problem 401 for none, 409 for one that is over."""
    if stored is None:
        raise unknown_session()
    if stored.state != SessionState.OPEN:
        raise session_over(stored.state)
    if time.monotonic() > stored.spec.expires:
        raise session_over("expired")
    return stored
