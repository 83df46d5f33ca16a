"""Every lock has the hashes of what it pins, names no registry, and agrees with what names its packages elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.package_index import NO_SETTINGS, serving, write_wheel

REPOSITORY = Path(__file__).resolve().parents[3]
PYTHON_LOCKS = [
    *sorted(REPOSITORY.glob("ops/*.lock")),
    *sorted(REPOSITORY.glob("ops/sglang_cpu/*.lock")),
    *sorted(REPOSITORY.glob("agents/scaffolds/*/requirements.lock")),
]
NPM_LOCKS = [
    REPOSITORY / "ops/web/package-lock.json",
    *sorted(REPOSITORY.glob("agents/scaffolds/*/package-lock.json")),
]


def entries(lock: Path) -> dict[str, str]:
    """{name==version: the lines below it}"""
    found = re.findall(r"^([\w.-]+==[^\s\\]+)((?:.*\\\n)*.*)$", lock.read_text(), re.M)
    return dict(found)


@pytest.mark.parametrize("lock", PYTHON_LOCKS, ids=lambda lock: str(lock.relative_to(REPOSITORY)))
def test_every_package_of_a_python_lock_has_a_hash(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    unhashed = [
        name for name, below in entries(lock).items() if not re.search(r"--hash=sha256:[0-9a-f]{64}", below)
    ]
    assert entries(lock) and unhashed == []
    assert len(entries(lock)) == len(re.findall(r"^[^#\s]", text, re.M)), "a line that pins no version"


@pytest.mark.parametrize("lock", NPM_LOCKS, ids=lambda lock: str(lock.relative_to(REPOSITORY)))
def test_every_package_of_an_npm_lock_has_a_hash(lock: Path) -> None:
    text = lock.read_text()
    assert text.count('"integrity": "sha512-') >= text.count('"node_modules/') > 0


def test_the_locks_of_the_set_up_have_the_versions_that_it_names() -> None:
    for script, lock in (("setup", "setup_uv"), ("setup", "setup_nats"), ("setup_harbor", "setup_harbor")):
        named = set(re.findall(r'"([a-z-]+==[^"]+)"', (REPOSITORY / "ops" / script).read_text()))
        assert named & entries(REPOSITORY / f"ops/{lock}.lock").keys(), lock


def test_no_script_installs_from_a_registry_without_hashes() -> None:
    scripts = [
        path
        for path in (*REPOSITORY.glob("ops/*"), REPOSITORY / "ops/sglang_cpu/setup", REPOSITORY / ".ci/run")
        if path.is_file() and path.read_bytes().startswith(b"#!")
    ]
    calls = [
        line
        for path in scripts
        for line in path.read_text().splitlines()
        if re.search(r"pip install -q+ .*\S", line)
    ]
    calls = [line for line in calls if not line.lstrip().startswith("#") and "uv_install=(" not in line]
    assert calls and [line for line in calls if "--require-hashes" not in line and "-e ." not in line] == []


def test_a_package_of_another_content_is_refused(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    write_wheel(tmp_path / "files", "walker", "1", {"walker.py": "print('ours')\n"})
    uv = Path(sys.prefix) / "bin/uv"
    environment = {**NO_SETTINGS, "PATH": "/usr/bin:/bin"}
    with serving(tmp_path / "files") as index:
        environment |= index.environment

        def run(*argv: str) -> "subprocess.CompletedProcess[str]":
            return subprocess.run(
                [uv, "pip", *argv], env=environment, capture_output=True, text=True, timeout=120
            )

        (tmp_path / "in").write_text("walker==1\n")
        quiet = ("--no-header", "--no-emit-index-url")
        compiled = run(
            "compile", "--generate-hashes", *quiet, "-o", str(tmp_path / "lock"), str(tmp_path / "in")
        )
        assert compiled.returncode == 0, compiled.stderr
        options = (
            "install",
            "--no-deps",
            "--require-hashes",
            "--target",
            str(tmp_path / "out"),
            "--python",
            sys.executable,
        )
        assert run(*options, "-r", str(tmp_path / "lock")).returncode == 0
        write_wheel(tmp_path / "files", "walker", "1", {"walker.py": "print('theirs')\n"})
        refused = run(*options, "--reinstall", "-r", str(tmp_path / "lock"))
        assert refused.returncode != 0 and "Hash mismatch" in refused.stderr
        assert (tmp_path / "out/walker.py").read_text() == "print('ours')\n"
        unhashed = run(*options, "--reinstall", "-r", str(tmp_path / "in"))
        assert unhashed.returncode != 0 and "hash" in unhashed.stderr.lower()
