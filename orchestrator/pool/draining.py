"""Draining: a runner, gateway or rollout server takes no new work and finishes its current work. Then it may be stopped.

| kind | reads the order | effect | drained when |
|---|---|---|---|
| runner, verifier runner | at its next heartbeat | leases nothing | it holds no lease, and its journal is empty |
| gateway | at its next heartbeat | opens no session | no rollout of its sessions runs, and its journal is empty |
| rollout server | its gateways read it at their heartbeats | gets no new calls; its weights are still updated | every gateway reports no call there |

The order is a column in the row of the draining process or server. The holders of the remaining work report it (`processes.holds`), which also
acknowledges the order. A person can take the order back. An orderly stop also ends it: a process that is started again
is meant to work. A process that died continues to drain when it comes back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.http_urls import one_spelling
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.states import DrainKind
from orchestrator.pool.drain_requests import SELF
from orchestrator.pool.heartbeats import ProcessReport, present
from orchestrator.pool.steer import Action, record
from orchestrator.pool.tables import processes, rollout_servers

OTHERS = (
    "orchestrator",
    "trainer",
)  # processes that report but cannot be drained; a runner may have any other name
CALLED: Mapping[DrainKind, str] = {
    DrainKind.RUNNER: "runner",
    DrainKind.GATEWAY: "gateway",
    DrainKind.SERVER: "rollout server",
}
HAS: Mapping[DrainKind, str] = {
    DrainKind.RUNNER: "attempts, results",
    DrainKind.GATEWAY: "sessions, steps",
    DrainKind.SERVER: "calls",
}


class DrainState(StrEnum):
    """How far something that can be drained is."""

    WORKING = "working"
    DRAINING = "draining"
    DRAINED = "drained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drainable:
    """A process or server that can be drained. `id`: its name for people: the process name, with its host if the name is not unique, or the URL
    of a rollout server. `left`: how many pieces of work it still holds while it drains; None: it does not drain, or has not read the order yet.
    `silent_s`: time since a process last reported. `process`, `host`: None for a rollout server."""

    kind: DrainKind
    id: str
    draining: bool
    left: int | None = None
    silent_s: float = 0.0
    process: str | None = None
    host: str | None = None

    @property
    def state(self) -> DrainState:
        """How far it is."""
        if not self.draining:
            return DrainState.WORKING
        return DrainState.DRAINED if self.left == 0 else DrainState.DRAINING

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which a person may refer to it."""
        if self.process is None:
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
            return f"{self.called} was ordered to drain and has not answered yet"
        return f"{self.called} " + (
            f"drains: {self.left} left ({HAS[self.kind]})" if self.left else "is drained"
        )


async def drainables(connection: AsyncConnection, run_id: int, no_progress_s: float) -> list[Drainable]:
    """Everything in a run that can be drained now, by kind and name. A gateway that is silent for longer than `no_progress_s` counts as dead
    and holds no calls."""
    living = [process for process in await present(connection, run_id) if not process.stopped]
    gateways = living_gateways(living, no_progress_s)
    leased = rollout_servers.c.lease_until > func.clock_timestamp()
    rows = await connection.execute(
        select(rollout_servers.c.url, rollout_servers.c.draining).where(
            rollout_servers.c.run_id == run_id, leased | rollout_servers.c.draining.is_not(None)
        )
    )
    drains: dict[str, bool] = {}
    for row in rows:  # older code wrote other spellings of a URL into rows of their own
        url = one_spelling(row.url)
        drains[url] = drains.get(url, False) or row.draining is not None
    servers = [
        Drainable(
            kind=DrainKind.SERVER,
            id=url,
            draining=draining,
            left=calls_left(gateways, url) if draining else None,
        )
        for url, draining in drains.items()
    ]
    found = [_process(each, kind, living) for each in living if (kind := kind_of(each.process)) is not None]
    order = list(DrainKind)
    return sorted([*found, *servers], key=lambda drainable: (order.index(drainable.kind), drainable.id))


def kind_of(process: str) -> DrainKind | None:
    """The kind of a process for draining, by its name. Verifier runners are runners."""
    first = process.partition("-")[0]
    if first in OTHERS:
        return None
    return DrainKind.GATEWAY if first == DrainKind.GATEWAY else DrainKind.RUNNER


def living_gateways(found: Sequence[ProcessReport], no_progress_s: float) -> list[ProcessReport]:
    """The gateways that may send calls. A gateway that is silent for longer than `no_progress_s` counts as dead."""
    return [
        each
        for each in found
        if kind_of(each.process) is DrainKind.GATEWAY and not each.stopped and each.silent_s <= no_progress_s
    ]


def own_left(process: ProcessReport) -> int | None:
    """How much work a draining process still holds. None: it does not drain, or has not read the order yet."""
    return process.holds.get(SELF) if process.draining else None


def calls_left(gateways: Sequence[ProcessReport], url: str) -> int | None:
    """How many calls a draining rollout server still has. None: not every gateway has read the order yet."""
    # An older gateway reports the spelling of the row.
    reported = [gateway.holds.get(one_spelling(url), gateway.holds.get(url)) for gateway in gateways]
    return None if None in reported else sum(n for n in reported if n is not None)


