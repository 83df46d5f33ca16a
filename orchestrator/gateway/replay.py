"""A resume, as the gateway sees it: the steps that earlier leases of the attempt recorded are served again, and nothing is generated.

The scaffold runs once more from its beginning, so its requests come again: each is answered by the recorded step that it made the first time,
found by the digest of its body, or by the exact ids of its state (a program may put other metadata into a body; ours does not). It is placed
as it was then: what was recorded later has no part in it. Equal requests get their steps in recorded order, but for those that are there twice
because a reply was lost on its way: first comes what the program went on with, and the other need not be asked for. Different agents need not
keep their order. Once an agent has asked for all of its own, it goes on.

The ids must be the recorded ones. Where they are not, where another request comes in the place of a recorded one, or where the
program ends before it has asked for them all, the scaffold went another way than before: the resume has parted from its record, and a
trajectory of both would be nobody's. What need not be asked for again: a step that was given up, one whose reply certainly reached nobody,
one beside whose equal the program went on, an auxiliary one.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any

import anyio
import numpy as np

from orchestrator.gateway.forest import Node, Placement
from orchestrator.gateway.messages import Turn, same_turns
from orchestrator.gateway.requests import CompletionRequest

Place = Callable[
    [int | None], Placement
]  # of a request, as it was before the step of that idx (None: as it is now)
OWN_WIRE = "native"  # its bodies number the calls of an agent: equal requests have equal digests


class Replay:
    """The record of one session, and how much of it was asked for again. `needless` are steps that need not be. `replayed`: those that
    were before this gateway started anew, as far as it is known; None: the session begins here."""

    def __init__(
        self, record: Sequence[Node], needless: Collection[int] = (), replayed: Collection[int] | None = None
    ) -> None:
        self.recorded = len(record)
        self.replayed = set(replayed or ())
        self._doubt = replayed is not None
        self.replayed_s = sum(node.generation_s for node in record if node.idx in self.replayed)
        self.parted: str | None = None
        self._left = {
            node.idx: node for node in record if node.idx not in self.replayed and node.finish != "abort"
        }
        self._needless = set(needless)
        equal: dict[str, list[Node]] = defaultdict(list)
        for node in self._left.values():
            if node.digest:
                equal[node.digest].append(node)
        for twins in equal.values():
            self._needless |= _left_behind(twins)
        self._served: dict[str, Node] = {}  # the last step of each request's digest
        self._changed = anyio.Event()

    @property
    def open(self) -> bool:
        """Whether there is something left to serve again."""
        return bool(self._left)

    def told(self) -> dict[str, Any]:
        """What the seal says of it."""
        return {
            "recorded": self.recorded,
            "replayed": len(self.replayed),
            "replayed_s": round(self.replayed_s, 6),
            "missing": len(self.missing()),
            "parted": self.parted,
        }

    def missing(self, agent: str | None = None) -> list[int]:
        """The steps (of one agent) that must still be asked for again, in recorded order."""
        return [
            idx
            for idx, node in sorted(self._left.items())
            if idx not in self._needless and agent in (None, node.agent)
        ]

    def repeated(self, request: CompletionRequest) -> Node | None:
        """The step that this very request was served before, when its reply did not come through."""
        node = self._served.get(request.digest)
        return node if node is not None and (node.delivered is not True or request.retries > 0) else None

    def take(self, request: CompletionRequest, place: Place) -> Node | None:
        """The recorded step of `request`, once; None when it is not on record, or `parted` when its ids are not the recorded ones."""
        if self._doubt:
            self._heard(place(None))
        node = self._found(request, place)
        if node is None:
            return None
        if not _same_state(node, place(node.idx)):
            self.part(f"the request of step {node.idx} has other ids than are recorded")
            return None
        del self._left[node.idx]
        self.replayed.add(node.idx)
        self.replayed_s += node.generation_s
        self._served[request.digest] = node
        if node.delivered is None:
            node.delivered = False  # until it is
        self._tell()
        return node

    async def used_up(self, agent: str, within_s: float) -> None:
        """Before anything is generated for `agent`: wait until it has asked for all of its steps. It parts when that does not come to
        be: the request that waits came in the place of a recorded one."""
        with anyio.move_on_after(within_s):
            while self.parted is None and self.missing(agent):
                await self._changed.wait()
        if self.parted is None and (missing := self.missing(agent)):
            self.part(f"another request came in the place of step {missing[0]}")

    def part(self, reason: str) -> None:
        """The scaffold went another way than before; the first reason stays."""
        self.parted = self.parted or reason
        self._tell()

    def _found(self, request: CompletionRequest, place: Place) -> Node | None:
        left = [node for _, node in sorted(self._left.items())]
        twins = [node for node in left if node.digest == request.digest]
        if not twins and request.wire != OWN_WIRE:
            mine = (node for node in left if node.agent == request.agent and _asked(node, request.turns))
            twins = [node for node in mine if _same_state(node, place(node.idx))]
            self._needless |= _left_behind(twins)
        return min(
            twins,
            key=lambda node: (not node.children, node.idx in self._needless, node.idx),
            default=None,
        )

    def _heard(self, placement: Placement) -> None:
        """Whoever goes on with a reply has got it: what was replayed just before a gateway died is known by that."""
        node = placement.parent
        while node is not None:
            if self._left.pop(node.idx, None) is not None:
                self.replayed.add(node.idx)
                self.replayed_s += node.generation_s
            node = node.parent

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


def _left_behind(twins: Sequence[Node]) -> set[int]:
    """Of the steps of equal requests, those with whose reply nobody went on, where somebody did with another's."""
    onward = any(node.children for node in twins)
    return {node.idx for node in twins if onward and not node.children}


def _asked(node: Node, turns: Sequence[Turn]) -> bool:
    """Whether `turns` end as the step's conversation did, as far as its text is on record: else its ids need not be looked at."""
    return same_turns(node.history, turns[len(turns) - len(node.history) :])


def _same_state(node: Node, placement: Placement) -> bool:
    return node.state_len == len(placement.ids) and np.array_equal(node.full[: node.state_len], placement.ids)
