"""The append-only forest of one attempt's steps, and where a new request belongs in it.

    place(turns)   → Placement: the matched parent, and the exact ids to send
    classify(ids)  → StepOrigin: kind, parent and keep_len under which the step is stored

Matching is by message (a harness replays text), merging is by id. A request with an unknown history is never refused. It is a new
branch, which shares the longest common prefix with an earlier step, or a new root; `branches.py` gives the reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.contracts.marks import BranchReason
from orchestrator.contracts.states import StepKind
from orchestrator.gateway.messages.turns import Turn, same_turns
from orchestrator.gateway.render import Renderer, Tool
from orchestrator.gateway.sessions.branches import Difference, nearest, rendered_otherwise
from orchestrator.gateway.sessions.node import Node, Placement
from orchestrator.trajectory.common_prefix import common_prefix


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepOrigin:
    """How a step is stored. `reason`: why it is not a plain continuation (None for a continuation, and for an attempt's first root):

    sibling           a recorded step has the same conversation (best of n, a repeated body)
    rewritten         a message of it was changed
    shortened         it ends where no step began
    tools             the prompt shows other tools
    new_conversation  even its first message is unknown
    foreign_turn      it continues after an answer that the policy never gave
    closed            the answer before it was cut off, and is closed by tokens that were not sampled
    per_request       the model's chat template rewrites earlier turns, so no prefix is shared

    or the reason that the scaffold gives for its own context management. `difference` is where the request parts from the nearest recorded step.
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
        # By `Turn.key` of their replies: a rewritten history has many messages to look up, and comparing calls may parse their arguments.
        self._by_reply: dict[tuple[object, ...], list[Node]] = {}

    def add(self, node: Node) -> None:
        """Append a committed step; its idx must be the next one."""
        assert node.idx == len(self.nodes), f"step {node.idx} cannot follow {len(self.nodes)} steps"
        if node.parent is not None:
            if node.parent.buffer.length == node.parent.full_len:  # no other step continues there yet
                node.parent.buffer.grow(node.full[node.parent.full_len :])
                node.buffer = node.parent.buffer
            node.parent.delivered = True  # its reply came back in this request
        self.nodes.append(node)
        self._by_reply.setdefault(node.reply.key, []).append(node)
        if node.parent is not None:
            node.parent.children.append(node.idx)
        else:
            self._roots.append(node)

    def match(
        self, turns: Sequence[Turn], tools: str | None, before: int | None = None
    ) -> tuple[Node | None, int]:
        """(deepest step whose conversation with its reply is a prefix of `turns`, turns consumed); (None, 0) without one. Steps from the idx
        `before` on are ignored."""
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
            is_longer = best is None or end + 1 > best[1]
            if is_longer or (
                best is not None
                and end + 1 == best[1]
                and self._preferred(node, end + 1, turns, end_idx)
                > self._preferred(best[0], end + 1, turns, end_idx)
            ):
                best = (node, end + 1)
            frontier += [(self.nodes[child], end + 1) for child in node.children if child < end_idx]
        return best or (None, 0)

    def _preferred(
        self, node: Node, consumed: int, turns: Sequence[Turn], end_idx: int
    ) -> tuple[bool, bool, int]:
        """Among equal siblings, the step that the tool-call ids name, else one with a child for the same request (the same body is the
        same state again), else the newest."""
        rest = turns[consumed:]
        same_request = any(
            same_turns(self.nodes[child].history, rest) for child in node.children if child < end_idx
        )
        return turns[consumed - 1].hint == node.idx, same_request, node.idx

    def place(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Tool],
        tools_digest: str | None,
        before: int | None = None,
    ) -> Placement:
        """The place of `turns`, and the exact ids of their state: recorded ids for sampled turns, rendered ids for the rest. With
        `before`, the place when the step of that idx was about to be made; this is safe from another thread, since steps are only added."""
        parent, consumed = self.match(turns, tools_digest, before)
        if not self._renderer.extends:
            return self._place_whole(turns, tools, tools_digest, parent)
        rest = turns[consumed:]
        segments = _split(rest)
        ids: list[int] = []
        action, caller = (None, None) if parent is None else (parent.action.tolist(), parent.reply)
        at = consumed
        for run, assistant in segments:
            at += len(run)
            known = self._sampled(turns, at, before) if assistant is not None else None
            at += 1
            asking = assistant is None or known is not None
            if action is None:
                ids += self._renderer.opening(run, tools, asking=asking)
            else:
                ids += self._renderer.between(action, run, asking=asking, caller=caller)
            if assistant is not None:
                caller = assistant
                action = known.action.tolist() if known is not None else self._renderer.given(assistant)
                ids += action
        new = np.asarray(ids, dtype="<i4")
        state = new if parent is None else np.concatenate([parent.full, new])
        return Placement(
            parent=parent,
            appended=tuple(rest),
            ids=state,
            tools=tools_digest,
            foreign=len(segments) > 1,
            turns=tuple(turns),
            matched=parent,
        )

    def _place_whole(
        self, turns: Sequence[Turn], tools: Sequence[Tool], tools_digest: str | None, matched: Node | None
    ) -> Placement:
        """Render the request as a whole. It continues the matched step only if the template happens to leave that step's ids unchanged."""
        ids = np.asarray(self._renderer.whole(turns, tools), dtype="<i4")
        if matched is not None and np.array_equal(ids[: matched.full_len], matched.full):
            consumed = len(turns) - len(_after(matched, turns))
            return Placement(
                parent=matched,
                appended=tuple(turns[consumed:]),
                ids=ids,
                tools=tools_digest,
                foreign=False,
                turns=tuple(turns),
                matched=matched,
            )
        return Placement(
            parent=None,
            appended=tuple(turns),
            ids=ids,
            tools=tools_digest,
            foreign=False,
            turns=tuple(turns),
            matched=matched,
        )

    def _sampled(self, turns: Sequence[Turn], at: int, before: int | None) -> Node | None:
        """The step that sampled the turn `at` of a rewritten history. Its sampled ids are used instead of a rendering. Of several, the step
        that its tool-call ids name, else the first: later steps change nothing about an earlier request."""
        turn, end_idx = turns[at], len(self.nodes) if before is None else before
        known = [
            node
            for node in self._by_reply.get(turn.key, ())
            if node.idx < end_idx
            and len(node.action)
            and node.reply.same_reasoning(turn)
            and self._replied_here(node, turns, at, end_idx)
        ]
        return next((node for node in known if node.idx == turn.hint), known[0] if known else None)

    def _replied_here(self, node: Node, turns: Sequence[Turn], at: int, end_idx: int) -> bool:
        """Whether the turn `at`, which reads as the step's reply, is that reply: its tool-call ids name the step, its reasoning is the same, or
        a neighboring turn is the same. An example, or another agent's answer, that merely reads the same must not bring in the reasoning
        of a foreign conversation."""
        turn = turns[at]
        if turn.hint == node.idx or (turn.reasoning or "").strip() == (node.reply.reasoning or "").strip():
            return True
        if at and node.history and node.history[-1].same(turns[at - 1]):
            return True
        children = (self.nodes[child] for child in node.children if child < end_idx)
        continuations = [child.history[:1] for child in children if child.history]
        return any(same_turns(following, turns[at + 1 : at + 2]) for following in continuations)

    def classify(self, placement: Placement, reason: str | None) -> StepOrigin:
        """How the step is stored: the longest common prefix with any earlier step, or a root when it does not share even the first turn."""
        kind, parent, keep_len = self._stored(placement)
        if not self.nodes:
            return StepOrigin(kind=kind, parent=parent, keep_len=keep_len, reason=reason)
        if (
            kind is StepKind.CONTINUES
            and parent is not None
            and not parent.children
            and not placement.foreign
        ):
            return StepOrigin(
                kind=kind,
                parent=parent,
                keep_len=keep_len,
                reason=reason or (None if parent.ended else BranchReason.CLOSED),
            )
        if placement.matched is not placement.parent and placement.matched is not None:
            found = rendered_otherwise(self._renderer, placement.matched, placement.ids)
        else:
            # A continuation is compared only with conversations whose prompt shows the same tools.
            same_tools = [
                root for root in self._roots if placement.parent is None or root.tools == placement.tools
            ]
            found = nearest(self.nodes, same_tools, placement.turns, placement.tools)
        return StepOrigin(
            kind=kind,
            parent=parent,
            keep_len=keep_len,
            reason=reason or found.reason,
            difference=found.difference,
        )

    def _stored(self, placement: Placement) -> tuple[StepKind, Node | None, int]:
        parent = placement.parent
        if parent is not None:
            return StepKind.CONTINUES, parent, len(parent.full)
        state = placement.ids
        shared = [node for node in self.nodes if same_turns(_first_turn(node), placement.appended[:1])]
        if not shared:
            return StepKind.ROOT, None, len(state)
        keep, near = max(
            ((common_prefix(state, node.full), node) for node in shared),
            key=lambda found: (found[0], found[1].idx),
        )
        return StepKind.REWRITES, near, min(keep, len(near.full) - 1)


def _first_turn(node: Node) -> tuple[Turn, ...]:
    """The first turn of the node's conversation; empty when its text was too large to be recorded."""
    while node.parent is not None:
        node = node.parent
    return node.history[:1]


def _after(node: Node, turns: Sequence[Turn]) -> Sequence[Turn]:
    """The turns after the conversation of `node`, which is a prefix of `turns`."""
    length = 0
    current: Node | None = node
    while current is not None:
        length, current = length + len(current.history) + 1, current.parent
    return turns[length:]


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
