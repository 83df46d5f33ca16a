"""The prefix cache returns the stored keys and values for exactly the longest known prefix."""

import gc
import weakref
from collections.abc import Callable

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.serving.kv import Piece
from trainer.serving.prefix_cache import Ids, PrefixCache

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=12)


def ids(tokens: list[int]) -> Ids:
    return np.array(tokens, dtype=np.int32)


def reader(tokens: list[int]) -> Callable[[int, int], Piece]:
    """Keys and values that identify their whole prefix, as real ones do: a hash of tokens[: i + 1]."""
    marks = torch.tensor([float(hash(tuple(tokens[: i + 1])) % 100_003) for i in range(len(tokens))])

    def read(start: int, end: int) -> Piece:
        piece = marks[start:end].view(1, 1, -1, 1)
        return piece.clone(), -piece.clone()

    return read


def common(a: list[int], b: list[int]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


def check(cache: PrefixCache, query: list[int], expected: int) -> None:
    found, pieces = cache.match(ids(query), "")
    assert found == expected
    if found:
        k = torch.cat([piece[0] for piece in pieces], 2)
        v = torch.cat([piece[1] for piece in pieces], 2)
        wanted = reader(query)(0, found)
        assert torch.equal(k, wanted[0]) and torch.equal(v, wanted[1])


@given(SEQUENCES, SEQUENCES)
def test_a_match_is_the_longest_prefix_of_anything_inserted_with_its_own_values(
    inserted: list[list[int]], queries: list[list[int]]
) -> None:
    cache = PrefixCache()
    for tokens in inserted:
        cache.insert(ids(tokens), "", reader(tokens))
    for query in [*queries, *inserted]:
        check(cache, query, max(common(query, tokens) for tokens in inserted))
    prefixes = {tuple(tokens[: i + 1]) for tokens in inserted for i in range(len(tokens))}
    assert cache.tokens == len(prefixes)


@given(SEQUENCES, st.integers(0, 30))
def test_eviction_keeps_the_budget_and_what_is_left_is_still_right(
    inserted: list[list[int]], keep: int
) -> None:
    cache = PrefixCache()
    for tokens in inserted:
        cache.insert(ids(tokens), "", reader(tokens))
    cache.evict(keep)
    assert cache.tokens <= keep
    total = 0
    for tokens in inserted:
        found, _ = cache.match(ids(tokens), "")
        check(cache, tokens, found)
        total = max(total, found)
    assert total <= cache.tokens


def test_the_least_recently_used_leaf_goes_first_and_shared_prefixes_last() -> None:
    cache = PrefixCache()
    for tail in (1, 2, 3):
        tokens = [9, 9, 9, tail, tail]
        cache.insert(ids(tokens), "", reader(tokens))
    assert cache.tokens == 9
    cache.match(ids([9, 9, 9, 1, 1]), "")
    cache.evict(7)
    assert [cache.match(ids([9, 9, 9, tail, tail]), "")[0] for tail in (1, 2, 3)] == [5, 3, 5]


def test_namespaces_share_nothing_and_clear_empties_all() -> None:
    cache = PrefixCache()
    cache.insert(ids([1, 2]), "a", reader([1, 2]))
    assert cache.match(ids([1, 2]), "b")[0] == 0
    assert cache.match(ids([1, 2]), "a")[0] == 2
    cache.clear()
    assert (cache.match(ids([1, 2]), "a")[0], cache.tokens) == (0, 0)


def test_what_is_cleared_is_freed_at_once_without_a_garbage_collection() -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def read(start: int, end: int) -> Piece:
        piece = torch.zeros(1, 1, end - start, 1), torch.zeros(1, 1, end - start, 1)
        held.extend(map(weakref.ref, piece))
        return piece

    cache = PrefixCache()
    gc.disable()
    try:
        for tokens in ([1, 2, 3, 4], [1, 2, 5], [1, 2, 3, 4, 6], [7]):
            cache.insert(ids(tokens), "", read)
        cache.clear()
        assert held and not [piece for piece in held if piece() is not None]
    finally:
        gc.enable()
