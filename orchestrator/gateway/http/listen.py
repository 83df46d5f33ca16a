"""Listeners: TCP on loopback, and a Unix socket alone in its directory, which sandboxes are given."""

import os
import socket
import stat
from pathlib import Path

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.runtime.inherited import inherited

BACKLOG = 1024
"""Connections that wait to be accepted. A Unix socket with a full backlog refuses non-blocking clients at once."""


def listen_tcp(host: str, port: int, *, preferred: int = 0) -> socket.socket:
    """A listening socket: the one that a supervisor holds for `port`, else a new one. Port 0 takes `preferred` when it is free, else any port. Raises
    ConfigurationError when the port is taken."""
    if port and (held := inherited(port)) is not None:
        return held
    if port == 0 and preferred:
        try:
            return _bind(host, preferred)
        except OSError:
            pass  # another process has it now
    try:
        return _bind(host, port)
    except OSError as error:
        raise ConfigurationError(
            f"the gateway cannot listen on {host}:{port} ({error.strerror}): stop what listens there or set gateway.port"
        ) from None


def _bind(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def listen_unix(path: Path) -> socket.socket:
    """A listening socket that every user may connect to (mode 0666): the token is the key. Its directory contains nothing else.

    It replaces the socket of a dead gateway. Raises ConfigurationError when the path is taken by something else or is too long.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    neighbors = [entry.name for entry in path.parent.iterdir() if entry.name != path.name]
    if neighbors:
        raise ConfigurationError(
            f"{path.parent} must hold nothing but the gateway's socket, since sandboxes see it; found {neighbors[0]}"
        )
    if path.exists():
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise ConfigurationError(f"{path} exists and is not a socket")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
        os.chmod(path, 0o666)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigurationError(f"the gateway cannot listen on {path}: {error}") from None
    return listener
