"""`penstock status` of a run in a named database: its exit status without a supervisor on this machine."""

import secrets
from functools import partial
from pathlib import Path

import anyio
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from typer.testing import CliRunner

from orchestrator.cli.main import app
from orchestrator.cli.status import NOTHING, STUCK
from orchestrator.contracts.states import RunState
from orchestrator.deploy.home import Home, write_template
from orchestrator.settings.config import load
from tests import builders

pytestmark = [pytest.mark.services, pytest.mark.anyio]

STOPPED = "('runner', true, now())"
CASES = (  # the run's processes on other hosts: name, stopped, last report
    (RunState.ACTIVE, "", NOTHING),
    (RunState.ACTIVE, STOPPED, NOTHING),
    (RunState.ENDING, STOPPED, NOTHING),
    (RunState.ACTIVE, f"{STOPPED}, ('gateway', false, now())", 0),
    (RunState.ACTIVE, "('gateway', false, now() - interval '1 hour')", STUCK),
    (RunState.ACTIVE, "('gateway', false, now() - interval '1 week')", NOTHING),
    (RunState.ENDED, STOPPED, 0),
)


async def test_status_of_an_idle_run_ends_with_3_when_no_process_of_it_works_on_any_host(
    tmp_path: Path, engine: AsyncEngine, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:9")
    write_template(tmp_path, f"r{secrets.token_hex(4)}", "")
    run = await builders.make_run(engine, load(Home.at(tmp_path).file))
    for state, processes, expected in CASES:
        async with engine.begin() as connection:
            await connection.execute(text("DELETE FROM processes"))
            if processes:
                insert = f"SELECT :run, 'elsewhere', p, 7, '[]', stopped, seen FROM (VALUES {processes}) v (p, stopped, seen)"
                await connection.execute(
                    text(
                        f"INSERT INTO processes (run_id, host, process, pid, loops, stopped, last_seen) {insert}"
                    ),
                    {"run": run.run_id},
                )
            await connection.execute(text("UPDATE runs SET state = :state"), {"state": state})
        done = await anyio.to_thread.run_sync(
            partial(CliRunner().invoke, app, ["status", "-c", str(tmp_path)])
        )
        assert done.stdout.startswith("nothing is running here"), done.output
        assert done.exit_code == expected, (state, processes, done.output)
