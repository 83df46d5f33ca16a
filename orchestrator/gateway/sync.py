"""Weight syncs: each rollout server has a keeper, which brings it to the newest policy version and lets calls in after a canary.

| produces | waits for | unblocked by |
|---|---|---|
| a server at the newest version, its row (owner) | a published version; a server that answers | the trainer; the supervisor |
| the gate as the row says (other gateways) | the row | the owner, or the end of its lease |

One sync: gate closed → pause (abort; calls come back with their partial actions and wait at the gate) → weights, caches flushed → continue →
canary → gate open, and the held calls go on → row. Several versions in a row: only the newest matters. A server that says that it has
the version already, as after a restart of the gateway, is not paused: the canary alone decides. Calls of other gateways are broken off by
the same pause, perhaps before they have read the row: a call that comes back so closes their gate until the row says that it is over.

Weights travel through a directory that trainer and servers see, or from a sender that this gateway starts (transfer.py); the directory is
what a transfer that fails falls back to.
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
from orchestrator.clock import clock
from orchestrator.config import ServersSection
from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.events import PolicyPublished, decode
from orchestrator.contracts.states import Purpose, ServerState
from orchestrator.gateway.leases import LeaseLost, ServerLease
from orchestrator.gateway.metrics import Metrics
from orchestrator.gateway.rollout_server import RolloutServer
from orchestrator.gateway.servers import first_of
from orchestrator.gateway.transfer import Sender, TransferFailed, sending
from orchestrator.gateway.upstream import RolloutServerError, WeightUpdateRefused
from orchestrator.log import get
from orchestrator.pool.policies import PolicyVersion, evaluated_version, newest_version
from orchestrator.pool.transact import transact
from orchestrator.progress import Loop, current, pause, reporting

log = get(__name__)

FIRST_WAIT_S = 0.2  # after a sync that failed


class SyncFailed(Exception):
    """A version could not be made to serve; one sentence for the row and the log."""


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
class Published:
    """A published version whose files are whole. `bytes`: of what a server loads, without the trainer's own state."""

    canary: Canary
    bytes: int


def read_published(version: PolicyVersion) -> Published:
    """Read a published version. SyncFailed unless the manifest is the one that was published and its files are whole."""
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
    return Published(canary, served)


class Targets(Protocol):
    """The version that should serve; `moved` is set, and replaced, when it changes."""

    newest: PolicyVersion | None
    moved: anyio.Event


class PublishedVersions:
    """The newest version in the data pool. The bus only says when to look."""

    def __init__(self, engine: AsyncEngine, run_id: int, metrics: Metrics, *, look_s: float) -> None:
        self._metrics = metrics
        self._engine = engine
        self._run_id = run_id
        self._look_s = look_s
        self.newest: PolicyVersion | None = None
        self.moved = anyio.Event()
        self._looking = anyio.Lock()

    async def refresh(self) -> None:
        """Look into the data pool. One look at a time: of two, the later one must be the newer one."""
        async with self._looking:
            newest = await transact(
                self._engine, lambda connection: newest_version(connection, self._run_id), at="gateway.read"
            )
            if newest != self.newest:
                self.newest = newest
                self.moved.set()
                self.moved = anyio.Event()

    async def follow(self, bus: Bus, run: str) -> None:
        """Refresh whenever something is announced, until cancelled. What is no announcement is counted and said; nothing is believed of
        either: the versions are those of the data pool."""
        async with bus.subscribe(subjects.consume_policy(run)) as published:
            while True:
                current().rests("POLICY")
                announced = await published.take(64)
                current().works("a published version")
                for delivery in announced:
                    self._read(delivery, run)
                    await delivery.ack()
                await self.refresh()

    def _read(self, delivery: Delivery, run: str) -> None:
        try:
            event = decode(delivery.body, delivery.schema, PolicyPublished)
            if event.run != run:
                raise MessageError(f"PolicyPublished: it is of the run {event.run!r:.80}")
            if event.version < 0:
                raise MessageError(f"PolicyPublished: there is no version {event.version}")
        except MessageError as error:
            self._metrics.announcements_refused.inc()
            log.warning("announcement.refused", msg_id=delivery.msg_id, reason=str(error))

    async def watch(self) -> None:
        """Refresh every `look_s` seconds, until cancelled: a bus that was wiped must not keep old weights serving."""
        while True:
            await self.refresh()
            await pause(self._look_s)


