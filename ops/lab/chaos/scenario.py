"""The course of a chaos run: fault after fault while the run works, each with its recovery. Then the intake closes, the run drains, and the
audit checks it.

| produces | waits for | unblocked by |
|---|---|---|
| faults, lines of the ledger | 20 steps or a commit since the last fault; work in progress at the victim | the stack at work |
| a problem | `patience_s` without the expected event | never: a hang is reported |
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from rich.console import Console
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from ops.lab.chaos import results as fault_results
from ops.lab.chaos.gate import STEPS
from ops.lab.chaos.inject import Injector, NoVictim
from ops.lab.chaos.ledger import (
    SUBMISSIONS,
    Ledger,
    calls_of,
    lines,
)
from ops.lab.chaos.links import Links
from ops.lab.chaos.load import SubmittedLoad
from ops.lab.chaos.plan import Fault
from ops.lab.chaos.poison.mixing import Mixing, Poisoned
from ops.lab.chaos.regenerated import Spent, spent
from ops.lab.chaos.results import FaultOutcome
from ops.lab.chaos.watch import Watch
from orchestrator.audit import Report, audit
from orchestrator.contracts.states import RunState
from orchestrator.deploy.embedded.process_spec import ProcessEvent, ProcessState
from orchestrator.deploy.embedded.supervisor import read_status
from orchestrator.deploy.home import Home
from orchestrator.deploy.stack import up
from orchestrator.pool.engine import Role, open_engine
from orchestrator.pool.runs import close_intake, get_run
from orchestrator.settings.config import Config
from sandboxes.reap import default_root

AT_WORK_S = 10.0  # after this time a victim without work is hit anyway
POLL_INTERVAL_S = 0.02
FIGURES = """select (select count(*) from steps where run_id = :run) as steps,
       (select count(*) from groups where run_id = :run and done) as groups,
       (select count(*) from batches where run_id = :run and state = 'committed') as batches"""
# Actions of the attempts that count: the last of each rollout.
ACTIONS = """select r.rollout_id || ':' || r.attempt as of, i4(s.action) as ids
  from rollouts r join steps s on s.run_id = r.run_id and s.rollout_id = r.rollout_id and s.attempt = r.attempt
 where r.run_id = :run"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of the whole run: rows, and trajectory-seconds of generation (defined in `regenerated`)."""

    steps: int
    groups: int
    batches: int
    spent: Spent


@dataclass(slots=True)
class Results:
    """`problems` are sentences; each counts as a violation, like those of the audit. `report` is None if the run ended before the audit."""

    problems: list[str] = field(default_factory=list)
    report: Report | None = None
    figures: Figures = Figures(steps=0, groups=0, batches=0, spent=Spent(0.0, 0.0))
    poisoned: Poisoned = field(default_factory=Poisoned)

    @property
    def violations(self) -> int:
        return len(self.problems) + (self.report.violations if self.report is not None else 1)


class Hangs(Exception):
    """An expected event did not happen in time; the sentence names it."""


