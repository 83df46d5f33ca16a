"""How a scaffold is named: by a registered name, `module:attribute`, or a path (`DIRECTORY/`, `FILE.toml`, `FILE.py[:CLASS]`)."""

import re

_PYTHON = re.compile(r"(.*\.py)(?::([^/:]*))?", re.DOTALL)


def split_path(name: str) -> tuple[str, str] | None:
    """(path, class) of a scaffold that is named by a path, the class empty unless one is named; None for any other name.

    >>> split_path("agent.py:Mine"), split_path("a:b/agent"), split_path("shell"), split_path("mine.agents:Mine")
    (('agent.py', 'Mine'), ('a:b/agent', ''), None, None)
    """
    if found := _PYTHON.fullmatch(name):
        return found[1], found[2] or ""
    return (name, "") if "/" in name or name.endswith(".toml") else None


def is_path(name: str) -> bool:
    """Whether a scaffold is named by a path, as configurations and commands read it."""
    return split_path(name) is not None
