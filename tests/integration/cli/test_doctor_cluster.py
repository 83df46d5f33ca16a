"""`penstock doctor --cluster` on real services: healthy parts are reported healthy, and each seeded defect is found with its remedy."""

import hashlib
import shlex
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from typer.testing import CliRunner

from orchestrator.bus.nats import NatsBus
from orchestrator.cli.main import app
from orchestrator.deploy.cluster.doctor import Expected, examined
from orchestrator.deploy.cluster.doctor.bus import judged
from orchestrator.deploy.embedded.doctor import DoctorCheck
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.pool.heartbeats import own_code
from orchestrator.runtime.plugins import provider
from orchestrator.settings.config import Config
from tests import builders
from tests.integration.pool.rig import small

pytestmark = [pytest.mark.anyio, pytest.mark.services]


@pytest.fixture
async def config(engine: AsyncEngine, database_url: str, nats_server: EmbeddedNats) -> AsyncIterator[Config]:
    run = small("doctor")
    services = run.services.model_copy(update={"database_url": database_url, "nats_url": nats_server.url})
    async with NatsBus.connect(nats_server.url) as bus:
        await bus.ensure_streams()
    yield run.model_copy(update={"services": services})


def named(found: list[DoctorCheck], name: str) -> DoctorCheck:
    """The only check whose name starts with `name`."""
    [one] = [check for check in found if check.name.startswith(name)]
    assert one.ok == (one.fix == ""), one
    return one


async def test_sound_settings_pass_and_settings_that_tests_switch_off_are_found(
    engine: AsyncEngine, config: Config, tmp_path: Path
) -> None:
    await builders.make_run(engine, config)
    found = await examined(config, Expected(directory=tmp_path, replicas=1), None)
    wrong = {check.name for check in found if not check.ok}
    assert (
        wrong == {"PostgreSQL fsync", "PostgreSQL full_page_writes", "PostgreSQL synchronous_commit"} & wrong
    )
    assert not named(found, "PostgreSQL fsync").ok and "ALTER SYSTEM" in named(found, "PostgreSQL fsync").fix
    for name in (
        "PostgreSQL revision",
        "PostgreSQL connections",
        "NATS version",
        "NATS stream WORK",
        "clock, NATS",
    ):
        assert named(found, name).ok, name
    assert list(tmp_path.iterdir()) == []  # its probe file is removed


async def test_a_stream_of_one_replica_is_found_where_three_are_expected(
    config: Config, tmp_path: Path
) -> None:
    one = named(await examined(config, Expected(directory=tmp_path, replicas=3), None), "NATS stream RESULTS")
    assert not one.ok and "1 replica, 3 are expected" in one.detail and "NATS_URL" in one.fix


def test_a_stream_without_a_leader_and_a_replica_that_is_behind_are_found() -> None:
    three = {"config": {"num_replicas": 3}}
    behind = {"leader": "n1", "replicas": [{"name": "n2", "current": True}, {"name": "n3", "offline": True}]}
    assert "no leader" in judged("WORK", {**three, "cluster": {}}, 3).detail
    assert judged("WORK", {**three, "cluster": behind}, 3).detail.endswith("away: n3")
    assert judged("WORK", {**three, "cluster": {"leader": "n1", "replicas": []}}, 3).ok


async def test_a_clock_that_is_off_is_found_against_postgres_and_nats(config: Config, tmp_path: Path) -> None:
    found = await examined(
        config, Expected(directory=tmp_path, replicas=1), None, now=lambda: time.time() + 90
    )
    for whose in ("PostgreSQL", "NATS"):
        one = named(found, f"clock, {whose}")
        assert not one.ok and "ahead" in one.detail and "NTP" in one.fix


async def test_more_processes_than_postgres_takes_connections_are_found(
    config: Config, tmp_path: Path
) -> None:
    many = Expected(directory=tmp_path, replicas=1, processes={"runner": 400})
    one = named(await examined(config, many, None), "PostgreSQL connections")
    assert not one.ok and "3210" in one.detail and "max_connections = 3230" in one.fix


