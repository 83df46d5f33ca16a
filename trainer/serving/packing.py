"""One forward pass over many sequences: tokens packed in one dimension, attention run by run.

A *run* is a group of neighbouring rows of one arena that each add the same number of tokens: all decoding rows of an
arena (one token each) form a run, every prefill chunk (one row, many tokens) forms one. Linear layers see all N tokens
at once; `attend` writes the new keys and values into the arenas and attends run by run over slices of them.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.serving.kv import Arena


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """The tokens that one sequence adds in this pass: `tokens` at positions start, start+1, … of row `row` of `arena`.

    `wanted`: the last `wanted` of these tokens need logits."""

    arena: Arena
    row: int
    start: int
    tokens: Many[int]
    wanted: int


@dataclass(slots=True, kw_only=True)
class PackedRun:
    """Rows row0 … row0+rows−1 with `each` new tokens per row, packed at `offset`; `starts` are their positions.

    Attention spans the first `span` positions of the rows. Masks are built when first needed, one per window."""

    arena: Arena
    row0: int
    rows: int
    each: int
    offset: int
    span: int
    starts: list[int]
    masks: dict[tuple[int, int | None], Tensor | None] = field(default_factory=dict)

    def mask(self, group: int, window: int | None) -> Tensor | None:
        """0 / −inf, [rows, 1, group · each, span] for `group` query heads per kv head; None if everything is visible."""
        key = (group, window)
        if key not in self.masks:
            position = torch.arange(self.span)
            query = torch.tensor(self.starts)[:, None] + torch.arange(self.each)
            hidden = position > query[:, :, None]
            if window is not None:
                hidden |= position <= query[:, :, None] - window
            mask = None
            if bool(hidden.any()):
                mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
                mask = mask.repeat_interleave(group, 1)[:, None] if self.each > 1 else mask[:, None]
            self.masks[key] = mask
        return self.masks[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`ids` and `positions` int64 [N]; `wanted` int64 [M], packed indices that need logits, in the feeds' order.

    `writes`: per arena its packed range and the flat (row, head, position) index of every new key, [n · heads]."""

    ids: Tensor
    positions: Tensor
    wanted: Tensor | None
    runs: tuple[PackedRun, ...]
    writes: tuple[tuple[Arena, int, int, Tensor], ...]


def pack(feeds: Many[Feed]) -> tuple[Plan, list[int]]:
    """Plan one pass. Returns it with the order of the feeds in it: `order[i]` is the feed whose logits come i-th."""
    order = sorted(range(len(feeds)), key=lambda i: (feeds[i].arena.capacity, feeds[i].row))
    ids, positions, wanted = list[int](), list[int](), list[int]()
    runs, writes = list[PackedRun](), list[tuple[Arena, int, int, Tensor]]()
    flat_rows: list[int] = []
    arena: Arena | None = None
    arena_offset = 0

    def close() -> None:
        if arena is None:
            return
        heads, capacity = arena.shape.heads, arena.capacity
        row = torch.tensor(flat_rows[arena_offset:]) * heads
        offsets = torch.tensor(positions[arena_offset:])
        index = (row[:, None] + torch.arange(heads)) * capacity + offsets[:, None]
        writes.append((arena, arena_offset, len(ids), index.reshape(-1)))

    for i in order:
        feed = feeds[i]
        count = len(feed.tokens)
        if feed.arena is not arena:
            close()
            arena, arena_offset = feed.arena, len(ids)
        last_run = runs[-1] if runs else None
        if (
            last_run is not None
            and last_run.arena is arena
            and last_run.each == count == 1
            and last_run.row0 + last_run.rows == feed.row
        ):
            last_run.rows += 1
            last_run.span = max(last_run.span, feed.start + 1)
            last_run.starts.append(feed.start)
        else:
            runs.append(
                PackedRun(
                    arena=feed.arena,
                    row0=feed.row,
                    rows=1,
                    each=count,
                    offset=len(ids),
                    span=feed.start + count,
                    starts=[feed.start],
                )
            )
        ids.extend(feed.tokens)
        positions.extend(range(feed.start, feed.start + count))
        flat_rows.extend([feed.row] * count)
        wanted.extend(range(len(ids) - feed.wanted, len(ids)))
    close()
    all_wanted = len(wanted) == len(ids)
    return Plan(
        ids=torch.tensor(ids),
        positions=torch.tensor(positions),
        wanted=None if all_wanted else torch.tensor(wanted, dtype=torch.int64),
        runs=tuple(runs),
        writes=tuple(writes),
    ), order


def keep_routes(plan: Plan, layer: int, chosen: Tensor) -> None:
    """Store the experts of `layer` to which the plan's tokens were sent, with their keys: chosen [N, top_k]."""
    for arena, start, end, index in plan.writes:
        head_stride = arena.shape.heads * arena.capacity
        first = index.view(end - start, -1)[:, 0]  # (row · heads + 0) · capacity + position
        places = first // head_stride * arena.capacity + first % head_stride
        rows = arena.routes[layer].view(-1, arena.shape.top_k)
        rows.index_copy_(0, places, chosen[start:end].to(torch.int16))


def attend(
    plan: Plan,
    layer: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    *,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Store the new keys and values of `layer` and attend causally: q [N, heads, dk], k [N, kv heads, dk], v alike.

    Query head h reads kv head h // (heads / kv heads). Returns [N, heads · dv]. `window`: only the last `window`
    positions; `softcap`: scores squashed to ±softcap; `sinks` [heads]: a logit per head that takes weight and adds
    nothing (GPT-OSS)."""
    for arena, start, end, index in plan.writes:
        n = (end - start) * arena.shape.heads
        arena.k[layer].view(-1, arena.shape.key_dim).index_copy_(0, index, k[start:end].reshape(n, -1))
        arena.v[layer].view(-1, arena.shape.value_dim).index_copy_(0, index, v[start:end].reshape(n, -1))
    heads, kv_heads = q.shape[1], k.shape[1]
    group = heads // kv_heads
    parts = []
    for run in plan.runs:
        rows, tokens_per_row = run.rows, run.each
        query = q[run.offset : run.offset + rows * tokens_per_row]
        if tokens_per_row == 1:
            query = query.view(rows, kv_heads, group, -1)
        else:
            query = (
                query.view(1, tokens_per_row, kv_heads, group, -1)
                .transpose(1, 2)
                .reshape(1, kv_heads, tokens_per_row * group, -1)
            )
        keys = run.arena.k[layer, run.row0 : run.row0 + rows, :, : run.span]
        values = run.arena.v[layer, run.row0 : run.row0 + rows, :, : run.span]
        mask = run.mask(group, window)
        if softcap is None and sinks is None:
            output = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)
        else:
            output = _plain_attention(query, keys, values, mask, scale, softcap, sinks, tokens_per_row)
        if tokens_per_row > 1:
            output = output.view(1, kv_heads, tokens_per_row, group, -1).transpose(1, 2)
        parts.append(output.reshape(rows * tokens_per_row, -1))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _plain_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
    each: int,
) -> Tensor:
    """The same attention written out, for options that the fused kernel does not support."""
    scores = torch.matmul(q, k.transpose(-1, -2)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    if sinks is None:
        return torch.matmul(torch.softmax(scores, -1), v)
    kv_heads, group = k.shape[1], q.shape[2] // each
    sink = sinks.view(1, kv_heads, 1, group).expand(q.shape[0], kv_heads, each, group)
    scores = torch.cat([scores, sink.reshape(q.shape[0], kv_heads, each * group, 1)], -1)
    return torch.matmul(torch.softmax(scores, -1)[..., :-1], v)
