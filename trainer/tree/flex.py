"""The tree plan on a GPU: FlexAttention, compiled once with gradients and once without, with a block mask made from two integers per key.

The keys are those of the path above (P), then the plan's own (T). Queries are padded to Q, a multiple of 128 and at least 256, and keys
to a multiple of 128 with a separate key for every padding query: padding sees only itself. Then for all of them

    key k is visible to query q  ⇔  first[k] ≤ q < end[k]

    key       path    token i               padding of query i    rest
    first     0       i                     i                     Q
    end       T       subtree_end[i]        i + 1                 0

The kernel needs to know which blocks of 128 queries × 128 keys are empty and which are full. `first` never falls, so both follow from
`end`'s running maximum and minimum within each block of keys, in O(T + blocks²), without evaluating any pair. The result is exact: it
equals the result of torch's `create_block_mask`, which tries every pair (a test).
"""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx.experimental import _config
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from trainer.tree.plan import Longs, TreePlan

BLOCK = 128
MIN_HEAD = 16  # the compiled kernel refuses smaller heads
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def attend_flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: TreePlan,
    scale: float,
    past: tuple[Tensor, Tensor] | None = None,
    kernel: Callable[..., Tensor] | None = None,
) -> Tensor:
    """Attention output [1, T, H, D] for q [1, H, T, D], k and v [1, H_kv, T, D] and the path's keys and values [1, H_kv, P, D].

    Raises ValueError for a device or dtype that the compiled kernel does not support. `kernel` is for tests: torch's own `flex_attention`, not
    compiled, runs anywhere with T² memory, on CPU without gradients unless a test disables torch's check.
    """
    if kernel is None and (q.device.type != "cuda" or q.dtype not in DTYPES):
        raise ValueError(
            f"the flex backend runs on a CUDA device in float32, bfloat16 or float16, not {q.device.type} in {q.dtype}; "
            "on CPU use rectangles, elsewhere dense"
        )
    if past is not None:
        k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
    mask = block_mask(plan, q.device)
    queries, keys = mask.seq_lengths
    out = (kernel or compiled_kernel())(
        _padded(q, queries),
        _padded(k, keys),
        _padded(v, keys),
        block_mask=mask,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    result: Tensor = out[:, :, : plan.tokens, : v.shape[3]].transpose(1, 2)
    return result


@lru_cache(maxsize=8)  # the layers of one pass call it in turn; a plan equals only itself
def block_mask(plan: TreePlan, device: torch.device) -> BlockMask:
    """The plan's block mask on `device`: which blocks are partial, which full, and the rule for the partial ones."""
    first, end, queries = key_ranges(plan)
    partly_visible, fully_visible = _blocks(first, end, queries)
    visible_from = torch.from_numpy(first.astype(np.int32)).to(device)
    visible_until = torch.from_numpy(end.astype(np.int32)).to(device)

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (visible_from[key] <= query) & (query < visible_until[key])

    return BlockMask.from_kv_blocks(
        *_ordered(partly_visible & ~fully_visible, device),
        *_ordered(fully_visible, device),
        BLOCK_SIZE=BLOCK,
        mask_mod=visible,
        seq_lengths=(queries, len(first)),
    )


def key_ranges(plan: TreePlan) -> tuple[Longs, Longs, int]:
    """(first, end, Q): each padded key is visible to the queries first ≤ q < end of Q padded ones; int64[keys] both."""
    tokens, past = plan.tokens, plan.past
    queries = _round_up(tokens)
    keys = _round_up(past + queries)
    padding = np.arange(tokens, queries)
    rest = keys - past - queries
    first = [np.zeros(past, np.int64), np.arange(tokens), padding, np.full(rest, queries)]
    end = [np.full(past, tokens), plan.subtree_end, padding + 1, np.zeros(rest, np.int64)]
    return np.concatenate(first), np.concatenate(end), queries


def _blocks(first: Longs, end: Longs, queries: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """bool[Q/128, keys/128] twice: whether some pair of the block is visible, and whether every pair is. `first` must not fall."""
    low = np.arange(0, queries, BLOCK)[:, None]  # the first and the last query of each block
    high = low + BLOCK - 1
    ends = end.reshape(-1, BLOCK)
    fully_visible = (first.reshape(-1, BLOCK)[:, -1] <= low) & (ends.min(1) > high)
    # Only the first `started` keys of a block have `first` ≤ its last query. The one of them that ends last decides.
    starts = np.arange(0, len(first), BLOCK)
    started = np.clip(np.searchsorted(first, high, "right") - starts, 0, BLOCK)
    latest = np.maximum.accumulate(ends, axis=1)
    partly_visible = (started > 0) & (latest[np.arange(len(starts)), np.maximum(started - 1, 0)] > low)
    return partly_visible, fully_visible


def _ordered(blocks: np.ndarray[Any, Any], device: torch.device) -> tuple[Tensor, Tensor]:
    """The blocks in FlexAttention's form: int32[1, 1, rows] counts, int32[1, 1, rows, columns] their columns first, then the other columns."""
    count = torch.from_numpy(blocks.sum(1, dtype=np.int32))
    columns = torch.from_numpy(np.argsort(~blocks, axis=1, kind="stable").astype(np.int32))
    return count[None, None].to(device), columns[None, None].to(device)


def _padded(x: Tensor, length: int) -> Tensor:
    """`x` with zeros up to `length` tokens and the smallest head size: they change no product of a query and a key, and add empty outputs."""
    missing = max(0, MIN_HEAD - x.shape[3])
    return (
        x
        if x.shape[2] == length and not missing
        else nn.functional.pad(x, (0, missing, 0, length - x.shape[2]))
    )


def _round_up(n: int) -> int:
    return max(2, -(-n // BLOCK)) * BLOCK  # a dimension of 1 block would be compiled separately


@cache
def compiled_kernel(backend: str | Callable[..., Any] = "inductor") -> Callable[..., Tensor]:
    """FlexAttention, compiled at most twice for plans and paths of every length (a test counts), with gradients and without.

    All sizes are symbols, the mask's integers inputs.

    Without `use_duck_shape`, two sizes that are equal in the first call, such as heads and blocks, do not become one symbol.
    """
    kernel = torch.compile(flex_attention, dynamic=True, backend=backend)

    def call(*args: Any, **kwargs: Any) -> Tensor:
        with _config.patch(use_duck_shape=False):  # type: ignore[attr-defined]
            output: Tensor = kernel(*args, **kwargs)
            return output

    return call
