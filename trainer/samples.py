"""Samples, the trainer's input: one sample is one (state, action) pair, that is, one recorded completion.

A sample exists only inside the process: a frozen dataclass of numpy arrays. `T` is the number of tokens of state
and action together, `A` the number of action tokens. All per-token values are per *action* token, in order:

    tokens            [ s s s s s | a a a ]      a branch of T ids, state_len = 5
    behavior_logprobs             [ b b b ]      float32[A], after temperature, as the rollout server returned them

The tokens stay in the step tree, so a batch takes the memory of its unique tokens; `ids` builds one row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from orchestrator.trajectory.branch import Branch

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Sample:
    """One policy-gradient sample.

    Raises ValueError naming group, rollout and step if an array has the wrong length, if the state is empty (the
    first action token would have no predictor) or if a behavior logprob, advantage or weight is not finite.
    """

    tokens: Branch  # T ids
    state_len: int  # the first `state_len` tokens are the state, the rest the action
    behavior_logprobs: Floats  # float32[A]
    versions: Ids  # int32[A], the policy version that made each token
    advantage: Floats  # float32[A]
    weight: Floats  # float32[A], train weight ≥ 0; a marked step has 0
    group: str
    rollout: str
    step: int
    seq: int = 0  # queue position of the group
    domain: str = ""
    temperature: float = 1.0
    proximal_logprobs: Floats | None = None  # float32[A], of the trainer before the batch's first train step

    def __post_init__(self) -> None:
        if not 0 < self.state_len <= len(self.tokens):
            raise ValueError(f"{self.name}: state_len {self.state_len} is not in 1..{len(self.tokens)}")
        if self.tokens.own.dtype != np.int32 or self.tokens.lowest < 0:
            raise ValueError(f"{self.name}: ids must be int32 and not negative")
        if not self.temperature > 0:
            raise ValueError(
                f"{self.name}: temperature {self.temperature} has no log-probabilities; it must be > 0"
            )
        for field in ("behavior_logprobs", "versions", "advantage", "weight", "proximal_logprobs"):
            values = getattr(self, field)
            if values is None:
                continue
            if values.shape != (self.action_len,):
                raise ValueError(
                    f"{self.name}: {field} has shape {values.shape}, expected ({self.action_len},)"
                )
            if not np.isfinite(values).all():
                raise ValueError(f"{self.name}: {field} holds a value that is not finite")
        if (self.weight < 0).any():
            raise ValueError(f"{self.name}: a train weight is negative")

    @classmethod
    def of(
        cls,
        state: Sequence[int] | Ids,
        action: Sequence[int] | Ids,
        *,
        behavior_logprobs: Sequence[float] | Floats,
        advantage: float | Sequence[float] | Floats,
        version: int | Sequence[int] | Ids = 0,
        weight: float | Sequence[float] | Floats = 1.0,
        group: str = "",
        rollout: str = "",
        step: int = 0,
        seq: int = 0,
        domain: str = "",
        temperature: float = 1.0,
    ) -> "Sample":
        """A sample from plain sequences; a scalar advantage, version or weight holds for every action token."""
        tokens = np.concatenate([np.asarray(state, np.int32), np.asarray(action, np.int32)])
        n = len(action)

        def spread(value: float | Sequence[float] | Floats | Ids) -> Floats:
            array = np.asarray(value, np.float32)
            return np.full(n, array, np.float32) if array.ndim == 0 else array

        versions = np.asarray(version, np.int32)
        return cls(
            tokens=Branch(own=tokens),
            state_len=len(state),
            behavior_logprobs=np.asarray(behavior_logprobs, np.float32),
            versions=np.full(n, versions, np.int32) if versions.ndim == 0 else versions,
            advantage=spread(advantage),
            weight=spread(weight),
            group=group,
            rollout=rollout,
            step=step,
            seq=seq,
            domain=domain,
            temperature=temperature,
        )

    @property
    def ids(self) -> Ids:
        """int32[T]: state and action as one row, built at every call."""
        return self.tokens.full

    @property
    def action(self) -> Ids:
        """int32[A]."""
        return self.tokens.tail(self.state_len)

    @property
    def action_len(self) -> int:
        """A, the number of action tokens."""
        return len(self.tokens) - self.state_len

    @property
    def trained_tokens(self) -> int:
        """Action tokens of train weight > 0."""
        return int(np.count_nonzero(self.weight))

    @property
    def name(self) -> str:
        """Its name in messages to people."""
        return f"sample (group {self.group!r}, rollout {self.rollout!r}, step {self.step})"
