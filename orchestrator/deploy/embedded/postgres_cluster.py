"""One PostgreSQL data directory: creating it, configuring it, and cleaning up after a kill -9.

<data_dir>/pgdata      the data (a link to a neutral place if the service user could not reach it)
<data_dir>/password    0600, the password of the role `penstock`
<data_dir>/server.json port and socket directory of the last start
"""

import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import msgspec

from orchestrator.contracts.languages import postgres_setting
from orchestrator.deploy.embedded.identity import ProcessId, write_atomically
from orchestrator.deploy.embedded.layout import MAX_SOCKET_PATH
from orchestrator.deploy.embedded.ports import LOOPBACK, free_port, is_free
from orchestrator.deploy.embedded.postgres_binaries import PostgresBinaries, find_binaries, reachable_binaries
from orchestrator.deploy.embedded.postgres_init import (
    DATABASE,
    ENV,
    ROLE,
    initialise,
)
from orchestrator.deploy.embedded.postgres_place import place_of
from orchestrator.deploy.embedded.postgres_remains import (
    cluster_name,
    disarm_lock_file,
    kill_orphans,
    running_server,
)
from orchestrator.deploy.embedded.service_user import own, service_user
from orchestrator.deploy.embedded.shared_memory import record_start, remove_orphans, remove_segments

# For two cores and a few dozen connections. The defaults that matter are explicit: no acknowledged data is lost.
_SETTINGS: Mapping[str, str] = {
    "shared_buffers": "128MB",
    "max_connections": "100",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "restart_after_crash": "off",  # the supervisor restarts it and sees whether it comes back; by itself it may wait forever
    "wal_compression": "on",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "10min",
    "jit": "off",  # the queries are short; compiling them costs more than it saves
    "max_parallel_workers_per_gather": "0",  # two cores
    # Files below the data directory: what a killed server leaves goes with it. /dev/shm is 64 MB in many containers.
    "dynamic_shared_memory_type": "mmap",
    "min_dynamic_shared_memory": "4MB",  # in memory from the start: these files stay small
    "autovacuum_max_workers": "2",
    "autovacuum_naptime": "10s",  # a queue table doubles in a minute
    "password_encryption": "scram-sha-256",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "lc_messages": "C",
}
# For servers with disposable data: test servers.
_NOT_DURABLE: Mapping[str, str] = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_wal_size": "256MB",  # they may be in memory
}
# In the server's own databases PUBLIC may make temporary tables and large objects: only our login has business there.
_HBA = "".join(
    f"{kind} {databases} {who} {address} {method}\n"
    for databases, who, method in (
        ("postgres,template1", ROLE, "scram-sha-256"),
        ("postgres,template1", "all", "reject"),
        ("all", "all", "scram-sha-256"),
    )
    for kind, address in (("local", ""), ("host", f"{LOOPBACK}/32"))
)


