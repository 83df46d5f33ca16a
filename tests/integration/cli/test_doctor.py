"""The checks of `penstock doctor`."""

import json
import os
import resource
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import app
from orchestrator.deploy.embedded.doctor import DoctorCheck, checks
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.deploy.home import write_template
from orchestrator.settings.timeouts import Timeouts, use
from sandboxes.images import caged
from sandboxes.images.mounted import Layering

pytestmark = pytest.mark.tier("look")


def found(name: str) -> DoctorCheck:
    return next(check for check in checks(Path("/")) if check.name == name)


def test_every_check_says_what_it_found_and_a_failed_one_says_what_to_do() -> None:
    for check in checks():
        assert check.detail
        assert check.ok == (check.fix == "")


def test_a_machine_that_was_set_up_has_both_services(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("NATS_URL", raising=False)
    assert found("PostgreSQL").ok and found("NATS").ok


def test_services_that_the_environment_names_are_checked(
    monkeypatch: pytest.MonkeyPatch, database_url: str, nats_server: EmbeddedNats
) -> None:
    monkeypatch.setenv("DATABASE_URL", f"{database_url}&application_name=mine&connect_timeout=5")
    monkeypatch.setenv("NATS_URL", nats_server.url)
    assert found("PostgreSQL").ok and "takes every role (the environment)" in found("PostgreSQL").detail
    assert found("NATS").ok and "with JetStream" in found("NATS").detail


@pytest.mark.parametrize(
    ("variable", "name", "url", "detail"),
    [
        ("DATABASE_URL", "PostgreSQL", "postgresql://u:secret@127.0.0.1:1/d", "127.0.0.1:1/d cannot be used"),
        ("DATABASE_URL", "PostgreSQL", "postgresql://u:secret@h/d?foo=1", "option foo"),
        ("NATS_URL", "NATS", "nats://secret@127.0.0.1:1", "does not answer at 127.0.0.1:1"),
        ("NATS_URL", "NATS", "http://secret@127.0.0.1:1", "is not a URL of NATS"),
        ("NATS_URL", "NATS", "nats://u:sec/ret@127.0.0.1:1", "is not a URL of NATS"),
    ],
)
def test_a_named_service_that_cannot_be_used_is_one_sentence(
    variable: str, name: str, url: str, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, url)
    with use(Timeouts(bus_redial_s=0.1)):
        check = found(name)
    assert not check.ok and detail in check.detail and "secret" not in check.detail and variable in check.fix


def test_the_services_of_a_run_are_checked(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("NATS_URL", raising=False)
    file = write_template(tmp_path, "test", "")
    file.write_text(file.read_text() + f'[services]\ndatabase_url = "{database_url}"\n')
    shown = CliRunner().invoke(app, ["doctor", "-c", str(tmp_path), "--json"])
    [postgres] = [check for check in json.loads(shown.output) if check["name"] == "PostgreSQL"]
    assert postgres["ok"] and postgres["detail"].endswith("takes every role (the configuration)")
    file.write_text(file.read_text().replace(database_url, "postgresql://u:p@127.0.0.1:1/d"))
    shown = CliRunner().invoke(app, ["doctor", "-c", str(tmp_path), "--json"])
    [postgres] = [check for check in json.loads(shown.output) if check["name"] == "PostgreSQL"]
    assert shown.exit_code == 1 and not postgres["ok"] and "127.0.0.1:1/d" in postgres["detail"]


def test_limits_that_only_root_raises_are_reported_with_what_root_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    files = found("open files")
    assert (
        (files.ok, files.detail) == (False, "1024")
        and "as root" in files.fix
        and "ulimit -n" not in files.fix
    )
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=1 << 20, free=1 << 40))
    shared = found("/dev/shm")
    assert not shared.ok and "as root" in shared.fix and "--shm-size" in shared.fix


def test_missing_bubblewrap_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    check = found("bubblewrap")
    assert not check.ok and check.fix.startswith("apt-get install bubblewrap")


def test_bubblewrap_that_may_not_make_namespaces_is_reported_with_its_own_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    check = found("bubblewrap")
    assert not check.ok and "No permissions to create new namespace" in check.detail
    assert "user namespaces" in check.fix


def a_program(directory: Path, name: str, says: str) -> None:
    """A program that answers its version."""
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(f"#!/bin/sh\necho '{says}'\n")
    (directory / name).chmod(0o755)


def test_an_old_nats_server_on_the_path_is_named_and_the_pinned_one_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    a_program(tmp_path, "nats-server", "nats-server: v2.9.10")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("NATS_URL", raising=False)
    check = found("NATS")
    assert check.ok and f"passed over: {tmp_path}/nats-server is 2.9.10" in check.detail


