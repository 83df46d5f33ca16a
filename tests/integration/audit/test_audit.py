"""The auditor: a healthy run has no violation; each deliberate fault is named, invariant by invariant, with its rows."""

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from typer.testing import CliRunner

from orchestrator.audit import Report, audit
from orchestrator.cli.main import app
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.ids import sha256
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.deploy.home import write_template
from orchestrator.pool.engine import Role, open_engine
from tests.integration.audit.audit_damage import BROKEN, BROKEN_AT_THE_END, WITNESSED
from tests.integration.audit.rig import CONFIG, LEDGER, TTL_S, Healthy, healthy
from tests.services import Databases

__all__ = ["healthy"]
pytestmark = [pytest.mark.services, pytest.mark.tier("pool")]

RUN = CONFIG.run.name
ALIVE = frozenset({"orchestrator", "gateway", "runner"})


@dataclass(frozen=True, slots=True)
class Place:
    """A copy of the healthy run that a test may break."""

    url: str
    policies: Path
    sandboxes: Path

    def version(self, number: int) -> Path:
        return self.policies / RUN / f"version-{number:06d}"

    async def execute(self, script: str) -> None:
        """Run statements as the owner, without triggers and foreign keys."""
        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute("set session_replication_role = replica")
            await connection.execute(script)
        finally:
            await connection.close()

    async def audit(self, ledger: tuple[str, ...] = LEDGER) -> Report:
        async with reading(self.url) as engine:
            return await audit(engine, RUN, self.policies, ledger, alive=ALIVE, sandbox_root=self.sandboxes)


def reading(url: str) -> AbstractAsyncContextManager[AsyncEngine]:
    return open_engine(url, Role.READER, size=2, name="audit")


@pytest.fixture
def postgres_has_been_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the tests' Postgres had been up for long: a recent start excuses leases that ran out."""
    monkeypatch.setattr("orchestrator.audit.snapshot.RECONNECTS", -2 * TTL_S / 5.0)


def copied(databases: Databases, healthy: Healthy, template: str, tmp_path: Path) -> Iterator[Place]:
    name = f"audit_{secrets.token_hex(6)}"
    url = databases.create(name, template=template)
    shutil.copytree(healthy.policies, tmp_path / "policies")
    (tmp_path / "sandboxes").mkdir()
    yield Place(url, tmp_path / "policies", tmp_path / "sandboxes")
    databases.drop(name)


@pytest.fixture
def live(databases: Databases, healthy: Healthy, tmp_path: Path) -> Iterator[Place]:
    yield from copied(databases, healthy, healthy.live, tmp_path)


@pytest.fixture
def over(databases: Databases, healthy: Healthy, tmp_path: Path) -> Iterator[Place]:
    yield from copied(databases, healthy, healthy.ended, tmp_path)


def _append(name: str) -> Callable[[Place], None]:
    def work(place: Place) -> None:
        with (place.version(1) / name).open("ab") as file:
            file.write(b" ")

    return work


def _overwrite(name: str, content: bytes) -> Callable[[Place], None]:
    def work(place: Place) -> None:
        (place.version(1) / name).write_bytes(content)

    return work


def _leave_a_sandbox(place: Place) -> None:
    owner = {"boot": "another", "namespace": "pid:[1]", "pid": 4711, "start": 1}
    record = place.sandboxes / "sandbox.json"
    record.write_text(json.dumps({"id": "sandbox", "owner": owner, "cgroups": [], "uid": -1}))
    os.utime(record, (1, 1))


WEIGHTS = "weights are those that were published"
BROKEN_ON_DISK = [
    ("I6", WEIGHTS, _append("model.safetensors"), "model.safetensors has 10 bytes, not 9"),
    ("I6", WEIGHTS, _overwrite("model.safetensors", b"weights 9"), "model.safetensors does not match its sha256"),
    ("I6", WEIGHTS, lambda place: (place.version(1) / "model.safetensors").unlink(), "model.safetensors cannot be read"),
    ("I6", WEIGHTS, _append("manifest.json"), "is not the published one: its sha256 differs"),
    ("I6", WEIGHTS, _overwrite("manifest.json", b"[]"), "is not a manifest"),
    ("I6", WEIGHTS, _overwrite("extra.safetensors", b""), "is not in its manifest: an engine may load it"),
    ("I6", WEIGHTS, lambda place: shutil.rmtree(place.version(1)), "has no manifest that can be read"),
    ("I6", WEIGHTS, lambda place: shutil.copy(place.version(2) / "manifest.json", place.version(1)), "its manifest is of version 2, batch 1"),
    ("I5", "sandboxes of dead owners are removed", _leave_a_sandbox, "and its owner (pid 4711) is dead"),
]  # fmt: skip


