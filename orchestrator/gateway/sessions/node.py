"""A recorded step in the forest of its attempt, and the place of a request that does not have a step yet."""

from dataclasses import dataclass, field

from orchestrator.contracts.ids import Ids
from orchestrator.contracts.marks import Finish, ParseStatus
from orchestrator.gateway.messages.turns import Turn
from orchestrator.gateway.sessions.id_buffer import IdBuffer
from orchestrator.trajectory.routes import Routed


@dataclass(slots=True, eq=False, kw_only=True)
class Node:
    """A recorded step. `buffer` begins with its `full_len` ids; `history` are the turns since the matched parent (since the beginning
    without one).

    `delivered`: True once a harness has the reply, False while it certainly has not, None when that is unknown (after a restart).
    """

    idx: int
    # The step whose conversation this one continues; not the storage parent of a rewrite.
    parent: "Node | None"
    history: tuple[Turn, ...]
    reply: Turn
    buffer: IdBuffer
    full_len: int
    state_len: int
    root: int
    chain: bytes
    tools: str | None  # digest of the tools in the prompt; None: they are not shown
    ended: bool  # whether the action has its end token
    agent: str
    parse: ParseStatus
    finish: Finish
    digest: str | None  # of the request; None: not recorded
    versions: tuple[int, ...]
    generation_s: float = 0.0
    ended_at: float = 0.0  # StepTimings.ended
    marks: tuple[str, ...] = ()  # recorded reasons why it must not train
    delivered: bool | None = False
    # The idx of each step that continues it. Steps that knew each other would be held, with their ids, until a garbage collection.
    children: list[int] = field(default_factory=list)

    @property
    def full(self) -> Ids:
        """int32[full_len]: state and action."""
        return self.buffer.view(self.full_len)

    @property
    def action(self) -> Ids:
        return self.full[self.state_len :]

    @property
    def routed(self) -> int | None:
        """The one version whose weights routed the whole action, as recorded; None if there were several."""
        return self.versions[0] if len(self.versions) == 1 else None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Placement:
    """A request's place. `ids`, int32[n], is the state to send; `appended` the turns that the parent's conversation does not have.

    `matched` is the step whose conversation the request continues. It is the parent, unless the template does not extend conversations
    and has rendered that conversation into other ids."""

    parent: Node | None
    appended: tuple[Turn, ...]
    ids: Ids
    tools: str | None
    foreign: bool  # assistant turns among `appended`
    turns: tuple[Turn, ...]
    matched: Node | None

    @property
    def routed(self) -> Routed:
        """The parent's routes. Its last token was sampled and never fed to the model, so its route is unknown."""
        return Routed() if self.parent is None else Routed(self.parent.full_len - 1, self.parent.routed)
