"""Refusals of the gateway, independent of the wire: each dialect renders a `Problem` in its own error form."""

from orchestrator.contracts.marks import BudgetKind

BUDGET = "budget_exhausted"


class Problem(Exception):
    """A refusal. `code` is for programs, the message for people, `param` names the offending part of the request. `ours`: the platform
    failed, regardless of the request. Only such a problem is evidence for a session whose program then ends (`runner.outcome.judged`)."""

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, ours: bool = False
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param
        self.ours = ours
        self.streamed = False  # whether a request whose body was not read wants a stream

    def untraced(self) -> "Problem":
        """The same refusal without its traceback. A traceback holds its functions, and they hold the session: a kept problem is this one."""
        same = Problem(self.status, self.code, self.message, param=self.param, ours=self.ours)
        return same.of_stream(self.streamed)

    def of_stream(self, streamed: bool) -> "Problem":
        """This problem, of a request that wants a stream or does not."""
        self.streamed = streamed
        return self

    @property
    def full_context(self) -> bool:
        """Whether the context is full: a client may shorten its history and go on."""
        return self.code == BUDGET and self.param == BudgetKind.CONTEXT


class BodyTooLarge(Exception):
    """A body is larger than the context can hold. The caller gets a `Problem` with the words of a full context. `streamed`: whether it requests a
    stream; None: its body was not read."""

    def __init__(self, streamed: bool | None = None) -> None:
        super().__init__()
        self.streamed = streamed


def bad_request(message: str, param: str | None = None) -> Problem:
    """400: the request itself is wrong."""
    return Problem(400, "invalid_request", message, param=param)


def unknown_session() -> Problem:
    """401: the capability does not exist."""
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


def cut_off() -> Problem:
    """409: a clock has ended the attempt during this call."""
    return Problem(409, "session_over", "the time of this attempt is over: the reply was cut off")


def budget_exhausted(which: BudgetKind, limit: int) -> Problem:
    """400. The words for a full context are those that agent programs recognize on every wire; they
    then shorten their history."""
    if which is BudgetKind.CONTEXT:
        message = (
            f"prompt is too long: this model's maximum context length is {limit} tokens;"
            " shorten the history or end here"
        )
    else:
        message = f"the session's budget of {limit} ({which}) is used up: end here"
    return Problem(400, BUDGET, message, param=which)


def upstream_refused(message: str) -> Problem:
    """502: a rollout server refuses our request; the same request would fail again."""
    return Problem(502, "upstream_refused", f"the rollout server refused the request: {message}")


def unavailable(message: str) -> Problem:
    """503: the platform lacks something (a rollout server, room on a disk); try again later, nothing was recorded."""
    return Problem(503, "unavailable", message, ours=True)