@dataclass(slots=True, kw_only=True)
class ChaosRun:
    """One run. `faults` are the remaining ones; `shown` is called after each."""

    console: Console
    home: Home
    ledger: Ledger
    links: Links
    injector: Injector
    faults: Sequence[Fault]
    shown: Callable[[FaultOutcome], None]
    patience_s: float
    results: Results = field(default_factory=Results)
    interrupted: bool = True
    _up: anyio.Event = field(default_factory=anyio.Event)

    async def run(self) -> Results:
        """Start the stack, inject the faults, drain it, audit it, stop it."""
        try:
            await self._run()
        except* Hangs as problems:
            self.interrupted = False
            self.results.problems += [str(problem) for problem in leaves(problems)]
        return self.results

    async def _run(self) -> None:
        async with anyio.create_task_group() as tasks:

            async def stack() -> None:
                await up(self.home, on_event=self._event, on_started=self._started, route=self.links.route)
                tasks.cancel_scope.cancel()  # Ctrl-C

            tasks.start_soon(stack)
            await self._up.wait()
            await self._work()
            self.interrupted = False
            tasks.cancel_scope.cancel()

    def _started(self, config: Config) -> None:
        self._up.set()

    def _event(self, event: ProcessEvent) -> None:
        if event.state is ProcessState.FAILED:
            self.results.problems.append(f"{event.name} was given up: {event.detail}")

    async def _work(self) -> None:
        config = self.home.connected()
        async with AsyncExitStack() as stack:
            engine = await stack.enter_async_context(
                open_engine(config.services.database_url, Role.READER, size=4, name="chaos")
            )
            async with engine.connect() as connection:
                run = await get_run(connection, config.run.name)
            watch = Watch(engine=engine, run_id=run.run_id, proxy=self.links.proxy, ledger=self.ledger)
            load = SubmittedLoad(
                nats_url=config.services.nats_url,
                run=run.name,
                run_id=run.run_id,
                engine=engine,
                ledger=self.ledger,
            )
            tasks = await stack.enter_async_context(anyio.create_task_group())
            tasks.start_soon(watch.run)
            tasks.start_soon(load.run)
            mixing = Mixing(
                nats_url=config.services.nats_url,
                run=run.name,
                run_id=run.run_id,
                engine=engine,
                load=load,
                living=self._living,
                poisoned=self.results.poisoned,
                problems=self.results.problems,
            )
            if run.state is RunState.ACTIVE:
                await self._until(mixing.alone, mixing.missing)
                async with anyio.create_task_group() as poison:
                    poison.start_soon(mixing.mixed)
                    for fault in self.faults:
                        await self._one(fault, watch)
                    await self._until(mixing.close, mixing.missing)
            await self._until(load.close, "every submission is answered")
            self.results.problems += [f"submission {submission} was rejected" for submission in load.refused]
            await self._drain(watch, run.run_id)
            await mixing.finish()
            self.results.report = await audit(
                engine,
                run.name,
                self.home.policies,
                lines(Path(self.ledger.directory) / SUBMISSIONS),
                alive=self._alive(),
                sandbox_root=default_root(),
                workers=self.home.workers,
                witness=self.ledger.directory,
            )
            self.results.figures = await self._figures(engine, run.run_id)
            tasks.cancel_scope.cancel()

    async def _figures(self, engine: AsyncEngine, run_id: int) -> Figures:
        stored: dict[str, list[tuple[int, ...]]] = defaultdict(list)
        async with engine.connect() as connection:
            row = (await connection.execute(text(FIGURES), {"run": run_id})).one()
            for action in await connection.execute(text(ACTIONS), {"run": run_id}):
                stored[action.of].append(tuple(action.ids))
        return Figures(
            steps=row.steps,
            groups=row.groups,
            batches=row.batches,
            spent=spent(calls_of(self.ledger.directory), stored),
        )

    async def _one(self, fault: Fault, watch: Watch) -> None:
        answers, commits = self.ledger.answers, watch.commits

        def enough() -> bool:
            return self.ledger.answers - answers >= STEPS + fault.pause or watch.commits > commits

        await self._wait(enough, f"{STEPS} steps or a commit before fault {fault.index} ({fault.title})")
        in_flight = False
        with anyio.move_on_after(AT_WORK_S):
            while not in_flight:
                work = await watch.work()
                in_flight = work is not None and work.of(fault.victim)
                if not in_flight:
                    await anyio.sleep(POLL_INTERVAL_S)
        steps, committed = self.ledger.answers - answers, watch.commits - commits
        started, recovery_s, did, problem = time.time(), None, None, ""
        self.ledger.fault(fault_results.started(fault, started))
        try:
            hurt = await self.injector.hurt(fault)
        except NoVictim as error:
            problem = str(error)
        else:
            did = hurt.did
            recovery_s = await self._recovery(fault, watch, hurt.healed)
        outcome = FaultOutcome(
            index=fault.index,
            kind=fault.kind,
            victim=fault.victim,
            title=fault.title,
            at=started,
            in_flight=in_flight,
            steps=steps,
            commits=committed,
            recovery_s=recovery_s,
            problem=problem,
            did=did,
        )
        self.ledger.fault(outcome.line())
        self.shown(outcome)

    async def _recovery(self, fault: Fault, watch: Watch, healed: float) -> float:
        found: float | None = None

        def moves() -> bool:
            nonlocal found
            found = watch.progress(fault.victim, healed)
            return found is not None

        await self._wait(moves, f"new progress of {fault.victim} after fault {fault.index} ({fault.title})")
        assert found is not None
        return found - healed

    async def _drain(self, watch: Watch, run_id: int) -> None:
        url = self.home.connected().services.database_url
        async with open_engine(url, size=1, name="chaos-operator") as engine, engine.begin() as connection:
            await close_intake(connection, run_id)

        async def ended() -> None:
            while (work := await watch.work()) is None or work.run != RunState.ENDED:
                await anyio.sleep(0.1)

        await self._until(ended, "the run has drained and ended")

    def _living(self) -> dict[str, int]:
        status = read_status(self.home.layout)
        return {process.name: process.pid for process in status.processes if process.pid} if status else {}

    def _alive(self) -> frozenset[str]:
        status = read_status(self.home.layout)
        return frozenset() if status is None else status.ready()

    async def _wait(self, holds: Callable[[], bool], what: str) -> None:
        async def poll() -> None:
            while not holds():
                await anyio.sleep(POLL_INTERVAL_S)

        await self._until(poll, what)

    async def _until(self, happens: Callable[[], object], what: str | Callable[[], str]) -> None:
        with anyio.move_on_after(self.patience_s) as limit:
            await happens()  # type: ignore[misc]
        if limit.cancelled_caught:
            missing = what if isinstance(what, str) else what()
            raise Hangs(f"within {self.patience_s:g} s there was not: {missing}")


def leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """The errors in nested exception groups."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from leaves(error)
        else:
            yield error