def named(report: Report, invariant: str, check: str, what: str) -> None:
    """The violation is reported, under its invariant and check, as one sentence with rows."""
    [checked] = [found for found in report.checks if found.name == check]
    assert checked.invariant == invariant
    assert any(what in violation.what for violation in checked.violations), [
        (found.name, violation.what) for found in report.checks for violation in found.violations
    ]
    for violation in checked.violations:
        assert violation.invariant == invariant and violation.rows and "\n" not in violation.what
    assert report.violations >= checked.found >= len(checked.violations)
    assert json.loads(json.dumps(report.to_json(), allow_nan=False))["violations"] == report.violations


def spelled_out(report: Report) -> list[tuple[str, str]]:
    return [(check.name, violation.what) for check in report.checks for violation in check.violations]


@pytest.mark.anyio
async def test_a_healthy_run_has_no_violation_while_it_lives(live: Place) -> None:
    report = await live.audit()
    assert (report.violations, spelled_out(report)) == (0, [])
    assert report.state == "active"
    examined = {check.name: check.examined for check in report.checks if not check.skipped}
    assert examined["digests of steps"] == 3 * 4 * 7 + 3 * 2 + 2 + 3, (
        "7 finished groups, an evaluation, a partial attempt, a resumed one"
    )
    assert examined["digests of batches"] == 3 and examined["takes follow the queue policy"] == 7
    assert examined[WEIGHTS] == 3
    assert {check.invariant for check in report.checks} == {f"I{n}" for n in range(1, 8)}


@pytest.mark.anyio
async def test_a_batch_that_was_closed_before_digests_covered_every_step_is_whole(live: Place) -> None:
    connection = await asyncpg.connect(live.url)
    rows = await connection.fetch(
        "select br.batch_id, group_id, rollout_id, attempt, reward_revision, baseline, divisor, advantage "
        "from batch_rollouts br join batches b using (batch_id) where b.batch_no = 0 and b.state = 'committed' order by group_id, rollout_id"
    )
    await connection.close()
    digest = sha256(msgspec.json.encode([list(row.values())[1:] for row in rows])).hex()
    await live.execute(f"update batches set digest = '\\x{digest}' where batch_id = {rows[0]['batch_id']}")
    [digests] = [check for check in (await live.audit()).checks if check.name == "digests of batches"]
    assert (digests.examined, digests.found) == (3, 0)


@pytest.mark.anyio
async def test_a_healthy_run_has_no_violation_when_it_has_ended(over: Place) -> None:
    report = await over.audit()
    assert (report.state, report.violations, spelled_out(report)) == ("ended", 0, [])


@pytest.mark.anyio
@pytest.mark.usefixtures("postgres_has_been_up")
@pytest.mark.parametrize(("invariant", "check", "script", "what"), BROKEN)
async def test_damage_in_a_live_run_is_named(
    live: Place, invariant: str, check: str, script: str, what: str
) -> None:
    await live.execute(script)
    named(await live.audit(), invariant, check, what)


@pytest.mark.anyio
@pytest.mark.parametrize(("invariant", "check", "script", "what"), BROKEN_AT_THE_END)
async def test_damage_in_an_ended_run_is_named(
    over: Place, invariant: str, check: str, script: str, what: str
) -> None:
    await over.execute(script)
    named(await over.audit(), invariant, check, what)


@pytest.mark.anyio
@pytest.mark.parametrize(("invariant", "check", "work", "what"), BROKEN_ON_DISK)
async def test_damage_on_disk_is_named(
    live: Place, invariant: str, check: str, work: Callable[[Place], None], what: str
) -> None:
    work(live)
    named(await live.audit(), invariant, check, what)


@pytest.mark.anyio
async def test_every_check_is_broken_on_purpose_by_one_of_these_tests(live: Place) -> None:
    broken = {row[1] for row in (*BROKEN, *BROKEN_AT_THE_END, *BROKEN_ON_DISK)}
    assert {check.name for check in (await live.audit()).checks} == broken | set(WITNESSED)


