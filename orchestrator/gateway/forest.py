"""The append-only forest of one attempt's steps, and where a new request belongs in it.

    place(turns)   → Placement: the matched parent, and the exact ids to send
    classify(ids)  → Origin: kind, parent and keep_len under which the step is stored

Matching is by message (a harness replays text), merging is by id. A request whose history is not ours is never refused: it is a new
branch, which shares the longest common prefix with an earlier step, or a new root; `branches.py` says why.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from orchestrator.contracts.ids import Ids
from orchestrator.contracts.routes import Routed
from orchestrator.contracts.states import StepKind
from orchestrator.gateway.branches import Difference, nearest, rendered_otherwise
from orchestrator.gateway.line import Line
from orchestrator.gateway.messages import Turn, same_turns
from orchestrator.gateway.render import Renderer, Tool


@dataclass(slots=True, eq=False)
class Node:
    """A recorded step. `line` begins with its `full_len` ids; `history` are the turns since the matched parent (since the beginning
    without one).

    `delivered`: True once a harness has the reply, False while it certainly has not, None when that is unknown (after a restart).
    """

    idx: int
    parent: "Node | None"  # the step whose conversation this one goes on with; not the storage parent of a rewrite
    history: tuple[Turn, ...]
    reply: Turn
    line: Line
    full_len: int
    state_len: int
    root: int
    chain: bytes
    tools: str  # digest of the tools in the prompt, "" when they are not shown
    ended: bool  # whether the action has its end token
    agent: str
    parse: str
    finish: str  # stop | length | abort
    digest: str
    versions: tuple[int, ...]
    generation_s: float = 0.0
    marks: tuple[str, ...] = ()  # why it must not train, as it was recorded
    delivered: bool | None = False
    children: "list[Node]" = field(default_factory=list)

    @property
    def full(self) -> Ids:
        """int32[full_len]: state and action."""
        return self.line.view(self.full_len)

    @property
    def action(self) -> Ids:
        return self.full[self.state_len :]

    @property
    def routed(self) -> int | None:
        """The weights that all of it was routed by, as it is recorded; None: by more than one."""
        return self.versions[0] if len(self.versions) == 1 else None


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """A request's place. `ids`, int32[n], is the state to send; `appended` the turns that the parent's conversation does not have.

    `matched` is the step whose conversation the request goes on with: the parent, unless a template that does not extend conversations
    has rendered it into other ids."""

    parent: Node | None
    appended: tuple[Turn, ...]
    ids: Ids
    tools: str
    foreign: bool  # assistant turns among `appended`
    turns: tuple[Turn, ...]
    matched: Node | None

    @property
    def routed(self) -> Routed:
        """The parent's last token was sampled, and never fed: its route is not known."""
        return Routed() if self.parent is None else Routed(self.parent.full_len - 1, self.parent.routed)


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """How a step is stored. `reason`: why it is not a plain continuation (None for one, and for an attempt's first root):

    sibling           the same conversation was asked about before (best of n, a repeated body)
    rewritten         a message of it was changed
    shortened         it ends where no step began
    tools             the prompt shows other tools
    new_conversation  not even its first message is known
    foreign_turn      it goes on with an answer that the policy never gave
    closed            the answer before it was cut off, and is closed by tokens that nobody sampled
    per_request       the model's chat template rewrites what was said, so nothing is shared

    or what the scaffold says of its own context management. `difference` is where the request parts from the nearest recorded step.
    """

    kind: StepKind
    parent: Node | None
    keep_len: int
    reason: str | None
    difference: Difference | None = None


