"""The book of sessions: opening, finding by token, sealing. What is not in memory is rebuilt from the data pool and the journal."""

import secrets
import time
from dataclasses import replace

import anyio
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.bus.journal import Journal
from orchestrator.clock import clock
from orchestrator.gateway.forest import Forest
from orchestrator.gateway.metrics import Metrics
from orchestrator.gateway.problems import Problem, session_over, unknown_session
from orchestrator.gateway.rebuild import load_forest
from orchestrator.gateway.render import Renderer
from orchestrator.gateway.sessions import Session, Terms, new_token, token_hash
from orchestrator.gateway.store import SessionStore, StoredSession
from orchestrator.gateway_client import Activity, Seal
from orchestrator.log import get
from orchestrator.pool.orders import Orders
from orchestrator.progress import pause

log = get(__name__)


class SessionBook:
    """Sessions of one run in this gateway."""

    def __init__(
        self,
        engine: AsyncEngine,
        run_id: int,
        renderer: Renderer,
        journal: Journal,
        store: SessionStore,
        metrics: Metrics,
        orders: Orders | None = None,
    ) -> None:
        self._orders = orders or Orders()
        self._engine = engine
        self._run_id = run_id
        self._renderer = renderer
        self._journal = journal
        self._store = store
        self._metrics = metrics
        self._by_hash: dict[bytes, Session] = {}
        self._hash_of: dict[tuple[int, int], bytes] = {}  # (rollout, attempt) → the current token's hash
        self._opening = anyio.Lock()
        self.instance = secrets.token_hex(8)

    async def open(self, terms: Terms) -> str:
        """Open a session and return its token. The same lease epoch again: the same session under a new token.

        Raises Problem 409 when the lease is stale or the session of this epoch is over, 503 for a new one while this gateway drains.
        """
        token = new_token()
        async with self._opening:
            if self._orders.drains and (
                await self._store.by_lease(terms.rollout, terms.attempt, terms.epoch) is None
            ):
                raise Problem(503, "draining", "this gateway drains: it opens no new session")
            await self._store.open(terms, token_hash(token))
            for key, digest in list(self._hash_of.items()):
                if key[0] == terms.rollout and self._by_hash[digest].terms.epoch < terms.epoch:
                    await self._close(self._by_hash[digest], "closed")
            session = self._current(terms.rollout, terms.attempt, terms.epoch)
            if session is None:
                stored = await self._store.by_lease(terms.rollout, terms.attempt, terms.epoch)
                assert stored is not None, "it was opened above"
                session = await self._rebuild(replace(stored, terms=terms))
                if session.replay is not None and not stored.noted:
                    await self._store.save_progress(session)  # marks of earlier leases are this session's now
            else:
                self._forget(session)
                session.terms = terms
            self._remember(session, token_hash(token))
        log.info("session.opened", **session.ids, recorded=len(session.forest.nodes))
        return token

    async def find(self, token: str) -> Session:
        """The open session of a token. Raises Problem 401 for an unknown one, 409 for one that is over."""
        digest = token_hash(token)
        session = self._by_hash.get(digest)
        if session is None:
            async with self._opening:
                session = self._by_hash.get(digest) or await self._restore(
                    await self._store.by_token(digest), digest
                )
        session.check_open()
        return session

    async def end(self, rollout: int, attempt: int, epoch: int, state: str) -> Seal:
        """Seal (or close) the session of a lease epoch; again: the same seal. Raises Problem 404 when there never was one."""
        async with self._opening:  # else a late call could find the session open, and commit behind its seal
            session = self._current(rollout, attempt, epoch)
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
                session.over = stored.state if stored.state != "open" else None
            seal = await self._close(session, state)
            await self._store.end(session, seal, state)
        log.info(f"session.{state}", **session.ids, steps=seal.steps)
        return seal

    async def tidy(self) -> None:
        """Forget expired sessions now and then, until cancelled: nobody seals one whose runner died before its last attempt ended."""
        while True:
            await pause(clock().session_sweep_s)
            if forgotten := await self.forget_expired(clock().session_sweep_s):
                log.info("sessions.forgotten", sessions=forgotten)

    async def forget_expired(self, ago_s: float) -> int:
        """Free what expired `ago_s` seconds ago and has no call under way; returns how many. One that is sealed or opened after that is
        rebuilt, as after a restart."""
        async with self._opening:
            before = time.monotonic() - ago_s
            expired = [
                session
                for session in self._by_hash.values()
                if session.terms.expires < before and not session.calls
            ]
            for session in expired:
                self._forget(session)
        return len(expired)

    def activity(self, rollout: int, attempt: int, epoch: int) -> Activity:
        """What the session of a lease epoch is doing, as far as this process knows it."""
        session = self._current(rollout, attempt, epoch)
        if session is None:
            return Activity(0, 0, 0.0, self.instance, draining=self._orders.drains)
        held_s = max((call.flight.held_s for call in session.calls.values()), default=0.0)
        replayed_s = session.replay.replayed_s if session.replay is not None else 0.0
        return Activity(
            len(session.calls),
            session.requests,
            session.queued_s,
            self.instance,
            held_s,
            replayed_s,
            draining=self._orders.drains,
        )

    async def _close(self, session: Session, state: str) -> Seal:
        """Cancel what is in flight; from here on nothing commits."""
        async with session.lock:  # a commit that has begun is finished first
            session.over = session.over or state
            for call in list(session.calls.values()):
                call.scope.cancel()
            seal = session.seal()
        self._forget(session)
        return seal

    def _current(self, rollout: int, attempt: int, epoch: int) -> Session | None:
        digest = self._hash_of.get((rollout, attempt))
        session = self._by_hash.get(digest) if digest is not None else None
        return session if session is not None and session.terms.epoch == epoch else None

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

    async def _forest(self, terms: Terms) -> tuple[Forest, int]:
        return await load_forest(
            self._engine,
            self._run_id,
            self._renderer,
            (terms.rollout, terms.attempt, terms.epoch),
            self._journal.pending(),
        )

    async def _rebuild(self, stored: StoredSession) -> Session:
        forest, recorded = await self._forest(stored.terms)
        marks, replayed = stored.marks, stored.replayed if stored.noted else None
        if recorded and not stored.noted:
            marks = await self._store.marks_before(stored.terms)
        session = Session(stored.terms, forest, marks=marks, recorded=recorded, replayed=replayed)
        session.exhausted = stored.exhausted
        if session.replay is not None:
            session.replay.parted = stored.parted
        return session

    async def _restore(self, stored: StoredSession | None, digest: bytes) -> Session:
        if stored is None:
            raise unknown_session()
        if stored.state != "open":
            raise session_over(stored.state)
        if time.monotonic() > stored.terms.expires:
            raise session_over("expired")
        session = await self._rebuild(stored)
        self._remember(session, digest)
        return session
