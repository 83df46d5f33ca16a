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


def credentials_disagree() -> Problem:
    """401: two capabilities in one request."""
    return Problem(
        401,
        "invalid_api_key",
        "the path and the API key name different sessions: use one session's token in both, or in one of them",
    )


def session_over(why: str) -> Problem:
    """409: the session is sealed, closed or expired."""
    return Problem(409, "session_over", f"the session is over ({why}): nothing more is recorded under it")


def budget_exhausted(which: str, limit: int) -> Problem:
    """400: `which` is turns, context or tokens. The words for a full context are those by which agent programs know it on every wire, and
    then shorten their history."""
    if which == "context":
        message = (
            f"prompt is too long: this session's maximum context length is {limit} tokens;"
            " shorten the history or end here"
        )
    else:
        message = f"the session's budget of {limit} ({which}) is used up: end here"
    return Problem(400, "budget_exhausted", message, which)


def upstream_refused(message: str) -> Problem:
    """502: a rollout server refuses what we sent; the same request would fail again."""
    return Problem(502, "upstream_refused", f"the rollout server refused the request: {message}")


def unavailable(message: str) -> Problem:
    """503: try again later; nothing was recorded."""
    return Problem(503, "unavailable", message)
