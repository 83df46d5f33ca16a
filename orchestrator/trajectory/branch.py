"""A token sequence in the step tree: the prefix that it keeps of its parent, and its own tokens behind that."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from orchestrator.contracts.ids import Ids
from orchestrator.trajectory.routes import Routes, unrecorded


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Branch:
    """parent[:keep_len] + own. Branches that keep parts of the same parent share its tokens: nothing is copied.

    Example: the prompt [1 2 3] and a step on it with delta [4] and action [5 6] are Branch(own=[1 2 3]) and
    Branch(own=[4 5 6], parent=the first, keep_len=3), of length 6.
    If a mixture of experts was recorded (`routes`), two branches are equal only if the same experts computed them.
    Raises ValueError if the parent has fewer tokens than `keep_len`, or if `routes` has another number of tokens.
    """

    own: Ids  # int32[n]
    parent: Branch | None = None
    keep_len: int = 0  # tokens of the parent that come first
    routes: Routes | None = None  # int16[n, layers, top_k] of `own`; None: not recorded
    lowest: int = field(init=False)  # the lowest id here and above; 0 without any id
    highest: int = field(init=False)  # the highest id here and above; 0 without any id

    def __post_init__(self) -> None:
        parent_len = 0 if self.parent is None else len(self.parent)
        if not 0 <= self.keep_len <= parent_len:
            raise ValueError(
                f"a step keeps {self.keep_len} tokens of the {parent_len} above it: its parent or prompt is another"
            )
        if self.routes is not None and len(self.routes) != len(self.own):
            raise ValueError(f"a step has routes of {len(self.routes)} tokens and {len(self.own)} tokens")
        lowest, highest = int(self.own.min(initial=0)), int(self.own.max(initial=0))
        if self.parent is not None:
            lowest, highest = min(lowest, self.parent.lowest), max(highest, self.parent.highest)
        object.__setattr__(self, "lowest", lowest)
        object.__setattr__(self, "highest", highest)

    def __len__(self) -> int:
        return self.keep_len + len(self.own)

    @property
    def full(self) -> Ids:
        """int32[len]: the whole sequence, built again at every call."""
        return self.tail(0)

    def tail(self, begin: int) -> Ids:
        """int32[len − begin]: the tokens from `begin` on. Not a copy if all of them are the branch's own."""
        if begin >= self.keep_len:
            return self.own[begin - self.keep_len :]
        pieces: list[Ids] = []
        branch: Branch | None = self
        end = len(self)
        while branch is not None and end > begin:
            if end > branch.keep_len:
                pieces.append(branch.own[max(begin - branch.keep_len, 0) : end - branch.keep_len])
            end, branch = min(end, branch.keep_len), branch.parent
        return np.concatenate(pieces[::-1])

    @property
    def full_routes(self) -> Routes | None:
        """int16[len, layers, top_k]: the routes of the whole sequence, built again at every call; None: none is recorded."""
        pieces: list[tuple[int, Routes | None]] = []
        branch: Branch | None = self
        end = len(self)
        while branch is not None and end > 0:
            own = max(0, end - branch.keep_len)
            pieces.append((own, None if branch.routes is None else branch.routes[:own]))
            end, branch = min(end, branch.keep_len), branch.parent
        template = next((routes for _, routes in pieces if routes is not None), None)
        if template is None:
            return None
        return np.concatenate([unrecorded(n, template) if r is None else r for n, r in reversed(pieces)])
