"""Weight syncs: each rollout server has a keeper, which brings it to the newest policy version and lets calls in after a canary.

| produces | waits for | unblocked by |
|---|---|---|
| a server at the newest version, its row | a published version; a server that answers | the trainer; the supervisor |

One sync: gate closed → pause (abort; calls come back with their partial actions and wait at the gate) → weights, caches flushed → continue →
canary → row → gate open, and the held calls go on. Several versions in a row: only the newest matters.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import anyio
import anyio.to_thread
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.bus import subjects
from orchestrator.bus.base import Bus
from orchestrator.contracts.states import ServerState
from orchestrator.gateway.metrics import Metrics
from orchestrator.gateway.servers import RolloutServer, ServerPool
from orchestrator.gateway.store import ServerStore
from orchestrator.gateway.upstream import RolloutServerError, WeightUpdateRefused
from orchestrator.log import get
from orchestrator.pool.policies import PolicyVersion, newest_version
from orchestrator.pool.transact import transact

log = get(__name__)

DRAIN_S = 3.0  # after a pause, before requests that the server holds are cut off
LOOK_S = 2.0  # between looks at an idle server, and at the data pool for a version that the bus did not tell
FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 10.0


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


def read_published(version: PolicyVersion) -> Canary:
    """The canary of a published version. SyncFailed unless the manifest is the one that was published and its files are whole."""
    directory = Path(version.path)
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
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SyncFailed(f"{directory} cannot be served: {type(error).__name__} {error}") from None
    if len(canary.ids) < 2:
        raise SyncFailed(f"{directory}: the canary has fewer than 2 ids")
    return canary


class Targets(Protocol):
    """The version that should serve; `moved` is set, and replaced, when it changes."""

    newest: PolicyVersion | None
    moved: anyio.Event


class PublishedVersions:
    """The newest version in the data pool. The bus only says when to look."""

    def __init__(self, engine: AsyncEngine, run_id: int) -> None:
        self._engine = engine
        self._run_id = run_id
        self.newest: PolicyVersion | None = None
        self.moved = anyio.Event()
        self._looking = anyio.Lock()

    async def refresh(self) -> None:
        """Look into the data pool. One look at a time: of two, the later one must be the newer one."""
        async with self._looking:
            newest = await transact(self._engine, lambda connection: newest_version(connection, self._run_id))
            if newest != self.newest:
                self.newest = newest
                self.moved.set()
                self.moved = anyio.Event()

    async def follow(self, bus: Bus, run: str) -> None:
        """Refresh on every PolicyPublished, until cancelled."""
        async with bus.subscribe(subjects.consume_policy(run)) as published:
            while True:
                for delivery in await published.take(64):
                    await delivery.ack()
                await self.refresh()

    async def watch(self) -> None:
        """Refresh every LOOK_S seconds, until cancelled: a bus that was wiped must not keep old weights serving."""
        while True:
            await self.refresh()
            await anyio.sleep(LOOK_S)


class Keeper:
    """Keeps one server at the newest version. `run` until cancelled."""

    def __init__(
        self,
        server: RolloutServer,
        pool: ServerPool,
        targets: Targets,
        rows: ServerStore,
        metrics: Metrics,
        *,
        tolerance: float,
    ) -> None:
        self._server = server
        self._pool = pool
        self._targets = targets
        self._rows = rows
        self._metrics = metrics
        self._tolerance = tolerance

    async def run(self) -> None:
        """Sync whenever the server is not at the newest version; look after it in between."""
        wait = FIRST_WAIT_S
        while True:
            target, moved = self._targets.newest, self._targets.moved
            attention = self._server.attention = anyio.Event()
            if target is None:
                await moved.wait()
                continue
            if self._server.version == target.version and self._server.gate_open:
                await _first_of(moved, attention, within=LOOK_S)
                if not moved.is_set() and not attention.is_set():
                    await self._look(target)
                continue
            try:
                await self.sync(target)
                wait = FIRST_WAIT_S
            except (SyncFailed, RolloutServerError) as error:
                log.warning("sync.failed", server=self._server.url, version=target.version, error=str(error))
                state = ServerState.READY if self._server.ready else ServerState.FAILED
                await self._rows.write(self._server.url, state, self._server.version, str(error))
                await _first_of(moved, within=wait)
                wait = min(LONGEST_WAIT_S, wait * 2)

    async def _look(self, target: PolicyVersion) -> None:
        """A server that died, or restarted with other weights, is noticed before it is used."""
        try:
            label = (await self._server.client.model_info()).get("weight_version")
        except RolloutServerError as error:
            self._server.distrust(str(error))
            return
        if label != str(target.version):
            self._server.distrust(f"it serves the weights {label!r}")

    async def sync(self, target: PolicyVersion) -> None:
        """Make `target` serve. On SyncFailed before the weights changed, the old version goes on serving."""
        server = self._server
        canary = await anyio.to_thread.run_sync(read_published, target)
        await server.client.model_info()  # nothing is written or closed for a server that is not there
        await self._rows.write(
            server.url, ServerState.SYNCING, server.version, f"to version {target.version}"
        )
        old, begun = server.version, anyio.current_time()
        server.gate_open = False
        try:
            await server.client.pause("abort")
            with anyio.move_on_after(DRAIN_S):
                await server.drained()
            for scope in list(server.flights.values()):
                scope.cancel()  # held by the server since before the gate closed: they have no token yet
            await server.drained()
            try:
                await server.client.update_weights(target.path, str(target.version))
            except WeightUpdateRefused as refused:
                await server.client.continue_()
                server.gate_open = old is not None
                self._pool.changed()
                raise SyncFailed(
                    f"the server refuses version {target.version} and keeps {old}: {refused.message}"
                ) from refused
            server.version = None  # the old weights are gone, the new ones unproven
            await server.client.continue_()
            served = await server.client.prompt_logprobs(list(canary.ids))
        except RolloutServerError:
            server.version = None
            raise
        difference = canary.difference(served)
        self._metrics.canary.labels(server.url).set(difference)
        if difference > self._tolerance:
            raise SyncFailed(
                f"canary of version {target.version}: logprobs differ by {difference:.4f}, more than {self._tolerance}"
            )
        await self._rows.write(
            server.url, ServerState.READY, target.version, f"canary difference {difference:.5f}"
        )
        server.version, server.gate_open = target.version, True
        self._pool.changed()
        held = anyio.current_time() - begun
        self._metrics.sync_s.observe(held)
        self._metrics.version.labels(server.url).set(target.version)
        log.info(
            "sync.done",
            server=server.url,
            version=target.version,
            canary=round(difference, 6),
            held_s=round(held, 3),
        )


async def _first_of(*events: anyio.Event, within: float) -> None:
    """Return when one of `events` is set, or after `within` seconds."""
    with anyio.move_on_after(within):
        async with anyio.create_task_group() as tasks:

            async def wait(event: anyio.Event) -> None:
                await event.wait()
                tasks.cancel_scope.cancel()

            for event in events:
                tasks.start_soon(wait, event)
