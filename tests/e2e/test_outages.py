"""A service is away for longer than every time to live, with rollouts in flight: the same attempts continue, and everything catches up.

PENSTOCK_OUTAGE_S sets the duration; 600 is the outage of ten minutes that a release must survive, at the real times to live.
"""

import json
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import anyio
import pytest
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.deploy.embedded.postgres import EmbeddedPostgres
from orchestrator.deploy.embedded.postgres_cluster import discard_cluster
from orchestrator.deploy.embedded.process_spec import ProcessState
from tests.e2e.observer import PATIENCE_S, Observer, observing
from tests.e2e.stack_rig import Stack, place, until
from tests.services import upgrade_to_head
from tests.violations import command_found_nothing
from tests.waiting import stays_true_for

OUTAGE_S = float(os.environ.get("PENSTOCK_OUTAGE_S", "20"))
# Shorter than the outage, and far longer than any pause of a busy machine: nothing but the outage can let a lease run out.
TTL_S = min(30.0, OUTAGE_S / 2)
SPOOL_MB = 0.05 if OUTAGE_S < 120 else 1.0  # so little that it fills up while a service is away
WORST_STEP = 8192  # bytes; calls under way may each record one when the spool is full
# Bytes that a process may use more than before: allocators do not return everything. Steps cost less;
# tests/unit/bus/test_spool.py bounds that.
MORE_MEMORY = 96 << 20
COMPLETION_S = 300.0  # a completion may take so long unless the gateway holds it: less than the long outage
ROLLOUTS = 4

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.services,
    pytest.mark.timeout(500 + 2 * OUTAGE_S),
    pytest.mark.tier("faults"),
]


@dataclass
class Services:
    postgres: EmbeddedPostgres
    nats: EmbeddedNats


@asynccontextmanager
async def services() -> AsyncIterator[Services]:
    """Services that the stack does not start, and does not know when to expect back."""
    with place() as directory:
        async with served(directory) as where:
            yield where


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[Services]:
    where = Services(EmbeddedPostgres(directory / "postgres"), EmbeddedNats(directory / "nats"))
    await where.postgres.start()
    await where.nats.start()
    try:
        await anyio.to_thread.run_sync(upgrade_to_head, where.postgres.url)
        yield where
    finally:
        with anyio.CancelScope(shield=True):
            await where.nats.stop()
            await where.postgres.stop()
            discard_cluster(directory / "postgres")


@asynccontextmanager
async def away(service: EmbeddedPostgres | EmbeddedNats) -> AsyncIterator[None]:
    """The service is killed, and started again at the end."""
    url = service.url
    os.kill(service.pid, signal.SIGKILL)
    await service.stop()  # reaps it
    try:
        yield
    finally:
        await service.start()
    assert service.url == url


@asynccontextmanager
async def stopped(stack: Stack) -> AsyncIterator[None]:
    """The only rollout server does not answer, and is not dead either."""
    pid = stack.of("rollout-server").pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@dataclass
