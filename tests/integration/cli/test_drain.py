"""`penstock drain`: its output, its refusals, and its part of `penstock status`."""

import json
import secrets
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from typer.testing import CliRunner, Result

from orchestrator.cli.main import app
from orchestrator.deploy.home import Home, write_template
from orchestrator.pool.runs import StoredRun
from orchestrator.settings.config import load
from tests import builders

pytestmark = [pytest.mark.services, pytest.mark.anyio]

URLS = ("http://10.0.0.1:30000", "http://10.0.0.2:30000")


@pytest.fixture
def home(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:9")
    write_template(tmp_path, f"r{secrets.token_hex(4)}", "")
    return tmp_path


@pytest.fixture
async def run(home: Path, engine: AsyncEngine) -> StoredRun:
    """A run with a runner, a gateway and two rollout servers."""
    made = await builders.make_run(engine, load(Home.at(home).file))
    async with engine.begin() as connection:
        for process in ("runner", "gateway"):
            await connection.execute(
                text(
                    "INSERT INTO processes (run_id, host, process, pid, loops) VALUES (:run, 'here', :process, 7, '[]')"
                ),
                {"run": made.run_id, "process": process},
            )
        for url in URLS:
            await connection.execute(
                text(
                    "INSERT INTO rollout_servers (run_id, url, lease_until) VALUES (:run, :url, now() + interval '1 hour')"
                ),
                {"run": made.run_id, "url": url},
            )
    return made


async def penstock(home: Path, *arguments: str) -> Result:
    """One command, in a thread of its own."""
    return await anyio.to_thread.run_sync(partial(CliRunner().invoke, app, [*arguments, "-c", str(home)]))


async def answer_of(home: Path, *arguments: str) -> dict[str, Any]:
    done = await penstock(home, *arguments, "--json")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def tells(engine: AsyncEngine, process: str, holds: dict[str, int]) -> None:
    """The content of a process's next heartbeat."""
    async with engine.begin() as connection:
        await connection.execute(
            text("UPDATE processes SET holds = CAST(:holds AS jsonb) WHERE process = :process"),
            {"holds": json.dumps(holds), "process": process},
        )


async def test_drain_orders_waits_for_shows_and_releases_a_runner(
    home: Path, run: StoredRun, engine: AsyncEngine
) -> None:
    drain = await answer_of(home, "drain", "runner", "runner", "--reason", "an upgrade")
    assert drain == {"kind": "runner", "id": "runner", "state": "draining", "left": None}
    done = await penstock(home, "drain", "runner", "runner@here")
    assert done.stdout == "the runner runner was ordered to drain and has not answered yet\n"
    await tells(engine, "runner", {"self": 3})
    assert "the runner runner drains: 3 left (attempts, results)\n" in (await penstock(home, "status")).stdout
    async with anyio.create_task_group() as tasks:

        async def waits() -> None:
            nonlocal drain
            drain = await answer_of(home, "drain", "runner", "runner", "--wait")

        tasks.start_soon(waits)
        await tells(engine, "runner", {"self": 0})
    assert (drain["state"], drain["left"]) == ("drained", 0)
    assert (await answer_of(home, "status"))["run"]["drains"] == [drain]
    done = await penstock(home, "drain", "runner", "runner")
    assert done.stdout.endswith(
        f"it may be stopped; to let it work again: penstock drain runner runner --undo -c {home}\n"
    )
    assert (
        await penstock(home, "drain", "runner", "runner", "--undo")
    ).stdout == "the runner runner works again\n"
    async with engine.connect() as connection:
        found = (
            await connection.execute(text("SELECT what, target, reason FROM actions ORDER BY action_id"))
        ).all()
    assert [tuple(row) for row in found] == [
        ("drain", "runner runner", "an upgrade"),
        ("undrain", "runner runner", "no reason given"),
    ]


async def test_the_last_rollout_server_is_drained_only_on_ones_word(
    home: Path, run: StoredRun, engine: AsyncEngine
) -> None:
    one, other = URLS
    assert (await answer_of(home, "drain", "server", one))["state"] == "draining"
    await tells(engine, "gateway", {one: 0})
    assert (await answer_of(home, "drain", "server", f"{one}/".replace("http", "HTTP")))["state"] == "drained"
    refused = await penstock(home, "drain", "server", other)
    assert str(refused.exception) == (
        f"without the rollout server {other} no server is left for rollouts: their calls would be held until the order is taken back; "
        "if you want that, say --yes"
    )
    assert (await answer_of(home, "drain", "server", other, "--yes"))["state"] == "draining"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("runner", "runner-2"), "this run has no runner 'runner-2'; known: runner"),
        (("gateway", "runner"), "this run has no gateway 'runner'; known: gateway"),
        (
            ("server", "http://10.0.0.3:1"),
            f"this run has no rollout server 'http://10.0.0.3:1'; known: {', '.join(URLS)}",
        ),
        (("runner", "runner", "--undo"), "the runner runner does not drain: there is nothing to take back"),
        (("runner", "runner", "--undo", "--wait"), "give --undo or --wait, not both"),
    ],
)
async def test_what_cannot_be_done_is_one_sentence(
    home: Path, run: StoredRun, arguments: tuple[str, ...], why: str
) -> None:
    done = await penstock(home, "drain", *arguments)
    assert done.exit_code == 1 and why in str(done.exception)


async def test_drain_does_not_wait_for_a_silent_process(
    home: Path, run: StoredRun, engine: AsyncEngine
) -> None:
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE processes SET last_seen = now() - interval '1 hour'"))
    done = await penstock(home, "drain", "runner", "runner", "--wait")
    assert "has not reported for 36" in str(done.exception)
