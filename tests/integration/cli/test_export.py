"""`penstock export`: the commands that people type, in a process of its own, and the name of a missing package."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.export.packages import need
from tests.integration.export.rig import RUN, ExportedRun, exported_run
from tests.integration.queries.evaluations_rig import evaluated

__all__ = ["exported_run"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("look")]

REPOSITORY = Path(__file__).resolve().parents[3]
GUIDE = REPOSITORY / "ops/guides/exports.md"


async def process(url: str, *arguments: str, cwd: Path = REPOSITORY) -> subprocess.CompletedProcess[bytes]:
    """A command in a process of its own, with the test's database."""
    environment = {
        **os.environ,
        "DATABASE_URL": url,
        "NATS_URL": "nats://127.0.0.1:1",
        "COLUMNS": "200",
        "PYTHONPATH": str(REPOSITORY),
    }
    return await anyio.run_process(
        [sys.executable, "-m", "orchestrator.cli", *arguments], cwd=cwd, env=environment, check=False
    )


async def penstock(
    exported_run: ExportedRun, *arguments: str, cwd: Path = REPOSITORY
) -> subprocess.CompletedProcess[bytes]:
    return await process(exported_run.url, *arguments, cwd=cwd)


def home(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "penstock.toml").write_text(f'[run]\nname = "{RUN}"\n')
    return directory


def commands(text: str) -> list[list[str]]:
    """The lines of a guide's blocks that start with `penstock export`."""
    return [
        line.split("#")[0].split()[1:]
        for line in re.findall(r"^    (penstock export .*)$", text, re.MULTILINE)
    ]


async def test_every_command_of_the_guide_works_unchanged(exported_run: ExportedRun, tmp_path: Path) -> None:
    found = [command for command in commands(GUIDE.read_text()) if "--endpoint" not in command]
    assert {command[1] for command in found} == {"atif", "inspect", "parquet", "otlp", "tensorboard", "wandb"}
    await evaluated(exported_run.owner, exported_run.run, "heldout", 1, {"coding": (1.0, 0.0)})
    home(tmp_path / "runs/first")

    async def run(command: list[str]) -> None:
        done = await penstock(exported_run, *command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr.decode()
        out = command[command.index("--out") + 1]
        assert (tmp_path / out / "penstock-export.json").is_file()
        assert done.stderr == b""  # no bar without a terminal

    async with anyio.create_task_group() as tasks:
        for command in found:
            tasks.start_soon(run, command)


async def test_the_export_reports_its_result_as_a_sentence_or_as_json(
    exported_run: ExportedRun, tmp_path: Path
) -> None:
    place = home(tmp_path / "run")
    written = await penstock(
        exported_run,
        "export",
        "atif",
        "-c",
        str(place),
        "--out",
        str(tmp_path / "out"),
        "--domain",
        "general",
    )
    assert (
        written.stdout.decode()
        == f"4 attempts with 24 steps of run 'exported' in 1 part in {tmp_path / 'out'}\n"
    )
    again = await penstock(
        exported_run,
        "export",
        "atif",
        "-c",
        str(place),
        "--out",
        str(tmp_path / "out"),
        "--domain",
        "general",
        "--json",
    )
    answer = json.loads(again.stdout)
    assert (answer["attempts"], answer["already"], answer["selection"]["domain"]) == (4, True, "general")
    other = await penstock(exported_run, "export", "atif", "-c", str(place), "--out", str(tmp_path / "out"))
    assert other.returncode == 1
    assert other.stderr.decode().startswith("penstock: ") and other.stderr.count(b"\n") == 1


async def test_filters_that_match_nothing_are_refused_or_reported(
    exported_run: ExportedRun, tmp_path: Path
) -> None:
    place, out = home(tmp_path / "run"), tmp_path / "out"
    command = ("export", "atif", "-c", str(place), "--out", str(out))
    refused = await penstock(exported_run, *command, "--domain", "codign")
    assert refused.returncode == 1 and not out.exists()
    assert (
        b"--domain 'codign': run 'exported' has none of that name; known: coding, general\n" in refused.stderr
    )
    none = await penstock(exported_run, *command, "--versions", "900..")
    assert none.returncode == 0
    assert none.stdout.decode().endswith(f"in {out}: no attempt that has ended matches the filters\n")


def test_the_guide_names_what_there_is() -> None:
    text = GUIDE.read_text()
    links = [part.partition(")")[0] for part in text.split("](")[1:]]
    assert all((GUIDE.parent / link.partition("#")[0]).exists() for link in links), links


def test_a_missing_package_is_one_sentence_that_says_what_to_install() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"penstock export parquet needs the package nothing-here, .*pip install 'penstock\[export\]'",
    ):
        need("nothing_here.inner", "nothing-here", "parquet")
