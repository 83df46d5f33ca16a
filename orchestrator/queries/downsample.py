"""Sample positions of a long sequence: one of every `stride` neighbours, drawn by a hash, so that no period of the sequence is hidden.

Taking every `stride`-th position would do for unordered rows, but queue positions and train steps have an order: domains are dealt in turn,
and train steps are the parts of their batches in turn. Every 2nd position of four domains covers two domains.
"""

from hashlib import blake2b


def downsample(first: int, last: int, most: int) -> tuple[list[int], int]:
    """All positions from `first` to `last` (both 0 or more), or one of every `stride` if they exceed `most`: (positions, stride).

    A hash of the position draws the sample, the same at each call: as the sequence grows, positions drawn before stay.

    >>> downsample(0, 4, 5), downsample(0, 4, 3)[1]
    (([0, 1, 2, 3, 4], 1), 2)
    """
    assert first >= 0 and most >= 1
    stride = max(1, -(-(last - first + 1) // most))
    drawn = (block * stride + _draw(block, stride) for block in range(first // stride, last // stride + 1))
    return [position for position in drawn if first <= position <= last], stride


def _draw(block: int, stride: int) -> int:
    """0 to stride − 1."""
    if stride == 1:
        return 0
    digest = blake2b(b"%d of %d" % (block, stride), digest_size=8).digest()
    return int.from_bytes(digest, "little") % stride
