"""Doing one fault, from its beginning to the end of what it takes away."""

import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import anyio

from orchestrator.chaos import disk, victims
from orchestrator.chaos.echo import Echo
from orchestrator.chaos.links import Links
from orchestrator.chaos.plan import DELAY_S, HARNESS, SANDBOX, Fault, Kind
from orchestrator.chaos.prepare import length_s
from orchestrator.embedded.identity import ProcessId
from orchestrator.home import Home

FIND_S = 30.0  # a victim that is being started again is waited for, and so is what a fault that is counted (plan.COUNTED) is to hit
LOOK_S = 0.02
TRIES = 5
FAILED_WRITE = b'"event": "checkpoint.failed"'


class NoVictim(Exception):
    """There was nobody to hurt: the process does not come back, or no sandbox is open."""


class Gone(Exception):
    """The victim ended by itself in the moment before it was killed or stopped."""


@dataclass(frozen=True, slots=True)
class Hurt:
    """Recovery counts from `healed`, Unix seconds. `did`: as `tally.Outcome` has it."""

    healed: float
    did: int | None = None


@dataclass(frozen=True, slots=True)
class Injector:
    """`scale` divides every length (prepare.length_s). `clocks` is the directory that the shifted clocks look into."""

    home: Home
    links: Links
    clocks: Path
    scale: float

    async def hurt(self, fault: Fault) -> Hurt:
        """Find the victim and do it, as `do` does; whoever ends by itself just before is replaced by another. Raises NoVictim."""
        for _ in range(TRIES):
            on = await self.find(fault)
            with suppress(Gone):
                return await self.do(fault, on)
        raise NoVictim(f"{TRIES} of them ended just before they were hurt")

    async def find(self, fault: Fault) -> list[ProcessId]:
        """The processes that a fault is about; none: it is about none. Raises NoVictim."""
        name = "runner" if fault.victim in (SANDBOX, HARNESS) else fault.victim
        with anyio.move_on_after(FIND_S):
            while True:
                found = victims.living(self.home.layout, name)
                if found is not None and fault.kind is Kind.STOP and name == "postgres":
                    return victims.family(found)
                if found is not None and fault.victim != SANDBOX:
                    return [found]
                if found is not None and (inside := victims.sandboxes(found)):
                    chosen = inside[int(fault.pick * len(inside))]
                    # Who dies takes those inside along; who is stopped does not.
                    return victims.family(chosen) if fault.kind is Kind.STOP else [chosen]
                await anyio.sleep(LOOK_S)
        raise NoVictim(f"no {fault.victim} within {FIND_S:g} s")

    async def do(self, fault: Fault, on: list[ProcessId]) -> Hurt:
        """Returns when it is over: for a kill at once, else when what was taken away is given back. Raises Gone."""
        lasts_s = length_s(fault, self.scale)
        did: int | None = None
        match fault.kind:
            case Kind.KILL:
                return self._kill(on)
            case Kind.WIPE:
                victims.send(on, signal.SIGSTOP)  # nobody restarts it before the store is gone
                await anyio.to_thread.run_sync(self._wipe)
                return self._kill(on)
            case Kind.STOP:
                if not victims.send(on, signal.SIGSTOP):
                    raise Gone
                try:
                    await anyio.sleep(lasts_s)
                finally:
                    victims.send(on, signal.SIGCONT)
            case Kind.DUPLICATE:
                echo = Echo(self.home.connected().services.nats_url, Random(fault.index))
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(echo.run)
                    did = await _last(lasts_s, lambda: echo.copies)
                    tasks.cancel_scope.cancel()
            case Kind.REORDER:
                links = [key for key in self.links.relays if key[1] == "nats"]
                before = self._shuffles()
                did = await self._part(links, fault, lasts_s, lambda: self._shuffles() - before)
            case Kind.STALL | Kind.CUT | Kind.DELAY:
                link = (fault.victim, fault.service)
                relay = self.links.relays[link]
                before = relay.met
                did = await self._part([link], fault, lasts_s, lambda: relay.met - before)
            case Kind.DISK:
                place, log = self.home.policies, self.home.layout.logs / "trainer.log"
                before = log.stat().st_size if log.exists() else 0
                try:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(_kept_full, place)
                        did = await _last(lasts_s, lambda: _failed_writes(log, before))
                        tasks.cancel_scope.cancel()
                finally:
                    disk.empty(place)
            case Kind.CLOCK:
                did = await self._shift(fault, on, lasts_s)
        return Hurt(time.time(), did)

    def _kill(self, on: list[ProcessId]) -> Hurt:
        at = time.time()
        if not victims.send(on, signal.SIGKILL):
            raise Gone
        return Hurt(at)

    async def _shift(self, fault: Fault, on: list[ProcessId], lasts_s: float) -> int:
        """How often the victim looked at its clock and saw the shift, as it wrote down itself."""
        clock, seen = self.clocks / fault.victim, self.clocks / f"{fault.victim}.seen"
        lines = [str(process.pid) for process in on]
        seen.unlink(missing_ok=True)
        try:
            clock.write_text(str(fault.shift_s))
            return await _last(
                lasts_s,
                lambda: sum(line in lines for line in seen.read_text().splitlines()) if seen.exists() else 0,
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
    """Also where the trainer gives up an old checkpoint: with the room of that it could write a new one, again and again."""
    while True:
        await anyio.to_thread.run_sync(disk.fill, place)
        await anyio.sleep(LOOK_S)


def _failed_writes(log: Path, begin: int) -> int:
    """As the trainer says in its log behind `begin`: it alone writes where the small disk is."""
    if not log.exists():
        return 0
    with log.open("rb") as lines:
        lines.seek(begin if begin <= log.stat().st_size else 0)  # else it was put aside
        return lines.read().count(FAILED_WRITE)


async def _last(lasts_s: float, did: Callable[[], int]) -> int:
    """So long, and until something was done; for `FIND_S` more at most. How much it was: of nothing the gate has a word to say."""
    await anyio.sleep(lasts_s)
    with anyio.move_on_after(FIND_S):
        while not did():
            await anyio.sleep(LOOK_S)
    return did()