def test_an_old_bubblewrap_first_on_the_path_is_passed_over_and_alone_it_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    a_program(tmp_path, "bwrap", "bubblewrap 0.4.1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    first = found("bubblewrap")
    assert first.ok and not first.detail.startswith(str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    check = found("bubblewrap")
    assert not check.ok and f"{tmp_path}/bwrap is 0.4.1, and 0.8 or newer is needed" in check.detail


def test_an_old_postgresql_first_on_the_path_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    before = found("PostgreSQL")
    for name in ("postgres", "initdb"):
        a_program(tmp_path, name, f"{name} (PostgreSQL) 9.6.24")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    after = found("PostgreSQL")
    assert before.ok and after.detail == f"{before.detail}; passed over: {tmp_path}/postgres is 9.6.24"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("orchestrator.deploy.embedded.postgres_binaries.DEBIAN", tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path))
    check = found("PostgreSQL")
    assert not check.ok and f"{tmp_path} is 9.6" in check.detail


def test_the_isolation_that_is_in_force_is_read_from_inside_a_sandbox(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "sesame")
    shown = CliRunner().invoke(app, ["doctor", "--sandbox", "--json"])
    assert shown.exit_code == 0 and "sesame" not in shown.output, shown.output
    found = {
        title: dict(rows)
        for title, rows in json.loads(shown.output).items()
        if title not in ("provider", "concerns")
    }
    for name in ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts"):
        assert found["namespaces"][name].startswith("its own, "), name
    assert found["privileges"]["no_new_privs"] == "on" and found["privileges"]["seccomp"].startswith("filter")
    assert int(found["privileges"]["CapBnd"], 16) == 0 and found["network"]["interfaces"] == "lo"
    assert found["mounts"]["/"].split(", ")[1].startswith("ro,") and "rw" in found["mounts"]["/app"]
    assert (
        found["environment"]["HOME"] == "/home/agent" and found["limits"]["rlimit Max open files"] == "4096"
    )
    text = CliRunner().invoke(app, ["doctor", "--sandbox"]).output
    assert "nothing of the above isolates less than it should" in text


def of_images(*words: str) -> dict[str, str]:
    """The section about images, as `penstock doctor --sandbox --json` prints it."""
    shown = CliRunner().invoke(app, ["doctor", "--sandbox", "--json", *words])
    assert shown.exit_code == 0, shown.output
    return dict(json.loads(shown.stdout)["images"])


def test_what_this_machine_can_do_with_images_is_found_by_trying(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert of_images() == {"images": "off: sandbox.images.directory is empty"}
    file = write_template(tmp_path / "home", "test", "")
    store = tmp_path / "store"
    file.write_text(file.read_text() + f'[sandbox.images]\ndirectory = "{store}"\n')
    monkeypatch.setattr(caged, "missing", lambda *programs: [f"{programs[0]} is not installed: install it."])
    found = of_images("-c", str(tmp_path / "home"))
    assert found["directory"].startswith(f"{store}, ") and found["directory"].endswith(" MB free")
    assert found["layer of a sandbox"].partition(" (")[0] in set(Layering)
    assert found["images build"] == "buildah is not installed: install it."
    assert found["images bootstrap"] == "debootstrap is not installed: install it."
    assert not list(tmp_path.glob("penstock-trial-*")), "the trial leaves nothing"
    monkeypatch.setattr(caged, "missing", lambda *_: [])
    found = of_images("-c", str(tmp_path / "home"))
    assert (found["images build"], found["images bootstrap"]) == ("possible", "possible")


@pytest.mark.filterwarnings("ignore::sandboxes.local.NoIsolationWarning")
def test_weaker_isolation_is_a_concern_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = CliRunner().invoke(app, ["doctor", "--sandbox", "--provider", "local"])
    assert shown.exit_code == 1
    for concern in (
        "the net namespace is the host's",
        "no filter of system calls is in force",
        "no_new_privs is off",
    ):
        assert (
            f"CONCERN: programs can gain privileges: {concern}" in shown.output
            or f"CONCERN: {concern}" in shown.output
        )
    monkeypatch.setattr("sandboxes.seccomp.program", lambda: None)
    shown = CliRunner().invoke(app, ["doctor", "--sandbox"])
    assert shown.exit_code == 1 and "system calls cannot be filtered on this architecture: run" in str(
        shown.exception
    )


def test_older_programs_on_the_path_are_named_as_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, says in (
        ("bwrap", "bubblewrap 0.4.0"),
        ("postgres", "postgres (PostgreSQL) 9.6"),
        ("node", "v12.1.0"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{says}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("DATABASE_URL", raising=False)
    found = {check.name: check for check in checks(tmp_path)}
    assert found["bubblewrap"].detail.endswith(f"; passed over: {tmp_path}/bwrap is 0.4.0")
    assert found["PostgreSQL"].detail.endswith(f"; passed over: {tmp_path}/postgres is 9.6")
    assert found["Node.js"].ok and f"{tmp_path}/node is 12.1.0" in found["Node.js"].detail
