"""The stages of a run, one after the other: what trains when, within which limits, until when. Pure.

    [stage]                       the first: name, shares of domains, difficulties, limits, end_batches
    [[stage.then]]                the next one, and so on; the last one's end condition ends the run

Which stage is on follows from the number of committed batches alone, so a restart changes nothing, and a rewind goes back in it as well.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """What people write: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DomainLimits(Section):
    """What one domain has in the place of its stage's limits; absent: the stage's."""

    max_turns: Positive | None = None
    max_context: Positive | None = None


class NextStage(Section):
    """One stage: domain shares, difficulties, context and turn limits, and what ends it (0 = not a condition)."""

    name: str = "main"
    domains: dict[str, float] = {}  # empty: whatever is submitted, in equal parts
    difficulties: tuple[str, ...] = ()  # of tasks (`[metadata].difficulty`); empty: any
    max_turns: Positive = 4
    max_context: Positive = 2048
    limits: dict[str, DomainLimits] = {}  # by domain
    end_train_steps: Annotated[int, Field(ge=0)] = 0
    end_batches: Annotated[int, Field(ge=0)] = 0
    end_seconds: Annotated[float, Field(ge=0)] = 0.0

    def turns(self, domain: str) -> int:
        """Completions of one rollout, unless its task says."""
        return self.limits.get(domain, DomainLimits()).max_turns or self.max_turns

    def context(self, domain: str) -> int:
        """Tokens of state and action together."""
        return self.limits.get(domain, DomainLimits()).max_context or self.max_context

    def has(self, domain: str) -> bool:
        """Whether a domain has a share in this stage."""
        return not self.domains or self.domains.get(domain, 0.0) > 0

    def takes(self, domain: str, difficulty: str) -> bool:
        """Whether such a task trains in this stage."""
        return self.has(domain) and (not self.difficulties or difficulty in self.difficulties)

    def reached(self, *, batches: int, train_steps: int, seconds: float) -> str | None:
        """Which end condition holds, as a reason, or None. `seconds` since the first training group was dispatched."""
        if self.end_batches and batches >= self.end_batches:
            return f"{batches} batches are committed"
        if self.end_train_steps and train_steps >= self.end_train_steps:
            return f"{train_steps} train steps are done"
        if self.end_seconds and seconds >= self.end_seconds:
            return f"{seconds:.0f} seconds have passed"
        return None


class StageSection(NextStage):
    """The first stage, and those that follow it in order (`[[stage.then]]`). A stage is over with its `end_batches`-th batch, the last one, and
    with it the run, when its end condition holds: `end_batches` counts its own batches, the others count from the run's start.

    A group belongs to the stage that is on when it is dispatched: its limits stay those, whenever it is trained.
    """

    then: tuple[NextStage, ...] = ()

    @property
    def all(self) -> tuple[NextStage, ...]:
        """Every stage, in order."""
        return (self, *self.then)

    def at(self, batches: int) -> tuple[NextStage, int]:
        """The stage that is on when so many batches are committed, and how many were when it began."""
        began = 0
        for stage in self.all[:-1]:
            if batches < began + stage.end_batches:
                return stage, began
            began += stage.end_batches
        return self.all[-1], began

    def number(self, batches: int) -> int:
        """The place in `all`, from 0, of the stage that is on when so many batches are committed."""
        return self.all.index(self.at(batches)[0])

    def reached(self, *, batches: int, train_steps: int, seconds: float) -> str | None:
        """Which end condition of the last stage holds, as a reason, or None."""
        last, began = self.at(batches)
        if last is not self.all[-1]:
            return None
        own = batches - began
        return NextStage.reached(last, batches=own, train_steps=train_steps, seconds=seconds)

    @model_validator(mode="after")
    def _follow(self) -> "StageSection":
        for stage in self.all[:-1]:
            if not stage.end_batches or stage.end_train_steps or stage.end_seconds:
                raise ValueError(
                    f"stage {stage.name!r} is followed by another one: it ends by end_batches, which must be above 0, and by nothing else"
                )
        names = [stage.name for stage in self.all]
        if len(set(names)) < len(names):
            raise ValueError(f"stages need names of their own, not {', '.join(names)}")
        return self
