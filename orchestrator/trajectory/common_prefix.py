"""The longest common prefix of two sequences of token ids."""

import numpy as np
from numpy.typing import NDArray


def common_prefix(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """Its length in tokens."""
    n = min(len(one), len(other))
    different = np.flatnonzero(one[:n] != other[:n])
    return int(different[0]) if len(different) else n
