"""A process of a user number without a name, as in containers that a platform starts under an arbitrary number."""

import os
import pwd
import socket
from pathlib import Path

import pytest

from orchestrator.deploy.embedded import doctor
from orchestrator.runtime.person import current_user
from sandboxes.base import SandboxError
from sandboxes.images import caged
from sandboxes.login import login_name

NUMBER = 1_000_680_000


@pytest.fixture(autouse=True)
def nameless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`tmp_path`: pytest itself looks its user up for that one."""

    def absent(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", absent)
    monkeypatch.setattr(os, "getuid", lambda: NUMBER)
    monkeypatch.setattr(os, "geteuid", lambda: NUMBER)


def test_a_user_without_a_name_is_called_by_its_number() -> None:
    assert login_name() == str(NUMBER)
    assert current_user() == f"{NUMBER}@{socket.gethostname()}"


def test_doctor_checks_open_files_of_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_NEEDED_FILES", 1 << 62)
    assert doctor._files().ok or f'write "{NUMBER} hard nofile' in doctor._files().fix


def test_builds_of_a_user_without_a_name_need_a_line_with_its_number(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    subids = tmp_path / "subuid"
    monkeypatch.setattr(caged, "_SUBIDS", subids)
    line = f"{NUMBER}:100000:65536"
    with pytest.raises(SandboxError, match=f"as root, add the line {line} to /etc/subuid and /etc/subgid$"):
        caged.subordinate()
    subids.write_text(f"{line}\n")
    assert caged.subordinate()[0] == 100_000
