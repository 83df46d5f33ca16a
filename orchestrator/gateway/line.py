"""Ids of one branch as it grows: a single array that the steps of the branch share, so that memory follows tokens, not turns × tokens."""

import numpy as np

from orchestrator.contracts.ids import Ids


class Line:
    """int32 ids that only ever grow at the end. Views of what is there stay true."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self.length = len(ids)

    def view(self, length: int) -> Ids:
        """int32[length], the first ids."""
        return self._ids[:length]

    def grow(self, ids: Ids) -> None:
        """Append `ids`. Doubles what it holds when there is no room, so that n ids are copied O(n) times in all."""
        length = self.length + len(ids)
        if length > len(self._ids):
            wider = np.empty(max(length, 2 * len(self._ids)), dtype="<i4")
            wider[: self.length] = self._ids[: self.length]
            self._ids = wider
        self._ids[self.length : length] = ids
        self.length = length
