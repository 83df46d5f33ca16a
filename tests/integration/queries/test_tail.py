"""`penstock tail`: every state change and recorded step once, in any order of arrival."""

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import ByteReceiveStream
from anyio.streams.text import TextReceiveStream
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.errors import NotFoundError
from orchestrator.contracts.states import Entity
from orchestrator.deploy.home import write_template
from orchestrator.pool import transitions
from orchestrator.queries.changes import (
    _NEWEST,
    Changes,
    Only,
    StateChange,
    StepRecord,
)
from tests import builders
from tests.explained import most_rows_read
from tests.integration.pool.rig import Tree, context_of, ended, record, report, running, small, verify
from tests.processes import closing

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("look")]


async def more(engine: AsyncEngine, changes: Changes) -> list[StateChange | StepRecord]:
    async with engine.connect() as connection:
        return await changes.more(connection)


def moves(found: list[StateChange | StepRecord]) -> list[tuple[str, str]]:
    return [(each.what, each.after) for each in found if isinstance(each, StateChange)]


def idxs(found: list[StateChange | StepRecord]) -> list[int]:
    return [each.idx for each in found if isinstance(each, StepRecord)]


async def test_changes_and_steps_are_reported_once_and_in_order(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    [first, _] = await running(engine, run)
    grown = [each.event for each in Tree(1).grow(run.name, first, 4)]
    await record(engine, run, grown[:1])
    changes = Changes(run_id=run.run_id, back=3)
    began = await more(engine, changes)
    assert moves(began) == [("rollout", "queued"), ("rollout", "running"), ("rollout", "running")]
    assert idxs(began) == [] and await more(engine, changes) == []
    await record(engine, run, grown[2:3])  # overtakes the second
    assert await more(engine, changes) == []
    await record(engine, run, grown[1:2])
    both = await more(engine, changes)
    assert idxs(both) == [2, 1]  # by time
    assert [each.text for each in both if isinstance(each, StepRecord)] == ["reply 2", "reply 1"]
    context = context_of(engine, run)
    await record(engine, run, grown[3:])
    assert await report(context, ended(run.name, first, grown))
    records = await more(engine, changes)
    assert ("rollout", "reported") in moves(records) and idxs(records) == [3]
    await verify(context, first.rollout_id, 1.0)
    again = await more(engine, changes)
    assert moves(again)[-1:] == [("rollout", "verified")] and idxs(again) == []
    assert await more(engine, changes) == []


async def test_an_attempt_that_begins_and_ends_between_two_polls_is_reported_whole(
    engine: AsyncEngine,
) -> None:
    run = await builders.make_run(engine, small())
    changes = Changes(run_id=run.run_id)
    assert moves(await more(engine, changes)) == [("run", "active")]
    [lease, _] = await running(engine, run)
    grown = [each.event for each in Tree(2).grow(run.name, lease, 3)]
    await record(engine, run, grown)
    context = context_of(engine, run)
    assert await report(context, ended(run.name, lease, grown))
    await verify(context, lease.rollout_id, 0.0)
    assert sorted(idxs(await more(engine, changes))) == [0, 1, 2]
    assert await more(engine, changes) == []


async def test_a_change_whose_commit_came_late_is_not_left_out(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    changes = Changes(run_id=run.run_id)
    await more(engine, changes)
    async with engine.connect() as late, engine.begin() as early:
        await transitions.record_created(late, run.run_id, Entity.MESSAGE, 1, "late")
        await transitions.record_created(early, run.run_id, Entity.MESSAGE, 2, "early")
        await early.commit()
        assert moves(await more(engine, changes)) == [("message", "early")]
        await late.commit()
    assert moves(await more(engine, changes)) == [("message", "late")]
    assert await more(engine, changes) == []


async def test_a_look_at_an_idle_run_does_not_read_what_other_runs_have_done_since(
    engine: AsyncEngine,
) -> None:
    idle, other = await builders.make_run(engine, small()), await builders.make_run(engine, small("other"))
    changes = Changes(run_id=idle.run_id)
    await more(engine, changes)
    worked = text(
        "INSERT INTO transitions (run_id, kind, entity_id, to_state, at) SELECT :run, 'message', n, 'x', "
        "clock_timestamp() + make_interval(secs => n) FROM generate_series(1, 3000) AS n"
    )
    async with engine.begin() as connection:
        await connection.execute(worked, {"run": other.run_id})
    async with engine.connect() as connection:
        plain = await connection.execution_options(isolation_level="AUTOCOMMIT")
        await plain.execute(text("ANALYZE transitions"))
    assert await more(engine, changes) == []
    assert await most_rows_read(engine, "transitions", changes.more) <= 50
    async with engine.begin() as connection:
        await transitions.record_created(connection, idle.run_id, Entity.MESSAGE, 1, "new")
    assert moves(await more(engine, changes)) == [("message", "new")]
    young = await builders.make_run(engine, small("young"))
    given = {"run": young.run_id, "group": None, "rollouts": None, "n": 20}
    assert await most_rows_read(engine, "transitions", lambda c: c.execute(_NEWEST, given)) <= 50


async def test_a_look_that_failed_leaves_nothing_out(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    changes = Changes(run_id=run.run_id)
    await more(engine, changes)
    await builders.accepted(engine, run, ["a"], size=2)
    async with engine.connect() as connection:
        await connection.execute(text("SET LOCAL statement_timeout = 1"))
        with pytest.raises(Exception, match=r"."):
            await connection.execute(text("SELECT pg_sleep(1)"))
        with pytest.raises(Exception, match=r"transaction"):
            await changes.more(connection)
    assert len(moves(await more(engine, changes))) == 3


async def test_one_group_or_rollout_is_followed_alone(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    await running(engine, run, name="other")
    leases = await running(engine, run, name="mine")
    async with engine.connect() as connection:
        group = await connection.scalar(text("SELECT group_id FROM groups WHERE submission = 'mine'"))
    assert group is not None
    of_group = await more(engine, Changes(run_id=run.run_id, only=Only(group=group), back=100))
    assert {each.entity_id for each in of_group if isinstance(each, StateChange)} == {
        group,
        *(each.rollout_id for each in leases),
    }
    of_one = await more(engine, Changes(run_id=run.run_id, only=Only(rollout=leases[0].rollout_id), back=100))
    assert {(each.what, each.entity_id) for each in of_one if isinstance(each, StateChange)} == {
        ("rollout", leases[0].rollout_id)
    }
    with pytest.raises(NotFoundError, match="rollout 999 does not exist in this run"):
        await more(engine, Changes(run_id=run.run_id, only=Only(rollout=999)))


# A script without job control starts a command that ends with `&` with SIGINT ignored, and so are the children of that command.
@pytest.mark.parametrize("prefix", ["", "trap '' INT; "], ids=["in front", "by a script, behind"])
async def test_the_command_goes_on_until_it_is_interrupted(
    engine: AsyncEngine, database_url: str, tmp_path: Path, prefix: str
) -> None:
    name = f"r{secrets.token_hex(4)}"
    write_template(tmp_path, name, "")
    run = await builders.make_run(engine, small(name))
    environment = {**os.environ, "DATABASE_URL": database_url, "NATS_URL": "nats://127.0.0.1:1"}
    penstock = [sys.executable, "-m", "orchestrator.cli", "tail", "-c", str(tmp_path), "--json"]
    command = ["sh", "-c", f'{prefix}exec "$@"', "sh", *penstock]
    with anyio.fail_after(60):
        async with closing(
            await anyio.open_process(command, env=environment, stderr=subprocess.PIPE)
        ) as process:
            assert process.stdout is not None
            lines = lines_of(process.stdout)
            assert (await anext(lines))["after"] == "active"
            await history_of(engine, run.run_id)
            assert (await anext(lines))["after"] == "noticed"
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 130


async def lines_of(output: ByteReceiveStream) -> AsyncIterator[dict[str, Any]]:
    """A command's output, line by line, however it is cut into pieces."""
    partial = ""
    async for piece in TextReceiveStream(output):
        *whole, partial = (partial + piece).split("\n")
        for line in whole:
            yield json.loads(line)


async def history_of(engine: AsyncEngine, run_id: int) -> None:
    async with engine.begin() as connection:
        await transitions.record_created(connection, run_id, Entity.MESSAGE, 1, "noticed")
