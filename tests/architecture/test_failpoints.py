"""Every act that is visible outside has a failpoint, and every failpoint is used somewhere."""

import re
from functools import cache
from pathlib import Path

import pytest

from orchestrator.bus import subjects
from orchestrator.runtime.failpoints import BOUNDARIES
from tests.architecture.boundaries import Found, read
from tests.architecture.test_architecture import CODE, REPOSITORY

EXEMPT = {
    "orchestrator/tasks/held/": "runs inside a sandbox, where it removes what a program under test left",
    "sandboxes/": "imports nothing of ours; what it renames lies in a sandbox or names its owner, and is swept when either is gone",
    "agents/scaffolds/programs.py": "sets agent programs up before any run; a person starts it again",
    "orchestrator/tasks/importing/": "writes task directories for a person; started again, it continues; its commits are those of git",
    "orchestrator/blobs/cache.py": "a cache of what the data pool holds: a file that is not there is read again",
    "orchestrator/scripted/": "a run over a database of its own, thrown away at its end",
    "orchestrator/scaffold_check/": "a check over a database of its own, thrown away at its end",
    "orchestrator/deploy/embedded/postgres_binaries.py": "copies PostgreSQL's programs before any run; a copy without its final name is made again",
    "orchestrator/deploy/embedded/postgres_place.py": "moves files before their server starts; after a kill the next start goes on with them",
    "orchestrator/audit/snapshot.py": "a transaction that only reads, in a process outside the system",
    "orchestrator/runtime/failpoints.py": "takes the file that arms a failpoint",
    "trainer/sft/export.py": "writes one file for a person, from rows that do not change; started again, it writes it again",
    "trainer/sft/train.py": "writes one model directory for a person, before any run; started again, it writes it again",
}
PRODUCTS = ("orchestrator", "trainer", "agents", "sandboxes", "migrations")


def sources() -> dict[str, str]:
    paths = [path.relative_to(REPOSITORY) for path in CODE]
    return {path.as_posix(): (REPOSITORY / path).read_text() for path in paths if path.parts[0] in PRODUCTS}


def exempt(path: str) -> bool:
    return any(path == one or (one.endswith("/") and path.startswith(one)) for one in EXEMPT)


@cache
def found() -> dict[str, Found]:
    """The acts of each file of the product, read once: only the worker that runs these tests reads it."""
    return {path: read(source, path) for path, source in sources().items()}


def test_every_commit_publish_ack_rename_fsync_and_weight_sync_has_a_failpoint_that_is_registered() -> None:
    assert [fault for path, one in found().items() if not exempt(path) for fault in one.faults] == []


def test_every_registered_failpoint_stands_somewhere() -> None:
    used = {name for one in found().values() for name in one.names}
    assert sorted(set(BOUNDARIES) - used) == []


def test_every_exemption_is_still_needed() -> None:
    for one in EXEMPT:
        assert any(each.faults for path, each in found().items() if path == one or path.startswith(one)), one


def test_the_wire_to_nats_is_used_by_the_bus_alone() -> None:
    imported = re.compile(r"^\s*(?:import|from) nats\b", re.MULTILINE)
    users = {path for path, source in sources().items() if imported.search(source)}
    # They check whether it answers and the state of its streams, and publish nothing.
    asks = {"orchestrator/deploy/embedded/nats.py", "orchestrator/deploy/cluster/doctor/bus.py"}
    assert users and not {path for path in users - asks if not exempt(path) and "/bus/" not in path}


def test_every_kind_of_message_that_is_published_or_acked_has_its_failpoint() -> None:
    sent = [
        subjects.tasks("r", "d"),
        subjects.blob("0" * 64),
        subjects.work_rollout("r"),
        subjects.work_verify("r"),
        subjects.steps("r", "1"),
        subjects.results_rollout("r"),
        subjects.results_verdict("r"),
        subjects.policy("r"),
        subjects.dead("TASKS"),
    ]
    assert {subjects.stream_of(subject) for subject in sent} == set(subjects.STREAMS)
    kinds = {subjects.kind_of(subject) for subject in sent}
    assert {name.removeprefix("publish.") for name in BOUNDARIES if name.startswith("publish.")} == kinds
    assert {name.removeprefix("ack.") for name in BOUNDARIES if name.startswith("ack.")} == kinds


