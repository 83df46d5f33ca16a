"""`[trainer]`."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from orchestrator.contracts.choices import Aggregation, Anchor, MismatchMask, RateSchedule
from orchestrator.contracts.quote import quoted
from orchestrator.settings.curriculum import Count, Positive, Small
from orchestrator.settings.scope import PROCESS, is_stored
from orchestrator.settings.section import Section

Decay = Annotated[float, Field(ge=0, lt=1)]

LossName = Literal["cispo", "grpo", "dapo", "gspo", "reinforce", "sft"]

RATIO_BOUNDS: Mapping[str, tuple[float, float]] = {
    "cispo": (0.0, 5.0),
    "grpo": (0.8, 1.2),
    "dapo": (0.8, 1.28),
    "gspo": (0.9997, 1.0004),
}
"""`trainer.ratio_min` and `ratio_max` where they are not given; the other losses have no ratio."""
TOKEN_BOUNDS = frozenset(RATIO_BOUNDS) - {"gspo"}
"""The losses whose bounds are for the ratio of each token; that of `gspo` is a whole sample's."""


CANARY_TOLERANCES: Mapping[str, float] = {"float32": 0.02, "bfloat16": 0.2}
"""`gateway.canary_tolerance` where it is not given, by `trainer.dtype`: bfloat16 rounds logprobs of a sharp policy by up to 0.1."""


class ExpertBias(StrEnum):
    """The rule that moves the selection bias of a mixture of experts."""

    FROZEN = "frozen"  # it stays at the checkpoint's value
    BALANCE = "balance"  # every train step moves it by `bias_rate` against the load of the experts (trainer/expert_bias.py)


BIAS_RATE = 0.001
"""`trainer.bias_rate` of `expert_bias = "balance"` where it is not given: DeepSeek-V3's."""


def _known_rule(given: Any) -> Any:
    if given == "joint":
        raise ValueError(
            "a joint rule does not exist: the bias only selects experts and weighs none, so the loss has no gradient for it; "
            'use "frozen", or "balance", which moves it against the experts\' load'
        )
    return given


MIN_EPS = 1e-37
"""A normal number of float32. A smaller one can be 0 in the update, and a weight without a gradient 0/0."""


def _normal(eps: float, info: ValidationInfo) -> float:
    if eps < MIN_EPS and not is_stored(info):
        raise ValueError(f"must be at least {MIN_EPS:g}: float32 rounds less to 0")
    return eps


