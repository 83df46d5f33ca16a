"""Programs of scaffolds: installed from locks, isolated, once, and never without consent."""

import json
import shutil
import stat
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from scaffolds import programs
from scaffolds.base import Program
from scaffolds.find import find


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """A Python program of one module, from a wheel of its own."""
    monkeypatch.setenv("PENSTOCK_PROGRAMS", str(tmp_path / "programs"))
    monkeypatch.setattr(programs, "_neutral_root", lambda: tmp_path / "neutral")
    return wheel(tmp_path, "1.0")


def wheel(place: Path, version: str) -> Program:
    """Write the wheel and its lock."""
    name = f"walker-{version}-py3-none-any.whl"
    info = f"walker-{version}.dist-info"
    with zipfile.ZipFile(place / name, "w") as archive:
        archive.writestr("walker.py", f"VERSION = {version!r}\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: walker\nVersion: {version}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    (place / "requirements.lock").write_text(f"{place / name}\n")
    return Program(name="walker", kind="python", lock=place / "requirements.lock", inside="/opt/walker")


def test_a_program_is_installed_once_readable_by_all_and_writable_by_its_owner_alone(
    program: Program,
) -> None:
    assert programs.state_of(program) == "absent"
    with pytest.raises(
        ValueError, match=r"walker is not installed on this machine: run `penstock scaffold install /.*`"
    ):
        programs.binds_of(program)
    assert programs.install(program) and not programs.install(program)
    ((outside, inside),) = programs.binds_of(program).items()
    assert inside == "/opt/walker" and (outside / "walker.py").is_file()
    assert list((outside / "__pycache__").glob("walker.*.pyc")), "it is compiled once, not in every sandbox"
    for path in outside.rglob("*"):
        mode = path.stat().st_mode
        assert mode & stat.S_IROTH and not mode & stat.S_IWOTH, path


def test_another_lock_makes_it_outdated_and_installing_replaces_it(program: Program, tmp_path: Path) -> None:
    programs.install(program)
    newer = wheel(tmp_path, "2.0")
    assert programs.state_of(newer) == "outdated"
    assert programs.install(newer)
    (outside,) = programs.binds_of(newer)
    assert "2.0" in (outside / "walker.py").read_text() and programs.state_of(newer) == "installed"
    assert not list(outside.parent.glob("*.new.*")) and not list(outside.parent.glob("*.old.*"))


def test_what_cannot_be_installed_leaves_the_old_one_and_says_why(program: Program, tmp_path: Path) -> None:
    programs.install(program)
    program.lock.write_text(f"{tmp_path / 'absent-1.0-py3-none-any.whl'}\n")
    with pytest.raises(ValueError, match=r"walker could not be installed from .*requirements.lock"):
        programs.install(program)
    assert programs.state_of(program) == "outdated"
    assert not list(tmp_path.rglob("*.new.*"))


def test_terms_that_only_a_person_can_accept_are_requested(program: Program) -> None:
    bound = replace(program, licence="its terms")
    with pytest.raises(
        ValueError, match=r"only you can accept \(its terms\): read them, then add --accept-licence"
    ):
        programs.install(bound)
    assert programs.install(bound, accept_licence=True)


def test_without_npm_one_sentence_says_what_to_install(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("npm") is None
    with pytest.raises(
        ValueError, match=r"npm is missing, which installs walker: install Node.js 20 or newer with npm"
    ):
        programs.install(replace(program, kind="npm"))


@pytest.mark.parametrize("name", ["opencode", "codex", "qwen-code", "claude-code"])
def test_every_npm_preset_is_pinned_by_exact_versions_and_hashes(name: str) -> None:
    manifest = find(name).manifest
    assert manifest.program is not None
    wanted = json.loads(manifest.program.lock.with_name("package.json").read_text())["dependencies"]
    packages = json.loads(manifest.program.lock.read_text())["packages"]
    assert all(
        "integrity" in package and "resolved" not in package for path, package in packages.items() if path
    )
    assert packages[""]["dependencies"] == wanted
    assert any(
        version.startswith(manifest.version) or f"@{manifest.version}" in version
        for version in wanted.values()
    )


def test_only_claude_code_has_terms_to_accept() -> None:
    bound = {name for name in ("opencode", "codex", "qwen-code", "aider", "mini-swe-agent", "claude-code")
             if (found := find(name).manifest.program) and found.licence}  # fmt: skip
    assert bound == {"claude-code"}
