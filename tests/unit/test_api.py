"""The public Python API without services: registering scaffolds, filters, data frames without pandas."""

import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest
import scaffolds.examples
from scaffolds.examples.white_box import Agent
from sqlalchemy.exc import DBAPIError

from orchestrator.api import Published, register_scaffold
from orchestrator.api.filters import attempt_filters
from orchestrator.api.frame import FrameBuilder
from orchestrator.api.reading import as_service_error
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


def test_a_frame_without_pandas_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        ConfigurationError, match=r"needs the package pandas.*pip install 'penstock\[frame\]'"
    ):
        FrameBuilder(STEPS)