class TrainerSection(Section):
    """The loss and AdamW (ops/guides/losses.md). Ratio bounds are absolute: an offset of 0.2 above 1 is written 1.2."""

    ranks: Annotated[Positive, PROCESS] = 1
    """Processes of this machine that train together (ops/guides/ranks.md)."""
    lora_rank: Count = 0
    """The rank r of low-rank adapters (ops/guides/lora.md); 0: all weights train."""
    lora_alpha: Positive = 32
    """The scale of low-rank adapters is alpha ÷ r."""
    lora_targets: Annotated[tuple[str, ...], Field(min_length=1)] = ("all",)
    """The names of the linear layers that get adapters; all means every one."""
    parts: Small = 1
    """U: the train steps of one batch."""
    loss: LossName = "cispo"
    """The policy loss (ops/guides/losses.md)."""
    ratio_min: float = 0.0
    """The lower bound of the importance ratio, absolute; when not given it is the loss's own."""
    ratio_max: Annotated[float, Field(allow_inf_nan=False)] = 5.0
    """The upper bound of the importance ratio, absolute; when not given it is the loss's own."""
    negative_scale: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """The factor of negative advantages in the loss."""
    balance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """The coefficient of the load-balancing loss of a mixture of experts."""
    expert_bias: Annotated[ExpertBias, BeforeValidator(_known_rule)] = ExpertBias.FROZEN
    """The rule that moves the selection bias of a mixture of experts: none (frozen), or the experts' load (balance)."""
    bias_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """The step by which `expert_bias = "balance"` moves the selection bias in each train step."""
    routing_replay: bool = False
    """Whether the trainer uses the experts again that rollout servers recorded."""
    aggregation: Aggregation = Aggregation.PROMPT
    """The unit of equal weight in the loss: each token, each prompt's group, or each sample."""
    anchor: Anchor = Anchor.BEHAVIOR
    """The denominator of the importance ratio: the policy that sampled, or the trainer before the batch (proximal)."""
    mask: MismatchMask = MismatchMask.NONE
    """Which mismatch of trainer and behavior policy keeps tokens (icepop) or samples (mis) from training."""
    tis_max: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2.0
    """The largest weight of the mismatch correction with `anchor = "proximal"` and no mask."""
    icepop_min: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.5
    """The lowest trainer ÷ behavior ratio of a token that trains with `mask = "icepop"`."""
    icepop_max: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 5.0
    """The highest trainer ÷ behavior ratio of a token that trains with `mask = "icepop"`."""
    mis_max: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2.0
    """The highest product of trainer ÷ behavior ratios of a sample that trains with `mask = "mis"`."""
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-5
    """The highest learning rate."""
    schedule: RateSchedule = RateSchedule.CONSTANT
    """How the learning rate falls after the warm-up."""
    warmup_steps: Count = 0
    """Train steps of linear rise of the learning rate."""
    decay_steps: Count = 0
    """Train steps of the run after which the learning rate is last_lr_share · lr; more than `warmup_steps`."""
    last_lr_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of `lr` that is left after `decay_steps` train steps."""
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    """The decay rates of AdamW's first and second moments."""
    eps: Annotated[float, Field(allow_inf_nan=False), AfterValidator(_normal)] = 1e-8
    """The epsilon of AdamW, from 1e-37; small gradients need a smaller one than 1e-8, such as 1e-15 in MiniMax-M1."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """The weight decay of AdamW."""
    decay_vectors: bool = True
    """Whether weight decay also holds for norms and biases."""
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradients whose norm is longer than this are shortened to it."""
    spike_norm: Annotated[float, Field(ge=0)] = 0.0
    """A gradient norm above this skips its train step; 0: none does."""
    pack_tokens: Annotated[Positive, PROCESS] = 16384
    """Merged tokens of one forward pass, which bound its memory; they change no result."""
    pack_pairs: Annotated[int, Field(ge=1, le=2**53), PROCESS] = 1 << 28
    """Pairs of query and key of one forward pass, which bound its time where contexts are long; they change no result."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """The precision of forward and backward passes; weights, gradients and moments are float32 (ops/guides/precision.md)."""
    activation_checkpointing: bool = False
    """Whether layers run again in the backward pass: less memory, more time."""
    keep_logprobs: bool = True
    """Whether the trainer log-probability of every trained token goes to the data pool (ops/guides/losses.md)."""
    keep_checkpoints: Positive = 3
    """How many checkpoints are kept, so how far back `penstock rewind` can go."""
    permute_advantages: bool = False
    """Whether advantages are shuffled within each batch, as a control experiment."""

    @model_validator(mode="before")
    @classmethod
    def _bounds_of_loss(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        low, high = RATIO_BOUNDS.get(str(given.get("loss")), RATIO_BOUNDS["cispo"])
        return {"ratio_min": low, "ratio_max": high, **given}

    @model_validator(mode="before")
    @classmethod
    def _rate_of_bias(cls, given: Any) -> Any:
        """A rate alone means "balance", "balance" alone its usual rate."""
        if not isinstance(given, dict):
            return given
        if given.get("expert_bias") == ExpertBias.BALANCE:
            return {"bias_rate": BIAS_RATE, **given}
        rate = given.get("bias_rate", 0)
        moves = isinstance(rate, int | float) and rate > 0
        return {"expert_bias": ExpertBias.BALANCE, **given} if moves else given

    @model_validator(mode="after")
    def _moves(self) -> "TrainerSection":
        if (self.expert_bias is ExpertBias.BALANCE) != (self.bias_rate > 0):
            raise ValueError(
                f"expert_bias is {quoted(str(self.expert_bias))} and bias_rate {self.bias_rate:g}: "
                'a rate above 0 goes with "balance", and 0 with "frozen"'
            )
        return self

    @model_validator(mode="after")
    def _bounds(self, info: ValidationInfo) -> "TrainerSection":
        if not (0 <= self.ratio_min <= 1 <= self.ratio_max and self.ratio_min < self.ratio_max):
            raise ValueError(
                f"ratio_min is {self.ratio_min} and ratio_max {self.ratio_max}: they are absolute ratios with 1 between them, "
                "so an offset of 0.2 above 1 is written 1.2"
            )
        if self.icepop_min >= self.icepop_max:
            raise ValueError(
                f"icepop_min ({self.icepop_min}) must be less than icepop_max ({self.icepop_max})"
            )
        if not is_stored(info):
            self._corrects_around_1()
        return self

    def _corrects_around_1(self) -> None:
        """Raise ValueError for a bound of a mask or weight that excludes the ratio of equal policies."""
        if not self.icepop_min <= 1 <= self.icepop_max:
            raise ValueError(
                f"icepop_min is {self.icepop_min} and icepop_max {self.icepop_max}: they are absolute ratios with 1 between them, "
                "so an offset of 0.2 above 1 is written 1.2"
            )
        for name, bound in {"mis_max": self.mis_max, "tis_max": self.tis_max}.items():
            if bound < 1:
                raise ValueError(
                    f"{name} is {bound}: it is an absolute ratio of at least 1, so an offset of 0.2 above 1 is written 1.2"
                )

    @property
    def untrainable(self) -> str | None:
        """Why a run that was stored before a bound existed cannot train, as a sentence; None: it can."""
        if self.eps >= MIN_EPS:
            return None
        return f"trainer.eps of this run is {self.eps:g}, which float32 rounds to 0: begin a new run with {MIN_EPS:g} or more"

    @model_validator(mode="after")
    def _falls(self) -> "TrainerSection":
        if self.schedule != RateSchedule.CONSTANT and self.decay_steps <= self.warmup_steps:
            raise ValueError(
                f"schedule is {quoted(self.schedule)}, so decay_steps ({self.decay_steps}) must be more than warmup_steps ({self.warmup_steps})"
            )
        return self
