"""Why a step is a branch: where the request first parts from the nearest conversation on record."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.contracts.ids import Ids
from orchestrator.gateway.messages import Turn
from orchestrator.gateway.render import Renderer

if TYPE_CHECKING:
    from orchestrator.gateway.forest import Node

REASONS = frozenset(
    {
        "sibling",
        "rewritten",
        "shortened",
        "tools",
        "new_conversation",
        "foreign_turn",
        "closed",
        "per_request",
    }
)
BEFORE, EXCERPT = 12, 72  # characters before the first difference, and shown in all
TOKENS = 16


@dataclass(frozen=True, slots=True)
class Difference:
    """The first one. `near`: the step (idx) whose conversation is nearest; `turn`: the index of the message; `field`: role | calls | text |
    reasoning | tools | ids, or end where one of both has no more messages. `recorded` and `sent` are what the field says there."""

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
    """Why there is one; the reasons are `forest.Origin`'s."""

    reason: str
    difference: Difference | None = None


@dataclass(frozen=True, slots=True)
class _Parting:
    """How far `turns` go with a node's conversation. `recorded` is its next message, `reply` whether that is the step's answer."""

    matched: int
    node: "Node"
    recorded: Turn | None
    reply: bool
    tools: bool  # whether the prompt shows the same tools


def nearest(roots: "Sequence[Node]", turns: Sequence[Turn], tools: str) -> Branch:
    """Of a request that is not a plain continuation of any step."""
    found = max(
        (_follow(root, turns, root.tools == tools) for root in roots),
        key=lambda parting: (parting.matched, parting.tools, parting.reply, parting.node.idx),
    )
    at, near = found.matched, found.node.idx
    sent = turns[at] if at < len(turns) else None
    if not found.tools and at > 0:
        return Branch("tools", Difference(near, 0, "tools", found.node.tools or None, tools or None))
    if sent is None:
        if found.reply:
            return Branch("sibling")
        return Branch("shortened", Difference(near, at, "end", _excerpt(found.recorded), None))
    if found.recorded is None:
        return Branch("foreign_turn", Difference(near, at, "end", None, _excerpt(sent)))
    if at == 0:
        return Branch("new_conversation", _between(near, at, found.recorded, sent))
    return Branch("rewritten", _between(near, at, found.recorded, sent))


def rendered_otherwise(renderer: Renderer, matched: "Node", state: Ids) -> Branch:
    """Where a template has rendered the matched conversation into other ids than were recorded."""
    shared = min(len(state), len(matched.full))
    parted = np.flatnonzero(state[:shared] != matched.full[:shared])
    at = int(parted[0]) if len(parted) else shared
    recorded, sent = (renderer.decode(each[at : at + TOKENS].tolist()) for each in (matched.full, state))
    return Branch("per_request", Difference(matched.idx, at, "ids", recorded, sent))


def _follow(root: "Node", turns: Sequence[Turn], tools: bool) -> _Parting:
    best: _Parting | None = None
    frontier = [(root, 0)]
    while frontier:
        node, start = frontier.pop()
        parting = _part(node, start, turns, tools)
        if parting.recorded is None:
            frontier += [(child, parting.matched) for child in node.children]
        if best is None or _rank(parting) > _rank(best):
            best = parting
    assert best is not None
    return best


def _rank(parting: _Parting) -> tuple[int, bool, bool, int]:
    """The nearest goes furthest; of several, one that was asked the very same comes before one in which others spoke next."""
    return parting.matched, parting.recorded is not None, parting.reply, parting.node.idx


def _part(node: "Node", start: int, turns: Sequence[Turn], tools: bool) -> _Parting:
    for at, recorded in enumerate((*node.history, node.reply), start):
        if at >= len(turns) or not recorded.same(turns[at]):
            return _Parting(at, node, recorded, at - start == len(node.history), tools)
    return _Parting(start + len(node.history) + 1, node, None, False, tools)


def _between(near: int, at: int, recorded: Turn, sent: Turn) -> Difference:
    for field in ("role", "calls", "text", "reasoning"):
        one, other = _field(recorded, field), _field(sent, field)
        if one != other:
            begin = max(0, _common(one, other) - BEFORE)
            return Difference(near, at, field, one[begin : begin + EXCERPT], other[begin : begin + EXCERPT])
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
