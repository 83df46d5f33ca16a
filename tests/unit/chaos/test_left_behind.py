"""Leftovers that must not exist once a disturbed stack has been stopped."""

import tempfile
from pathlib import Path

import pytest

from ops.lab.chaos import main
from orchestrator.deploy.home import Home
from orchestrator.settings.config import FILE
from sandboxes.owner import Owner, Record, prepare_root
from sandboxes.reap import default_root


def test_a_sandbox_of_the_stopped_stack_is_a_violation_and_one_of_another_stack_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(main, "HEIRS_S", 0.0)
    (tmp_path / "stack").mkdir()
    (tmp_path / "stack" / FILE).touch()
    prepare_root(default_root())
    workers = Home.at(tmp_path / "stack").workers
    for name, worker in (("mine", f"{workers}runner"), ("theirs", "elsewhere:/runs/other:runner")):
        Record(id=name, owner=Owner.current(), cgroups=(), uid=-1, worker=worker).write(default_root())
    assert main.left_behind(tmp_path / "stack") == ["I5: sandbox mine of the stack is still there"]