def _process(process: ProcessReport, kind: DrainKind, living: Sequence[ProcessReport]) -> Drainable:
    only_one = sum(each.process == process.process for each in living) == 1
    name = process.process if only_one else f"{process.process}@{process.host}"
    return Drainable(
        kind=kind,
        id=name,
        draining=process.draining,
        left=own_left(process),
        silent_s=process.silent_s,
        process=process.process,
        host=process.host,
    )


async def find(
    connection: AsyncConnection, run_id: int, kind: DrainKind, name: str, no_progress_s: float
) -> Drainable:
    """Find a person's target: a process by NAME or NAME@HOST, a rollout server by its URL. ConfigurationError lists the candidates if
    none or several match."""
    candidates = [
        candidate
        for candidate in await drainables(connection, run_id, no_progress_s)
        if candidate.kind == kind
    ]
    if kind is DrainKind.SERVER:
        name = one_spelling(name)
    matching = [candidate for candidate in candidates if name in candidate.names]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise ConfigurationError(
            f"{len(matching)} hosts have a {CALLED[kind]} {quoted(name)}: say which, {' or '.join(candidate.id for candidate in matching)}"
        )
    listed = ", ".join(candidate.id for candidate in candidates) or "none"
    raise ConfigurationError(f"this run has no {CALLED[kind]} {quoted(name)}; known: {listed}")


async def drain(
    connection: AsyncConnection,
    run_id: int,
    kind: DrainKind,
    name: str,
    who: str,
    reason: str,
    *,
    no_progress_s: float,
    reserved: int = 0,
    last: bool = False,
    confirmation: str = "say --yes",
) -> Drainable:
    """Order a process or server to take no new work. Nothing changes if it drains already. `reserved`: number of rollout servers for evaluations
    only. `last`: also drain a rollout server without which calls must wait. `confirmation`: how a person gives `last`, for the refusal.
    ConfigurationError, one sentence, if it is not possible now."""
    target = await find(connection, run_id, kind, name, no_progress_s)
    if target.draining:
        return target
    if kind is DrainKind.SERVER and not last:
        remaining = [
            each
            for each in await drainables(connection, run_id, no_progress_s)
            if each.kind is DrainKind.SERVER and each.id != target.id and not each.draining
        ]
        if len(remaining) <= reserved:
            raise ConfigurationError(
                f"without {target.called} no server is left for rollouts: their calls would be held until the order is taken back; "
                f"if you want that, {confirmation}"
            )
    if await _ordered(connection, run_id, target, True):
        await record(
            connection,
            run_id,
            who=who,
            what=Action.DRAIN,
            target=f"{kind} {target.id}",
            before={"draining": False},
            after={"draining": True},
            reason=reason,
        )
    return replace(target, draining=True, left=None)


async def undrain(
    connection: AsyncConnection,
    run_id: int,
    kind: DrainKind,
    name: str,
    who: str,
    reason: str,
    *,
    no_progress_s: float,
) -> Drainable:
    """Let it work again. ConfigurationError if it does not drain."""
    target = await find(connection, run_id, kind, name, no_progress_s)
    if not target.draining:
        raise ConfigurationError(f"{target.called} does not drain: there is nothing to take back")
    if await _ordered(connection, run_id, target, False):
        await record(
            connection,
            run_id,
            who=who,
            what=Action.UNDRAIN,
            target=f"{kind} {target.id}",
            before={"draining": True},
            after={"draining": False},
            reason=reason,
        )
    return replace(target, draining=False, left=None)


async def _ordered(connection: AsyncConnection, run_id: int, one: Drainable, drains: bool) -> bool:
    """Write the order. False if another person changed it in the meantime. Reports about an earlier order no longer count."""
    draining_since = func.clock_timestamp() if drains else None
    if one.kind is DrainKind.SERVER:
        of_run = rollout_servers.c.run_id == run_id
        known = (await connection.scalars(select(rollout_servers.c.url).where(of_run))).all()
        spellings = [url for url in known if one_spelling(url) == one.id]
        unchanged = (
            rollout_servers.c.draining.is_(None) if drains else rollout_servers.c.draining.is_not(None)
        )
        updated = await connection.execute(
            update(rollout_servers)
            .where(of_run, rollout_servers.c.url.in_(spellings), unchanged)
            .values(draining=draining_since)
        )
        await connection.execute(
            text("UPDATE processes SET holds = holds - CAST(:urls AS text[]) WHERE run_id = :run"),
            {"run": run_id, "urls": [one.id, *spellings]},
        )
        return updated.rowcount > 0
    updated = await connection.execute(
        update(processes)
        .where(
            processes.c.run_id == run_id,
            processes.c.process == one.process,
            processes.c.host == one.host,
            processes.c.draining.is_(None) if drains else processes.c.draining.is_not(None),
        )
        .values(draining=draining_since, holds=processes.c.holds.op("-")(SELF))
    )
    return updated.rowcount == 1
