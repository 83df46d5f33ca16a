"""The watchdog: stuck loops, ended loops, blocked event loops; each in the log and in the metrics, and nothing else."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from structlog.testing import capture_logs

from orchestrator.pool.transact import transact
from orchestrator.runtime.liveness import (
    loop_registry,
    restartable,
    track_loop,
    waiting_for,
)
from orchestrator.runtime.watchdog import (
    HANGS,
    Watchdog,
    WatchdogSettings,
    watching,
)
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def fresh_loggers() -> Iterator[None]:
    """Loggers that were used before keep their processors, which a captured log replaces."""
    structlog.configure(cache_logger_on_first_use=False)
    yield
    structlog.reset_defaults()


@contextmanager
def dog(**settings: float) -> Iterator[tuple[Watchdog, list[int]]]:
    """A watchdog without its thread, and the exit statuses with which it would have ended the process."""
    ends: list[int] = []
    with loop_registry("test") as loops:
        yield Watchdog(loops, WatchdogSettings(**settings), end=ends.append), ends  # type: ignore[arg-type]


def value(dog: Watchdog, name: str, **labels: str) -> float | None:
    return dog.registry.get_sample_value(name, {"process": "test", **labels})


async def test_a_stuck_loop_is_named_with_its_item_and_dependency_until_it_moves() -> None:
    with dog() as (watchdog, _), track_loop("relay") as loop, capture_logs() as logs:
        loop.busy("outbox row 7")
        with waiting_for("nats"):
            loop.since -= 61
            watchdog.check()
            watchdog.check()
            (line,) = logs
            assert (line["event"], line["loop"], line["item"], line["waits_for"]) == (
                "watchdog.stuck",
                "relay",
                "outbox row 7",
                "nats",
            )
            assert line["log_level"] == "error" and line["seconds"] >= 61 and line["process"] == "test"
            where = {"loop": "relay", "waits_for": "nats"}
            assert value(watchdog, "penstock_loop_stuck", **where) == 1
            assert value(watchdog, "penstock_loop_stalls_total", **where) == 1
            assert (value(watchdog, "penstock_loop_age_seconds", **where) or 0) >= 61
        watchdog.check()
        assert logs[-1]["event"] == "watchdog.stuck.over" and logs[-1]["loop"] == "relay"
        assert value(watchdog, "penstock_loop_stuck", loop="relay", waits_for="") == 0


async def test_a_loop_whose_error_was_swallowed_is_named_with_it_at_once() -> None:
    with dog() as (watchdog, _), capture_logs() as logs:
        try:
            with track_loop("attempt", forever=False) as loop:
                loop.busy("rollout 9")
                raise RuntimeError("the sandbox is gone")
        except RuntimeError:
            pass  # as an unobserved worker does
        watchdog.check()
        (line,) = logs
        assert (line["event"], line["loop"], line["item"]) == ("watchdog.stuck", "attempt", "rollout 9")
        assert line["ended"] == "RuntimeError: the sandbox is gone"


async def test_a_stuck_loop_that_is_safe_to_restart_is_restarted() -> None:
    starts = 0

    async def work() -> None:
        nonlocal starts
        starts += 1
        await anyio.sleep_forever()

    with dog() as (watchdog, _):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(restartable, "steps", work)
            await anyio.wait_all_tasks_blocked()
            (loop,) = watchdog.loops.loops().values()
            loop.busy("messages")
            loop.since -= 61
            watchdog.check()
            await eventually(lambda: starts >= 2, every_s=0.001)
            tasks.cancel_scope.cancel()
        assert value(watchdog, "penstock_loop_restarts_total", loop="steps") == 1


async def test_a_process_that_was_stopped_as_a_whole_has_no_stuck_loops() -> None:
    with dog() as (watchdog, ends), track_loop("relay") as loop, capture_logs() as logs:
        loop.busy("outbox row 7")
        watchdog.check()
        loop.since -= 90
        watchdog._checked_at -= 90  # SIGSTOP for 90 s
        watchdog.check()
        assert logs == [] and ends == []


async def test_a_blocked_event_loop_is_shown_with_the_stack_that_blocks_it() -> None:
    with capture_logs() as logs:
        with watching("test", WatchdogSettings(no_progress_s=60.0, lag_s=0.2)) as watchdog:
            await anyio.lowlevel.checkpoint()
            a_call_that_takes_all_the_time(
                until=lambda: any(line["event"].endswith("blocked") for line in logs)
            )
            await eventually(lambda: any(line["event"].endswith("blocked.over") for line in logs))
    # A pause of the machine is a block as well, so there may be more than this one.
    blocks = [line for line in logs if line["event"] == "watchdog.event_loop_blocked"]
    [line] = [line for line in blocks if "a_call_that_takes_all_the_time" in line["stack"]]
    assert line["seconds"] >= 0.2
    assert value(watchdog, "penstock_event_loop_blocked_total") == len(blocks)


def a_call_that_takes_all_the_time(until: Any) -> None:
    deadline = time.monotonic() + 60
    while not until() and time.monotonic() < deadline:
        sum(range(1000))


async def test_a_process_whose_event_loop_does_not_come_back_ends() -> None:
    with dog(no_progress_s=2.0, lag_s=0.5) as (watchdog, ends), capture_logs() as logs:
        watchdog.check()  # queries the event loop, which this test does not let run
        for _ in range(5):
            watchdog._checked_at -= 0.5
            watchdog.check()
        assert ends and set(ends) == {HANGS}
        assert {line["event"] for line in logs} == {"watchdog.event_loop_blocked", "watchdog.process_hangs"}


async def test_the_metrics_are_written_as_text_for_collectors_of_files(tmp_path: Path) -> None:
    file = tmp_path / "runner.prom"
    # A pause of the machine for `lag_s` would end the worker.
    settings = WatchdogSettings(no_progress_s=0.2, lag_s=60.0, metrics_file=file)
    with watching("runner", settings), track_loop("rollouts default") as loop:
        loop.idle("assignments")
        line = 'penstock_loop_stuck{loop="rollouts default",process="runner",waits_for="assignments"} 0.0'
        # The first text may be older than the loop.
        await eventually(lambda: file.exists() and line in file.read_text())


async def test_while_postgres_is_away_it_is_named_in_log_and_metrics() -> None:
    engine = create_async_engine("postgresql+asyncpg://unknown@127.0.0.1:9/none")  # nothing listens there

    async def read(connection: AsyncConnection) -> None:
        raise AssertionError("it is not reached")

    async def work() -> None:
        with track_loop("dispatcher") as loop:
            loop.busy("its turn")
            await transact(engine, read, at="orchestrator.read")

    with dog() as (watchdog, _), capture_logs() as logs:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            await eventually(lambda: any(line["event"] == "pool.retry" for line in logs))
            (loop,) = watchdog.loops.loops().values()
            loop.since -= 61
            watchdog.check()
            tasks.cancel_scope.cancel()
        (line,) = [line for line in logs if line["event"] == "watchdog.stuck"]
        assert (line["loop"], line["waits_for"]) == ("dispatcher", "postgres")
        assert value(watchdog, "penstock_loop_stuck", loop="dispatcher", waits_for="postgres") == 1
    await engine.dispose()


async def test_lines_that_the_log_lost_are_counted_in_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = 2
    monkeypatch.setattr("orchestrator.runtime.watchdog.lines_lost", lambda: lost)
    with dog() as (watchdog, _):
        watchdog.check()
        lost = 5
        watchdog.check()
        watchdog.check()
        assert value(watchdog, "penstock_log_lines_lost_total") == 5
