"""Free loopback ports for servers that must keep their port across restarts.

`bind(0)` would give a port of the ephemeral range. While a server on such a port is down for a restart, a client that
keeps trying to reach it can be given that very port as its own end and connect to itself; then the server cannot have it
back. So ports are picked outside that range.
"""

import random
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"
_LOWEST, _HIGHEST = 10_240, 65_535


def _candidates() -> range:
    """The widest range of unprivileged ports beside the kernel's ephemeral range."""
    low, high = (int(word) for word in Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    below, above = range(_LOWEST, low), range(high + 1, _HIGHEST + 1)
    widest = max(below, above, key=len)
    return widest if len(widest) >= 256 else range(_LOWEST, _HIGHEST + 1)


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """True when a server could listen on `port` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port(*, preferred: int | None = None, host: str = LOOPBACK) -> int:
    """A port that nobody listens on: `preferred` when it is free, else a random one.

    Nothing is reserved: another process may take the port before the caller listens on it, so a server that fails to
    listen is started again with another port. Raises ValueError when no free port was found.
    """
    if preferred is not None and is_free(preferred, host):
        return preferred
    candidates = _candidates()
    for port in random.sample(candidates, k=min(200, len(candidates))):
        if is_free(port, host):
            return port
    raise ValueError(f"no free port on {host} between {candidates.start} and {candidates.stop - 1}")