class Forest:
    """Steps by idx and the conversations that they make."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self.nodes: list[Node] = []
        self._roots: list[Node] = []

    def add(self, node: Node) -> None:
        """Append a committed step; its idx must be the next one."""
        assert node.idx == len(self.nodes), f"step {node.idx} cannot follow {len(self.nodes)} steps"
        if node.parent is not None:
            if node.parent.line.length == node.parent.full_len:  # nothing else goes on there yet
                node.parent.line.grow(node.full[node.parent.full_len :])
                node.line = node.parent.line
            node.parent.delivered = True  # its reply came back to us
        self.nodes.append(node)
        (node.parent.children if node.parent is not None else self._roots).append(node)

    def match(self, turns: Sequence[Turn], tools: str, before: int | None = None) -> tuple[Node | None, int]:
        """(deepest step whose conversation with its reply begins `turns`, turns consumed); (None, 0) without one. Steps from the idx
        `before` on have no part in it."""
        end_idx = len(self.nodes) if before is None else before
        best: tuple[Node, int] | None = None
        frontier = [(node, 0) for node in self._roots if node.tools == tools and node.idx < end_idx]
        while frontier:
            node, at = frontier.pop()
            end = at + len(node.history)
            if end >= len(turns) or not node.reply.same(turns[end]):
                continue
            if not same_turns(node.history, turns[at:end]):
                continue
            deeper = best is None or end + 1 > best[1]
            if deeper or (
                best is not None
                and end + 1 == best[1]
                and self._preferred(node, end + 1, turns, end_idx)
                > self._preferred(best[0], end + 1, turns, end_idx)
            ):
                best = (node, end + 1)
            frontier += [(child, end + 1) for child in node.children if child.idx < end_idx]
        return best or (None, 0)

    @staticmethod
    def _preferred(node: Node, consumed: int, turns: Sequence[Turn], end_idx: int) -> tuple[bool, bool, int]:
        """Among equal siblings, the one that the tool-call ids name, else one that was asked this before (the same body is the
        same state again), else the newest."""
        rest = turns[consumed:]
        asked = any(same_turns(child.history, rest) for child in node.children if child.idx < end_idx)
        return turns[consumed - 1].hint == node.idx, asked, node.idx

    def place(
        self, turns: Sequence[Turn], tools: Sequence[Tool], tools_digest: str, before: int | None = None
    ) -> Placement:
        """Where `turns` belong, and the exact ids of their state: recorded ids for whatever was sampled, rendered ones for the rest. With
        `before` as it was when the step of that idx was about to be made."""
        parent, consumed = self.match(turns, tools_digest, before)
        if not self._renderer.extends:
            return self._place_whole(turns, tools, tools_digest, parent)
        rest = turns[consumed:]
        segments = _split(rest)
        ids: list[int] = []
        action = None if parent is None else parent.action.tolist()
        at = consumed
        for run, said in segments:
            at += len(run)
            known = self._sampled(turns, at, before) if said is not None else None
            at += 1
            asking = said is None or known is not None
            if action is None:
                ids += self._renderer.opening(run, tools, asking=asking)
            else:
                ids += self._renderer.between(action, run, asking=asking)
            if said is not None:
                action = known.action.tolist() if known is not None else self._renderer.said(said)
                ids += action
        new = np.asarray(ids, dtype="<i4")
        state = new if parent is None else np.concatenate([parent.full, new])
        return Placement(parent, tuple(rest), state, tools_digest, len(segments) > 1, tuple(turns), parent)

    def _place_whole(
        self, turns: Sequence[Turn], tools: Sequence[Tool], tools_digest: str, matched: Node | None
    ) -> Placement:
        """A request of its own: it goes on with the matched step only if the template happens to leave that as it was."""
        ids = np.asarray(self._renderer.whole(turns, tools), dtype="<i4")
        if matched is not None and np.array_equal(ids[: matched.full_len], matched.full):
            consumed = len(turns) - len(_after(matched, turns))
            return Placement(
                matched, tuple(turns[consumed:]), ids, tools_digest, False, tuple(turns), matched
            )
        return Placement(None, tuple(turns), ids, tools_digest, False, tuple(turns), matched)

    def _sampled(self, turns: Sequence[Turn], at: int, before: int | None) -> Node | None:
        """The step that said the turn `at` of a rewritten history: its sampled ids stand for it, rather than a rendering. Of several, the one
        that its tool-call ids name, else the first: later steps change nothing about an earlier request."""
        said, recorded = turns[at], self.nodes[:before]
        known = [
            node
            for node in recorded
            if len(node.action) and node.reply.same(said) and _said_here(node, turns, at, len(recorded))
        ]
        return next((node for node in known if node.idx == said.hint), known[0] if known else None)

    def classify(self, placement: Placement, reason: str | None) -> Origin:
        """How the step is stored: the longest common prefix with any earlier step, or a root when not even the first turn is shared."""
        kind, parent, keep_len = self._stored(placement)
        if not self.nodes:
            return Origin(kind, parent, keep_len, reason)
        if (
            kind is StepKind.CONTINUES
            and parent is not None
            and not parent.children
            and not placement.foreign
        ):
            return Origin(kind, parent, keep_len, reason or (None if parent.ended else "closed"))
        if placement.matched is not placement.parent and placement.matched is not None:
            found = rendered_otherwise(self._renderer, placement.matched, placement.ids)
        else:
            # What goes on with a step is told apart from conversations of the same prompt only.
            same = [root for root in self._roots if placement.parent is None or root.tools == placement.tools]
            found = nearest(same, placement.turns, placement.tools)
        return Origin(kind, parent, keep_len, reason or found.reason, found.difference)

    def _stored(self, placement: Placement) -> tuple[StepKind, Node | None, int]:
        parent = placement.parent
        if parent is not None:
            return StepKind.CONTINUES, parent, len(parent.full)
        state = placement.ids
        shared = [node for node in self.nodes if same_turns(_first_turn(node), placement.appended[:1])]
        if not shared:
            return StepKind.ROOT, None, len(state)
        keep, near = max(
            ((_common(state, node.full), node) for node in shared), key=lambda found: (found[0], found[1].idx)
        )
        return StepKind.REWRITES, near, min(keep, len(near.full) - 1)


def _first_turn(node: Node) -> tuple[Turn, ...]:
    """The turn with which the node's conversation began; empty when its text was too large to be recorded."""
    while node.parent is not None:
        node = node.parent
    return node.history[:1]