BAD = {
    "await transact(engine, work)": "a transaction has no name",
    'await transact(engine, work, at="unknown.knows")': "'unknown.knows' is not in",
    'await transact(engine, work, at="journal.sync")': "is a boundary of kind DISK, this is a transaction",
    "await transact(engine, work, at=NAME)": "cannot be read here",
    "async with self._engine.begin() as connection: pass": "self._engine.begin has no failpoint",
    'await plain.execution_options(isolation_level="AUTOCOMMIT")': "with AUTOCOMMIT every statement commits",
    "await connection.commit()": "connection.commit has no failpoint",
    "await conn.commit()": "conn.commit has no failpoint",
    "async with db.begin() as session: pass": "db.begin has no failpoint",
    "async with maker.begin(): pass": "maker.begin has no failpoint",
    "async with self.anything.transaction(): pass": "self.anything.transaction has no failpoint",
    'async with conn.transaction(isolation="serializable"): pass': "conn.transaction has no failpoint",
    "with context.begin_transaction(): pass": "context.begin_transaction has no failpoint",
    "end = partial(whatever.commit)": "whatever.commit has no failpoint",
    'await whatever.execute(text("COMMIT"))': "COMMIT by hand has no failpoint",
    'own = await asyncpg.connect(url); await own.execute("GRANT a TO b")': "own.execute of the driver, which commits",
    'pool = await asyncpg.create_pool(url); await pool.fetchval("INSERT INTO a VALUES (1) RETURNING b")': "pool.fetchval of",
    "raw = (await c.get_raw_connection()).driver_connection; await raw.copy_records_to_table(t, records=r)": "raw.copy_records_to_table of",
    "from asyncpg import connect": "hides it from this test",
    "await connection.js.publish(subject, body)": "connection.js.publish has no failpoint",
    'await connection.client.publish(reply, b"+ACK")': "connection.client.publish has no failpoint",
    'f = partial(client.publish, reply); await boundary("fetch", f)': "client.publish has no failpoint",
    "os.fsync(file)": "os.fsync has no failpoint",
    "threads.run_sync(os.fdatasync, file)": "os.fdatasync has no failpoint",
    "os.replace(new, old)": "os.replace has no failpoint",
    "shutil.move(new, old)": "shutil.move has no failpoint",
    "temporary.rename(final)": "Path.rename has no failpoint",
    "new.replace(old)": "Path.replace has no failpoint",
    "from os import fsync": "hides it from this test",
    'boundary_sync("unknown.knows", lambda: os.fsync(file))': "'unknown.knows' is not in",
    'boundary_sync(f"unknown.{kind}", lambda: os.fsync(file))': "begins with 'unknown.'",
    'await self._call("POST", "/pause_generation", {}, 30.0)': "a call of a weight sync has no name",
}


@pytest.mark.parametrize("line", BAD)
def test_an_act_without_its_failpoint_is_named(line: str) -> None:
    (fault,) = read(f"async def act(self):\n    {line}\n", "bad.py").faults
    assert fault.startswith("bad.py:2: ") and BAD[line] in fault


@pytest.mark.parametrize(
    "line",
    [
        'await transact(engine, work, at="intake.commit")',
        'await boundary(f"publish.{kind}", partial(connection.js.publish, subject, body))',
        'boundary_sync("journal.sync", lambda: os.fdatasync(file.fileno()))',
        "await transact(self._engine, work, at=at)",
        'own = await asyncpg.connect(url); await boundary("login.commit", lambda: own.execute(MAKE))',
        'own = await asyncpg.connect(url); await own.fetchval("SELECT 1")',
        "async with own.transaction(readonly=True): raw = (await own.get_raw_connection()).driver_connection; await raw.execute(any)",
        'text = name.replace("a", "b"); changed = dataclasses.replace(thing, field=1); moved = when.replace(hour=0)',
        "call = self._calls.begin(session); await bus.publish(message); await delivery.ack()",
    ],
)
def test_an_act_with_its_failpoint_and_what_only_looks_like_an_act_pass(line: str) -> None:
    assert read(f"async def act(self, at):\n    {line}\n", "good.py").faults == ()


def test_the_tests_are_not_read_as_products() -> None:
    assert not any(Path(path).parts[0] == "tests" for path in found())
