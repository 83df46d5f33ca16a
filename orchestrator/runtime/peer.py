"""Whose program answers on a port of this machine: the user of the other end of a TCP connection over loopback.

A port is free while its server is dead, and any user of the machine can then listen there. The kernel knows the user of each socket, and shows it to
every user in /proc/net/tcp. The established connection is looked up, not the listener: the listener may have changed in between.
"""

import socket
import sys
from pathlib import Path

import anyio

_TABLE = Path("/proc/net/tcp")
_POLL_INTERVAL_S = 0.01
_LOCAL, _REMOTE, _USER, _INODE = 1, 2, 7, 9


class StrangeServer(OSError):
    """A program of another user answers where a server of ours is expected."""


def check_peer(ours: tuple[str, int], theirs: tuple[str, int], user: int) -> None:
    """`ours` and `theirs`: the ends of an IPv4 connection, as getsockname and getpeername give them. Raises StrangeServer unless a process of `user`
    has accepted it on this machine. Call it once the server has sent something: before that it may not have accepted the connection."""
    found = peer_user(ours, theirs)
    if found != user:
        owner = "no process here has accepted it" if found is None else f"it is of user {found}"
        raise StrangeServer(
            f"the program at {theirs[0]}:{theirs[1]} is not a server of user {user} on this machine ({owner}): it gets no secret"
        )


async def until_accepted_by(
    ours: tuple[str, int], theirs: tuple[str, int], user: int, *, within_s: float
) -> None:
    """`check_peer` for a server that waits for the client's first word: it has `within_s` seconds to accept the connection."""
    with anyio.move_on_after(within_s):
        while peer_user(ours, theirs) is None:
            await anyio.sleep(_POLL_INTERVAL_S)
    check_peer(ours, theirs, user)


def peer_user(ours: tuple[str, int], theirs: tuple[str, int]) -> int | None:
    """The user id of the process that accepted a connection. None: no process of this network namespace has accepted it (yet)."""
    ends = [_end(*theirs), _end(*ours)]
    for line in _TABLE.read_text(encoding="ascii").splitlines()[1:]:
        columns = line.split()
        if [columns[_LOCAL], columns[_REMOTE]] == ends and columns[_INODE] != "0":
            return int(columns[_USER])
    return None


def _end(host: str, port: int) -> str:
    """As the kernel writes it: the address as a number in the machine's byte order."""
    address = socket.inet_pton(socket.AF_INET, host)
    return f"{int.from_bytes(address, sys.byteorder):08X}:{port:04X}"
