"""Weight syncs: each rollout server has a syncer, which brings it to the newest policy version and admits calls after a canary.

| produces | waits for | unblocked by |
|---|---|---|
| a server at the newest version, its row (owner) | a published version; an answer of the server | the trainer; the supervisor |
| the gate according to the row (other gateways) | the row | the owner, or the end of its lease |

One sync: gate closed → pause (abort; calls come back with their partial actions and wait at the gate) → weights, caches flushed → continue →
canary → gate open, and the held calls continue → row. If several versions arrive in a row, only the newest matters. A server that already
holds the version's weights (weights.py), as after a restart of the gateway, is not paused: only the canary decides. The same pause interrupts
calls of other gateways, perhaps before they have read the row. A call that comes back interrupted closes their gate until the row reports the end
of the sync. Between syncs, and while a version cannot be loaded, canaries go on (canary.py).

Weights travel through a directory that trainer and servers see, or from a sender that this gateway starts (transfer.py). If a transfer fails,
the server reads the directory.
"""

import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import anyio
import anyio.to_thread

from orchestrator.contracts.choices import WeightTransport
from orchestrator.contracts.states import Purpose, ServerState
from orchestrator.gateway.metrics import GatewayMetrics
from orchestrator.gateway.servers.canary import CanaryCheck
from orchestrator.gateway.servers.client import (
    QUICK_S,
    RolloutServerBroken,
    RolloutServerError,
    WeightUpdateRefused,
)
from orchestrator.gateway.servers.lease import LeaseLost, ServerLease
from orchestrator.gateway.servers.pool import first_of
from orchestrator.gateway.servers.published import Canary, IntactVersion, SyncFailed, read_published
from orchestrator.gateway.servers.server import RolloutServer
from orchestrator.gateway.servers.targets import TargetVersion
from orchestrator.gateway.servers.transfer import Sender, TransferFailed, sending
from orchestrator.gateway.servers.weights import ReportedWeights
from orchestrator.pool.policy_versions import PolicyVersion
from orchestrator.runtime.backoff import backoff
from orchestrator.runtime.liveness import (
    Loop,
    current,
    reporting,
)
from orchestrator.runtime.log import get
from orchestrator.settings.gateway import ServersSection
from orchestrator.settings.timeouts import timeouts

log = get(__name__)

FIRST_WAIT_S = 0.2  # after a sync that failed


