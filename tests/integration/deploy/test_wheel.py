"""The wheel: its additions to an environment, and that its migrations, dashboards and examples are found without a checkout."""

import os
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest

from orchestrator.deploy.cluster.reading import EXAMPLES, load
from orchestrator.deploy.cluster.render import Target, render
from orchestrator.pool.engine import FIRST, MIGRATIONS, REVISION
from orchestrator.pool.heartbeats import own_code
from tests.integration.pool.test_migrations import everything
from tests.services import REPOSITORY
from trainer.ranks.consistency import facts

INI = "[alembic]\nscript_location = orchestrator:_migrations\n"
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("processes")]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the files that the wheel installs."""
    built, place = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("installed")
    argv = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(built)]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(place)
    return place


def run(code: Path, place: Path, *argv: str, url: str = "") -> "subprocess.CompletedProcess[str]":
    """A Python program that imports from `code`, with `place` as its working directory."""
    environment = {**os.environ, "PYTHONPATH": str(code), "DATABASE_URL": url}
    return subprocess.run(
        [sys.executable, "-W", "error", *argv],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )


def files(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_adds_four_names_and_has_the_migrations_inside_the_orchestrator(installed: Path) -> None:
    (metadata,) = installed.glob("*.dist-info")
    names = {path.name for path in installed.iterdir()} - {metadata.name}
    assert names == {"orchestrator", "sandboxes", "scaffolds", "trainer"}
    inside = files(installed / "orchestrator" / "_migrations")
    assert inside == files(MIGRATIONS) and f"versions/{FIRST}_initial.py" in inside


def test_a_checkout_and_its_wheel_are_the_same_code(installed: Path, tmp_path: Path) -> None:
    program = """
import orchestrator
from orchestrator.pool.heartbeats import own_code
from trainer.ranks.consistency import facts
print(orchestrator.__file__, own_code(), facts("cpu", {}).code)
"""
    done = run(installed, tmp_path, "-c", program)
    ours = [own_code(), facts("cpu", {}).code]
    assert done.stdout.split() == [str(installed / "orchestrator" / "__init__.py"), *ours], done.stderr


@pytest.mark.parametrize("target", [Target.KUBERNETES, Target.HELM])
def test_a_topology_of_the_wheel_is_rendered_as_in_a_checkout(
    installed: Path, tmp_path: Path, target: Target
) -> None:
    topology = installed / "orchestrator" / "_cluster" / "topology.toml"
    assert topology.read_bytes() == (EXAMPLES.parent / "topology.toml").read_bytes()
    argv = ("-m", "orchestrator.cli", "cluster", "render", str(topology), "--target", target)
    done = run(installed, tmp_path, *argv, "--out", "out")
    assert done.returncode == 0, done.stderr
    ours = {name: text.encode() for name, text in render(load(topology), target).items()}
    assert ours.items() <= files(tmp_path / "out").items()
    assert any(b"grafana_dashboard" in content for content in ours.values())


def test_errors_of_the_wheel_name_examples_that_it_has(installed: Path, tmp_path: Path) -> None:
    examples = installed / "orchestrator" / "_cluster" / "examples"
    for command in (("cluster", "check"), ("size",)):
        done = run(installed, tmp_path, "-m", "orchestrator.cli", *command, "missing.toml")
        assert done.stderr.endswith(f"one of {examples}\n"), done.stderr
    assert files(examples) == files(EXAMPLES)


async def test_up_migrates_from_the_wheel(
    installed: Path, tmp_path: Path, empty_database_url: str, database_url: str
) -> None:
    program = f"""
import anyio
from orchestrator.settings.config import Config
from orchestrator.pool.engine import MIGRATIONS
from orchestrator.deploy.stack import migrate
print(MIGRATIONS)
anyio.run(lambda: migrate(Config.model_validate({{"services": {{"database_url": {empty_database_url!r}}}}}), own=True))
"""
    done = await anyio.to_thread.run_sync(run, installed, tmp_path, "-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(installed / "orchestrator" / "_migrations")
    assert await everything(empty_database_url) == await everything(database_url)


async def test_alembic_finds_the_migrations_of_the_wheel(
    installed: Path, tmp_path: Path, empty_database_url: str, database_url: str
) -> None:
    assert f"```ini\n{INI}```" in (REPOSITORY / "ops/guides/database.md").read_text()
    (tmp_path / "alembic.ini").write_text(INI)
    for command, output in ((("upgrade", "head"), ""), (("current",), f"{REVISION} (head)")):
        done = await anyio.to_thread.run_sync(
            partial(run, installed, tmp_path, "-m", "alembic", *command, url=empty_database_url)
        )
        assert (done.returncode, done.stdout.strip()) == (0, output), done.stderr
    assert await everything(empty_database_url) == await everything(database_url)


async def test_alembic_finds_the_migrations_of_a_checkout(empty_database_url: str, database_url: str) -> None:
    done = await anyio.to_thread.run_sync(
        partial(run, REPOSITORY, REPOSITORY, "-m", "alembic", "upgrade", "head", url=empty_database_url)
    )
    assert done.returncode == 0, done.stderr
    assert await everything(empty_database_url) == await everything(database_url)
