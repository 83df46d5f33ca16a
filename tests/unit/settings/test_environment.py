"""Secrets come from the environment or from a file that it names."""

from pathlib import Path

import pytest

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.deploy.home import Home
from orchestrator.runtime.environment import named
from orchestrator.runtime.unreachable import named_url, origin_of
from orchestrator.settings.config import load


def test_a_value_is_the_variables_own_else_the_content_of_the_file_that_it_names(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("postgresql://kept\n")
    assert named("DATABASE_URL", {"DATABASE_URL_FILE": str(file)}) == "postgresql://kept"
    assert named("DATABASE_URL", {"DATABASE_URL": "given", "DATABASE_URL_FILE": str(file)}) == "given"
    assert named("DATABASE_URL", {}) == ""


def test_white_space_around_a_value_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert named("DATABASE_URL", {"DATABASE_URL": " postgresql://u@h/db\r\n"}) == "postgresql://u@h/db"
    (tmp_path / "url").write_text("postgresql://kept\r\n")
    given = {"DATABASE_URL": " \r", "DATABASE_URL_FILE": str(tmp_path / "url")}
    assert named("DATABASE_URL", given) == "postgresql://kept"
    monkeypatch.setenv("NATS_URL", "nats://h:4222\r")
    assert load().services.nats_url == "nats://h:4222"
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    url = named_url("DATABASE_URL")
    origin = origin_of(url)
    assert url == "postgresql://kept" and origin is not None and "DATABASE_URL_FILE" in origin.source


@pytest.mark.parametrize(("content", "says"), [(None, "cannot be read"), (" \n", "is empty")])
def test_a_file_without_a_value_is_refused(tmp_path: Path, content: str | None, says: str) -> None:
    file = tmp_path / "url"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigurationError, match=says):
        named("NATS_URL", {"NATS_URL_FILE": str(file)})


def test_the_configuration_takes_services_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "db").write_text("postgresql://db/x\n")
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.setenv("DATABASE_URL_FILE", str(tmp_path / "db"))
    assert load().services.database_url == "postgresql://db/x"


def test_the_weights_lie_where_the_configuration_says_and_by_default_next_to_it(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("")
    assert Home.at(tmp_path).policies == tmp_path / ".penstock" / "policies"
    assert Home.at(tmp_path, ("policy.directory=/srv/first",)).policies == Path("/srv/first")
