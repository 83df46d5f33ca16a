"""The reason why a step is a branch: where the request first parts from the nearest recorded conversation."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from orchestrator.contracts.ids import Ids
from orchestrator.contracts.marks import BranchReason
from orchestrator.gateway.messages.turns import Turn
from orchestrator.gateway.render import Renderer
from orchestrator.gateway.sessions.node import Node

BEFORE, EXCERPT = 12, 72  # characters before the first difference, and shown in all
TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first difference. `near`: the step (idx) whose conversation is nearest; `turn`: the index of the message; `field`: role | calls | text |
    reasoning | tools | ids, or end where one of the two has no more messages. `recorded` and `sent`: the two values of the field."""

    near: int
    turn: int
    field: str
    recorded: str | None
    sent: str | None

    def plain(self) -> dict[str, Any]:
        """The JSON form that is recorded."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Branch:
    """The reason for a branch; the reasons are those of `forest.StepOrigin`."""

    reason: BranchReason
    difference: Difference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parting:
    """How many `turns` match a node's conversation. `recorded` is its next message; `reply`: whether that is the step's answer."""

    matched: int
    node: Node
    recorded: Turn | None
    reply: bool
    tools: bool  # whether the prompt shows the same tools


def nearest(nodes: Sequence[Node], roots: Sequence[Node], turns: Sequence[Turn], tools: str | None) -> Branch:
    """The branch of a request that is not a plain continuation of any step."""
    found = max(
        (_follow(nodes, root, turns, root.tools == tools) for root in roots),
        key=lambda parting: (parting.matched, parting.tools, parting.reply, parting.node.idx),
    )
    at, near = found.matched, found.node.idx
    sent = turns[at] if at < len(turns) else None
    if not found.tools and at > 0:
        return Branch(
            BranchReason.TOOLS,
            Difference(near=near, turn=0, field="tools", recorded=found.node.tools, sent=tools),
        )
    if sent is None:
        if found.reply:
            return Branch(BranchReason.SIBLING)
        return Branch(
            BranchReason.SHORTENED,
            Difference(near=near, turn=at, field="end", recorded=_excerpt(found.recorded), sent=None),
        )
    if found.recorded is None:
        return Branch(
            BranchReason.FOREIGN_TURN,
            Difference(near=near, turn=at, field="end", recorded=None, sent=_excerpt(sent)),
        )
    if at == 0:
        return Branch(BranchReason.NEW_CONVERSATION, _between(near, at, found.recorded, sent))
    return Branch(BranchReason.REWRITTEN, _between(near, at, found.recorded, sent))


def rendered_otherwise(renderer: Renderer, matched: Node, state: Ids) -> Branch:
    """The branch of a request whose matched conversation the template has rendered into other ids than the recorded ones."""
    shared = min(len(state), len(matched.full))
    differing = np.flatnonzero(state[:shared] != matched.full[:shared])
    at = int(differing[0]) if len(differing) else shared
    recorded, sent = (renderer.decode(each[at : at + TOKENS].tolist()) for each in (matched.full, state))
    return Branch(
        BranchReason.PER_REQUEST,
        Difference(near=matched.idx, turn=at, field="ids", recorded=recorded, sent=sent),
    )


def _follow(nodes: Sequence[Node], root: Node, turns: Sequence[Turn], tools: bool) -> _Parting:
    best: _Parting | None = None
    frontier = [(root, 0)]
    while frontier:
        node, start = frontier.pop()
        parting = _part(node, start, turns, tools)
        if parting.recorded is None:
            frontier += [(nodes[child], parting.matched) for child in node.children]
        if best is None or _rank(parting) > _rank(best):
            best = parting
    assert best is not None
    return best


def _rank(parting: _Parting) -> tuple[int, bool, bool, int]:
    """The nearest conversation matches most turns. Of several, one with the same request ranks before one that continues with other messages."""
    return parting.matched, parting.recorded is not None, parting.reply, parting.node.idx


def _part(node: Node, start: int, turns: Sequence[Turn], tools: bool) -> _Parting:
    for at, recorded in enumerate((*node.history, node.reply), start):
        if at >= len(turns) or not recorded.same(turns[at]):
            return _Parting(
                matched=at, node=node, recorded=recorded, reply=at - start == len(node.history), tools=tools
            )
    return _Parting(matched=start + len(node.history) + 1, node=node, recorded=None, reply=False, tools=tools)


def _between(near: int, at: int, recorded: Turn, sent: Turn) -> Difference:
    for field in ("role", "calls", "text", "reasoning"):
        recorded_field, sent_field = _field(recorded, field), _field(sent, field)
        if recorded_field != sent_field:
            begin = max(0, _common(recorded_field, sent_field) - BEFORE)
            return Difference(
                near=near,
                turn=at,
                field=field,
                recorded=recorded_field[begin : begin + EXCERPT],
                sent=sent_field[begin : begin + EXCERPT],
            )
    raise AssertionError("turns that differ differ in a field")


def _field(turn: Turn, field: str) -> str:
    if field == "calls":
        return " ".join(f"{call.name}{call.arguments}" for call in turn.calls)
    text = str(getattr(turn, field) or "")
    return text.strip() if turn.role == "assistant" else text


def _common(one: str, other: str) -> int:
    """Length of the longest common prefix."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def _excerpt(turn: Turn | None) -> str | None:
    if turn is None:
        return None
    calls = _field(turn, "calls")
    return f"{turn.role}: {turn.text or calls}"[:EXCERPT]