class WeightSyncer:
    """Keeps one server at the newest version while this gateway owns it; otherwise its gate follows the owner's row. `run` until cancelled."""

    def __init__(
        self,
        server: RolloutServer,
        lease: ServerLease,
        *,
        target: TargetVersion,
        metrics: GatewayMetrics,
        settings: ServersSection,
        tolerance: float,
        purpose: Purpose = Purpose.TRAIN,
    ) -> None:
        self._server = server
        self._purpose = purpose
        self._lease = lease
        server.owned = lambda: lease.epoch is not None
        self._target = target
        self._metrics = metrics
        self._settings = settings
        self._tolerance = tolerance
        self._transfers = True  # until the server shows that it does not support them
        # The newest published version, and when this gateway first saw it.
        self._seen: tuple[int, float] = (-1, 0.0)
        self._away = ""  # why it does not answer, as it was last logged
        self._canaries = CanaryCheck(server, metrics, settings, tolerance=tolerance)

    async def run(self) -> None:
        """Sync whenever the server is not at the newest version, once it answers."""
        with reporting(f"sync {self._server.url}") as line:
            await self._keep_in_sync(line)

    def _tell(self, line: Loop, target: PolicyVersion | None) -> None:
        """Report on `line` since when the server has not served its target version, across retries."""
        current().idle("a version, the server or its lease")
        owned = self._lease.epoch is not None
        if target is None or not owned or (self._server.version == target.version and self._server.ready):
            line.idle("a version")
        elif line.resting:
            line.busy(f"version {target.version}", on="rollout server")

    async def _keep_in_sync(self, line: Loop) -> None:
        server, waits = self._server, backoff(FIRST_WAIT_S, self._settings.retry_s)
        while True:
            self._tell(line, self._target.version)
            target, moved, leased = self._target.version, self._target.changed, self._lease.moved
            attention = server.attention = anyio.Event()
            if server.answers:
                self._away = ""
            if not server.answers:
                why = self._absence()
                if why != self._away:
                    log.warning("server.away", server=server.url, why=why)
                self._away = why
                await self._say(ServerState.FAILED, why)
                await first_of(attention, leased, within=None)
            elif target is None:
                await first_of(moved, attention, leased, within=None)
            elif self._lease.epoch is None:
                pause = await self._follow(target)
                await first_of(moved, attention, leased, within=pause)
            elif server.version == target.version and server.ready:
                await self._serve(target.version, target, moved, attention, leased)
            else:
                line.within = self._settings.weight_update_timeout_s
                current().busy(f"version {target.version}", on="rollout server", within=line.within)
                try:
                    await self.sync(target)
                    waits = backoff(FIRST_WAIT_S, self._settings.retry_s)
                except LeaseLost:
                    continue
                except (SyncFailed, RolloutServerError) as error:
                    line.within = 0.0
                    self._metrics.weights_refused.labels(server.url).inc()
                    self._tell(line, target)
                    log.warning("sync.failed", server=server.url, version=target.version, error=str(error))
                    await self._say(ServerState.READY if server.ready else ServerState.FAILED, str(error))
                    await self._wait_to_retry(line, next(waits), moved, attention, leased)

    async def _wait_to_retry(self, line: Loop, seconds: float, *events: anyio.Event) -> None:
        """Wait `seconds` after a failed sync, or until one of `events` is set; if the old version serves on, so do its canaries."""
        server, until = self._server, anyio.current_time() + seconds
        while (left_s := until - anyio.current_time()) > 0 and not any(event.is_set() for event in events):
            if server.ready and server.version is not None:
                await self._serve(server.version, None, *events, within=left_s)
                self._tell(line, self._target.version)
            else:
                await first_of(*events, within=left_s)

    async def _serve(
        self, version: int, published: PolicyVersion | None, *events: anyio.Event, within: float = math.inf
    ) -> None:
        """Let the server serve `version` until a canary is due, one of `events` is set or `within` seconds have passed; then send a due canary.
        `published`: where the canary is; None: it must be known (canary.py)."""
        await first_of(*events, within=min(within, self._canaries.wait_s))
        if not self._canaries.due or any(event.is_set() for event in events):
            return
        current().busy("a canary between syncs", on="rollout server", within=QUICK_S)
        async with anyio.create_task_group() as tasks:

            async def check() -> None:
                await self._canaries.check(version, published)
                tasks.cancel_scope.cancel()

            tasks.start_soon(check)
            await first_of(*events, within=None)  # a sync does not wait for it
            tasks.cancel_scope.cancel()

    def _absence(self) -> str:
        """Why the server serves nothing, and who starts it again."""
        if not self._server.hangs:
            return "it does not answer"
        then = (
            "restart it where it was started"
            if self._settings.urls
            else f"`penstock up` starts its own again after {self._settings.hang_s:g} s (servers.hang_s)"
        )
        return f"it hangs (it takes connections and does not answer); {then}; its calls use other servers, or wait for it"

    async def _say(self, state: ServerState, detail: str) -> None:
        """Write a row that only informs: without it the syncer goes on."""
        if self._lease.epoch is None:
            return
        try:
            # Lease lost: the new owner writes the row.
            with anyio.move_on_after(timeouts().server_row_s), suppress(LeaseLost):
                await self._lease.write(state, self._server.version, detail)
        except Exception:
            self._metrics.faults.labels("row").inc()
            log.exception("server.row_failed", server=self._server.url, state=state)

    async def _follow(self, target: PolicyVersion) -> float:
        """Follow the owner's row; return the seconds until the next read. While the data pool is away the gate stays unchanged."""
        server, row = self._server, await self._lease.read()
        if self._seen[0] != target.version:
            self._seen = (target.version, anyio.current_time())
        short_pause_s, long_pause_s = self._settings.probe_s / 5, self._settings.probe_s
        if row is not None and row.state is ServerState.SYNCING:
            server.hold()
            return short_pause_s
        if row is None or row.state is not ServerState.READY or row.version is None:
            server.shut()
            if server.still_s >= self._settings.still_s:  # its owner cut its own calls off, too
                server.cut_off()
            return long_pause_s
        recently_changed = anyio.current_time() - self._seen[1] < self._settings.drain_s
        if row.version != target.version and recently_changed:  # its owner is about to sync it
            server.hold()
            return short_pause_s
        if server.version != row.version or not server.ready:
            try:
                reported = ReportedWeights.of(await server.client.model_info())
                await server.measure()
            except RolloutServerError as error:
                log.info("follow.failed", server=server.url, error=str(error))
                reported = ReportedWeights(None)
            if reported.instead_of(ReportedWeights(str(row.version), None, row.weights_digest)) is None:
                server.digests.know(row.version, reported.digest)
                server.admit(row.version, reported)
            else:
                server.shut()
        return long_pause_s

    async def sync(self, target: PolicyVersion) -> None:
        """Make `target` serve. On SyncFailed before the weights changed, the old version continues to serve. Raises LeaseLost."""
        # An unreachable server fails here, before the gate closes.
        reported, started_at = (
            ReportedWeights.of(await self._server.client.model_info()),
            anyio.current_time(),
        )
        published = await anyio.to_thread.run_sync(read_published, target)
        check_s = anyio.current_time() - started_at
        if self._canaries.unanswered and not self._server.ready:  # its row says so until it answers one
            await self._lease.write(ServerState.FAILED, None, self._canaries.unanswered)
            await self._server.client.continue_()
            await self._canaries.difference(published.canary)
        if self._holds(reported, target, published):
            await self._sync(target, published, None, loaded=True, check_s=check_s)
            return
        async with self._sender(target) as sender:  # it starts, and the server joins it while it still serves
            await self._sync(target, published, sender, loaded=False, check_s=check_s)

    def _holds(self, reported: ReportedWeights, target: PolicyVersion, published: IntactVersion) -> bool:
        """Whether the server tells that it holds the target's weights already."""
        digest = published.digest if reported.digest is not None else None
        read = target.path if digest is None and reported.directory and not self._sends else None
        return reported.instead_of(ReportedWeights(str(target.version), read, digest)) is None

    @property
    def _sends(self) -> bool:
        """Whether weights come from a sender, so that the server's directory says nothing about them."""
        return self._settings.transport != WeightTransport.DIRECTORY

    async def _sync(
        self,
        target: PolicyVersion,
        published: IntactVersion,
        sender: Sender | None,
        *,
        loaded: bool,
        check_s: float,
    ) -> None:
        """`loaded`: the server holds the target's weights, as far as it tells."""
        server, canary, load_s = self._server, published.canary, None
        await server.measure()
        await self._lease.write(ServerState.SYNCING, server.version, f"to version {target.version}")
        old_version, started_at = server.version, anyio.current_time()
        server.hold()
        try:
            difference = float("inf")
            if loaded:
                await server.client.continue_()  # an owner that died may have left the server paused
                difference = await self._canaries.difference(canary)
            if difference > self._tolerance:
                async with AsyncExitStack() as stack:
                    if loaded:  # it holds other weights after all, so they serve no more
                        sender, old_version = await stack.enter_async_context(self._sender(target)), None
                    load_s = await self._load(target, old_version, published, sender)
                difference = await self._canaries.difference(canary)
            reported = ReportedWeights.of(await server.client.model_info())
        except RolloutServerError:
            server.shut()
            raise
        self._metrics.canary.labels(server.url).set(difference)
        self._check(target, published, reported, difference)
        server.digests.know(target.version, reported.digest)
        server.admit(target.version, reported)
        if not server.ready:  # the pool has learned during the sync that the other servers take much more
            raise RolloutServerBroken(server.url, server.too_small() or "it may get no calls")
        self._canaries.expect(target.version, canary)
        waiting_s = anyio.current_time() - started_at
        self._metrics.sync_s.observe(waiting_s)
        self._metrics.version.labels(server.url, self._purpose).set(target.version)
        log.info(
            "sync.done",
            server=server.url,
            version=target.version,
            canary=round(difference, 6),
            check_s=round(check_s, 3),
            held_s=round(waiting_s, 3),
            load_s=None if load_s is None else round(load_s, 3),
            transport=WeightTransport.DIRECTORY if sender is None else WeightTransport.DISTRIBUTED,
            bytes=0 if load_s is None else published.bytes,
        )
        await self._lease.write(
            ServerState.READY, target.version, f"canary difference {difference:.5f}", reported.digest
        )

    def _check(
        self, target: PolicyVersion, published: IntactVersion, reported: ReportedWeights, difference: float
    ) -> None:
        """Shut the server and raise SyncFailed if it serves other weights than the target's. `difference`: of its canary."""
        server = self._server
        if difference > self._tolerance:
            server.shut()
            raise SyncFailed(
                f"canary of version {target.version}: logprobs differ by {difference:.4f}, more than gateway.canary_tolerance ({self._tolerance}): "
                "the server has other weights, or a coarser dtype than the trainer"
            )
        digest = published.digest if reported.digest is not None else None
        if (fault := reported.instead_of(ReportedWeights(str(target.version), None, digest))) is not None:
            server.shut()
            raise SyncFailed(f"after the sync, the rollout server {server.url} {fault}")

    async def _sent(self, sender: Sender, target: PolicyVersion) -> bool:
        """Whether the server serves the sender's weights now. If not, it may have some of them, so it must read the directory."""
        try:
            await sender.deliver(str(target.version), timeout=self._settings.weight_update_timeout_s)
        # If the server is gone, the request for the directory shows it.
        except (TransferFailed, RolloutServerError) as failed:
            self._untransferred(failed)
            return False
        return True

    def _untransferred(self, failed: Exception) -> None:
        self._metrics.transfers_failed.labels(self._server.url).inc()
        log.warning("transfer.failed", server=self._server.url, error=str(failed), then="the directory")

    @asynccontextmanager
    async def _sender(self, target: PolicyVersion) -> AsyncIterator[Sender | None]:
        """A sender that the server has joined; None: the server must read the directory."""
        if self._settings.transport == WeightTransport.DIRECTORY or not self._transfers:
            yield None
            return
        async with AsyncExitStack() as stack:
            try:
                sender = await stack.enter_async_context(
                    sending(
                        self._server.client,
                        target.path,
                        address=self._settings.sender_address,
                        within=self._settings.weight_update_timeout_s,
                    )
                )
            except TransferFailed as failed:
                self._transfers = not failed.always
                self._untransferred(failed)
                sender = None
            yield sender

    async def _load(
        self, target: PolicyVersion, old: int | None, published: IntactVersion, sender: Sender | None
    ) -> float:
        """Exchange the weights; return the seconds that the server took for that alone. Raises SyncFailed when the server refuses them; the old ones
        then continue to serve if it still has them."""
        server, held = self._server, self._server.holds
        await server.client.pause()
        with anyio.move_on_after(self._settings.drain_s / 10):
            await server.drained()
        if server.in_flight:
            # The server holds requests that were on their way when the pause began.
            await server.client.abort()
        with anyio.move_on_after(self._settings.drain_s):
            await server.drained()
        server.cut_off()
        await server.drained()
        started_at = anyio.current_time()
        try:
            if sender is None or not await self._sent(sender, target):
                await server.client.update_weights(
                    target.path, str(target.version), timeout=self._settings.weight_update_timeout_s
                )
        except WeightUpdateRefused as refused:
            # A sender may have changed some of the weights.
            kept = await self._keeps(None if sender is not None else old, held, published.canary)
            if old is not None and kept:
                server.admit(old, held)
            else:
                server.shut()
            then = f"keeps {old}" if kept else "may have changed some of its weights, so it gets no calls"
            raise SyncFailed(
                f"the server refuses version {target.version} and {then}: {refused.message}"
            ) from refused
        server.version = None  # the old weights are gone, the canary of the new ones is pending
        took_s = anyio.current_time() - started_at
        self._metrics.load_s.observe(took_s)
        self._metrics.loaded.labels(server.url).inc(published.bytes)
        await server.client.continue_()
        return took_s

    async def _keeps(self, old: int | None, held: ReportedWeights | None, refused: Canary) -> bool:
        """Let the paused server, which has refused weights, go on; return whether it certainly has the weights of version `old`.

        Its digest shows them, else a canary: SGLang may name the old version and directory although it has loaded some of the new weights."""
        client = self._server.client
        try:
            await client.flush()  # keys and values of weights that it no longer has
        except RolloutServerError as error:
            log.warning("flush.failed", server=self._server.url, error=str(error))
            old = None
        await client.continue_()
        try:
            if old is None:
                return False
            if held is not None and held.digest is not None:
                return ReportedWeights.of(await client.model_info()).instead_of(held) is None
            return await self._canaries.shows(old, refused)
        except RolloutServerError as error:
            log.warning("weights.unknown", server=self._server.url, error=str(error))
            return False
