"""Weight syncs: each rollout server has a syncer, which brings it to the newest policy version and admits calls after a canary.

| produces | waits for | unblocked by |
|---|---|---|
| a server at the newest version, its row (owner) | a published version; an answer of the server | the trainer; the supervisor |
| the gate according to the row (other gateways) | the row | the owner, or the end of its lease |

One sync: gate closed → pause (abort; calls come back with their partial actions and wait at the gate) → weights, caches flushed → continue →
canary → gate open, and the held calls continue → row. If several versions arrive in a row, only the newest matters. A server that already
reports the version, as after a restart of the gateway, is not paused: only the canary decides. The same pause interrupts calls of other
gateways, perhaps before they have read the row. A call that comes back interrupted closes their gate until the row reports the end of the sync.

Weights travel through a directory that trainer and servers see, or from a sender that this gateway starts (transfer.py). If a transfer fails,
the server reads the directory.
"""

import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.to_thread
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.bus import subjects
from orchestrator.bus.base import Bus, Delivery
from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.events import PolicyPublished, decode
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.states import Purpose, ServerState
from orchestrator.gateway.metrics import GatewayMetrics
from orchestrator.gateway.servers.client import RolloutServerError, WeightUpdateRefused
from orchestrator.gateway.servers.lease import LeaseLost, ServerLease
from orchestrator.gateway.servers.pool import first_of
from orchestrator.gateway.servers.server import RolloutServer
from orchestrator.gateway.servers.transfer import Sender, TransferFailed, sending
from orchestrator.pool.policy_versions import PolicyVersion, evaluated_version, newest_version
from orchestrator.pool.transact import transact
from orchestrator.runtime.backoff import backoff
from orchestrator.runtime.liveness import (
    Loop,
    current,
    pause,
    reporting,
)
from orchestrator.runtime.log import get
from orchestrator.settings.gateway import ServersSection
from orchestrator.settings.timeouts import timeouts

log = get(__name__)

FIRST_WAIT_S = 0.2  # after a sync that failed


class SyncFailed(Exception):
    """A version could not be made to serve. The message is one sentence for the row and the log."""


@dataclass(frozen=True, slots=True)
class Canary:
    """logprobs[i] = log p(ids[i + 1] | ids[: i + 1]) under the trainer, at temperature 1."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    def difference(self, served: Sequence[float]) -> float:
        """max |Δlogprob|; infinite for NaN and for another number of values."""
        if len(served) != len(self.logprobs):
            return float("inf")
        differences = [abs(a - b) for a, b in zip(served, self.logprobs, strict=True)]
        return max((d if d == d else float("inf") for d in differences), default=0.0)


@dataclass(frozen=True, slots=True)
class IntactVersion:
    """A published version with intact files. `bytes`: size of the files that a server loads, without the trainer's own state."""

    canary: Canary
    bytes: int


