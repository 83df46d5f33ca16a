"""`penstock tasks import` as a command, and its report."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from orchestrator.cli.main import app


class Reported:
    """The report of one import."""

    def __init__(self, code: int, report: Mapping[str, Any]) -> None:
        self.code, self.report = code, report

    @property
    def outcomes(self) -> dict[str, str]:
        """By name; by the end of the place for rows without one."""
        return {_key(each): each["outcome"] for each in self.report["tasks"]}

    @property
    def reasons(self) -> dict[str, str]:
        """Why tasks are refused, each one sentence on one line."""
        found = {_key(each): each["reason"] for each in self.report["tasks"] if each["reason"] is not None}
        assert all(reason.strip() and "\n" not in reason for reason in found.values()), found
        return found

    @property
    def run(self) -> dict[str, str]:
        """Why a run would refuse them."""
        return {_key(each): each["run"] for each in self.report["tasks"] if each["run"] is not None}

    @property
    def notes(self) -> dict[str, str]:
        """Sentences on what their tests leave possible."""
        return {_key(each): each["note"] for each in self.report["tasks"] if each["note"] is not None}


def _key(task: Mapping[str, Any]) -> str:
    return str(task["name"] or task["source"].rpartition("/")[2])


def imported(form: str, source: Path | str, to: Path, *more: str) -> Reported:
    """The report of an import that ends with 0 or 1."""
    done = CliRunner().invoke(app, ["tasks", "import", form, str(source), "--to", str(to), "--json", *more])
    assert done.exit_code in (0, 1) and done.stdout, (done, done.exception)
    return Reported(done.exit_code, json.loads(done.stdout))


def refused(form: str, source: Path | str, to: Path, *more: str) -> str:
    """The sentence with which an import refuses its source as a whole."""
    done = CliRunner().invoke(app, ["tasks", "import", form, str(source), "--to", str(to), *more])
    assert isinstance(done.exception, ValueError), (done, done.exception)
    assert "\n" not in str(done.exception)
    return str(done.exception)


def judged(task: Path, work: Path, *, plugins: bool = False) -> str:
    """The reward that the tests of an imported task write for a work directory. `plugins`: whether pytest loads those that are installed."""
    tests = shutil.copytree(task / "tests", task.parent / f"{task.name}.tests", dirs_exist_ok=True)
    for name in ("test.sh", "grade.py", "restore.py"):
        text = (tests / name).read_text().replace("/logs/", f"{tests}/logs/")
        for file in (
            "test.patch",
            "grade.py",
            "restore.py",
            "base.json",
            "base.tar.gz",
            "expected.json",
            "files",
        ):
            text = text.replace(f"/tests/{file}", f"{tests}/{file}")
        (tests / name).write_text(text)
    done = subprocess.run(
        ["bash", str(tests / "test.sh")],
        cwd=work,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "" if plugins else "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    reward = tests / "logs/verifier/reward.txt"
    return reward.read_text().strip() if reward.exists() else f"no verdict: {done}"
