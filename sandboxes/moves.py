"""Where a sandbox's own places lie on an image whose work directory is one of them.

Such a place is then the work directory, with what the image has there, and its changes reach the tests. The sandbox's own one lies below `ASIDE`, and
`HOME`, `TMPDIR` and `/etc/passwd` name it: what programs keep there does not belong to the work, and no test starts with a home that an agent filled.
Callers go on naming the place as in any other sandbox; `moved` gives the path as programs see it.
"""

from __future__ import annotations

from collections.abc import Mapping

from sandboxes.base import HOME, PLACED, WORK

ASIDE = "/run/penstock-own"
TEMPORARY = "/tmp"
_SOLUTION = "/solution"
_MOVED = {
    HOME: (HOME, f"{ASIDE}/home"),
    "/home": (HOME, f"{ASIDE}/home"),
    TEMPORARY: (TEMPORARY, f"{ASIDE}/tmp"),
}
TAKES = frozenset({*_MOVED, _SOLUTION})
"""Places of a sandbox, or above one, that a work directory may be."""


def moved(inside: str, work: str) -> str:
    """The path at which programs find what callers name `inside`. `work`: the image's work directory.

    >>> moved("/home/agent/.x", "/home"), moved("/home/agent/.x", "/srv"), moved("/tmp", "/tmp")
    ('/run/penstock-own/home/.x', '/home/agent/.x', '/run/penstock-own/tmp')
    """
    place, there = _MOVED.get(work, ("", ""))
    return there + inside.removeprefix(place) if place and f"{inside}/".startswith(f"{place}/") else inside


def own_places(env: Mapping[str, str], work: str) -> dict[str, str]:
    """Variables in which an image or a task names the sandbox's own home or temporary directory: they follow it."""
    return {name: moved(value, work) if name in ("HOME", "TMPDIR") else value for name, value in env.items()}


def called(inside: str, work: str) -> str:
    """The name by which a place below `/app` is known, of a path that callers name: a solution that is placed into the work directory lies in it."""
    if work == _SOLUTION and inside.startswith(f"{_SOLUTION}/"):
        return WORK + inside.removeprefix(_SOLUTION)
    return inside


def placed(work: str) -> tuple[str, ...]:
    """The directories besides the work directory that only the caller writes."""
    return tuple(each for each in PLACED if each != work)
