"""Errors in the groups of task groups."""

from __future__ import annotations


def first_error(error: BaseException) -> BaseException:
    """The first error that is not a group, depth first; `error` itself if it is one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
