"""How many files this process may open."""

import resource
from typing import Final

WANTED: Final = 65_536
"""Every program of a sandbox costs its runner up to ten descriptors, and a sandbox has 128 processes by default. A gateway has
thousands of clients."""


def raise_descriptor_limit(wanted: int = WANTED) -> int:
    """Let this process open `wanted` files, or as many as it may allow itself. Returns the limit that holds then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def descriptor_limit() -> int:
    """How many files this process may open; `WANTED` where nothing limits it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED if soft == resource.RLIM_INFINITY else soft
