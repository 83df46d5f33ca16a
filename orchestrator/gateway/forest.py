"""The append-only forest of one attempt's steps, and where a new request belongs in it.

    place(turns)   → Placement: the matched parent, and the exact ids to send
    classify(ids)  → Origin: kind, parent and keep_len under which the step is stored

Matching is by message (a harness replays text), merging is by id. A request whose history is not ours is never refused: it is a new
branch, which shares the longest common prefix with an earlier step, or a new root.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from orchestrator.contracts.ids import Ids
from orchestrator.contracts.states import StepKind
from orchestrator.gateway.messages import Turn, same_turns
from orchestrator.gateway.render import Renderer, Tool


@dataclass(slots=True, eq=False)
class Node:
    """A recorded step. full: int32[full_len]; `history` are the turns since the matched parent (since the beginning without one).

    `delivered`: True once a harness has the reply, False while it certainly has not, None when that is unknown (after a restart).
    """

    idx: int
    parent: "Node | None"  # the step whose conversation this one goes on with; not the storage parent of a rewrite
    history: tuple[Turn, ...]
    reply: Turn
    full: Ids
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
    delivered: bool | None = False
    children: "list[Node]" = field(default_factory=list)

    @property
    def action(self) -> Ids:
        return self.full[self.state_len :]


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """A request's place. `ids` is the state to send; `appended` the turns that the parent's conversation does not have."""

    parent: Node | None
    appended: tuple[Turn, ...]
    ids: list[int]
    tools: str
    foreign: bool  # assistant turns among `appended`


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """How a step is stored. `reason`: why it is not a plain continuation (None for continuations and an attempt's first root)."""

    kind: StepKind
    parent: Node | None
    keep_len: int
    reason: str | None


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
            assert np.array_equal(node.full[: len(node.parent.full)], node.parent.full)
            node.parent.delivered = True  # its reply came back to us
        self.nodes.append(node)
        (node.parent.children if node.parent is not None else self._roots).append(node)

    def match(self, turns: Sequence[Turn], tools: str) -> tuple[Node | None, int]:
        """(deepest step whose conversation with its reply begins `turns`, turns consumed); (None, 0) without one."""
        best: tuple[Node, int] | None = None
        frontier = [(node, 0) for node in self._roots if node.tools == tools]
        while frontier:
            node, at = frontier.pop()
            end = at + len(node.history)
            if end >= len(turns) or not node.reply.same(turns[end]):
                continue
            if not same_turns(node.history, turns[at:end]):
                continue
            if best is None or self._preferred(node, end + 1, turns) > self._preferred(*best, turns):
                best = (node, end + 1)
            frontier += [(child, end + 1) for child in node.children]
        return best or (None, 0)

    @staticmethod
    def _preferred(node: Node, consumed: int, turns: Sequence[Turn]) -> tuple[int, bool, int]:
        """Deepest first; among equal siblings the one that the tool-call ids name, else the newest."""
        return consumed, turns[consumed - 1].hint == node.idx, node.idx

    def place(self, turns: Sequence[Turn], tools: Sequence[Tool], tools_digest: str) -> Placement:
        """Where `turns` belong, and the exact ids of their state: recorded ids for whatever was sampled, rendered ones for the rest."""
        parent, consumed = self.match(turns, tools_digest)
        rest = turns[consumed:]
        segments = _split(rest)
        if parent is not None:
            ids = [*parent.full.tolist(), *self._renderer.suffix(parent.ended, segments[0][0])]
        else:
            ids = self._renderer.opening(segments[0][0], tools)
        for (_, said), (following, _) in pairwise(segments):
            assert said is not None
            known = self._sampled(said)
            action = known.action.tolist() if known is not None else self._renderer.action(said)
            ended = known.ended if known is not None else True
            ids += [*action, *self._renderer.suffix(ended, following)]
        return Placement(parent, tuple(rest), ids, tools_digest, len(segments) > 1)

    def _sampled(self, turn: Turn) -> Node | None:
        """The step that said `turn`, on whatever branch: its sampled ids stand for it, rather than a rendering."""
        known = [node for node in self.nodes if node.reply.same(turn) and len(node.action)]
        if not known:
            return None
        return next((node for node in known if node.idx == turn.hint), known[-1])

    def classify(self, placement: Placement, reason: str | None) -> Origin:
        """How the step is stored: the longest common prefix with any earlier step, or a root when not even the first turn is shared."""
        parent = placement.parent
        if parent is not None:
            return Origin(
                StepKind.CONTINUES,
                parent,
                len(parent.full),
                reason or ("foreign_turn" if placement.foreign else None),
            )
        state = np.asarray(placement.ids, dtype="<i4")
        if not self.nodes:
            return Origin(StepKind.ROOT, None, len(state), reason)
        shared = [node for node in self.nodes if same_turns(_first_turn(node), placement.appended[:1])]
        if not shared:
            return Origin(StepKind.ROOT, None, len(state), reason or "new_conversation")
        keep, nearest = max(
            ((_common(state, node.full), node) for node in shared), key=lambda found: (found[0], found[1].idx)
        )
        sibling = keep == len(state) == nearest.state_len
        return Origin(
            StepKind.REWRITES,
            nearest,
            min(keep, len(nearest.full) - 1),
            reason or ("sibling" if sibling else "rewritten"),
        )


def _first_turn(node: Node) -> tuple[Turn, ...]:
    """The turn with which the node's conversation began; empty when its text was too large to be recorded."""
    while node.parent is not None:
        node = node.parent
    return node.history[:1]


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
