"""Errors between the gateway and a rollout server, by the caller's possible reaction.

| error | whose fault | what to do |
|---|---|---|
| RolloutServerUnreachable | network, or the server died | send the same ids to another server, under a fresh request id |
| RolloutServerSilent | the server hangs, or is stopped | try again; after long silence, treat it as dead |
| RolloutServerBroken | the server | as above; a supervisor checks it |
| RequestRefused | ours: the request can never work | fail this completion |
| WeightUpdateRefused | the published weights | keep the old ones, do not publish |
"""

from orchestrator.contracts.errors import InfraFailure


class RolloutServerError(InfraFailure):
    """Any failure at the boundary to a rollout server. `url` names the route."""

    kind = "other"

    def __init__(self, url: str, message: str) -> None:
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
    """A status of 500 and above, or a reply that contradicts itself."""

    kind = "broken"


class RequestRefused(RolloutServerError):
    """A status of 400 to 499. `message` is the server's own sentence."""

    kind = "refused"

    def __init__(self, url: str, message: str, status: int) -> None:
        super().__init__(url, message)
        self.status = status


class WeightUpdateRefused(RequestRefused):
    """The server keeps its old weights and their version."""
