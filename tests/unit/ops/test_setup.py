"""`ops/setup` reports at once why it cannot set up: the Python that was named, a home directory that cannot be written."""

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]


def refused(tmp_path: Path, **environment: str) -> str:
    """The last sentence of its output."""
    [sentence] = [line for line in output(tmp_path, **environment) if line.startswith("penstock set-up: ")]
    return sentence


def output(tmp_path: Path, **environment: str) -> list[str]:
    """The lines of a set-up that is refused."""
    done = subprocess.run(
        [REPOSITORY / "ops/setup"],
        env={**os.environ, "PENSTOCK_VENV": str(tmp_path / "venv"), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and not (tmp_path / "venv").exists(), done.stderr
    return done.stderr.splitlines()


def a_python(directory: Path, version: str) -> Path:
    """A program that answers ops/setup as a Python of that version does."""
    program = directory / f"python{version}"
    program.write_text(f'#!/bin/sh\ncase "$2" in *exit*) exit 1 ;; *print*) echo {version} ;; esac\n')
    program.chmod(0o755)
    return program


def test_a_python_that_does_not_start_is_named(tmp_path: Path) -> None:
    assert "PYTHON=/nowhere/python3.13 does not start" in refused(tmp_path, PYTHON="/nowhere/python3.13")


def test_a_python_that_is_too_old_or_too_new_is_named_with_its_version(tmp_path: Path) -> None:
    for version in ("3.9", "3.14"):
        sentence = refused(tmp_path, PYTHON=str(a_python(tmp_path, version)))
        assert f"is Python {version}; 3.11, 3.12 or 3.13 " in sentence


def test_a_python_without_a_build_of_torch_in_the_only_source_is_named(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "torch-2.13.0+cpu-cp38-cp38-manylinux_2_28_x86_64.whl").touch()
    wrong = f"{wheels} has no CPU build of torch for Python {sys.version_info[0]}.{sys.version_info[1]}"
    assert wrong in refused(tmp_path, PYTHON=sys.executable, PIP_FIND_LINKS=str(wheels))


def test_a_python_of_path_that_does_not_suit_is_named_when_another_one_is_taken(tmp_path: Path) -> None:
    a_python(tmp_path, "3.9").rename(tmp_path / "python3")
    broken = tmp_path / "python3.11"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    suiting = tmp_path / "python3.12"
    suiting.write_text('#!/bin/sh\ncase "$2" in *print*) echo 3.12 ;; esac\n')
    suiting.chmod(0o755)
    nowhere = {"HOME": "/proc/nowhere", "XDG_CACHE_HOME": "", "UV_CACHE_DIR": "", "PYTHON": ""}
    lines = output(tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}", **nowhere)
    [used] = [line for line in lines if "is used; passed over: " in line]
    assert f"passed over: {tmp_path}/python3 is Python 3.9" in used
    if f"Python: {suiting} is used" in used:  # /usr/bin/python3 does not suit on this machine
        assert f"{broken} does not start" in used


def test_a_home_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    sentence = refused(
        tmp_path, PYTHON=sys.executable, HOME="/proc/nowhere", XDG_CACHE_HOME="", UV_CACHE_DIR=""
    )
    assert (
        "the home directory /proc/nowhere is read-only" in sentence
        and "set HOME, or XDG_CACHE_HOME" in sentence
    )


def other(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The answer of `ops/other_python` if only the system's programs are on PATH."""
    away = {"HOME": str(tmp_path), "PYENV_ROOT": "", "UV_PYTHON_INSTALL_DIR": "", "XDG_DATA_HOME": ""}
    return subprocess.run(
        [REPOSITORY / "ops/other_python"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", **away, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def a_python_of_pyenv(home: Path, version: str) -> Path:
    directory = home / f".pyenv/versions/{version}/bin"
    directory.mkdir(parents=True)
    return a_python(directory, version.rpartition(".")[0]).rename(directory / "python")


def test_one_more_python_is_the_newest_of_pyenv_where_the_shim_on_path_does_not_start(tmp_path: Path) -> None:
    a_python_of_pyenv(tmp_path, "3.12.1")
    newest = a_python_of_pyenv(tmp_path, "3.13.0")
    shim = tmp_path / "python3.13"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    assert other(tmp_path).stdout.strip() == str(newest)


def test_one_more_python_that_is_missing_or_not_another_one_is_a_sentence(tmp_path: Path) -> None:
    missing = other(tmp_path, PATH=f"{tmp_path}:{tools(tmp_path)}")
    assert missing.returncode == 1 and "install one with 'uv python install 3.13'" in missing.stderr
    wrong = other(tmp_path, OTHER_PYTHON=str(a_python(tmp_path, "3.9")))
    assert wrong.returncode == 1 and "is not a Python 3.12 or 3.13 that starts" in wrong.stderr


def tools(tmp_path: Path) -> Path:
    """A directory with the programs that a script needs and no Python."""
    directory = tmp_path / "tools"
    directory.mkdir()
    for name in ("bash", "env"):
        (directory / name).symlink_to(f"/usr/bin/{name}")
    return directory
