"""The services of a run: `penstock up` reports which place names them, and refuses another directory's embedded ones."""

from pathlib import Path

import pytest

from orchestrator.contracts.errors import ServiceError
from orchestrator.deploy.embedded.layout import RunLayout
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.deploy.embedded.postgres import EmbeddedPostgres
from orchestrator.deploy.embedded.service_sources import Source, check_embedded_owner
from orchestrator.deploy.home import Home, write_template
from orchestrator.deploy.stack import services_of, up

pytestmark = [pytest.mark.anyio, pytest.mark.services]


def a_run(directory: Path) -> Home:
    write_template(directory, "test", "")
    return Home.at(directory)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "NATS_URL"):
        monkeypatch.delenv(name, raising=False)


async def test_embedded_services_of_another_directory_are_refused_where_the_environment_names_them(
    services_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = a_run(services_directory / "runs" / "a first"), a_run(tmp_path / "other")
    layout = RunLayout(first.layout.root)
    async with (
        EmbeddedPostgres(layout.postgres, durable=False) as postgres,
        EmbeddedNats(layout.nats) as nats,
    ):
        for variable, url in (("DATABASE_URL", postgres.url), ("NATS_URL", nats.url)):
            with monkeypatch.context() as patched:
                patched.setenv(variable, url)
                own = services_of(first)
                assert {one.source for one in own} == {Source.EMBEDDED}  # its own, in any place of the URL
                await check_embedded_owner(own)
                with pytest.raises(ServiceError) as refused:
                    await up(other, only=("orchestrator",))
                sentence = str(refused.value)
                assert (
                    f"{variable} in the environment names the embedded " in sentence and "unset" in sentence
                )
                assert str(services_directory / "runs" / "a first") in sentence and "\n" not in sentence
                # named in the file it is meant
                named = Home.at(other.file, (f"services.{variable.lower()}={url}",))
                patched.delenv(variable)
                assert Source.FILE in {one.source for one in services_of(named)}
                await check_embedded_owner(services_of(named))


async def test_services_of_ones_own_are_taken_from_the_environment(
    tmp_path: Path, database_url: str, nats_server: EmbeddedNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = a_run(tmp_path)
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("NATS_URL", nats_server.url)
    postgres, nats = services_of(home)
    await check_embedded_owner((postgres, nats))
    assert str(postgres).endswith(", named by DATABASE_URL in the environment") and "@" not in str(postgres)
    assert str(nats).endswith(", named by NATS_URL in the environment") and "@" not in str(nats)


def test_a_run_without_names_uses_embedded_services_and_says_where(tmp_path: Path) -> None:
    postgres, nats = services_of(a_run(tmp_path))
    assert str(postgres) == f"PostgreSQL: embedded, in {tmp_path}/.penstock/data/postgres"
    assert str(nats) == f"NATS: embedded, in {tmp_path}/.penstock/data/nats"


def test_services_named_in_the_configuration_file_are_reported_as_such(tmp_path: Path) -> None:
    home = a_run(tmp_path)
    home.file.write_text(
        home.file.read_text()
        + '[services]\ndatabase_url = "postgresql://u:secret@h1,h2:5433/d"\nnats_url = "nats://secret@n1,tls://u:secret@n2:1"\n'
    )
    postgres, nats = map(str, services_of(home))
    assert postgres == "PostgreSQL: h1:5432 or h2:5433/d, named by services.database_url"
    assert nats == "NATS: n1:4222 or n2:1, named by services.nats_url"
