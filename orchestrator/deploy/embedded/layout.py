"""The names of the files in a run directory, in one place.

    <root>/data/postgres, data/nats      the data that must survive
    <root>/logs/<name>.log               output of the supervised processes
    <root>/policies, journal/<name>      weights by version; messages that are not in Postgres yet
    <root>/run/<name>.pid, status.json, supervisor.lock

Unix socket addresses hold 107 bytes on Linux. A run directory may be deeper than that. So sockets are in `sockets`, which is
`<root>/run` if that is short enough, else a private directory under the system's temporary directory.
"""

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sandboxes.owner import is_ours

MAX_SOCKET_PATH = 100


@dataclass(frozen=True, slots=True)
class RunLayout:
    """Paths of one run directory. `root` is absolute. The directories exist only after `create()`."""

    root: Path

    def __post_init__(self) -> None:
        if not self.root.is_absolute():
            raise ValueError(f"the run directory must be an absolute path, not {str(self.root)!r}")

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def postgres(self) -> Path:
        return self.data / "postgres"

    @property
    def nats(self) -> Path:
        return self.data / "nats"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def policies(self) -> Path:
        return self.root / "policies"

    @property
    def journals(self) -> Path:
        return self.root / "journal"

    @property
    def lock(self) -> Path:
        return self.run / "supervisor.lock"

    @property
    def status(self) -> Path:
        return self.run / "status.json"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def pid(self, name: str) -> Path:
        return self.run / f"{name}.pid"

    def create(self) -> None:
        """Make the directories. Other users of the machine may only pass through those above PostgreSQL's files, which may be of its own user;
        all others are closed to them."""
        self.root.parent.mkdir(parents=True, exist_ok=True)
        passed = (self.root, self.data, self.postgres)
        private = (self.nats, self.logs, self.run, self.policies, self.journals)
        for path in (*passed, *private):
            path.mkdir(exist_ok=True)
            if path.stat().st_uid == os.geteuid():
                path.chmod(0o711 if path in passed else 0o700)

    def socket(self, name: str) -> Path:
        """The path of the Unix socket `<name>.sock`, shorter than 100 bytes. Its directory exists, and is private if a short
        path had to be used. The same run directory always gives the same path."""
        usual_path = self.run / f"{name}.sock"
        if len(os.fsencode(usual_path)) < MAX_SOCKET_PATH:
            self.run.mkdir(parents=True, exist_ok=True)
            return usual_path
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:12]
        short_path = Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}-{digest}"
        own_directory(short_path)
        path = short_path / f"{name}.sock"
        if len(os.fsencode(path)) >= MAX_SOCKET_PATH:
            raise ValueError(
                f"{path} is too long for a Unix socket ({MAX_SOCKET_PATH} bytes); set TMPDIR to a shorter path"
            )
        return path


def own_directory(path: Path) -> None:
    """Makes `path` a directory that only this user can write. Raises ValueError if another user created it first: names
    under the temporary directory can be guessed."""
    path.mkdir(mode=0o700, exist_ok=True)
    if not is_ours(path):
        raise ValueError(
            f"{path} belongs to another user or is writable by others; remove it and start again"
        )
