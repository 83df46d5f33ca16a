"""Trajectories in ATIF, read by Harbor's own models (package `harbor`), not by our restatement of them."""

import json
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from orchestrator.export.atif import Atif
from tests.integration.export.rig import ExportedRun, exported_run

__all__ = ["exported_run"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("harness")]


@pytest.fixture
def trajectory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Harbor's model of a trajectory: it needs none of the package's own dependencies."""
    monkeypatch.syspath_prepend(os.environ["PENSTOCK_HARBOR"])
    yield import_module("harbor.models.trajectories").Trajectory
    for name in [name for name in sys.modules if name.partition(".")[0] == "harbor"]:
        del sys.modules[name]


async def test_harbors_own_models_take_every_trajectory_and_lose_nothing(
    exported_run: ExportedRun, tmp_path: Path, trajectory: Any
) -> None:
    await exported_run.export(Atif(), tmp_path / "out")
    files = list((tmp_path / "out").glob("trajectories/*/*.json"))
    assert len(files) == 12
    for file in files:
        written = json.loads(file.read_bytes())
        read = trajectory.model_validate(written)
        assert json.loads(read.model_dump_json(exclude_unset=True)) == written