class EvaluatedVersions:
    """What a server that is reserved for evaluations should serve: the version that the evaluation at work pins, else the newest."""

    def __init__(self, engine: AsyncEngine, run_id: int, *, look_s: float) -> None:
        self._engine = engine
        self._run_id = run_id
        self._look_s = look_s
        self.newest: PolicyVersion | None = None
        self.moved = anyio.Event()

    async def watch(self) -> None:
        """Look every `look_s` seconds, until cancelled."""

        async def work(connection: AsyncConnection) -> PolicyVersion | None:
            wanted = await evaluated_version(connection, self._run_id)
            return wanted or await newest_version(connection, self._run_id)

        while True:
            wanted = await transact(self._engine, work, at="gateway.read")
            if wanted != self.newest:
                self.newest = wanted
                self.moved.set()
                self.moved = anyio.Event()
            await pause(self._look_s)


class Keeper:
    """Keeps one server at the newest version while this gateway owns it, else its gate as the owner says. `run` until cancelled."""

    def __init__(
        self,
        server: RolloutServer,
        lease: ServerLease,
        targets: Targets,
        metrics: Metrics,
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
        self._transfers = True  # until the server says that it knows of none
        self._seen: tuple[int, float] = (
            -1,
            0.0,
        )  # the newest version that was published, and when we saw that

    async def run(self) -> None:
        """Sync whenever the server is not at the newest version, once it answers."""
        with reporting(f"sync {self._server.url}") as line:
            await self._keep(line)

    def _tell(self, line: Loop, target: PolicyVersion | None) -> None:
        """`line`: since when the server does not serve what it should, however often that is tried."""
        current().rests("a version, the server or its lease")
        ours = self._lease.epoch is not None
        if target is None or not ours or (self._server.version == target.version and self._server.ready):
            line.rests("a version")
        elif line.resting:
            line.works(f"version {target.version}", on="rollout server")

    async def _keep(self, line: Loop) -> None:
        server, wait = self._server, FIRST_WAIT_S
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
                line.within = self._settings.update_s
                current().works(f"version {target.version}", on="rollout server", within=line.within)
                try:
                    await self.sync(target)
                    wait = FIRST_WAIT_S
                except LeaseLost:
                    continue
                except (SyncFailed, RolloutServerError) as error:
                    line.within = 0.0
                    self._metrics.weights_refused.labels(server.url).inc()
                    self._tell(line, target)
                    log.warning("sync.failed", server=server.url, version=target.version, error=str(error))
                    await self._say(ServerState.READY if server.ready else ServerState.FAILED, str(error))
                    await first_of(moved, attention, leased, within=wait)
                    wait = min(self._settings.retry_s, wait * 2)

    async def _say(self, state: ServerState, detail: str) -> None:
        """A row that only informs."""
        if self._lease.epoch is not None:
            with (
                anyio.move_on_after(clock().server_row_s),
                suppress(LeaseLost),
            ):  # lost: it is for the new owner to say
                await self._lease.write(state, self._server.version, detail)

    async def _follow(self, target: PolicyVersion) -> float:
        """Do as the owner's row says; returns the seconds until the next look. While the data pool is away the gate stays as it is."""
        server, row = self._server, await self._lease.read()
        if self._seen[0] != target.version:
            self._seen = (target.version, anyio.current_time())
        quick, slow = self._settings.probe_s / 5, self._settings.probe_s
        if row is not None and row.state is ServerState.SYNCING:
            server.hold()
            return quick
        if row is None or row.state is not ServerState.READY or row.version is None:
            server.shut()
            return slow
        fresh = anyio.current_time() - self._seen[1] < self._settings.drain_s
        if row.version != target.version and fresh:  # its owner is about to sync it
            server.hold()
            return quick
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
        return slow

    async def sync(self, target: PolicyVersion) -> None:
        """Make `target` serve. On SyncFailed before the weights changed, the old version goes on serving. Raises LeaseLost."""
        label = (await self._server.client.model_info()).get(
            "weight_version"
        )  # nothing is closed for one that is not there
        if label == str(target.version):
            await self._sync(target, label, None)
            return
        async with self._sender(target) as sender:  # it starts and is joined while the server still serves
            await self._sync(target, label, sender)

    async def _sync(self, target: PolicyVersion, label: Any, sender: Sender | None) -> None:
        server, looked = self._server, anyio.current_time()
        published = await anyio.to_thread.run_sync(read_published, target)
        canary, check_s, load_s = published.canary, anyio.current_time() - looked, None
        await server.measure()
        await self._lease.write(ServerState.SYNCING, server.version, f"to version {target.version}")
        old, begun = server.version, anyio.current_time()
        server.hold()
        try:
            difference = float("inf")
            if label == str(target.version):
                await server.client.continue_()  # an owner that died may have left it paused
                difference = await self._difference(canary)
            if difference > self._tolerance:
                load_s = await self._load(target, old, published.bytes, sender)
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
        held = anyio.current_time() - begun
        self._metrics.sync_s.observe(held)
        self._metrics.version.labels(server.url, self._purpose).set(target.version)
        log.info(
            "sync.done",
            server=server.url,
            version=target.version,
            canary=round(difference, 6),
            check_s=round(check_s, 3),
            held_s=round(held, 3),
            load_s=None if load_s is None else round(load_s, 3),
            transport="directory" if sender is None else "distributed",
            bytes=0 if load_s is None else published.bytes,
        )
        await self._lease.write(ServerState.READY, target.version, f"canary difference {difference:.5f}")

    async def _difference(self, canary: Canary) -> float:
        """max |Δlogprob| between the trainer and what is served."""
        return canary.difference(await self._server.client.prompt_logprobs(list(canary.ids)))

    async def _sent(self, sender: Sender, target: PolicyVersion) -> bool:
        """Whether the sender's weights are served now. If not, the server may have some of them: it must read the directory."""
        try:
            await sender.deliver(str(target.version), timeout=self._settings.update_s)
        except (
            TransferFailed,
            RolloutServerError,
        ) as failed:  # of a server that is gone the directory's request tells
            self._untransferred(failed)
            return False
        return True

    def _untransferred(self, failed: Exception) -> None:
        self._metrics.transfers_failed.labels(self._server.url).inc()
        log.warning("transfer.failed", server=self._server.url, error=str(failed), then="the directory")

    @asynccontextmanager
    async def _sender(self, target: PolicyVersion) -> AsyncIterator[Sender | None]:
        """A sender that the server has joined; None: it is to read the directory."""
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
                        within=self._settings.update_s,
                    )
                )
            except TransferFailed as failed:
                self._transfers = not failed.always
                self._untransferred(failed)
                sender = None
            yield sender

    async def _load(self, target: PolicyVersion, old: int | None, size: int, sender: Sender | None) -> float:
        """Exchange the weights for `size` bytes of new ones; returns the seconds that the server took for that alone. SyncFailed when it
        keeps the old ones, which then go on serving."""
        server = self._server
        await server.client.pause("abort")
        with anyio.move_on_after(self._settings.drain_s / 10):
            await server.drained()
        if server.flights:
            await server.client.abort()  # what was on its way when the pause began is held by the server
        with anyio.move_on_after(self._settings.drain_s):
            await server.drained()
        server.cut_off()
        await server.drained()
        begun = anyio.current_time()
        try:
            if sender is None or not await self._sent(sender, target):
                await server.client.update_weights(
                    target.path, str(target.version), timeout=self._settings.update_s
                )
        except WeightUpdateRefused as refused:
            await server.client.continue_()
            if old is None or sender is not None:  # which may have changed some of them
                server.shut()
            else:
                server.admit(old)
            raise SyncFailed(
                f"the server refuses version {target.version} and keeps {old}: {refused.message}"
            ) from refused
        server.version = None  # the old weights are gone, the new ones unproven
        took = anyio.current_time() - begun
        self._metrics.load_s.observe(took)
        self._metrics.loaded.labels(server.url).inc(size)
        await server.client.continue_()
        return took