class _PostgresEndpoint(msgspec.Struct, frozen=True):
    port: int
    sockets: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresCluster:
    """A data directory that is ready to be served. Created by `prepare_cluster`."""

    data_dir: Path
    pgdata: Path
    binaries: PostgresBinaries
    user: str | None
    port: int
    sockets: Path
    password: str = field(repr=False)
    settings: Mapping[str, str]

    @property
    def url(self) -> str:
        """`postgresql://…` over TCP on loopback, with the password."""
        return _url(self.password, self.port)

    @property
    def socket_url(self) -> str:
        """The same over the Unix socket."""
        return _socket_url(self.password, self.sockets, self.port)

    @property
    def name(self) -> str:
        """The server's name in the titles of its processes; unique by data directory."""
        return cluster_name(self.pgdata)

    @property
    def argv(self) -> tuple[str, ...]:
        return (str(self.binaries.postgres), "-D", str(self.pgdata))

    @property
    def env(self) -> dict[str, str]:
        return ENV

    def running(self) -> ProcessId | None:
        """The server of this directory, if one runs."""
        return running_server(self.pgdata)

    def before_start(self) -> str | None:
        """Call before every start of `argv`: writes the configuration and cleans up after a dead server.

        If another program has taken the port, the server listens on its Unix socket alone, where this product's processes look for it;
        returned as a sentence.
        Raises ValueError if a server of this directory runs. Backends of a killed server that are still busy are killed, because the
        next server refuses to start next to them. A lock file whose pid now belongs to another process is disarmed.
        """
        if (server := self.running()) is not None:
            raise ValueError(f"PostgreSQL already serves {self.pgdata} (pid {server.pid}); stop it first")
        kill_orphans(self.pgdata)
        disarm_lock_file(self.pgdata)
        remove_orphans()
        record_start(self.pgdata)
        self.sockets.mkdir(mode=0o700, exist_ok=True)
        for leftover in self.sockets.iterdir():
            leftover.unlink()
        own(self.sockets, self.user)
        free = is_free(self.port)
        settings = {
            **_SETTINGS,
            **self.settings,
            "listen_addresses": LOOPBACK if free else "",
            "port": str(self.port),
            "unix_socket_directories": f'"{self.sockets}"',  # a list
            "cluster_name": self.name,
        }
        lines = "".join(f"{key} = {postgres_setting(value)}\n" for key, value in settings.items())
        self._configure("postgresql.conf", "# Written at every start; changes here are lost.\n" + lines)
        self._configure("pg_hba.conf", _HBA)
        return None if free else f"only on its Unix socket: another program listens on its port {self.port}"

    def _configure(self, name: str, text: str) -> None:
        path = self.pgdata / name
        write_atomically(path, text.encode(), mode=0o600)
        own(path, self.user)


def prepare_cluster(
    data_dir: Path,
    *,
    port: int | None = None,
    durable: bool = True,
    settings: Mapping[str, str] | None = None,
) -> PostgresCluster:
    """Creates the data directory if it is new (about 0.6 s) and returns the values needed to serve it. Blocking.

    A running server's port is kept; otherwise `port`, else the port of the last start, else a free one. `durable=False`
    switches fsync off: for test servers only. Raises ValueError if PostgreSQL is missing, the port is taken, or the
    directory cannot be used.
    """
    data_dir = data_dir.absolute()
    data_dir.mkdir(parents=True, exist_ok=True)
    pgdata = data_dir / "pgdata"
    user = service_user(pgdata if (pgdata / "PG_VERSION").exists() else None)
    pgdata = place_of(pgdata, user)
    new = not (pgdata / "PG_VERSION").exists()
    major = None if new else int((pgdata / "PG_VERSION").read_text().split(".")[0])
    binaries = reachable_binaries(find_binaries(major=major), user)
    password = _password(data_dir / "password", new=new)
    if new:
        initialise(pgdata, binaries, user, password, durable=durable)
    pgdata = (data_dir / "pgdata").resolve()
    endpoint = _endpoint(data_dir / "server.json", pgdata, port)
    return PostgresCluster(
        data_dir=data_dir,
        pgdata=pgdata,
        binaries=binaries,
        user=user,
        port=endpoint.port,
        sockets=Path(endpoint.sockets),
        password=password,
        settings={**({} if durable else _NOT_DURABLE), **(settings or {})},
    )


def discard_cluster(data_dir: Path) -> None:
    """Removes a data directory with everything that belongs to it elsewhere. A server that still runs on it is killed first."""
    pgdata = (data_dir / "pgdata").resolve()
    if pgdata.is_dir():
        if (server := running_server(pgdata)) is not None:
            server.send(signal.SIGKILL)
        kill_orphans(pgdata)
        remove_segments(pgdata)
        shutil.rmtree(pgdata, ignore_errors=True)
        if pgdata.parent != data_dir.resolve():
            shutil.rmtree(pgdata.parent, ignore_errors=True)
    discard_sockets(data_dir)
    shutil.rmtree(data_dir, ignore_errors=True)


