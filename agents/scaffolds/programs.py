"""Programs that scaffolds run: installed on the host, each in its own directory, pinned by a lock file, mounted read-only in sandboxes.

    <place>/<name>/                          <place>: $PENSTOCK_PROGRAMS, else <this Python's environment>/programs
        node_modules/…                       of `package-lock.json`, by npm; install scripts of packages are not run
        <packages>/…                         of `requirements.lock`, by uv, by its hashes, for the sandbox's own /usr/bin/python3, byte-compiled
        .penstock-stamp                      the lock it was installed from; a different one means that the lock has changed

Programs are installed only on request: `penstock scaffold install NAME`, or without an installed Penstock
`PYTHONPATH=.:agents python3 -m scaffolds.install_programs MODULE:ATTRIBUTE`, which ops/setup runs. This module uses only the standard library.
"""

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

from sandboxes.tools import on_path, version_of
from scaffolds import tries
from scaffolds.base import Program

PYTHON: Final = "/usr/bin/python3"
"""The only Python inside a sandbox."""
STAMP: Final = ".penstock-stamp"


class InstallState(StrEnum):
    """Whether a pinned program is on this machine. OUTDATED: in another version than its lock file has."""

    INSTALLED = "installed"
    OUTDATED = "outdated"
    ABSENT = "absent"


# Not `npm ci`: it requires packages of other platforms in the lock, too. Versions and hashes are those of the lock in both cases.
OLDEST_NODE = 20
_NPM = (
    "npm",
    "install",
    "--ignore-scripts",
    "--omit=dev",
    "--omit=optional",
    "--no-audit",
    "--no-fund",
    "--loglevel=error",
)
_SHOWN_LINES = 6


def place_of(program: Program) -> Path:
    """The path at which the program is, or would be, installed on this machine."""
    root = os.environ.get("PENSTOCK_PROGRAMS") or Path(sys.prefix) / "programs"
    if _bundled(program):
        return Path(root) / program.name
    # Names may repeat: each location of a lock is a separate program.
    return (
        Path(root)
        / f"{program.name}-{hashlib.sha256(str(program.lock.parent.resolve()).encode()).hexdigest()[:8]}"
    )


def _bundled(program: Program) -> bool:
    return program.lock.resolve().is_relative_to(Path(__file__).resolve().parent)


def state_of(program: Program) -> InstallState:
    """Whether it is installed, from the current lock."""
    try:
        found = (place_of(program) / STAMP).read_text()
    except OSError:
        return InstallState.ABSENT
    return InstallState.INSTALLED if found == _stamp(program) else InstallState.OUTDATED


def binds_of(program: Program) -> Mapping[Path, str]:
    """For `BlackBox.binds`. ValueError, with the command that fixes it, if the program is not installed."""
    if state_of(program) == InstallState.ABSENT:
        known = program.name if _bundled(program) else program.lock.parent
        raise ValueError(
            f"{program.name} is not installed on this machine: run `penstock scaffold install {known}`"
        )
    return {place_of(program).resolve(): program.inside}


def install(program: Program, *, accept_licence: bool = False, say: tries.Say = lambda text: None) -> bool:
    """Install it; False if it was installed already. ValueError, one sentence, states the missing tool or the failure.

    Registries may be away for a minute. `say` takes what a person should see of further tries.
    """
    if state_of(program) == InstallState.INSTALLED:
        return False
    if program.licence and not accept_licence:
        raise ValueError(
            f"{program.name} comes under terms that only you can accept ({program.licence}): read them, then add --accept-licence"
        )
    location = place_of(program)
    target = location
    if os.geteuid() == 0 and not _passable(location):
        target = _neutral_root() / f"{program.name}-{_stamp(program)[:16]}"
    new = target.with_name(f"{target.name}.new.{os.getpid()}")
    try:
        new.mkdir(parents=True)
        if program.kind == "npm":
            _install_npm(program, new, say)
        else:
            _install_python(program, new, say)
        _readable(new)
        (new / STAMP).write_text(_stamp(program))
        (new / STAMP).chmod(0o644)
        _replace(new, target)
        if target != location:
            location.parent.mkdir(parents=True, exist_ok=True)
            location.unlink(missing_ok=True)
            location.symlink_to(target)
    except OSError as error:
        raise ValueError(f"{program.name} cannot be installed in {target}: {error}") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return True


def _install_npm(program: Program, new: Path, say: tries.Say) -> None:
    npm_directory = _npm(program)
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(program.lock.with_name(name), new / name)
    _run(
        program,
        (str(npm_directory / _NPM[0]), *_NPM[1:]),
        new,
        say,
        PATH=f"{npm_directory}{os.pathsep}{os.environ.get('PATH', '')}",
    )