def _said_here(node: Node, turns: Sequence[Turn], at: int, end_idx: int) -> bool:
    """Whether the turn `at`, which reads as the step's reply, is that reply: its tool-call ids say so, it says all that was said, or it stands
    beside what it stood beside. An example, or another agent's answer, that merely reads the same must not bring the reasoning
    of a conversation that is none of its own."""
    said = turns[at]
    if said.hint == node.idx or (said.reasoning or "").strip() == (node.reply.reasoning or "").strip():
        return True
    if at and node.history and node.history[-1].same(turns[at - 1]):
        return True
    onward = [child.history[:1] for child in node.children if child.idx < end_idx and child.history]
    return any(same_turns(begun, turns[at + 1 : at + 2]) for begun in onward)


def _after(node: Node, turns: Sequence[Turn]) -> Sequence[Turn]:
    """What `turns` have beyond the conversation of `node`, with which they begin."""
    length = 0
    above: Node | None = node
    while above is not None:
        length, above = length + len(above.history) + 1, above.parent
    return turns[length:]


def _common(one: Ids, other: Ids) -> int:
    """Length of the longest common prefix."""
    n = min(len(one), len(other))
    different = np.flatnonzero(one[:n] != other[:n])
    return int(different[0]) if len(different) else n


def _split(turns: Sequence[Turn]) -> list[tuple[list[Turn], Turn | None]]:
    """Runs of turns, each with the assistant turn that follows it; the last run has none."""
    segments: list[tuple[list[Turn], Turn | None]] = []
    run: list[Turn] = []
    for turn in turns:
        if turn.role == "assistant":
            segments.append((run, turn))
            run = []
        else:
            run.append(turn)
    segments.append((run, None))
    return segments