@pytest.mark.anyio
async def test_checks_of_unknown_things_are_skipped_with_a_reason(live: Place) -> None:
    async with reading(live.url) as engine:
        report = await audit(engine, RUN)
    reasons = {check.name: check.skipped for check in report.checks if check.skipped}
    assert reasons["submissions of the ledger are answered"] == "no ledger was given"
    assert reasons[WEIGHTS] == "the directory of checkpoints was not given"
    assert reasons["leases that ran out are taken back"] == "it is not known whether the orchestrator lives"
    assert "belong to a machine" in reasons["sandboxes of dead owners are removed"]
    assert report.violations == 0


@pytest.mark.anyio
async def test_work_in_progress_in_a_live_run_is_not_a_violation(live: Place) -> None:
    await live.execute("update rollout_servers set state = 'syncing'")
    await live.execute("update rollouts set lease_until = now() - interval '1 hour' where state = 'running'")
    report = await live.audit((*LEDGER, "on-its-way"))  # Postgres has just started: owners are about to renew
    assert report.violations == 0


@pytest.mark.anyio
async def test_announced_steps_may_take_as_long_to_arrive_as_the_clock_of_the_run_says(live: Place) -> None:
    await live.execute(
        "update runs set config = jsonb_set(jsonb_set(config, '{rollout,lease_ttl_s}', '30'), '{timeouts,arrival_s}', '120');"
        "update rollouts set lease_until = now() + interval '20 seconds' where lease_until is not null;"
        "update rollouts set state = 'reported', lease_owner = null, lease_until = now() + interval '119 seconds'"
        " where rollout_id = (select min(rollout_id) from rollouts where state = 'running')"
    )
    check = "leases are no longer than their time to live"
    assert check not in [name for name, _ in spelled_out(await live.audit())]
    await live.execute("update runs set config = jsonb_set(config, '{timeouts,arrival_s}', '60')")
    assert check in [name for name, _ in spelled_out(await live.audit())]


@pytest.mark.anyio
async def test_a_sample_looks_into_some_rollouts_and_finds_what_they_have(live: Place) -> None:
    await live.execute("update steps set chain_sha = row_sha")
    async with reading(live.url) as engine:
        report = await audit(engine, RUN, sample=20)
        [steps] = [check for check in report.checks if check.name == "digests of steps"]
        assert 0 < steps.examined <= 3 * 20 and steps.found
        with pytest.raises(ConfigurationError, match="at least 1 rollout"):
            await audit(engine, RUN, sample=-1)
        with pytest.raises(ConfigurationError, match="known: healthy"):
            await audit(engine, "unknown")


@pytest.mark.anyio
async def test_many_violations_are_counted_and_the_first_hundred_spelled_out(live: Place) -> None:
    await live.execute(
        "insert into transitions(run_id, kind, entity_id, to_state) select 1, 'group', 5000 + n, 'dead' from generate_series(1, 150) n"
    )
    report = await live.audit()
    [check] = [c for c in report.checks if c.name == "histories have no gaps and no impossible changes"]
    assert (check.found, len(check.violations)) == (150, 100)


def test_the_command_prints_checks_and_violations_and_ends_with_1_when_there_are_any(
    over: Place, nats_server: EmbeddedNats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", over.url)
    monkeypatch.setenv("NATS_URL", nats_server.url)
    write_template(tmp_path / "home", RUN, "")
    shutil.copytree(over.policies, tmp_path / "home" / ".penstock" / "policies")
    ledger = tmp_path / "ledger.txt"
    ledger.write_text("\n".join(LEDGER), encoding="utf-8")
    command = ["audit", "-c", str(tmp_path / "home"), "--ledger", str(ledger)]
    healthy = CliRunner().invoke(app, [*command, "--json"])
    report = json.loads(healthy.stdout)
    assert (healthy.exit_code, report["run"], report["state"], report["violations"]) == (0, RUN, "ended", 0)
    assert report["seconds"] > 0 and {"invariant", "name", "examined", "violations"} <= set(
        report["checks"][0]
    )
    ledger.write_text("\n".join((*LEDGER, "ghost")), encoding="utf-8")
    broken = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
    assert broken.exit_code == 1
    assert "submission ghost is in the ledger" in broken.stdout and "1 violations" in broken.stdout
    broken = CliRunner().invoke(app, [*command, "--json"])
    [first] = [check["violations"] for check in json.loads(broken.stdout)["checks"] if check["violations"]]
    assert (broken.exit_code, first[0]["rows"]) == (1, {"submission": "ghost"})
