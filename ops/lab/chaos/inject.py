"""Injects one fault and, when its time is over, restores the service that it took away."""

import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import anyio

from ops.lab.chaos import disk, victims
from ops.lab.chaos.echo import Echo
from ops.lab.chaos.links import Links
from ops.lab.chaos.plan import (
    DELAY_S,
    HARNESS,
    SANDBOX,
    Fault,
    FaultKind,
)
from ops.lab.chaos.prepare import length_s
from orchestrator.bus.link import urls_of
from orchestrator.contracts.processes import ProcessRole
from orchestrator.deploy.embedded.identity import ProcessId
from orchestrator.deploy.home import Home

FIND_S = 90.0  # how long to wait for a victim that restarts, or for the first hit of a counted fault (plan.COUNTED)
POLL_INTERVAL_S = 0.02
TRIES = 5
FAILED_WRITE = b'"event": "checkpoint.failed"'


class NoVictim(Exception):
    """The fault has no victim: the process does not come back, or no sandbox is open."""


class Gone(Exception):
    """The victim ended by itself just before it was killed or stopped."""


@dataclass(frozen=True, slots=True)
class Hurt:
    """Recovery counts from `healed`, Unix seconds. `did`: as in `results.FaultOutcome`."""

    healed: float
    did: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Injector:
    """`scale` divides every length (prepare.length_s). `clocks` is the directory that the shifted clocks read."""

    home: Home
    links: Links
    clocks: Path
    scale: float

    async def hurt(self, fault: Fault) -> Hurt:
        """Find a victim and inject the fault, as `do` does. If the victim ends by itself just before, another takes its place. Raises NoVictim."""
        for _ in range(TRIES):
            processes = await self.find(fault)
            with suppress(Gone):
                return await self.do(fault, processes)
        raise NoVictim(f"{TRIES} of them ended just before they were hurt")

    async def find(self, fault: Fault) -> list[ProcessId]:
        """The processes that a fault hits. Raises NoVictim."""
        name = "runner" if fault.victim in (SANDBOX, HARNESS) else fault.victim
        with anyio.move_on_after(FIND_S):
            while True:
                found = victims.living(self.home.layout, name)
                if found is not None and fault.kind is FaultKind.STOP and name == ProcessRole.POSTGRES:
                    return victims.family(found)
                if found is not None and fault.victim != SANDBOX:
                    return [found]
                if found is not None and (inside := victims.sandboxes(found)):
                    chosen = inside[int(fault.pick * len(inside))]
                    # Killing the outermost process also kills those inside; stopping it does not stop them.
                    return victims.family(chosen) if fault.kind is FaultKind.STOP else [chosen]
                await anyio.sleep(POLL_INTERVAL_S)
        raise NoVictim(f"no {fault.victim} within {FIND_S:g} s")

    async def do(self, fault: Fault, on: list[ProcessId]) -> Hurt:
        """Returns when the fault is over: for a kill at once, otherwise when the service is restored. Raises Gone."""
        lasts_s = length_s(fault, self.scale)
        did: int | None = None
        match fault.kind:
            case FaultKind.KILL:
                return self._kill(on)
            case FaultKind.WIPE:
                victims.send(on, signal.SIGSTOP)  # no restart before the store is deleted
                await anyio.to_thread.run_sync(self._wipe)
                return self._kill(on)
            case FaultKind.STOP:
                if not victims.send(on, signal.SIGSTOP):
                    raise Gone
                try:
                    await anyio.sleep(lasts_s)
                finally:
                    victims.send(on, signal.SIGCONT)
            case FaultKind.DUPLICATE:
                echo = Echo(
                    url=urls_of(self.home.connected().services.nats_url)[0], random=Random(fault.index)
                )
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(echo.run)
                    did = await _last(lasts_s, lambda: echo.copies)
                    tasks.cancel_scope.cancel()
            case FaultKind.REORDER:
                links = [key for key in self.links.relays if key[1] == ProcessRole.NATS]
                before = self._shuffles()
                did = await self._part(links, fault, lasts_s, lambda: self._shuffles() - before)
            case FaultKind.STALL | FaultKind.CUT | FaultKind.DELAY:
                link = (fault.victim, fault.service)
                relay = self.links.relays[link]
                before = relay.met
                did = await self._part([link], fault, lasts_s, lambda: relay.met - before)
            case FaultKind.DISK:
                policies, log = self.home.policies, self.home.layout.logs / "trainer.log"
                before = log.stat().st_size if log.exists() else 0
                try:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(_kept_full, policies)
                        did = await _last(lasts_s, lambda: _failed_writes(log, before))
                        tasks.cancel_scope.cancel()
                finally:
                    disk.empty(policies)
            case FaultKind.CLOCK:
                did = await self._shift(fault, on, lasts_s)
        return Hurt(time.time(), did)

    def _kill(self, on: list[ProcessId]) -> Hurt:
        at = time.time()
        if not victims.send(on, signal.SIGKILL):
            raise Gone
        return Hurt(at)

    async def _shift(self, fault: Fault, on: list[ProcessId], lasts_s: float) -> int:
        """How often the victim read its clock and saw the shift, by its own record."""
        clock, record = self.clocks / fault.victim, self.clocks / f"{fault.victim}.seen"
        lines = [str(process.pid) for process in on]
        record.unlink(missing_ok=True)
        try:
            clock.write_text(str(fault.shift_s))
            return await _last(
                lasts_s,
                lambda: (
                    sum(line in lines for line in record.read_text().splitlines()) if record.exists() else 0
                ),
            )
        finally:
            clock.unlink(missing_ok=True)

    def _shuffles(self) -> int:
        return sum(relay.shuffles for relay in self.links.relays.values())

    def _wipe(self) -> None:
        shutil.rmtree(self.home.layout.nats / "jetstream", ignore_errors=True)

    async def _part(
        self, links: list[tuple[str, str]], fault: Fault, lasts_s: float, did: Callable[[], int]
    ) -> int:
        try:
            for link in links:
                self.links.relays[link].part(fault.kind, delay_s=DELAY_S / self.scale, seed=fault.index)
            return await _last(lasts_s, did)
        finally:
            for link in links:
                self.links.relays[link].pass_on()


async def _kept_full(place: Path) -> None:
    """Keep the disk full, also after the trainer deletes an old checkpoint: in that space it could write a new one, again and again."""
    while True:
        await anyio.to_thread.run_sync(disk.fill, place)
        await anyio.sleep(POLL_INTERVAL_S)


def _failed_writes(log: Path, begin: int) -> int:
    """Failed writes in the trainer's log after the offset `begin`: only the trainer writes to the small disk."""
    if not log.exists():
        return 0
    with log.open("rb") as lines:
        lines.seek(begin if begin <= log.stat().st_size else 0)  # otherwise the log was rotated
        return lines.read().count(FAILED_WRITE)


async def _last(lasts_s: float, did: Callable[[], int]) -> int:
    """Wait `lasts_s`, then until `did()` is not 0, at most `FIND_S` longer. Returns `did()`; the gate reports a 0 as a violation."""
    await anyio.sleep(lasts_s)
    with anyio.move_on_after(FIND_S):
        while not did():
            await anyio.sleep(POLL_INTERVAL_S)
    return did()
