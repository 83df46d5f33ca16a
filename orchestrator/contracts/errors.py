"""One error vocabulary, by boundary. A failed rollout is data: these classes carry its failure class.

`PenstockError` is for what a person must read: one sentence that names what is wrong and what to do.
"""

from orchestrator.contracts.states import FailureClass


class PenstockError(Exception):
    """Something a person must know; the message is complete in itself."""


class ConfigurationError(PenstockError, ValueError):
    """A configuration key, a file or an argument is wrong."""


class ServiceError(PenstockError):
    """A service that Penstock needs (Postgres, NATS, rollout server) is missing, too old or unreachable."""


class MessageError(PenstockError):
    """A bus message is malformed or of an unknown schema: it goes to the dead letters with this reason."""


class RolloutFailure(PenstockError):
    """A rollout attempt ended early. `failure` decides whether it is trained, retried or filtered."""

    failure: FailureClass = FailureClass.INFRA_FAILURE


class InfraFailure(RolloutFailure):
    """Sandbox, gateway, rollout server or network: retried with the same seq, never rewarded."""


class PolicyFailure(RolloutFailure):
    """Ill-formed output or a used-up budget: the policy's own doing, trainable."""

    failure = FailureClass.POLICY_FAILURE


class AgentTimeout(RolloutFailure):
    """The agent's own wall-clock budget ended."""

    failure = FailureClass.TIMEOUT


class VerifierFailure(RolloutFailure):
    """No verdict could be reached; retried, then the group's member is lost."""

    failure = FailureClass.VERIFIER_FAILURE
