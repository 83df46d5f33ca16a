"""What the gateway refuses, independent of the wire: each dialect spells a `Problem` in its own error form."""


class Problem(Exception):
    """A refusal. `code` is for programs, the message for people, `param` names the part of the request that it is about."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param


def bad_request(message: str, param: str | None = None) -> Problem:
    """400: the request itself is wrong."""
    return Problem(400, "invalid_request", message, param)


def unknown_session() -> Problem:
    """401: no such capability."""
    return Problem(
        401,
        "invalid_api_key",
        "unknown session token: use the token of an open session, in the path or as API key",
    )


def session_over(why: str) -> Problem:
    """409: the session is sealed, closed or expired."""
    return Problem(409, "session_over", f"the session is over ({why}): nothing more is recorded under it")


def budget_exhausted(which: str, limit: int) -> Problem:
    """400: `which` is turns, context or tokens."""
    return Problem(
        400, "budget_exhausted", f"the session's budget of {limit} ({which}) is used up: end here", which
    )


def upstream_refused(message: str) -> Problem:
    """502: a rollout server refuses what we sent; the same request would fail again."""
    return Problem(502, "upstream_refused", f"the rollout server refused the request: {message}")


def unavailable(message: str) -> Problem:
    """503: try again later; nothing was recorded."""
    return Problem(503, "unavailable", message)
