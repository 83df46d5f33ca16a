"""Programs that scaffolds run: installed on the host, each in a place of its own, pinned by a lock file, mounted read-only in sandboxes.

    <place>/<name>/                          <place>: $PENSTOCK_PROGRAMS, else <this Python's environment>/programs
        node_modules/…                       of `package-lock.json`, by npm; install scripts of packages are not run
        <packages>/…                         of `requirements.lock`, by uv, for the sandbox's own /usr/bin/python3, byte-compiled
        .penstock-stamp                      what it was installed from; another one means that the lock has changed

Nothing is installed before it is asked for: `penstock scaffold install NAME`, or without an installed Penstock
`PYTHONPATH=.:agents python3 -m scaffolds.programs MODULE:ATTRIBUTE`, which is what ops/setup does. The standard library alone is used here.
"""

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from scaffolds.base import Program

PYTHON: Final = "/usr/bin/python3"
"""Inside a sandbox there is no other."""
STAMP: Final = ".penstock-stamp"
State = Literal["installed", "outdated", "absent"]

# Not `npm ci`: it wants packages of other platforms in the lock, too. Versions and hashes are those of the lock either way.
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
_TOLD_LINES = 6


def place_of(program: Program) -> Path:
    """Where the program is, or would be, on this machine."""
    root = os.environ.get("PENSTOCK_PROGRAMS") or Path(sys.prefix) / "programs"
    if _bundled(program):
        return Path(root) / program.name
    # Others may have the same name: each place of a lock is a program of its own.
    return (
        Path(root)
        / f"{program.name}-{hashlib.sha256(str(program.lock.parent.resolve()).encode()).hexdigest()[:8]}"
    )


def _bundled(program: Program) -> bool:
    return program.lock.resolve().is_relative_to(Path(__file__).resolve().parent)


def state_of(program: Program) -> State:
    """Whether it is there, from the lock of today."""
    try:
        found = (place_of(program) / STAMP).read_text()
    except OSError:
        return "absent"
    return "installed" if found == _stamp(program) else "outdated"


def binds_of(program: Program) -> Mapping[Path, str]:
    """For `BlackBox.binds`. ValueError, with the command that mends it, when the program is not installed."""
    if state_of(program) == "absent":
        known = program.name if _bundled(program) else program.lock.parent
        raise ValueError(
            f"{program.name} is not installed on this machine: run `penstock scaffold install {known}`"
        )
    return {place_of(program).resolve(): program.inside}


def install(program: Program, *, accept_licence: bool = False) -> bool:
    """Install it; False when it was there already. ValueError, one sentence, says what is missing or went wrong."""
    if state_of(program) == "installed":
        return False
    if program.licence and not accept_licence:
        raise ValueError(
            f"{program.name} comes under terms that only you can accept ({program.licence}): read them, then add --accept-licence"
        )
    place = place_of(program)
    target = place
    if os.geteuid() == 0 and not _passable(place):
        target = _neutral_root() / f"{program.name}-{_stamp(program)[:16]}"
    new = target.with_name(f"{target.name}.new.{os.getpid()}")
    try:
        new.mkdir(parents=True)
        if program.kind == "npm":
            _install_npm(program, new)
        else:
            _install_python(program, new)
        _readable(new)
        (new / STAMP).write_text(_stamp(program))
        (new / STAMP).chmod(0o644)
        _replace(new, target)
        if target != place:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.unlink(missing_ok=True)
            place.symlink_to(target)
    except OSError as error:
        raise ValueError(f"{program.name} cannot be installed in {target}: {error}") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return True


def _install_npm(program: Program, new: Path) -> None:
    if shutil.which("npm") is None:
        raise ValueError(
            f"npm is missing, which installs {program.name}: install Node.js 20 or newer with npm (apt-get install npm), then try again"
        )
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(program.lock.with_name(name), new / name)
    _run(program, _NPM, new)


def _install_python(program: Program, new: Path) -> None:
    version = "import sys; sys.exit(sys.version_info < (3, 11))"
    if not Path(PYTHON).exists() or subprocess.run([PYTHON, "-c", version]).returncode:
        raise ValueError(
            f"sandboxes need {PYTHON} of version 3.11 or newer: install it with: apt-get install python3"
        )
    beside = Path(sys.prefix) / "bin" / "uv"
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is None:
        raise ValueError(f"uv is missing, which installs {program.name}: run ops/setup, or pip install uv")
    options = ("-q", "--no-deps", "--target", str(new), "--python", PYTHON, "-r", str(program.lock))
    _run(program, (uv, "pip", "install", *options), new)
    # Some files are templates and not Python: what does not compile is left.
    subprocess.run([PYTHON, "-m", "compileall", "-q", "-j", "0", str(new)], capture_output=True, check=False)


def _run(program: Program, argv: tuple[str, ...], place: Path) -> None:
    env = {**os.environ, "UV_LINK_MODE": "copy", "UV_HTTP_TIMEOUT": "180"}
    ended = subprocess.run(argv, cwd=place, env=env, capture_output=True, text=True, check=False)
    if ended.returncode:
        told = " ".join(ended.stderr.strip().splitlines()[-_TOLD_LINES:])
        raise ValueError(
            f"{program.name} could not be installed from {program.lock} ({argv[0]} ended with {ended.returncode}: {told});"
            " check the network, then try again"
        )


def _stamp(program: Program) -> str:
    digest = hashlib.sha256(program.lock.read_bytes())
    if program.kind == "python":
        digest.update(os.path.realpath(PYTHON).encode())
    return digest.hexdigest()


def _passable(path: Path) -> bool:
    """Root's sandboxes run as users of their own, who cannot pass through a private directory."""
    existing = next(parent for parent in path.absolute().parents if parent.exists()).resolve()
    return all(p.stat().st_mode & stat.S_IXOTH for p in (existing, *existing.parents))


def _neutral_root() -> Path:
    for root in (Path("/var/lib/penstock"), Path(tempfile.gettempdir()) / "penstock-root"):
        try:
            root.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError:
            continue
        if root.stat().st_uid == os.geteuid():
            return root
        raise ValueError(f"{root} belongs to somebody else: remove it, then try again")
    raise ValueError(
        "there is no place for programs that a sandbox's user can pass through: set PENSTOCK_PROGRAMS to one"
    )


def _readable(directory: Path) -> None:
    """For everybody to read, for nobody to write."""
    for at, _, files in os.walk(directory):
        os.chmod(at, os.stat(at).st_mode & ~0o022 | 0o755)
        for name in files:
            path = os.path.join(at, name)
            if not os.path.islink(path):
                mode = os.stat(path).st_mode
                os.chmod(path, mode & ~0o022 | 0o444 | (0o111 if mode & 0o100 else 0))


def _replace(new: Path, target: Path) -> None:
    """Put `new` where `target` is. A sandbox that runs keeps the old files: its mount outlives their names."""
    if target.is_symlink():
        target.unlink()
    elif target.exists():
        old = target.with_name(f"{target.name}.old.{os.getpid()}")
        target.rename(old)
        new.rename(target)
        shutil.rmtree(old, ignore_errors=True)
        return
    new.rename(target)


def main(names: list[str]) -> int:
    """Install the programs of these scaffolds."""
    from scaffolds.find import find

    for name in names:
        program = find(name).manifest.program
        if program is None:
            raise ValueError(f"the scaffold {name!r} needs no program")
        if install(program):
            print(f"installed {program.name} in {place_of(program)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ValueError as problem:
        print(f"penstock: {problem}", file=sys.stderr)
        sys.exit(1)
