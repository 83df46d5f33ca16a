"""Questions about normal paths as texts, without a look at a disk."""

import posixpath
from collections.abc import Iterator


def is_within(path: str, directory: str) -> bool:
    """Whether `path` is `directory` or below it.

    >>> is_within("/app/a", "/app"), is_within("/app", "/app"), is_within("/apple", "/app")
    (True, True, False)
    """
    return path == directory or path.startswith(f"{directory}/")


def parents(path: str) -> Iterator[str]:
    """The directories above an absolute path, from the nearest, without the root.

    >>> list(parents("/app/in/a.txt"))
    ['/app/in', '/app']
    """
    while (path := posixpath.dirname(path)) != "/":
        yield path


def parents_of_relative(path: str) -> Iterator[str]:
    """The directories above a relative path, from the nearest.

    >>> list(parents_of_relative("tests/in/a.txt"))
    ['tests/in', 'tests']
    """
    while path := path.rpartition("/")[0]:
        yield path