def read_published(version: PolicyVersion) -> IntactVersion:
    """Read a published version. Raises SyncFailed unless the manifest is the published one and its files are intact."""
    directory, served = Path(version.path), 0
    try:
        raw = (directory / "manifest.json").read_bytes()
        found = hashlib.sha256(raw).hexdigest()
        if found != version.manifest_sha:
            raise SyncFailed(f"{directory}/manifest.json is not the published one (sha256 {found[:12]}…)")
        manifest = json.loads(raw)
        canary = Canary(tuple(manifest["canary"]["ids"]), tuple(manifest["canary"]["logprobs"]))
        for name, expected in manifest["files"].items():
            if "/" in name:  # the trainer's own state is not served
                continue
            with (directory / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != expected["sha256"]:
                    raise SyncFailed(f"{directory / name} does not match its published sha256")
            served += int(expected["bytes"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SyncFailed(f"{directory} cannot be served: {type(error).__name__} {error}") from None
    if len(canary.ids) < 2:
        raise SyncFailed(f"{directory}: the canary has fewer than 2 ids")
    return IntactVersion(canary, served)


class Targets(Protocol):
    """The version that should serve; `moved` is set, and replaced, when it changes."""

    newest: PolicyVersion | None
    moved: anyio.Event


class PublishedVersions:
    """The newest version in the data pool. The bus only triggers a refresh."""

    def __init__(
        self, engine: AsyncEngine, run_id: int, metrics: GatewayMetrics, *, poll_interval_s: float
    ) -> None:
        self._metrics = metrics
        self._engine = engine
        self._run_id = run_id
        self._poll_interval_s = poll_interval_s
        self.newest: PolicyVersion | None = None
        self.moved = anyio.Event()
        self._looking = anyio.Lock()

    async def refresh(self) -> None:
        """Read the data pool. Only one read runs at a time, so that of two reads the later one has the newer version."""
        async with self._looking:
            newest = await transact(
                self._engine, lambda connection: newest_version(connection, self._run_id), at="gateway.read"
            )
            if newest != self.newest:
                self.newest = newest
                self.moved.set()
                self.moved = anyio.Event()

    async def follow(self, bus: Bus, run: str) -> None:
        """Refresh at every announcement, until cancelled. Invalid announcements are counted and logged. The content of announcements is not
        trusted: the versions come from the data pool."""
        async with bus.subscribe(subjects.consume_policy(run)) as published:
            while True:
                current().idle("POLICY")
                announced = await published.take(64)
                current().busy("a published version")
                for delivery in announced:
                    self._read(delivery, run)
                    await delivery.ack()
                await self.refresh()

    def _read(self, delivery: Delivery, run: str) -> None:
        try:
            event = decode(delivery.body, delivery.schema, PolicyPublished)
            if event.run != run:
                raise MessageError(f"PolicyPublished: it is of the run {quoted(event.run)}")
            if event.version < 0:
                raise MessageError(f"PolicyPublished: version {event.version} does not exist")
        except MessageError as error:
            self._metrics.announcements_refused.inc()
            log.warning("announcement.refused", msg_id=delivery.msg_id, reason=str(error))

    async def watch(self) -> None:
        """Refresh every `poll_interval_s` seconds, until cancelled: a bus that was wiped must not keep old weights serving."""
        while True:
            await self.refresh()
            await pause(self._poll_interval_s)


class EvaluatedVersions:
    """The version that a server reserved for evaluations should serve: the one that the current evaluation pins, else the newest."""

    def __init__(self, engine: AsyncEngine, run_id: int, *, poll_interval_s: float) -> None:
        self._engine = engine
        self._run_id = run_id
        self._poll_interval_s = poll_interval_s
        self.newest: PolicyVersion | None = None
        self.moved = anyio.Event()

    async def watch(self) -> None:
        """Read the data pool every `poll_interval_s` seconds, until cancelled."""

        async def work(connection: AsyncConnection) -> PolicyVersion | None:
            version = await evaluated_version(connection, self._run_id)
            return version or await newest_version(connection, self._run_id)

        while True:
            version = await transact(self._engine, work, at="gateway.read")
            if version != self.newest:
                self.newest = version
                self.moved.set()
                self.moved = anyio.Event()
            await pause(self._poll_interval_s)


class WeightSyncer:
    """Keeps one server at the newest version while this gateway owns it; otherwise its gate follows the owner's row. `run` until cancelled."""

    def __init__(
        self,
        server: RolloutServer,
        lease: ServerLease,
        targets: Targets,
        metrics: GatewayMetrics,
        settings: ServersSection,
        *,
        tolerance: float,
        purpose: Purpose = Purpose.TRAIN,
    ) -> None:
        self._server = server
        self._purpose = purpose
        self._lease = lease
        server.owned = lambda: lease.epoch is not None
        self._targets = targets
        self._metrics = metrics
        self._settings = settings
        self._tolerance = tolerance
        self._transfers = True  # until the server shows that it does not support them
        # The newest published version, and when this gateway first saw it.
        self._seen: tuple[int, float] = (-1, 0.0)

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
            self._tell(line, self._targets.newest)
            target, moved, leased = self._targets.newest, self._targets.moved, self._lease.moved
            attention = server.attention = anyio.Event()
            if not server.answers:
                await self._say(ServerState.FAILED, "it does not answer")
                await first_of(attention, leased, within=None)
            elif target is None:
                await first_of(moved, leased, within=None)
            elif self._lease.epoch is None:
                pause = await self._follow(target)
                await first_of(moved, attention, leased, within=pause)
            elif server.version == target.version and server.ready:
                await first_of(moved, attention, leased, within=None)
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
                    await first_of(moved, attention, leased, within=next(waits))

    async def _say(self, state: ServerState, detail: str) -> None:
        """Write a row that only informs."""
        if self._lease.epoch is not None:
            # Lease lost: the new owner writes the row.
            with anyio.move_on_after(timeouts().server_row_s), suppress(LeaseLost):
                await self._lease.write(state, self._server.version, detail)

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
            return long_pause_s
        recently_changed = anyio.current_time() - self._seen[1] < self._settings.drain_s
        if row.version != target.version and recently_changed:  # its owner is about to sync it
            server.hold()
            return short_pause_s
        if server.version != row.version or not server.ready:
            try:
                label = (await server.client.model_info()).get("weight_version")
                await server.measure()
            except RolloutServerError as error:
                log.info("follow.failed", server=server.url, error=str(error))
                label = None
            if label == str(row.version):
                server.admit(row.version)
            else:
                server.shut()
        return long_pause_s

    async def sync(self, target: PolicyVersion) -> None:
        """Make `target` serve. On SyncFailed before the weights changed, the old version continues to serve. Raises LeaseLost."""
        # An unreachable server fails here, before the gate closes.
        label = (await self._server.client.model_info()).get("weight_version")
        if label == str(target.version):
            await self._sync(target, label, None)
            return
        async with self._sender(target) as sender:  # it starts, and the server joins it while it still serves
            await self._sync(target, label, sender)

    async def _sync(self, target: PolicyVersion, label: Any, sender: Sender | None) -> None:
        server, check_started_at = self._server, anyio.current_time()
        published = await anyio.to_thread.run_sync(read_published, target)
        canary, check_s, load_s = published.canary, anyio.current_time() - check_started_at, None
        await server.measure()
        await self._lease.write(ServerState.SYNCING, server.version, f"to version {target.version}")
        old_version, started_at = server.version, anyio.current_time()
        server.hold()
        try:
            difference = float("inf")
            if label == str(target.version):
                await server.client.continue_()  # an owner that died may have left the server paused
                difference = await self._difference(canary)
            if difference > self._tolerance:
                load_s = await self._load(target, old_version, published.bytes, sender)
                difference = await self._difference(canary)
        except RolloutServerError:
            server.shut()
            raise
        self._metrics.canary.labels(server.url).set(difference)
        if difference > self._tolerance:
            server.shut()
            raise SyncFailed(
                f"canary of version {target.version}: logprobs differ by {difference:.4f}, more than gateway.canary_tolerance ({self._tolerance}): "
                "the server has other weights, or a coarser dtype than the trainer"
            )
        server.admit(target.version)
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
            transport="directory" if sender is None else "distributed",
            bytes=0 if load_s is None else published.bytes,
        )
        await self._lease.write(ServerState.READY, target.version, f"canary difference {difference:.5f}")

    async def _difference(self, canary: Canary) -> float:
        """max |Δlogprob| between the trainer and the served weights."""
        return canary.difference(await self._server.client.prompt_logprobs(list(canary.ids)))

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
        if self._settings.transport == "directory" or not self._transfers:
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

    async def _load(self, target: PolicyVersion, old: int | None, size: int, sender: Sender | None) -> float:
        """Exchange the weights for `size` bytes of new ones; return the seconds that the server took for that alone. Raises SyncFailed when the
        server keeps the old ones, which then continue to serve."""
        server = self._server
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
            await server.client.continue_()
            if old is None or sender is not None:  # the sender may have changed some of the weights
                server.shut()
            else:
                server.admit(old)
            raise SyncFailed(
                f"the server refuses version {target.version} and keeps {old}: {refused.message}"
            ) from refused
        server.version = None  # the old weights are gone, the canary of the new ones is pending
        took_s = anyio.current_time() - started_at
        self._metrics.load_s.observe(took_s)
        self._metrics.loaded.labels(server.url).inc(size)
        await server.client.continue_()
        return took_s
