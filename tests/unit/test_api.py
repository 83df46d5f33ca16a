"""The public Python API without services: registering scaffolds, filters, data frames without pandas."""

import errno
import os
import re
import sys
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scaffolds.examples
from scaffolds.examples.white_box import Agent
from sqlalchemy.exc import DBAPIError

from orchestrator.api import Published, connect, register_scaffold
from orchestrator.api.arguments import callback
from orchestrator.api.filters import attempt_filters
from orchestrator.api.frame import FrameBuilder
from orchestrator.api.reading import Callbacks, as_service_error
from orchestrator.contracts.errors import ArgumentError, ConfigurationError, ServiceError
from orchestrator.deploy.home import Home, write_template
from orchestrator.export.rows import STEPS
from orchestrator.settings.config import load

EXAMPLES = Path(scaffolds.examples.__file__).parent


def test_a_scaffold_is_added_to_the_file_and_its_comments_stay(tmp_path: Path) -> None:
    file = write_template(tmp_path, "first", "")
    before = file.read_text()
    name = register_scaffold(tmp_path, EXAMPLES)
    cls = register_scaffold(file, Agent, share=0.5)
    assert (name, cls) == (str(EXAMPLES), f"{EXAMPLES / 'white_box.py'}:Agent")
    assert load(file).rollout.scaffolds == {"shell": 1.0, name: 0.0, cls: 0.5}
    assert register_scaffold(file, Agent) == cls and load(file).rollout.scaffolds[cls] == 0.0
    assert "# concurrent rollouts" in file.read_text() and before.count("#") == file.read_text().count("#")


def test_a_file_without_scaffolds_keeps_the_default(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text('[run]\nname = "first"\n')
    register_scaffold(str(tmp_path), "mini-swe-agent", share=1)
    found = tomllib.loads((tmp_path / "penstock.toml").read_text())["rollout"]["scaffolds"]
    assert found == {"shell": 1.0, "mini-swe-agent": 1.0}


def test_what_cannot_be_registered_changes_nothing(tmp_path: Path) -> None:
    file = write_template(tmp_path, "first", "")
    before = file.read_text()
    for scaffold, share, sentence in (
        ("nothing", 0.0, "unknown scaffold 'nothing'"),
        (tmp_path / "absent.toml", 0.0, "absent.toml does not exist"),
        (Path, 0.0, "not declared as a scaffold"),
        ("shell", -1.0, "a number from 0, not -1.0"),
    ):
        with pytest.raises(ValueError, match=sentence):
            register_scaffold(file, scaffold, share=share)
    home = Home.at(file)
    home.layout.create()
    home.run_model_file.write_text("first\nmodels/tiny")
    with pytest.raises(ConfigurationError, match="run 'first' was started and keeps its scaffolds"):
        register_scaffold(file, "shell")
    assert file.read_text() == before


def test_the_file_keeps_its_line_ends_its_mode_and_its_link(tmp_path: Path) -> None:
    kept = tmp_path / "kept.toml"
    kept.write_bytes(b'# ours\r\n[run]\r\nname = "first"\r\n')
    kept.chmod(0o640)
    (tmp_path / "penstock.toml").symlink_to(kept)
    before = os.umask(0o077)
    try:
        register_scaffold(tmp_path, "mini-swe-agent")
    finally:
        os.umask(before)
    written = kept.read_bytes()
    assert written.startswith(b"# ours\r\n") and written.count(b"\n") == written.count(b"\r\n") > 3
    assert (tmp_path / "penstock.toml").is_symlink() and kept.stat().st_mode & 0o777 == 0o640


def test_a_file_that_cannot_be_written_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_template(tmp_path, "first", "")
    before = file.read_bytes()

    def full(path: Path, *_: object, **__: object) -> None:
        path.open("w").close()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("orchestrator.api.scaffolds.write_atomically", full)
    with pytest.raises(OSError, match="No space left"):
        register_scaffold(file, "mini-swe-agent")
    assert file.read_bytes() == before and [each.name for each in tmp_path.iterdir()] == ["penstock.toml"]


def test_filters_are_python_values() -> None:
    published = Published(accepted=("a", "b"), refused={"c": "no"}, unanswered=("d",))
    assert published.submissions == ("a", "b", "c", "d")
    found = attempt_filters(
        submissions=published, versions=(3, None), since=datetime(2026, 1, 31, tzinfo=UTC)
    )
    assert found.submissions == ("a", "b")
    assert (found.versions, found.since) == ("3..", "2026-01-31T00:00:00+00:00")
    assert (
        attempt_filters(versions=7).versions == "7..7"
        and attempt_filters(versions=(None, None)).versions is None
    )
    assert attempt_filters(scaffold=Agent).scaffold == f"{EXAMPLES / 'white_box.py'}:Agent"


def test_an_empty_selection_selects_nothing_and_a_missing_one_all() -> None:
    refused = Published(accepted=(), refused={"a": "no"}, unanswered=())
    selections: list[dict[str, Any]] = [
        {"submissions": refused},
        {"submissions": []},
        {"rollouts": []},
        {"groups": set()},
    ]
    for given in selections:
        found = attempt_filters(**given)
        assert [getattr(found, name) for name in given] == [()]
    every = attempt_filters(submissions=None, rollouts=None)
    assert (every.submissions, every.rollouts, every.groups) == (None, None, None)
    assert attempt_filters(rollouts=np.array([3, 4])).rollouts == (3, 4)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"rollouts": 5}, "rollouts must be a list or another iterable, not 5"),
        ({"rollouts": "12"}, "rollouts must be a list or another iterable, not '12'"),
        ({"rollouts": ["1"]}, "rollouts must be a whole number from 0 to 9223372036854775807, not '1'"),
        ({"rollouts": [True]}, "rollouts must be a whole number"),
        ({"rollouts": [1.0]}, "rollouts must be a whole number"),
        ({"groups": [2**70]}, "groups must be a whole number"),
        ({"versions": -1}, "versions must be a whole number from 0 to 2147483647, not -1"),
        ({"versions": "3"}, "versions must be a whole number"),
        ({"versions": (1, 2, 3)}, "versions must be a version, or the first and the last"),
        ({"versions": (9, 3)}, "versions '9..3' ends before it begins"),
        ({"submissions": [5]}, "submissions must be a string, not 5"),
        ({"submissions": ["a\0"]}, "submissions 'a\\x00' holds characters that PostgreSQL cannot store"),
        ({"submissions": 5}, "submissions must be a list or another iterable"),
        ({"label": 5}, "label must be a string, not 5"),
        ({"task": "\udcff"}, "task '\\udcff' holds characters"),
        ({"state": 3}, "state must be a string, not 3"),
        ({"scaffold": 3}, "scaffold must be a name, a path or a class, not 3"),
        ({"since": "2d"}, "since must be a datetime, or a timedelta from 0, not '2d'"),
        ({"since": timedelta(days=-3)}, "since must be a datetime, or a timedelta from 0"),
        ({"every_attempt": "no"}, "every_attempt must be True or False, not 'no'"),
    ],
)
def test_a_filter_of_another_type_is_refused_by_its_name(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ArgumentError, match="^" + re.escape(sentence)):
        attempt_filters(**given)


