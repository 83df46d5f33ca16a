"""The learning rate of each train step.

    step:   0 ──warm-up──▶ warmup_steps ──constant | linear | cosine──▶ decay_steps ──▶ last_share · lr from there on

The rate is a function of the number of earlier train steps, which every checkpoint stores: a run that was killed and resumed has the
same rates as an uninterrupted run. A skipped train step counts.
"""

import math
from dataclasses import dataclass

from orchestrator.contracts.choices import RateSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """`lr` is the highest rate. `decay_steps` counts from the start of the run and is not read by `constant`."""

    lr: float
    kind: RateSchedule = RateSchedule.CONSTANT
    warmup_steps: int = 0
    decay_steps: int = 0
    last_share: float = 0.0  # of lr, at decay_steps and after

    def rate(self, step: int) -> float:
        """Learning rate of train step `step`, counted from 0.

        >>> schedule = Schedule(lr=1.0, kind=RateSchedule.LINEAR, warmup_steps=2, decay_steps=6, last_share=0.2)
        >>> [round(schedule.rate(step), 2) for step in range(8)]
        [0.5, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2]
        >>> [round(Schedule(lr=1.0, kind=RateSchedule.COSINE, decay_steps=4).rate(step), 3) for step in range(6)]
        [1.0, 0.854, 0.5, 0.146, 0.0, 0.0]
        """
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        if self.kind == RateSchedule.CONSTANT:
            return self.lr
        done = min(1.0, (step - self.warmup_steps) / (self.decay_steps - self.warmup_steps))
        remaining = 1 - done if self.kind == RateSchedule.LINEAR else (1 + math.cos(math.pi * done)) / 2
        return self.lr * (self.last_share + (1 - self.last_share) * remaining)
