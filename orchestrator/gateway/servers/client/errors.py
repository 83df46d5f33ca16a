"""Errors between the gateway and a rollout server, by the caller's possible reaction.

| error | whose fault | what to do |
|---|---|---|
| RolloutServerUnreachable | network, or the server died | send the same ids to another server, under a fresh request id |
| RolloutServerSilent | the server hangs, or is stopped | try again; after long silence, treat it as dead |
| RolloutServerBroken | the server | as above; a supervisor checks it |
| RequestRefused | ours: the request can never work | fail this completion |
| WeightUpdateRefused | the published weights | find out which weights it has; keep the old ones, do not publish |
"""

from orchestrator.contracts.errors import InfraFailure
from orchestrator.contracts.quote import cut_to
from orchestrator.pool.sanitize import clean

MAX_MESSAGE = 500  # characters


def shown(message: str) -> str:
    """A server's words as rows, logs and agents may get them."""
    return cut_to(clean(message[: MAX_MESSAGE + 1]), MAX_MESSAGE)


class RolloutServerError(InfraFailure):
    """Any failure at the boundary to a rollout server. `url` names the route. The message is clean and short, although a server may have written it:
    it goes to rows, logs and agents."""

    kind = "other"

    def __init__(self, url: str, message: str) -> None:
        message = shown(message)
        super().__init__(f"{url}: {message}")
        self.url = url
        self.message = message


class RolloutServerUnreachable(RolloutServerError):
    """No connection, a connection lost before the answer was complete, or no answer in time."""

    kind = "unreachable"


class RolloutServerSilent(RolloutServerUnreachable):
    """No answer in time, from a server that may be there."""

    kind = "silent"


class RolloutServerBroken(RolloutServerError):
    """A status of 500 and above, or a reply that contradicts itself, the request or the form of its route (replies.py)."""

    kind = "broken"


class RequestRefused(RolloutServerError):
    """A status of 400 to 499; of a completion, one that means its content (client.OF_CONTENT). `message` is the server's own sentence."""

    kind = "refused"

    def __init__(self, url: str, message: str, status: int) -> None:
        super().__init__(url, message)
        self.status = status


class WeightUpdateRefused(RequestRefused):
    """The server refuses new weights. It keeps its old version, and its old weights unless it failed while it loaded (SGLang may then have the
    new ones)."""
