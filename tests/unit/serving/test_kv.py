"""Memory for keys and values: how much there is, and that rows keep their contents in it."""

import random

import torch

from trainer.serving.kv import KvPool, KvRow, KvShape

SHAPE = KvShape(layers=1, heads=1, key_dim=1, value_dim=1)
BUDGET = 40960


def allocated(pool: KvPool) -> int:
    return sum(arena.k.shape[1] * arena.capacity for arena in pool.arenas)


def test_sequences_of_all_sizes_leave_no_memory_behind() -> None:
    pool = KvPool(SHAPE, BUDGET, BUDGET)
    for tokens in (100, 400, 900, 2000, 4096, 8000, 16000, 32000, 40000):
        row = pool.place(tokens)
        assert allocated(pool) == max(1024, row.capacity)
        pool.release(row)
    assert (allocated(pool), pool.held) == (0, 0)


def test_the_memory_of_all_rows_stays_within_twice_the_budget_and_rows_keep_their_contents() -> None:
    chance, pool = random.Random(0), KvPool(SHAPE, BUDGET, BUDGET)
    rows, most = list[tuple[KvRow, int]](), 0
    for number in range(3000):
        tokens = min(int(chance.paretovariate(0.3)), BUDGET) if number % 500 > 250 else 100
        while pool.held + pool.capacity_for(tokens) > BUDGET:
            row, mark = rows.pop(chance.randrange(len(rows)))
            assert torch.equal(row.read(0, 2)[0].reshape(2), torch.full((2,), float(mark)))
            pool.release(row)
        row = pool.place(tokens)
        row.write(0, tuple(torch.full((1, 1, 2, 1), float(number)) for _ in range(2)))
        rows.append((row, number))
        most = max(most, allocated(pool))
    assert BUDGET < most <= 2 * BUDGET
    for row, mark in rows:
        assert row.read(0, 1)[0].item() == mark
