"""Places of a sample from a long row of things: one of every `stride` neighbours, drawn, so that no period of the row can hide in it.

Every `stride`-th place would do for rows without order, but queue positions and train steps have one: domains are dealt in turn, and train steps
are the parts of their batches in turn. Every 2nd position of four domains is two domains.
"""

from hashlib import blake2b


def sampled(first: int, last: int, most: int) -> tuple[list[int], int]:
    """Of the places `first` to `last` (both 0 or more) all, or one of every `stride` where they are more than `most`: (places, stride).

    Which one is drawn by a hash of where it stands, the same at each call: while a row grows, what was drawn of it stays.

    >>> sampled(0, 4, 5), sampled(0, 4, 3)[1]
    (([0, 1, 2, 3, 4], 1), 2)
    """
    assert first >= 0 and most >= 1
    stride = max(1, -(-(last - first + 1) // most))
    drawn = (block * stride + _draw(block, stride) for block in range(first // stride, last // stride + 1))
    return [place for place in drawn if first <= place <= last], stride


def _draw(block: int, stride: int) -> int:
    """0 to stride − 1."""
    if stride == 1:
        return 0
    digest = blake2b(b"%d of %d" % (block, stride), digest_size=8).digest()
    return int.from_bytes(digest, "little") % stride
