"""Draining: a runner, a gateway or a rollout server is asked to take nothing new; what it has ends, and then it may be stopped.

| who | reads the order | obeys | is drained when |
|---|---|---|---|
| runner, verifier runner | at its next heartbeat | leases nothing | nothing is leased, its journal is empty |
| gateway | at its next heartbeat | opens no session | no rollout of its sessions runs, its journal is empty |
| rollout server | its gateways do, at theirs | gets no new calls; its weights follow | every gateway says that no call is there |

The order is a column of the row of what drains; what is still held is the word of those who hold it (`processes.holds`), and says at the same
time that they have heard. It is taken back by a person, and ends with a process that is stopped in an orderly way: whoever starts it again
wants it to work. A process that died drains on when it comes back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.pool.orders import SELF
from orchestrator.pool.presence import ProcessReport, present
from orchestrator.pool.steer import record
from orchestrator.pool.tables import processes, rollout_servers

Kind = Literal["runner", "gateway", "server"]
KINDS: tuple[Kind, ...] = ("runner", "gateway", "server")
OTHERS = (
    "orchestrator",
    "trainer",
)  # what announces itself and cannot be drained; a runner may have any other name
CALLED: Mapping[Kind, str] = {"runner": "runner", "gateway": "gateway", "server": "rollout server"}
HAS: Mapping[Kind, str] = {"runner": "attempts, results", "gateway": "sessions, steps", "server": "calls"}


@dataclass(frozen=True, slots=True)
class Drainable:
    """What can be drained. `id`: what a person calls it: the name of a process, with its host where others are called so too, or the URL of
    a rollout server. `left`: how many pieces of work it still holds while it drains; None: it does not drain, or has not heard yet.
    `silent_s`: since a process was last heard of."""

    kind: Kind
    id: str
    draining: bool
    left: int | None = None
    silent_s: float = 0.0
    process: str = ""
    host: str = ""

    @property
    def state(self) -> str:
        """working, draining or drained."""
        if not self.draining:
            return "working"
        return "drained" if self.left == 0 else "draining"

    @property
    def names(self) -> tuple[str, ...]:
        """By which a person may call it."""
        if self.kind == "server":
            return self.id, f"{self.id}/"
        return self.process, f"{self.process}@{self.host}"

    @property
    def called(self) -> str:
        return f"the {CALLED[self.kind]} {self.id}"

    @property
    def sentence(self) -> str:
        """Its state for people."""
        if not self.draining:
            return f"{self.called} works"
        if self.left is None:
            return f"{self.called} is told to drain, and has not answered yet"
        return f"{self.called} " + (
            f"drains: {self.left} left ({HAS[self.kind]})" if self.left else "is drained"
        )


async def drainables(connection: AsyncConnection, run_id: int, no_progress_s: float) -> list[Drainable]:
    """Everything of a run that can be drained now, by kind and name. A gateway that is silent for longer than `no_progress_s` counts as dead:
    it holds no calls."""
    living = [process for process in await present(connection, run_id) if not process.stopped]
    gateways = living_gateways(living, no_progress_s)
    leased = rollout_servers.c.lease_until > func.clock_timestamp()
    rows = await connection.execute(
        select(rollout_servers.c.url, rollout_servers.c.draining).where(
            rollout_servers.c.run_id == run_id, leased | rollout_servers.c.draining.is_not(None)
        )
    )
    servers = [
        Drainable("server", row.url, True, calls_left(gateways, row.url))
        if row.draining
        else Drainable("server", row.url, False)
        for row in rows
    ]
    found = [_process(each, kind, living) for each in living if (kind := kind_of(each.process)) is not None]
    return sorted([*found, *servers], key=lambda one: (KINDS.index(one.kind), one.id))


def kind_of(process: str) -> Kind | None:
    """What a process is to whoever drains it, by its name; verifier runners are runners."""
    first = process.partition("-")[0]
    return None if first in OTHERS else "gateway" if first == "gateway" else "runner"


def living_gateways(found: Sequence[ProcessReport], no_progress_s: float) -> list[ProcessReport]:
    """The gateways that may send calls. One that is silent for longer than `no_progress_s` counts as dead."""
    return [
        each
        for each in found
        if kind_of(each.process) == "gateway" and not each.stopped and each.silent_s <= no_progress_s
    ]


def own_left(process: ProcessReport) -> int | None:
    """How much a process that drains still holds; None: it does not drain, or has not heard yet."""
    return process.holds.get(SELF) if process.draining else None


def calls_left(gateways: Sequence[ProcessReport], url: str) -> int | None:
    """How many calls a rollout server that drains still has; None: not every gateway has heard yet."""
    told = [gateway.holds.get(url) for gateway in gateways]
    return None if None in told else sum(n for n in told if n is not None)


def _process(process: ProcessReport, kind: Kind, living: Sequence[ProcessReport]) -> Drainable:
    alone = sum(each.process == process.process for each in living) == 1
    name = process.process if alone else f"{process.process}@{process.host}"
    return Drainable(
        kind, name, process.draining, own_left(process), process.silent_s, process.process, process.host
    )


async def find(
    connection: AsyncConnection, run_id: int, kind: Kind, name: str, no_progress_s: float
) -> Drainable:
    """The one that a person means: a process by NAME or NAME@HOST, a rollout server by its URL. ConfigurationError, with those that there are,
    when there is none, or more than one."""
    known = [one for one in await drainables(connection, run_id, no_progress_s) if one.kind == kind]
    meant = [one for one in known if name in one.names]
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise ConfigurationError(
            f"{len(meant)} hosts have a {CALLED[kind]} {name!r}: say which, {' or '.join(one.id for one in meant)}"
        )
    there_are = ", ".join(one.id for one in known) or "none"
    raise ConfigurationError(f"this run has no {CALLED[kind]} {name[:200]!r}; known: {there_are}")


async def drain(
    connection: AsyncConnection,
    run_id: int,
    kind: Kind,
    name: str,
    who: str,
    reason: str,
    *,
    no_progress_s: float,
    reserved: int = 0,
    last: bool = False,
) -> Drainable:
    """Ask one to take nothing new; as it is when it drains already. `reserved`: rollout servers that serve evaluations alone. `last`: also a
    rollout server without which calls are held. ConfigurationError, one sentence, where it cannot be done as things are."""
    one = await find(connection, run_id, kind, name, no_progress_s)
    if one.draining:
        return one
    if kind == "server" and not last:
        others = [
            each
            for each in await drainables(connection, run_id, no_progress_s)
            if each.kind == "server" and each.id != one.id and not each.draining
        ]
        if len(others) <= reserved:
            raise ConfigurationError(
                f"without {one.called} no server is left for rollouts: their calls would be held until it is taken back; "
                "if you want that, say --yes"
            )
    if await _ordered(connection, run_id, one, True):
        await record(
            connection, run_id, who=who, what="drain", target=f"{kind} {one.id}",
            before={"draining": False}, after={"draining": True}, reason=reason,
        )  # fmt: skip
    return replace(one, draining=True, left=None)


async def undrain(
    connection: AsyncConnection,
    run_id: int,
    kind: Kind,
    name: str,
    who: str,
    reason: str,
    *,
    no_progress_s: float,
) -> Drainable:
    """Let one work again. ConfigurationError when it does not drain."""
    one = await find(connection, run_id, kind, name, no_progress_s)
    if not one.draining:
        raise ConfigurationError(f"{one.called} does not drain: there is nothing to take back")
    if await _ordered(connection, run_id, one, False):
        await record(
            connection, run_id, who=who, what="undrain", target=f"{kind} {one.id}",
            before={"draining": True}, after={"draining": False}, reason=reason,
        )  # fmt: skip
    return replace(one, draining=False, left=None)


async def _ordered(connection: AsyncConnection, run_id: int, one: Drainable, drains: bool) -> bool:
    """Write the order; False when somebody else has meanwhile. What was said of an earlier order counts no more."""
    since = func.clock_timestamp() if drains else None
    if one.kind == "server":
        of_url = (rollout_servers.c.run_id == run_id, rollout_servers.c.url == one.id)
        other = rollout_servers.c.draining.is_(None) if drains else rollout_servers.c.draining.is_not(None)
        done = await connection.execute(update(rollout_servers).where(*of_url, other).values(draining=since))
        await connection.execute(
            text("UPDATE processes SET holds = holds - CAST(:url AS text) WHERE run_id = :run"),
            {"run": run_id, "url": one.id},
        )
        return done.rowcount == 1
    done = await connection.execute(
        update(processes)
        .where(
            processes.c.run_id == run_id,
            processes.c.process == one.process,
            processes.c.host == one.host,
            processes.c.draining.is_(None) if drains else processes.c.draining.is_not(None),
        )
        .values(draining=since, holds=processes.c.holds.op("-")(SELF))
    )
    return done.rowcount == 1
