"""One error vocabulary, by boundary. A failed rollout is data: these classes carry its failure class.

`PenstockError` is for errors that a person must read: one sentence that names the problem and the remedy.
"""

from orchestrator.contracts.states import FailureClass


class PenstockError(Exception):
    """An error that a person must know. The message is complete in itself."""


class ConfigurationError(PenstockError, ValueError):
    """A configuration key, a file or an argument is wrong."""


class ArgumentError(ConfigurationError):
    """An argument of a call cannot be used. `argument` is its name in Python, `problem` the rest of the sentence: `{argument} {problem}`.

    The command line prints its option in place of the name (`cli.option_names`).
    """

    def __init__(self, argument: str, problem: str) -> None:
        super().__init__(f"{argument} {problem}")
        self.argument = argument
        self.problem = problem


class ServiceError(PenstockError):
    """A service that Penstock needs (Postgres, NATS, rollout server) is missing, too old or unreachable."""


class NotFoundError(PenstockError, LookupError):
    """A requested row does not exist (group, rollout, attempt, step, batch, file). The message names it."""


class MessageError(PenstockError):
    """A bus message is malformed or of an unknown schema: it goes to the dead letters with this reason."""


class RolloutFailure(PenstockError):
    """A rollout attempt ended early. `failure` decides whether it is trained, retried or filtered."""

    failure: FailureClass = FailureClass.INFRA_FAILURE
    reachable: bool = False  # whether the policy's programs can cause this end


class InfraFailure(RolloutFailure):
    """Sandbox, gateway, rollout server or network: retried with the same seq, never rewarded."""


class Hung(InfraFailure):
    """No progress for too long, and no evidence of the cause. From the first served step on it counts against the policy, unless the platform
    shows a fault of its own (`runner.outcome.judged`)."""

    reachable = True


class PolicyFailure(RolloutFailure):
    """Ill-formed output or a used-up budget: the policy's own fault, trainable."""

    failure = FailureClass.POLICY_FAILURE


class AgentTimeout(RolloutFailure):
    """The agent's own wall-clock budget ended."""

    failure = FailureClass.TIMEOUT
    reachable = True
