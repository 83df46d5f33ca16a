"""Closed sets of the configuration that several rooms read: what rewards count, how the loss adds up, how weights travel. And the levels of the log.

The configuration takes a member by its string; runs store the string.
"""

from enum import StrEnum


class SignalSource(StrEnum):
    """Where the values of a process signal come from."""

    FUNCTION = "function"  # a named function, built in or an entry point
    VERIFIER = "verifier"  # the task's process.json


class SignalSpan(StrEnum):
    """The unit that a process signal pays."""

    STEP = "step"  # each step: weight · value
    ROLLOUT = "rollout"  # the rollout: weight · the mean over its steps


class ZeroSignal(StrEnum):
    """The value that must differ among the members of a group for it to train."""

    PERFORMANCE = "performance"
    RETURNS = "returns"


class BatchScaling(StrEnum):
    """The scale of a batch's advantages (orchestrator/rewards/batch_scale.py)."""

    NONE = "none"
    STD = "std"
    WHITEN = "whiten"


class Aggregation(StrEnum):
    """The unit of equal weight in the loss (trainer/loss/aggregation.py)."""

    TOKEN = "token"
    PROMPT = "prompt"
    SAMPLE = "sample"


class Anchor(StrEnum):
    """The denominator of the importance ratio (trainer/loss/correction.py)."""

    BEHAVIOR = "behavior"  # the policy that sampled
    PROXIMAL = "proximal"  # the trainer before the batch


class MismatchMask(StrEnum):
    """Which mismatch of trainer and behavior policy keeps tokens or samples from training (trainer/loss/correction.py)."""

    NONE = "none"
    ICEPOP = "icepop"  # tokens
    MIS = "mis"  # samples


class RateSchedule(StrEnum):
    """How the learning rate falls after the warm-up (trainer/schedule.py)."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class WeightTransport(StrEnum):
    """How new weights reach rollout servers."""

    DIRECTORY = "directory"  # from a shared directory
    DISTRIBUTED = "distributed"  # sent by a process of the gateway


class UnprovenTemplate(StrEnum):
    """The treatment of a model whose chat template rewrites the history."""

    REFUSE = "refuse"
    PER_REQUEST = "per_request"  # each request is rendered whole, as a sample of its own


class LogLevel(StrEnum):
    """The level of a log line, the least first."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"