class Run:
    """A run with ROLLOUTS attempts that last until `finish`."""

    stack: Stack
    seen: Observer
    go: Path

    async def gateway(self) -> dict[str, float]:
        """The gateway's counters, all labels of a name added up."""
        url = self.stack.home.gateway_url_file.read_text().strip()
        async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as answer:
            text = await answer.text()
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
        return found

    async def recorded(self) -> float:
        """Steps that the gateway has recorded."""
        return (await self.gateway())["penstock_gateway_steps_total"]

    async def spooled(self) -> float:
        return (await self.gateway())["penstock_gateway_spool_bytes"]

    async def full(self) -> bool:
        """Whether the gateway keeps as much as it should: completions wait."""
        return await self.spooled() >= SPOOL_MB * 2**20

    def nothing_died(self) -> bool:
        """Whether every process of the stack is the one that was started first."""
        return not any(process.restarts for process in self.stack.status().processes)

    async def until(self, holds: Callable[[], Awaitable[bool]], what: str) -> None:
        await until(holds, what, PATIENCE_S)

    async def until_more(self, than: float) -> None:
        async def more() -> bool:
            return await self.recorded() > than

        await self.until(more, f"more than {than:g} steps are recorded")

    async def until_stored(self) -> None:
        """Wait until everything that the gateway has recorded by now is in the data pool."""
        wanted = await self.recorded()

        async def stored() -> bool:
            return bool(await self.seen.value("select count(*) from steps where run_id = :run") >= wanted)

        await self.until(stored, f"{wanted:g} steps are in the data pool")

    async def attempts(self) -> list[tuple[int, int, int, str]]:
        rows = await self.seen.rows(
            "select rollout_id, attempt, lease_epoch, state from rollouts where run_id = :run order by 1"
        )
        return [(row.rollout_id, row.attempt, row.lease_epoch, row.state) for row in rows]

    def memory(self) -> dict[str, int]:
        """Bytes of each process that a backlog could fill."""
        found = {}
        for name in ("gateway", "runner", "orchestrator"):
            status = Path(f"/proc/{self.stack.of(name).pid}/status").read_text()
            (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
            found[name] = int(line.split()[1]) * 1024
        return found

    async def finish(self, *killed: str) -> None:
        """The attempts end, the run too: nothing was lost, no process died but those `killed`, no attempt failed, and no invariant is violated."""
        self.go.touch()
        await self.seen.until_ended()
        await self.seen.nothing_lost()
        assert await self.seen.value("select count(*) from groups where run_id = :run and not done") == 0
        failed = await self.seen.rows(
            "select rollout_id, attempt, failure_class, reason from attempts where run_id = :run"
            " and (attempt > 1 or failure_class = 'infra_failure')"
        )
        assert failed == []
        audited = self.stack.penstock("audit", timeout_s=PATIENCE_S)
        command_found_nothing(audited)
        restarts = {process.name: process.restarts for process in self.stack.status().processes}
        assert {name for name, times in restarts.items() if times} == set(killed), restarts
        assert self.stack.signalled(signal.SIGTERM) == 0
        assert self.stack.tracebacks() == []
        assert (self.stack.left_running(), self.stack.sandboxes_left()) == ([], [])


@asynccontextmanager
async def in_flight(
    stack: Stack, model: Path, where: Services, timeout_s: float = OUTAGE_S + PATIENCE_S
) -> AsyncIterator[Run]:
    """A run whose attempts are all at work, with steps in the data pool. `timeout_s` bounds an agent's own time, and one completion."""
    scaffold = stack.directory / "patient"
    scaffold.mkdir()
    shutil.copy(Path(__file__).with_name("patient.py"), scaffold)
    stack.configure(
        model,
        batches=1,
        lease_ttl_s=TTL_S,
        more=f'scaffolds = {{ "{scaffold}" = 1.0 }}\n[gateway]\nspool_mb = {SPOOL_MB}\n'
        f"[servers]\nlease_ttl_s = {TTL_S}\nsilence_s = {min(5.0, OUTAGE_S / 4)}\nhang_s = 3600.0\n"
        f'[services]\ndatabase_url = "{where.postgres.url}"\nnats_url = "{where.nats.url}"\n',
    )
    await stack.up(
        "--set",
        "stage.max_turns=1000000",
        "--set",
        f"rollout.timeout_s={timeout_s}",
        "--set",
        f"rollout.completion_s={timeout_s}",
    )
    async with observing(stack.home) as seen:
        run = Run(stack, seen, scaffold / "go")
        await seen.publish(ROLLOUTS // 2)

        async def at_work() -> bool:
            query = "select rollout_id from steps where run_id = :run group by 1 having count(*) >= 3"
            return len(await seen.rows(query)) == ROLLOUTS

        await run.until(at_work, "every attempt has steps in the data pool")
        yield run


@pytest.mark.parametrize("service", ["postgres", "nats"])
async def test_while_a_service_is_away_attempts_go_on_into_a_bounded_spool_and_afterwards_nothing_is_missing(
    stack: Stack, model: Path, service: str
) -> None:
    async with services() as where, in_flight(stack, model, where) as run:
        attempts, before = await run.attempts(), run.memory()
        recorded = await run.recorded()
        async with away(where.postgres if service == "postgres" else where.nats):
            with anyio.fail_after(OUTAGE_S + PATIENCE_S):
                await run.until_more(recorded + 3 * ROLLOUTS)
                await stays_true_for(OUTAGE_S, run.nothing_died, every_s=0.2)
                await run.until(run.full, "the spool is full")
            spooled, during = await run.spooled(), run.memory()
            assert SPOOL_MB * 2**20 <= spooled <= SPOOL_MB * 2**20 + ROLLOUTS * WORST_STEP
            during_outage = await run.recorded() - recorded
        back = time.monotonic()
        await run.until_stored()
        measured = {"away": service, "s": OUTAGE_S, "steps_while_away": during_outage, "spool_bytes": spooled}
        print(
            json.dumps(
                measured
                | {"caught_up_s": round(time.monotonic() - back, 1), "before": before, "during": during}
            )
        )
        await run.until_more(await run.recorded() + 3 * ROLLOUTS)
        await run.until_stored()
        assert await run.attempts() == attempts, "the same attempts under the same leases"
        for name, size in run.memory().items():
            assert max(size, during[name]) < before[name] + MORE_MEMORY, name
        await run.finish()


async def test_a_gateway_that_is_killed_while_postgres_is_away_comes_back_with_its_sessions_and_its_spool(
    stack: Stack, model: Path
) -> None:
    away_s = min(OUTAGE_S, 20.0)  # a client of the gateway waits for it for a minute
    async with services() as where, in_flight(stack, model, where) as run:
        attempts, recorded = await run.attempts(), await run.recorded()
        async with away(where.postgres):
            await run.until_more(recorded + 3 * ROLLOUTS)
            recorded = await run.recorded()
            stack.kill("gateway")

            def is_tried_again() -> bool:
                return stack.of("gateway").state is not ProcessState.FAILED

            await stays_true_for(away_s, is_tried_again, every_s=0.2)

        async def stored() -> bool:
            return bool(await run.seen.value("select count(*) from steps where run_id = :run") > recorded)

        await run.until(stored, "what lay in the journal is in the data pool, and new steps too")
        assert await run.attempts() == attempts
        await run.finish("gateway")


async def test_while_no_rollout_server_answers_completions_are_held_leases_stay_alive_and_then_all_go_on(
    stack: Stack, model: Path
) -> None:
    async with services() as where, in_flight(stack, model, where, COMPLETION_S) as run:
        attempts = await run.attempts()
        async with stopped(stack):

            async def same_attempts() -> bool:
                return await run.attempts() == attempts

            leased = await run.seen.value("select max(lease_until) from rollouts where run_id = :run")
            await stays_true_for(OUTAGE_S, same_attempts, every_s=0.2)
            still = await run.recorded()

            async def renewed() -> bool:
                """Whether every lease lasts longer than any did when the server stopped."""
                query = "select bool_and(lease_until > :leased) from rollouts where run_id = :run"
                return bool(await run.seen.value(query, leased=leased))

            await run.until(renewed, "every lease is renewed")
            assert await run.attempts() == attempts
        await run.until_more(still + 3 * ROLLOUTS)
        assert await run.attempts() == attempts
        await run.finish()
