"""Token ids as JSON text. This is the only cost of a call that grows with its context; a table reduces it to a copy."""

from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from orchestrator.contracts.ids import Ids

DIGITS = 7  # and a comma: eight bytes, which numpy copies as one number
MIN_ENTRIES, MAX_ENTRIES = 2**16, 2**20  # entries of a table; no vocabulary has a larger id


def json_ids(ids: Ids) -> Any:
    """A value that `msgspec.json.encode` writes as the list of `ids`, int32[n]. Spaces pad short numbers, which JSON allows."""
    if not len(ids) or ids.min() < 0 or (maximum := int(ids.max())) >= MAX_ENTRIES:
        return ids.tolist()
    text = _table(max(MIN_ENTRIES, 1 << maximum.bit_length()))[ids].tobytes()
    return msgspec.Raw(b"[" + text[:-1] + b"]")


@lru_cache(maxsize=6)
def _table(size: int) -> npt.NDArray[np.uint64]:
    """uint64[size]: the eight characters of every id, right-aligned. It is computed in milliseconds, because a call waits for it."""
    text = np.full((size, DIGITS + 1), ord(" "), dtype=np.uint8)
    text[:, DIGITS] = ord(",")
    rest = np.arange(size)
    text[0, DIGITS - 1] = ord("0")
    for digit in reversed(range(DIGITS)):
        shown = rest > 0
        text[shown, digit] = ord("0") + rest[shown] % 10
        rest //= 10
    return text.view(np.uint64)[:, 0]