def discard_sockets(data_dir: Path) -> None:
    """Removes the socket directory of a server that has ended; the next start creates a new one. A running server keeps its own."""
    if running_server((data_dir / "pgdata").resolve()) is not None:
        return
    if (last := _recorded(data_dir / "server.json")) is not None:
        shutil.rmtree(last.sockets, ignore_errors=True)


def _password(path: Path, *, new: bool) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        if not new:
            raise ValueError(
                f"{path} is missing, so no login to the database next to it works; restore the file, or remove "
                f"{path.parent} to start afresh"
            ) from None
    password = secrets.token_urlsafe(24)
    write_atomically(path, password.encode() + b"\n", mode=0o600, sync=True)
    return password


def recorded_url(data_dir: Path) -> str | None:
    """The URL of the last server of a data directory, whether it runs or not, over its Unix socket. None if there was none. Changes nothing.

    The socket's directory belongs to the server; any local user could take a dead server's TCP port and read the password that a client sends.
    """
    found = _login(data_dir)
    return None if found is None else _socket_url(found[0], Path(found[1].sockets), found[1].port)


def recorded_tcp_url(data_dir: Path) -> str | None:
    """The same over TCP."""
    found = _login(data_dir)
    return None if found is None else _url(found[0], found[1].port)


def _login(data_dir: Path) -> tuple[str, _PostgresEndpoint] | None:
    last = _recorded(data_dir / "server.json")
    try:
        password = (data_dir / "password").read_text().strip()
    except FileNotFoundError:
        return None
    return (password, last) if last is not None else None


def _socket_url(password: str, sockets: Path, port: int) -> str:
    return (
        f"postgresql://{ROLE}:{quote(password)}@/{DATABASE}?host={quote(str(sockets), safe='')}&port={port}"
    )


def _url(password: str, port: int) -> str:
    # This server has no TLS. A client that requests it anyway waits one more round trip per connection.
    return f"postgresql://{ROLE}:{quote(password)}@{LOOPBACK}:{port}/{DATABASE}?sslmode=disable"


def _recorded(path: Path) -> _PostgresEndpoint | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_PostgresEndpoint)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _endpoint(path: Path, pgdata: Path, port: int | None) -> _PostgresEndpoint:
    """Port and socket directory, recorded. The socket directory of the last start is removed."""
    last = _recorded(path)
    if last is not None and running_server(pgdata) is not None:
        if port not in (None, last.port):
            raise ValueError(
                f"PostgreSQL already serves {pgdata} on port {last.port}, not {port}; stop it first"
            )
        return last
    if port is not None and free_port(preferred=port) != port:
        raise ValueError(
            f"port {port} for PostgreSQL is taken; choose another or stop the program that listens there"
        )
    chosen = port if port is not None else free_port(preferred=last.port if last else None)
    if last is not None:
        shutil.rmtree(last.sockets, ignore_errors=True)
    endpoint = _PostgresEndpoint(chosen, str(_socket_directory(pgdata.parent)))
    write_atomically(path, msgspec.json.encode(endpoint))
    return endpoint


def _socket_directory(home: Path) -> Path:
    """`<home>/sockets`, or, if no Unix socket of PostgreSQL can be there, a directory under the temporary directory. Its random name
    cannot be taken by another user first. Only the server's user and root enter it."""
    sockets = home / "sockets"
    if not _fits(sockets):
        sockets = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
        if not _fits(sockets):
            raise ValueError(
                f"{sockets} cannot hold a Unix socket; set TMPDIR to a shorter path without comma and quote"
            )
    sockets.mkdir(exist_ok=True)
    sockets.chmod(0o700)
    return sockets


def _fits(sockets: Path) -> bool:
    """Whether it is short enough, and one item of a list: clients split a host at its commas."""
    return len(os.fsencode(sockets / ".s.PGSQL.65535")) < MAX_SOCKET_PATH and not set(',"') & set(
        str(sockets)
    )
