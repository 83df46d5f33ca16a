"""The stages of a run, one after the other: the tasks of each stage, its limits and its end. Pure.

    [stage]                       the first: name, shares of domains, difficulties, limits, end_batches
    [[stage.then]]                the next one, and so on; the last one's end condition ends the run

The current stage follows only from the number of committed batches. So a restart changes nothing, and a rewind also goes back to an earlier stage.
"""

from typing import Annotated

from pydantic import Field, model_validator

from orchestrator.contracts.numbers import INT2, INT4
from orchestrator.contracts.quote import quoted
from orchestrator.settings.section import Section
from orchestrator.settings.timeouts import MAX_S

Positive = Annotated[int, Field(ge=1, le=INT4)]
Small = Annotated[int, Field(ge=1, le=INT2)]
"""Numbers that the data pool keeps as a smallint: groups of a batch, its parts, attempts."""
Count = Annotated[int, Field(ge=0, le=INT4)]
Context = Count  # tokens; 0: the model's own


class DomainLimits(Section):
    """The limits of one domain in place of its stage's; absent: the stage's."""

    max_turns: Positive | None = None
    """Completions of one rollout of this domain; absent: the stage's."""
    max_context: Context | None = None
    """Tokens of a context of this domain, state and action together; 0 is the model's own, absent the stage's."""


class NextStage(Section):
    """One stage: domain shares, difficulties, context and turn limits, and what ends it (0 = not a condition)."""

    name: str = "main"
    """The name of the stage; every stage has a name of its own."""
    domains: dict[str, float] = {}  # noqa: RUF012  (pydantic copies it)
    """The shares of domains among new groups; empty: whatever is submitted, in equal parts."""
    difficulties: tuple[str, ...] = ()
    """The difficulties of tasks that train in this stage (`[metadata].difficulty`); empty: any."""
    max_turns: Positive = 200
    """Completions of one rollout, unless its task or domain sets its own number."""
    max_context: Context = 0
    """Tokens of one context, state and action together, unless the domain sets its own number; 0: as many as the model takes."""
    limits: dict[str, DomainLimits] = {}  # noqa: RUF012  (pydantic copies it)
    """Limits of single domains in the place of the stage's."""
    end_train_steps: Count = 0
    """The run ends after so many train steps; 0: no limit."""
    end_batches: Count = 0
    """The stage ends after so many batches of its own, and with the last stage the run; 0: no limit."""
    end_seconds: Annotated[float, Field(ge=0, le=MAX_S)] = 0.0
    """The run ends so many seconds after its first training group was dispatched; 0: no limit."""

    @model_validator(mode="after")
    def _shares(self) -> "NextStage":
        if self.domains and (min(self.domains.values()) < 0 or sum(self.domains.values()) <= 0):
            raise ValueError(f"domains must be shares >= 0 with at least one above 0, not {self.domains}")
        return self

    def turns(self, domain: str) -> int:
        """Completions of one rollout, unless its task says."""
        return self.limits.get(domain, DomainLimits()).max_turns or self.max_turns

    def context(self, domain: str) -> int:
        """Tokens of state and action together; 0: as many as the model takes."""
        own = self.limits.get(domain, DomainLimits()).max_context
        return self.max_context if own is None else own

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
    """The stages that follow, in order, as `[[stage.then]]`; each has the keys of `[stage]`."""

    @property
    def all(self) -> tuple[NextStage, ...]:
        """Every stage, in order."""
        return (self, *self.then)

    def at(self, batches: int) -> tuple[NextStage, int]:
        """The stage that is on when so many batches are committed, and how many were when it began."""
        first_batch = 0
        for stage in self.all[:-1]:
            if batches < first_batch + stage.end_batches:
                return stage, first_batch
            first_batch += stage.end_batches
        return self.all[-1], first_batch

    def number(self, batches: int) -> int:
        """The place in `all`, from 0, of the stage that is on when so many batches are committed."""
        return self.all.index(self.at(batches)[0])

    def reached(self, *, batches: int, train_steps: int, seconds: float) -> str | None:
        """Which end condition of the last stage holds, as a reason, or None."""
        last, first_batch = self.at(batches)
        if last is not self.all[-1]:
            return None
        own = batches - first_batch
        return NextStage.reached(last, batches=own, train_steps=train_steps, seconds=seconds)

    @model_validator(mode="after")
    def _follow(self) -> "StageSection":
        for stage in self.all[:-1]:
            if not stage.end_batches or stage.end_train_steps or stage.end_seconds:
                raise ValueError(
                    f"stage {quoted(stage.name)} is followed by another one: it ends by end_batches, which must be above 0, and by nothing else"
                )
        names = [stage.name for stage in self.all]
        if len(set(names)) < len(names):
            raise ValueError(f"stages need names of their own, not {', '.join(names)}")
        return self
