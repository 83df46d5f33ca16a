"""`[rollout]` and `[rollout.context.NAME]`."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator
from scaffolds.observation import CHARACTERS

from orchestrator.contracts.limits import MAX_PATH
from orchestrator.contracts.quote import quoted
from orchestrator.settings.curriculum import Count, Positive
from orchestrator.settings.scope import PROCESS
from orchestrator.settings.section import Section
from orchestrator.settings.timeouts import Seconds, Wait

MAX_CHARACTERS: Final = 1 << 20
"""Of an observation: a sandbox keeps no more of an output."""


class ContextSection(BaseModel):
    """Context management of one white-box scaffold: `policy`, a name of the group `penstock.context_policies` or `none` (the history only
    grows), and the policy's own keys, which it checks itself (runner/context_policies.py)."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)

    policy: str
    """A context policy of the group `penstock.context_policies`, or none: the history only grows; further keys are the policy's own."""

    @property
    def settings(self) -> dict[str, Any]:
        """The policy's own keys."""
        return dict(self.model_extra or {})


class RolloutSection(Section):
    """Runners: concurrent rollouts, leases, time limits of an attempt, the shares of scaffolds among new groups, and the context
    management of white-box scaffolds by their name."""

    slots: Annotated[Positive, PROCESS] = 8
    """Rollouts that one runner works on at a time."""
    verify_slots: Annotated[Positive, PROCESS] = 2
    """Verifications that one verifier works on at a time; with too few, groups wait to be ready."""
    scaffolds: dict[str, float] = Field(default={"shell": 1.0})
    """The shares of scaffolds among new groups, by name or by the directory of one."""
    context: dict[str, ContextSection] = Field(default={})
    """The context management of white-box scaffolds, by their name."""
    lease_ttl_s: Seconds = 30.0
    """Seconds after its holder's last sign of life until a leased rollout is taken back."""
    timeout_s: Seconds = 14_400.0
    """The most seconds of one attempt; a task's own limit ([agent].timeout_sec) counts where it is shorter."""
    completion_s: Seconds = 7200.0
    """The most seconds of one completion; time for which the gateway holds the call does not count."""
    tool_timeout_s: Seconds = 600.0
    """The most seconds of one command of a white-box scaffold or mini-swe-agent; then it is killed, and the policy sees `killed after 600 s`."""
    observation_characters: Annotated[int, Field(ge=1, le=MAX_CHARACTERS)] = CHARACTERS
    """The most characters of a command's output that the policy of `shell` or mini-swe-agent sees; of a longer one it sees the head and the tail."""
    observation_lines: Annotated[int, Field(ge=0, le=MAX_CHARACTERS)] = 0
    """With 3, it sees only the first 3 lines, 80 characters each, and an exit code only where nothing was printed: for tiny policies; 0: as above."""
    stall_s: Seconds = 60.0
    """Seconds without completion, output or CPU time after which an attempt is stalled and ends, unless its task states [agent].stall_s."""
    retry_delay_s: Wait = 1.0
    """Seconds before a failed attempt is tried again or a lost one resumed; the wait doubles each time, up to five minutes."""
    reassign_after_s: Seconds = 300.0
    """Seconds without a taker after which an assignment is published again."""
    auxiliary_calls: Positive = 64
    """The most auxiliary calls of one attempt, those that a scaffold names in `auxiliary` and that take no turns."""
    auxiliary_tokens: Positive = 131_072
    """The most tokens that all auxiliary calls of one attempt sample."""
    max_resumes: Count = 3
    """How often one rollout is resumed after a lost runner; with 0 a lost runner costs the attempt."""
    train_timeouts: bool = True
    """Whether an agent that ran out of its own time is graded and trained as any other; otherwise it leaves its group."""

    @model_validator(mode="after")
    def _shares(self) -> "RolloutSection":
        if min(self.scaffolds.values(), default=0) < 0 or sum(self.scaffolds.values()) <= 0:
            raise ValueError(f"scaffolds must be shares >= 0 with at least one above 0, not {self.scaffolds}")
        for name in (*self.scaffolds, *self.context):
            if len(name.encode()) > MAX_PATH:
                raise ValueError(
                    f"the path of the scaffold {quoted(name)} has more than {MAX_PATH:,} bytes: move it to a shorter one"
                )
        return self
