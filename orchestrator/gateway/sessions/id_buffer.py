"""Ids of one branch as it grows: a single array shared by the steps of the branch, so memory grows with tokens, not turns × tokens."""

import numpy as np

from orchestrator.contracts.ids import Ids


class IdBuffer:
    """int32 ids that grow only at the end. Existing views stay valid."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self.length = len(ids)

    def view(self, length: int) -> Ids:
        """int32[length], the first ids."""
        return self._ids[:length]

    def grow(self, ids: Ids) -> None:
        """Append `ids`. The buffer doubles when it is full, so n ids are copied O(n) times in total."""
        length = self.length + len(ids)
        if length > len(self._ids):
            larger = np.empty(max(length, 2 * len(self._ids)), dtype="<i4")
            larger[: self.length] = self._ids[: self.length]
            self._ids = larger
        self._ids[self.length : length] = ids
        self.length = length
