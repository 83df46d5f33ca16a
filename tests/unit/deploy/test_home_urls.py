"""A URL of a service that cannot be read is refused where the configuration is read, by the name under which a person wrote it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import app
from orchestrator.contracts.errors import ConfigurationError, ServiceError
from orchestrator.deploy.home import Home
from orchestrator.pool.address import address_of
from orchestrator.runtime.unreachable import of_key, remember

BAD = [
    ("database_url", "postgres//x@db/x", "is not a PostgreSQL URL"),
    ("nats_url", "http://db:4222", "is not a URL of NATS"),
]


@pytest.fixture(autouse=True)
def _no_services(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("NATS_URL", raising=False)


@pytest.mark.parametrize(("key", "url", "fault"), BAD)
def test_a_wrong_url_of_the_file_is_refused_by_its_key(
    tmp_path: Path, key: str, url: str, fault: str
) -> None:
    (tmp_path / "penstock.toml").write_text(f"[services]\n{key} = {url!r}\n")
    with pytest.raises(ConfigurationError, match=rf"penstock\.toml: services\.{key} {fault}"):
        Home.at(tmp_path).config()
    shown = CliRunner().invoke(app, ["config", "-c", str(tmp_path)])
    assert shown.exit_code != 0 and key.upper() not in shown.output


@pytest.mark.parametrize(("key", "url", "fault"), BAD)
def test_a_wrong_url_of_the_environment_is_refused_by_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, url: str, fault: str
) -> None:
    (tmp_path / "penstock.toml").write_text("")
    monkeypatch.setenv(key.upper(), url)
    with pytest.raises(ConfigurationError, match=rf"^{key.upper()} {fault}"):
        Home.at(tmp_path).config()


@pytest.mark.parametrize(("key", "url", "fault"), BAD)
def test_a_wrong_url_of_an_option_is_refused_by_that_option(
    tmp_path: Path, key: str, url: str, fault: str
) -> None:
    (tmp_path / "penstock.toml").write_text("[services]\ndatabase_url = 'postgresql://u@h/d'\n")
    with pytest.raises(ConfigurationError, match=rf"^--set services\.{key} {fault}"):
        Home.at(tmp_path, (f"services.{key}={url}",)).config()


def test_a_wrong_url_of_alembics_configuration_is_refused_by_its_key() -> None:
    url = remember("postgres//x@alembic/x", of_key("sqlalchemy.url", "own.ini"))
    with pytest.raises(ServiceError, match=r"^sqlalchemy\.url of own\.ini is not a PostgreSQL URL"):
        address_of(url)


@pytest.mark.parametrize(
    ("command", "option", "urls", "fault"),
    [
        ("runner", "--gateway", ["http://h:99999"], "'http://h:99999' is not a URL of a gateway: write http://host:port"),
        ("runner", "--gateway", ["http://[::1"], "'http://[::1' is not a URL of a gateway"),
        ("runner", "--gateway", ["http://a:1", "http://a:1/"], "'http://a:1/' is named twice"),
        ("gateway", "--server", ["a:1"], "'a:1' is not a URL of a rollout server: write http://host:port"),
        ("gateway", "--server", ["http://a:1?x=1"], "'http://a:1?x=1' has a ? or a #"),
    ],
)  # fmt: skip
def test_a_wrong_address_of_a_process_is_refused_by_its_option(
    tmp_path: Path, command: str, option: str, urls: list[str], fault: str
) -> None:
    (tmp_path / "penstock.toml").write_text("")
    given = [part for url in urls for part in (option, url)]
    shown = CliRunner().invoke(app, [command, "-c", str(tmp_path), *given])
    assert isinstance(shown.exception, ConfigurationError), shown
    assert str(shown.exception).startswith(f"{option}: {fault}")
