"""The checks of `penstock doctor`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import app
from orchestrator.embedded.doctor import Check, checks


def found(name: str) -> Check:
    return next(check for check in checks(Path("/")) if check.name == name)


def test_every_check_says_what_it_found_and_a_failed_one_says_what_to_do() -> None:
    for check in checks():
        assert check.detail
        assert check.ok == (check.fix == "")


def test_a_machine_that_was_set_up_has_both_services(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("NATS_URL", raising=False)
    assert found("PostgreSQL").ok and found("NATS").ok


def test_a_configured_service_is_not_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("NATS_URL", "nats://example.invalid:4222")
    assert found("NATS") == Check("NATS", True, "NATS_URL names a server; none is started here")


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


def test_an_old_nats_server_is_reported_with_its_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = tmp_path / "nats-server"
    old.write_text("#!/bin/sh\necho nats-server: v2.9.10\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("NATS_URL", raising=False)
    check = found("NATS")
    assert not check.ok and "2.9.10" in check.detail and check.fix.startswith("upgrade it")


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


@pytest.mark.filterwarnings("ignore::sandboxes.local.NoIsolationWarning")
def test_what_isolates_less_is_a_concern_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert shown.exit_code == 1 and "CONCERN: no filter of system calls is in force" in shown.output
