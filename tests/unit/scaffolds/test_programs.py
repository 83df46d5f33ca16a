"""Programs of scaffolds: installed from locks, isolated, once, and never without consent."""

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from scaffolds import programs
from scaffolds.base import AgentLimits, Endpoint, Program, TaskView
from scaffolds.find import find

from tests.package_index import serving, write_wheel
from tests.waiting import eventually_blocking

pytestmark = pytest.mark.tier("tasks")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """A Python program of one module, from a wheel of its own."""
    monkeypatch.setenv("PENSTOCK_PROGRAMS", str(tmp_path / "programs"))
    monkeypatch.setattr(programs, "_neutral_root", lambda: tmp_path / "neutral")
    return wheel(tmp_path, "1.0")


def wheel(place: Path, version: str) -> Program:
    """Write the wheel and its lock."""
    path = write_wheel(place, "walker", version, {"walker.py": f"VERSION = {version!r}\n"})
    (place / "requirements.lock").write_text(f"{path}\n")
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


def test_a_lock_with_hashes_installs_nothing_else(program: Program) -> None:
    path = program.lock.read_text().strip()
    right = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    program.lock.write_text(f"{path} --hash=sha256:{'0' * 64}\n")
    with pytest.raises(
        ValueError, match=r"walker could not be installed from .*requirements.lock.*sha256:0{64}.*"
    ):
        programs.install(program)
    program.lock.write_text(f"{path} --hash=sha256:{right}\n")
    assert programs.install(program)


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


def test_a_registry_that_is_away_at_first_does_not_end_an_installation(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.lock.write_text("walker==1.0\n")
    monkeypatch.setenv("PENSTOCK_TRY_WAITS", "0 0")
    shown: list[str] = []
    with serving(tmp_path) as index:
        for name, value in index.environment.items():
            monkeypatch.setenv(name, value)
        index.away = 2
        assert programs.install(program, say=shown.append)
        assert index.away == 0
        assert shown == [f"try {n} of 3 of uv failed, the next one follows in 0 s" for n in (1, 2)]
        (outside,) = programs.binds_of(program)
        assert (outside / "walker.py").is_file()

        shown.clear()
        index.away = 99
        program.lock.write_text("walker==1.0 # a change\n")
        with pytest.raises(
            ValueError, match=r"walker could not be installed from .*\(503 .*; check the network"
        ):
            programs.install(program, say=shown.append)
    assert [text.partition(":")[0] for text in shown[-3:]] == [f"output of try {n} of 3" for n in (1, 2, 3)]
    assert all("503" in text for text in shown[-3:]) and index.away == 96
    assert programs.state_of(program) == "outdated" and not list(tmp_path.rglob("*.new.*"))


def test_npm_is_tried_again(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, script in {
        "node": "echo v22.0.0",
        "npm": f'echo x >> "{tmp_path}/calls"; echo EAI_AGAIN >&2; [ "$(wc -l < "{tmp_path}/calls")" -ge 3 ] && touch made',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PENSTOCK_TRY_WAITS", "0 0")
    npm = replace(program, kind="npm", lock=tmp_path / "package-lock.json")
    for name in ("package.json", "package-lock.json"):
        (tmp_path / name).write_text("{}")
    shown: list[str] = []
    assert programs.install(npm, say=shown.append)
    assert len(shown) == 2 and all("of npm failed" in text for text in shown)
    (outside,) = programs.binds_of(npm)
    assert (outside / "made").exists()


def test_an_installation_that_is_ended_leaves_nothing(program: Program, tmp_path: Path) -> None:
    (tmp_path / "npm").write_text(
        f'#!/bin/sh\npwd > "{tmp_path}/new"; mv "{tmp_path}/new" "{tmp_path}/reached"; exec sleep 3600\n'
    )
    (tmp_path / "node").write_text("#!/bin/sh\necho v22.0.0\n")
    for name in ("npm", "node"):
        (tmp_path / name).chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-m", "scaffolds.install_programs", "opencode"],
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        stderr=subprocess.PIPE,
    )
    eventually_blocking((tmp_path / "reached").exists)
    process.terminate()
    _, printed = process.communicate(timeout=60)
    assert (process.returncode, printed) == (143, b"")
    place = Path((tmp_path / "reached").read_text().strip())
    assert ".new." in place.name and not place.exists()


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
    bound = {
        name
        for name in ("opencode", "codex", "qwen-code", "aider", "mini-swe-agent", "claude-code")
        if (found := find(name).manifest.program) and found.licence
    }
    assert bound == {"claude-code"}


def test_the_sub_agents_of_claude_code_use_no_model_whose_calls_are_auxiliary() -> None:
    found = find("claude-code")
    limits = AgentLimits(turns=4, context=2048, tool_timeout_s=10.0, timeout_s=30.0)
    task = TaskView(name="t", domain="general", instruction="work")
    env = found.black().launch(task, Endpoint("http://gateway/s/x/v1", "x", "/none"), limits).env
    model = env["CLAUDE_CODE_SUBAGENT_MODEL"]
    assert model and not any(fnmatchcase(model, rule) for rule in found.manifest.auxiliary)
