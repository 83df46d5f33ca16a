"""A resume in the gateway: it serves the recorded steps of earlier leases of the attempt again and generates nothing.

The scaffold runs again from its beginning, so its requests come again. The gateway answers each with the recorded step that it made the first
time. It finds the step by the digest of the body, or by the exact ids of its state (a program may put other metadata into a body; ours does not).
A request is placed as it was then: later steps do not take part. Equal requests get their steps in recorded order, except for duplicates of
a request whose reply was lost: the step that the program continued from comes first, and the other one need not be requested. Different agents
need not keep their order. An agent that has requested all of its recorded steps continues with generation.

The ids must be the recorded ones. If they are not, if another request comes in place of a recorded one, or if the program ends before it has
requested all steps, the scaffold took another path than before: the resume has parted from its record, and a trajectory that mixes both
would belong to neither path. These steps need not be requested again: an aborted step, a step whose reply certainly reached no client,
a step with an equal step that the program continued from, an auxiliary step.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any

import anyio
import numpy as np

from orchestrator.contracts.marks import Finish
from orchestrator.gateway.messages.requests import CompletionRequest
from orchestrator.gateway.messages.turns import Turn, same_turns
from orchestrator.gateway.sessions.node import Node, Placement
from orchestrator.trajectory.waiting import Served

Place = Callable[[int | None], Placement]  # placement of a request before the step of that idx (None: now)
OWN_WIRE = "native"  # its bodies number an agent's calls, so equal requests have equal digests


class Replay:
    """The record of one session, and its progress. `needless`: steps that need not be requested again. `replayed`: the steps that were
    served again before this gateway restarted, as far as known; None: the session begins here."""

    def __init__(
        self, record: Sequence[Node], needless: Collection[int] = (), replayed: Collection[int] | None = None
    ) -> None:
        self.recorded = len(record)
        self.replayed = set(replayed or ())
        self._doubt = replayed is not None
        self._served_s = Served()
        for node in record:
            if node.idx in self.replayed:
                self._served_s.add(node.ended_at, node.generation_s)
        self.parted: str | None = None
        self._left = {
            node.idx: node for node in record if node.idx not in self.replayed and node.finish != Finish.ABORT
        }
        self._needless = set(needless)
        equal: dict[str, list[Node]] = defaultdict(list)
        for node in self._left.values():
            if node.digest:
                equal[node.digest].append(node)
        for duplicates in equal.values():
            self._needless |= _left_behind(duplicates)
        self._served: dict[str, Node] = {}  # the last step of each request's digest
        self._changed = anyio.Event()

    @property
    def replayed_s(self) -> float:
        """Seconds in which at least one of the steps that were served again was generated."""
        return self._served_s.seconds

    @property
    def open(self) -> bool:
        """Whether steps are left to serve again."""
        return bool(self._left)

    def summary(self) -> dict[str, Any]:
        """The replay's fields of the seal."""
        return {
            "recorded": self.recorded,
            "replayed": len(self.replayed),
            "replayed_s": round(self.replayed_s, 6),
            "missing": len(self.missing()),
            "parted": self.parted,
        }

    def missing(self, agent: str | None = None) -> list[int]:
        """The steps (of one agent) that must still be requested again, in recorded order."""
        return [
            idx
            for idx, node in sorted(self._left.items())
            if idx not in self._needless and agent in (None, node.agent)
        ]

    def repeated(self, request: CompletionRequest) -> Node | None:
        """The step that this same request already got, if its reply did not arrive."""
        node = self._served.get(request.digest)
        return node if node is not None and (node.delivered is not True or request.retries > 0) else None

    def take(self, request: CompletionRequest, place: Place) -> Node | None:
        """The recorded step of `request`, served once; None when it is not on record, or when its ids differ from the recorded ones (`parted`)."""
        if self._doubt:
            self._confirm_received(place(None))
        node = self._found(request, place)
        if node is None:
            return None
        if not _same_state(node, place(node.idx)):
            self.part(f"the request of step {node.idx} has other ids than are recorded")
            return None
        del self._left[node.idx]
        self.replayed.add(node.idx)
        self._served_s.add(node.ended_at, node.generation_s)
        self._served[request.digest] = node
        if node.delivered is None:
            node.delivered = False  # until it arrives
        self._tell()
        return node

    async def used_up(self, agent: str, within_s: float) -> None:
        """Before anything is generated for `agent`, wait until it has requested all of its steps. If it does not within `within_s`, the
        replay parts: the waiting request came in place of a recorded one."""
        with anyio.move_on_after(within_s):
            while self.parted is None and self.missing(agent):
                await self._changed.wait()
        if self.parted is None and (missing := self.missing(agent)):
            self.part(f"another request came in the place of step {missing[0]}")

    def part(self, reason: str) -> None:
        """The scaffold took another path than before. The first reason is kept."""
        self.parted = self.parted or reason
        self._tell()

    def _found(self, request: CompletionRequest, place: Place) -> Node | None:
        unserved = [node for _, node in sorted(self._left.items())]
        candidates = [node for node in unserved if node.digest == request.digest]
        if not candidates and request.wire != OWN_WIRE:
            same_agent = (
                node
                for node in unserved
                if node.agent == request.agent and _same_history(node, request.turns)
            )
            candidates = [node for node in same_agent if _same_state(node, place(node.idx))]
            self._needless |= _left_behind(candidates)
        return min(
            candidates,
            key=lambda node: (not node.children, node.idx in self._needless, node.idx),
            default=None,
        )

    def _confirm_received(self, placement: Placement) -> None:
        """A client that continues after a reply has received it. This shows which steps were replayed just before a gateway died."""
        node = placement.parent
        while node is not None:
            if self._left.pop(node.idx, None) is not None:
                self.replayed.add(node.idx)
                self._served_s.add(node.ended_at, node.generation_s)
            node = node.parent

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


def _left_behind(twins: Sequence[Node]) -> set[int]:
    """The steps of equal requests from which the program did not continue, if it continued from another."""
    continued = any(node.children for node in twins)
    return {node.idx for node in twins if continued and not node.children}


def _same_history(node: Node, turns: Sequence[Turn]) -> bool:
    """Whether `turns` end as the step's conversation did, as far as its text is on record. If not, comparing ids is unnecessary."""
    return same_turns(node.history, turns[len(turns) - len(node.history) :])


def _same_state(node: Node, placement: Placement) -> bool:
    return node.state_len == len(placement.ids) and np.array_equal(node.full[: node.state_len], placement.ids)