def test_an_age_before_all_times_matches_all() -> None:
    since = attempt_filters(since=timedelta.max).since
    assert since is not None and since.startswith("0001-01-01")


@pytest.mark.anyio
async def test_an_empty_or_missing_place_is_not_the_working_directory() -> None:
    for given in ("", None, 5):
        with pytest.raises(ArgumentError, match=r"^config must be a path, not "):
            async with connect(given):  # type: ignore[arg-type]
                raise AssertionError("it is open")
        with pytest.raises(ArgumentError, match=r"^config must be a path, not "):
            register_scaffold(given, "shell")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"^overrides must be a list"):
        async with connect("runs/first", overrides="queue.capacity=3"):
            raise AssertionError("it is open")


def test_an_error_of_an_argument_has_its_name_and_the_problem() -> None:
    with pytest.raises(ArgumentError, match=r"^purpose 'play' is unknown") as caught:
        attempt_filters(purpose="play")
    assert (caught.value.argument, caught.value.problem[:17]) == ("purpose", "'play' is unknown")


def test_a_database_that_is_away_is_a_service_error_and_other_errors_stay() -> None:
    with pytest.raises(ServiceError, match="PostgreSQL is away"), as_service_error():
        raise ConnectionRefusedError("refused")
    mistake = DBAPIError("select x", None, Exception("no column"))
    with pytest.raises(DBAPIError) as caught, as_service_error():
        raise mistake
    assert caught.value is mistake


def test_an_error_of_a_callers_callback_is_never_the_services() -> None:
    mine, callbacks = ConnectionRefusedError("of my own server"), Callbacks()

    def fails(*_: int) -> None:
        raise mine

    with pytest.raises(ConnectionRefusedError) as caught, as_service_error(callbacks):
        callbacks.own(fails)(1, 2)
    assert caught.value is mine
    with pytest.raises(ServiceError), as_service_error(callbacks):
        raise ConnectionRefusedError("of PostgreSQL")


async def _later() -> None: ...


class _Later:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (None, "on_progress must be a function, not None"),
        ("print", "on_progress must be a function, not 'print'"),
        (_later, "on_progress must be an ordinary function: an async one would never run"),
        (_Later(), "on_progress must be an ordinary function"),
        (lambda done: done, "on_progress must be a function that takes 2 arguments, not <function"),
    ],
)
def test_a_callback_that_would_not_run_is_refused(given: object, sentence: str) -> None:
    with pytest.raises(ArgumentError, match="^" + sentence):
        callback("on_progress", given, takes=2)
    assert callback("on_progress", print, takes=2) is print


def test_a_frame_without_pandas_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        ConfigurationError, match=r"needs the package pandas.*pip install 'penstock\[frame\]'"
    ):
        FrameBuilder(STEPS)