async def test_a_statement_timeout_that_ends_our_statements_is_found(config: Config, tmp_path: Path) -> None:
    url = config.services.database_url
    connection = await asyncpg.connect(url)
    await connection.execute(f'ALTER DATABASE "{urlsplit(url).path[1:]}" SET statement_timeout = 500')
    await connection.close()
    one = named(
        await examined(config, Expected(directory=tmp_path, replicas=1), None), "PostgreSQL statement_timeout"
    )
    assert not one.ok and one.detail == "500 ms"


async def test_a_directory_that_is_not_the_one_the_trainer_wrote_to_is_found(
    engine: AsyncEngine, config: Config, tmp_path: Path
) -> None:
    run = await builders.make_run(engine, config)
    version = tmp_path / "version-000001"
    version.mkdir()
    (version / "manifest.json").write_text("{}")
    sha = hashlib.sha256(b"{}").hexdigest()
    async with engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO policy_versions (run_id, version, batch_no, path, manifest_sha) VALUES (:run, 1, 0, :path, :sha)"
            ),
            {"run": run.run_id, "path": str(version), "sha": sha},
        )
    assert named(
        await examined(config, Expected(directory=tmp_path, replicas=1), None), "shared directory, version 1"
    ).ok
    (version / "manifest.json").write_text("{ }")
    other = named(
        await examined(config, Expected(directory=tmp_path, replicas=1), None), "shared directory, version 1"
    )
    (version / "manifest.json").unlink()
    none = named(
        await examined(config, Expected(directory=tmp_path, replicas=1), None), "shared directory, version 1"
    )
    assert not other.ok and "is not what was published" in other.detail
    assert not none.ok and "policy.directory" in none.fix


def test_a_probe_of_one_host_is_seen_where_the_directory_is_the_same_and_nowhere_else(tmp_path: Path) -> None:
    for name, directory in (("a", "shared"), ("b", "shared"), ("c", "elsewhere")):
        (tmp_path / directory).mkdir(exist_ok=True)
        (tmp_path / name).mkdir()
        (tmp_path / name / "penstock.toml").write_text(f'[policy]\ndirectory = "{tmp_path / directory}"\n')

    def doctor(host: str, *options: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["doctor", "--cluster", "-c", str(tmp_path / host), *options])
        return done.exit_code, done.output

    (tmp_path / "a").rename(tmp_path / "a run")

    status, output = doctor("a run", "--write-probe")
    assert status == 0
    probe = output.split()[-1]
    assert shlex.split(output)[-4:-2] == ["-c", str(tmp_path / "a run")]
    assert doctor("c", "--read-probe", probe)[0] == 1
    assert doctor("b", "--read-probe", probe)[0] == 0


async def test_a_process_that_is_silent_or_of_another_version_and_a_gateway_that_does_not_answer_are_found(
    engine: AsyncEngine, config: Config, tmp_path: Path
) -> None:
    run = await builders.make_run(engine, config)
    async with engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO processes (run_id, host, process, pid, last_seen, loops, code) VALUES (:run, 'a', 'runner-1', 1, now(), '[]', :code), "
                "(:run, 'b', 'runner-2', 2, now() - interval '5 min', '[]', :code), (:run, 'c', 'runner-3', 3, now(), '[]', 'older')"
            ),
            {"run": run.run_id, "code": own_code()},
        )
    gateway = config.gateway.model_copy(update={"urls": ("http://127.0.0.1:9",)})
    found = await examined(
        config.model_copy(update={"gateway": gateway}), Expected(directory=tmp_path, replicas=1), None
    )
    assert named(found, "runner-1 on a").ok
    assert [check.name for check in found if check.name.startswith("code of")] == ["code of runner-3 on c"]
    assert "it runs older" in named(found, "code of runner-3").detail
    assert not named(found, "runner-2 on b").ok and not named(found, "gateway, 127.0.0.1:9").ok


@pytest.mark.filterwarnings("ignore::sandboxes.local.NoIsolationWarning")
async def test_services_that_a_sandbox_reaches_are_found_and_an_isolated_one_reaches_none(
    config: Config, tmp_path: Path
) -> None:
    with anyio.fail_after(60):
        for name, reaches in (("local", True), ("bubblewrap", False)):
            found = await examined(config, Expected(directory=tmp_path, replicas=1), provider(name))
            for what in ("PostgreSQL", "NATS"):
                one = named(found, f"from a sandbox ({name}): {what}")
                assert one.ok is not reaches, one
