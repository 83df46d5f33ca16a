"""`penstock run pause | resume | cancel | mix`: the orders of the dashboard, with the same rows and the same sentences."""

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
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.deploy.home import Home, write_template
from orchestrator.pool.runs import StoredRun
from orchestrator.runtime.person import current_user
from orchestrator.settings.config import load
from tests import builders

pytestmark = [pytest.mark.services, pytest.mark.anyio]


@pytest.fixture
def home(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory whose run has no NATS: these orders do not need it."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.delenv("NATS_URL", raising=False)
    write_template(tmp_path, f"r{secrets.token_hex(4)}", "")
    return tmp_path


@pytest.fixture
async def run(home: Path, engine: AsyncEngine) -> StoredRun:
    return await builders.make_run(engine, load(Home.at(home).file))


async def penstock(home: Path, *arguments: str, input: str | None = None) -> Result:
    """One command, in a thread of its own."""
    return await anyio.to_thread.run_sync(
        partial(CliRunner().invoke, app, ["run", *arguments, "-c", str(home)], input=input)
    )


async def output_of(home: Path, *arguments: str) -> str:
    done = await penstock(home, *arguments)
    assert done.exit_code == 0, done.exception
    return done.stdout.rstrip("\n")


async def refused(home: Path, *arguments: str) -> str:
    done = await penstock(home, *arguments)
    assert isinstance(done.exception, ConfigurationError | ValueError), done.exception
    return str(done.exception)


async def last_action(engine: AsyncEngine, run: StoredRun) -> dict[str, Any]:
    query = 'SELECT who, what, target, before, "after", reason FROM actions WHERE run_id = :run ORDER BY action_id DESC LIMIT 1'
    async with engine.connect() as connection:
        row = (await connection.execute(text(query), {"run": run.run_id})).one()
    return dict(row._mapping)


async def test_a_run_is_paused_and_resumed_and_each_order_says_who_and_why(
    home: Path, run: StoredRun, engine: AsyncEngine
) -> None:
    assert (
        await output_of(home, "pause", "--reason", "the disk\nis full")
        == "Admission is paused; the run is drained."
    )
    assert await last_action(engine, run) == {
        "who": current_user(),
        "what": "pause",
        "target": "admission",
        "before": {"open": True},
        "after": {"open": False},
        "reason": "the disk\nis full",
    }
    assert f"admission is closed already: paused by {current_user()}: the disk is full" in await refused(
        home, "pause"
    )
    done = json.loads(await output_of(home, "resume", "--json"))
    assert done == {"order": "resume", "run": run.name, "done": "Admission is open again."}
    assert (await last_action(engine, run))["reason"] == "no reason given"
    assert "there is nothing to resume" in await refused(home, "resume")


async def test_a_group_is_cancelled_once_and_only_one_that_is_there(
    home: Path, run: StoredRun, engine: AsyncEngine
) -> None:
    [group] = await builders.accepted(engine, run, ["a"])
    done = json.loads(await output_of(home, "cancel", str(group), "--json", "--reason", "a bad task"))
    assert done == {
        "order": "cancel",
        "run": run.name,
        "group": group,
        "was": "accepted",
        "done": f"Group {group} is cancelled.",
    }
    assert (await last_action(engine, run))["after"] == {"state": "filtered", "reason": "cancelled"}
    assert await refused(home, "cancel", str(group)) == f"group {group} is over: it is filtered"
    assert await refused(home, "cancel", "999999") == "group 999999 does not exist in this run"
    assert (await penstock(home, "cancel", "seven")).exit_code == 2


async def test_the_mix_is_shown_set_and_taken_back(home: Path, run: StoredRun, engine: AsyncEngine) -> None:
    await builders.accepted(engine, run, ["a", "b"])
    domains = {each["domain"] for each in json.loads(await output_of(home, "mix", "--json"))["domains"]}
    weights = [f"{domain}=3" for domain in sorted(domains)]
    assert (
        domains and await output_of(home, "mix", *weights) == "The new weights hold while this stage is on."
    )
    assert (await last_action(engine, run))["after"]["domains"] == dict.fromkeys(sorted(domains), 3.0)
    assert await output_of(home, "mix", "--configured") == "The stage's own weights hold again."
    for given, sentence in (
        (["nosuch=1"], "takes no domain 'nosuch'"),
        ([f"{sorted(domains)[0]}=0"], "above 0"),
        (["coding"], "'coding' is not of the form DOMAIN=WEIGHT, such as coding=2"),
        *(
            (
                [f"coding={weight}"],
                f"the weight of 'coding' must be a number from 0, such as 0.5, not {weight!r}",
            )
            for weight in ("many", "1_0", "+5", " 5", "\uff11", "\u0663", "nan", "inf", "1e400", "-1", "")
        ),
        (["coding=1", "coding=2"], "has two weights"),
        (["coding=1", "--configured"], "not both"),
    ):
        assert sentence in await refused(home, "mix", *given)


async def test_a_person_at_a_terminal_must_confirm_first_and_no_ends_it(
    home: Path, run: StoredRun, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.cli.steering.at_terminal", lambda: True)
    done = await penstock(home, "pause", input="n\n")
    assert done.exit_code == 1 and "Pause admission? No further training group" in done.output
    assert "there is nothing to resume" in await refused(home, "resume", "--yes")
    assert (await penstock(home, "pause", input="y\n")).exit_code == 0
    assert (await last_action(engine, run))["what"] == "pause"
