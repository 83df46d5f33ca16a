"""An interrupted export continues and gives the same bytes; it never overwrites another program's file."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import msgspec
import pytest

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.export.atif import Atif
from orchestrator.export.manifest import FILE, Manifest, read_manifest
from orchestrator.export.otlp import Otlp
from orchestrator.export.parquet import Parquet
from orchestrator.runtime import failpoints
from tests import builders
from tests.integration.export.rig import ExportedRun, Talker, exported_run

__all__ = ["exported_run"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("look")]

REPOSITORY = Path(__file__).resolve().parents[3]


def bytes_of(out: Path) -> dict[str, bytes]:
    """Every file but the manifest, which contains the time of its making."""
    files = {file.relative_to(out).as_posix(): file.read_bytes() for file in out.rglob("*") if file.is_file()}
    assert files.pop(FILE)
    return files


def manifest(out: Path) -> Manifest:
    found = read_manifest(out)
    assert found is not None
    return found


@pytest.mark.parametrize("point", ["export.sync", "export.rename"])
async def test_an_export_that_fails_anywhere_goes_on_with_the_same_bytes(
    exported_run: ExportedRun, tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await exported_run.export(Parquet(part=2), tmp_path / "whole")
    expected = bytes_of(tmp_path / "whole")
    monkeypatch.setattr(failpoints, "directory", tmp_path / "points")
    (tmp_path / "points").mkdir()
    # Each time some arrivals further: through manifests, parts, the card and the last manifest.
    for further in (0, 1, 2, 4, 0, 3, 1, 20):
        for side in ("before", "after"):
            armed = tmp_path / "points" / f"{point}.{side}"
            armed.write_text("delay 0\n" * further + "raise\n")
            with contextlib.suppress(OSError):
                await exported_run.export(Parquet(part=2), tmp_path / "out")
            armed.unlink(missing_ok=True)
    hits = (tmp_path / "points" / failpoints.HITS).read_text()
    failed = sum(" raise " in line for line in hits.splitlines())
    done = await exported_run.export(Parquet(part=2), tmp_path / "out")
    assert (failed >= 10, done.attempts, done.parts) == (True, 12, 6)
    assert bytes_of(tmp_path / "out") == expected
    (tmp_path / "points" / point).write_text("duplicate\n" * 30)
    await exported_run.export(Parquet(part=2), tmp_path / "twice")
    assert bytes_of(tmp_path / "twice") == expected


async def test_an_export_that_is_killed_goes_on_behind_its_last_part(
    exported_run: ExportedRun, tmp_path: Path
) -> None:
    points, out = tmp_path / "points", tmp_path / "out"
    points.mkdir()
    command = [sys.executable, "-m", "tests.integration.export.export_process", exported_run.url, str(out)]
    environment = {**os.environ, "PENSTOCK_FAILPOINTS": str(points)}

    async def attempt() -> int:
        return (
            await anyio.run_process(
                command, cwd=REPOSITORY, env=environment, check=False, stderr=subprocess.DEVNULL
            )
        ).returncode

    # The manifest, then the two files of a part and the manifest again: the fifth rename is the second part's first file.
    (points / "export.rename.after").write_text("delay 0\n" * 4 + "exit\n")
    assert await attempt() == -signal.SIGKILL
    assert (manifest(out).part, manifest(out).attempts, manifest(out).done) == (1, 2, False)
    assert (out / ".writing").exists()
    assert await attempt() == 0
    assert (manifest(out).part, manifest(out).attempts, manifest(out).done) == (6, 12, True)
    assert not (out / ".writing").exists()
    await exported_run.export(Parquet(part=2), tmp_path / "whole")
    assert bytes_of(out) == bytes_of(tmp_path / "whole")


async def test_attempts_that_end_after_an_export_began_are_not_in_it(
    exported_run: ExportedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await exported_run.export(Parquet(part=2), tmp_path / "before", since="1h")
    points = tmp_path / "points"
    points.mkdir()
    (points / "export.rename.after").write_text("delay 0\n" * 4 + "raise\n")
    monkeypatch.setattr(failpoints, "directory", points)
    with pytest.raises(OSError, match="no space left"):
        await exported_run.export(Parquet(part=2), tmp_path / "out", since="1h")
    [late] = await builders.accepted(exported_run.owner, exported_run.run, ["late"])
    await builders.dispatch(exported_run.owner, exported_run.run)
    await builders.finish(exported_run.owner, exported_run.run, late, Talker(seed=9))
    done = await exported_run.export(Parquet(part=2), tmp_path / "out", since="1h")
    assert (done.attempts, done.steps, done.already) == (12, 72, False)
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "before")
    assert (await exported_run.export(Parquet(part=2), tmp_path / "out", since="1h")).already
    assert (await exported_run.export(Parquet(part=2), tmp_path / "new", since="1h")).attempts == 16


async def test_a_directory_with_foreign_files_is_refused_and_left_alone(
    exported_run: ExportedRun, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.txt").write_text("dear diary")
    with pytest.raises(ConfigurationError, match="holds something else, which is not overwritten"):
        await exported_run.export(Atif(), tmp_path / "out")
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["mine.txt"]
    with pytest.raises(ConfigurationError, match="is a file; --out is a directory"):
        await exported_run.export(Atif(), tmp_path / "out/mine.txt")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / FILE).write_text("{")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        await exported_run.export(Atif(), tmp_path / "damaged")


async def test_an_export_of_something_else_is_not_continued(
    exported_run: ExportedRun, tmp_path: Path
) -> None:
    await exported_run.export(Atif(), tmp_path / "out", domain="coding")
    with pytest.raises(ConfigurationError, match=r"holds an export of something else .*domain=coding"):
        await exported_run.export(Atif(), tmp_path / "out")
    with pytest.raises(ConfigurationError, match="holds an export as atif"):
        await exported_run.export(Parquet(), tmp_path / "out")
    found = manifest(tmp_path / "out")
    found.created = found.created.replace(year=2000)
    (tmp_path / "out" / FILE).write_bytes(msgspec.json.encode(found))
    with pytest.raises(ConfigurationError, match=r"of the run 'exported' of 2000-.*which is another one"):
        await exported_run.export(Atif(), tmp_path / "out", domain="coding")


async def test_two_exports_do_not_write_one_directory(exported_run: ExportedRun, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    held = os.open(tmp_path / "out", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(ConfigurationError, match="another process is exporting into"):
        await exported_run.export(Atif(), tmp_path / "out")
    os.close(held)
    assert (await exported_run.export(Atif(), tmp_path / "out")).attempts == 12


FILTERS: list[tuple[dict[str, object], int]] = [
    ({"rollouts": (1, 3, 999)}, 2),
    ({"groups": (2,)}, 4),
    ({"purpose": "train"}, 12),
    ({"purpose": "eval"}, 0),
    ({"domain": "general"}, 4),
    ({"scaffold": "shell", "state": "trained"}, 8),
    ({"state": "ready"}, 4),
    ({"state": "verified"}, 12),
    ({"state": "lost"}, 0),
    ({"versions": "0"}, 12),
    ({"versions": "1.."}, 0),
    ({"versions": "..5"}, 12),
    ({"since": "2020-01-01"}, 12),
    ({"since": "2120-01-01T00:00"}, 0),
    ({"label": ""}, 12),
    ({"label": "x"}, 0),
    ({"every_attempt": True}, 12),
]


async def test_a_filter_takes_what_it_says(exported_run: ExportedRun, tmp_path: Path) -> None:
    for number, (wanted, attempts) in enumerate(FILTERS):
        assert (await exported_run.export(Otlp(), tmp_path / str(number), **wanted)).attempts == attempts, (
            wanted
        )