def _install_python(program: Program, new: Path, say: tries.Say) -> None:
    version = "import sys; sys.exit(sys.version_info < (3, 11))"
    if not Path(PYTHON).exists() or subprocess.run([PYTHON, "-c", version]).returncode:
        raise ValueError(
            f"sandboxes need {PYTHON} of version 3.11 or newer: install it with: apt-get install python3"
        )
    neighbor = Path(sys.prefix) / "bin" / "uv"
    uv = str(neighbor) if neighbor.exists() else shutil.which("uv")
    if uv is None:
        raise ValueError(f"uv is missing, which installs {program.name}: run ops/setup, or pip install uv")
    # A lock of a user may have no hashes; one hash, and every package needs its own.
    hashed = ("--require-hashes",) if _bundled(program) or "--hash=" in program.lock.read_text() else ()
    options = ("-q", "--no-deps", *hashed, "--target", str(new), "--python", PYTHON, "-r", str(program.lock))
    _run(program, (uv, "pip", "install", *options), new, say)
    # Some files are templates and not Python: files that do not compile are skipped.
    subprocess.run([PYTHON, "-m", "compileall", "-q", "-j", "0", str(new)], capture_output=True, check=False)


def _npm(program: Program) -> Path:
    """The first directory on PATH with npm and a new enough node. ValueError names the older ones."""
    outdated = []
    for npm in on_path("npm"):
        node = next(
            iter(on_path("node", os.pathsep.join((str(npm.parent), os.environ.get("PATH", ""))))), None
        )
        version = version_of(node) if node is not None else ()
        if version >= (OLDEST_NODE,):
            return npm.parent
        outdated.append(f"{node or npm} is {'.'.join(map(str, version)) or 'not usable'}")
    found = f" ({', '.join(outdated)})" if outdated else ""
    raise ValueError(
        f"npm is missing, which installs {program.name}: install Node.js {OLDEST_NODE} or newer with npm (apt-get install npm){found}, then try again"
    )


def _run(program: Program, argv: tuple[str, ...], place: Path, say: tries.Say, **more: str) -> None:
    env = {**os.environ, "UV_LINK_MODE": "copy", "UV_HTTP_TIMEOUT": "180", **more}
    status, output = tries.run(argv, place, env, say)
    if status:
        complaint = " ".join(output.strip().splitlines()[-_SHOWN_LINES:])
        raise ValueError(
            f"{program.name} could not be installed from {program.lock} ({argv[0]} ended with {status}: {complaint});"
            " check the network and the disk space, then try again"
        )


def _stamp(program: Program) -> str:
    digest = hashlib.sha256(program.lock.read_bytes())
    if program.kind == "python":
        digest.update(os.path.realpath(PYTHON).encode())
    return digest.hexdigest()


def _passable(path: Path) -> bool:
    """Whether other users can traverse the path: root's sandboxes run as their own users, who cannot traverse a private directory."""
    existing = next(parent for parent in path.absolute().parents if parent.exists()).resolve()
    return all(p.stat().st_mode & stat.S_IXOTH for p in (existing, *existing.parents))


def _neutral_root() -> Path:
    for root in (Path("/var/lib/penstock"), Path(tempfile.gettempdir()) / "penstock-root"):
        try:
            root.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError:
            continue
        found = root.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise ValueError(
                f"{root} belongs to another user or is writable by others: remove it, then try again"
            )
        return root
    raise ValueError(
        "no directory for programs is accessible to a sandbox's user: set PENSTOCK_PROGRAMS to one that is"
    )


def _readable(directory: Path) -> None:
    """Make it readable for every user, and writable for none."""
    for at, _, files in os.walk(directory):
        os.chmod(at, os.stat(at).st_mode & ~0o022 | 0o755)
        for name in files:
            path = os.path.join(at, name)
            if not os.path.islink(path):
                mode = os.stat(path).st_mode
                os.chmod(path, mode & ~0o022 | 0o444 | (0o111 if mode & 0o100 else 0))


def _replace(new: Path, target: Path) -> None:
    """Move `new` to `target`. A running sandbox keeps the old files: its mount outlives their names."""
    if target.is_symlink():
        target.unlink()
    elif target.exists():
        replaced = target.with_name(f"{target.name}.old.{os.getpid()}")
        target.rename(replaced)
        new.rename(target)
        shutil.rmtree(replaced, ignore_errors=True)
        return
    new.rename(target)
