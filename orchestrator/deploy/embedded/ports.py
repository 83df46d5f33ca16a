"""Free loopback ports for servers that must keep their port across restarts.

`bind(0)` would give a port of the ephemeral range. While a server on such a port is down for a restart, a client that
keeps trying to reach it can receive that same port as its own end and connect to itself. Then the server cannot bind it
again. So ports are picked outside that range.
"""

import random
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"
_MIN_PORT, _MAX_PORT = 10_240, 65_535


def _candidates() -> range:
    """The widest range of unprivileged ports outside the kernel's ephemeral range."""
    low, high = (int(bound) for bound in Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    low_ports, high_ports = range(_MIN_PORT, low), range(high + 1, _MAX_PORT + 1)
    widest = max(low_ports, high_ports, key=len)
    return widest if len(widest) >= 256 else range(_MIN_PORT, _MAX_PORT + 1)


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """True if a server could listen on `port` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port(*, preferred: int | None = None, host: str = LOOPBACK) -> int:
    """A port without a listener: `preferred` if it is free, else a random one.

    The port is not reserved: another process may take the port before the caller listens on it, so a server that fails to
    listen is started again with another port. Raises ValueError if no free port was found.
    """
    if preferred is not None and is_free(preferred, host):
        return preferred
    candidates = _candidates()
    for port in random.sample(candidates, k=min(200, len(candidates))):
        if is_free(port, host):
            return port
    raise ValueError(f"no free port on {host} between {candidates.start} and {candidates.stop - 1}")
