"""Attention over a tree plan: one interface, `attend(q, k, v, plan, scale, backend, past)`, and its backends.

| backend | implementation |
|---|---|
| dense | softmax under the T² mask. The reference for tests; any device, differentiable by autograd. |
| rectangles | torch's flash CPU kernel per block, merged by log-sum-exp. CPU; bfloat16 and float16 in float32. |
| flex | FlexAttention, compiled once (flex.py). CUDA, float32, bfloat16 and float16. |

The rectangle backward runs the flash backward per block with the *global* output and log-sum-exp: then the block's
probabilities are exp(s − lse) of the whole softmax, so dq, dk and dv are plain sums over blocks. Grouped-query attention
is native to the kernel: keys and values are never copied to the number of query heads. The path above a pass is one more
full block, read in place.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainer.tree.flex import attend_flex
from trainer.tree.plan import TreePlan

Backend = Literal["rectangles", "dense", "flex"]

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: TreePlan,
    scale: float,
    backend: Backend,
    past: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Attention output [1, T, H, D] for q [1, H, T, D] and k, v [1, H_kv, T, D]; H is a multiple of H_kv.

    `past` holds the keys and values [1, H_kv, plan.past, D] of the path above, which every query sees.

    Raises ValueError if the shapes do not fit the plan, or the backend does not support the device or dtype.
    """
    if q.shape[0] != 1 or q.shape[2] != plan.tokens or k.shape[2] != plan.tokens:
        raise ValueError(
            f"tree attention got queries {tuple(q.shape)} and keys {tuple(k.shape)} for a plan of {plan.tokens} tokens; "
            "the model must get one row of plan.ids and no cache"
        )
    if plan.past != (0 if past is None else past[0].shape[2]):
        raise ValueError(
            f"tree attention got the keys of {0 if past is None else past[0].shape[2]} tokens above a plan that hangs below {plan.past}"
        )
    if backend == "dense":
        return _dense(q, k, v, plan, scale, past)
    if backend == "flex":
        return attend_flex(q, k, v, plan, scale, past)
    if q.device.type != "cpu":
        raise ValueError(
            f"the rectangles backend runs on CPU, not on {q.device.type}; use flex on a GPU, else dense"
        )
    if q.shape[-1] != v.shape[-1]:
        raise ValueError(
            f"the rectangles backend needs equal head sizes, got {q.shape[-1]} and {v.shape[-1]}"
        )
    wide = torch.promote_types(q.dtype, torch.float32)  # blocks are merged in float32 at least
    inputs = [x.to(wide) for x in (q, k, v)]
    past_wide = [x.to(wide) for x in past or ()]
    output: Tensor = _Rectangles.apply(*inputs, plan, scale, *past_wide)  # type: ignore[no-untyped-call]
    return output.to(q.dtype)


def _dense(
    q: Tensor, k: Tensor, v: Tensor, plan: TreePlan, scale: float, past: tuple[Tensor, Tensor] | None
) -> Tensor:
    if past is not None:
        k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
    wide = torch.promote_types(q.dtype, torch.float32)  # kernels keep scores and sums in float32 for bfloat16
    groups = q.shape[1] // k.shape[1]
    keys, values = (x.to(wide).repeat_interleave(groups, 1) for x in (k, v))
    scores = (q.to(wide) @ keys.transpose(-1, -2)) * scale
    past_mask = np.ones((plan.tokens, plan.past), np.bool_)
    visible = torch.from_numpy(np.concatenate([past_mask, plan.mask()], 1)).to(q.device)
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    return (weights @ values).to(q.dtype).transpose(1, 2)


class _Rectangles(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: TreePlan, scale: float, *past: Tensor
    ) -> Tensor:
        _, heads, tokens, size = q.shape
        # [1, T, H, D] in memory, the layout that both the kernel and the caller want; viewed as [1, H, T, D] here.
        out = q.new_empty(1, tokens, heads, size).transpose(1, 2)
        lse = q.new_empty(1, tokens, heads).transpose(1, 2)
        for begin, end in plan.squares.tolist():
            rows = slice(begin, end)
            out[:, :, rows], lse[:, :, rows] = _flash(
                q[:, :, rows], k[:, :, rows], v[:, :, rows], 0.0, True, scale=scale
            )
        for rows, block_k, block_v in _full_blocks(plan, k, v, past):
            block, block_lse = _flash(q[:, :, rows], block_k, block_v, 0.0, False, scale=scale)
            rows_lse = lse[:, :, rows]
            # softmax over both key sets: out ← out + (block − out) · e^block_lse / (e^lse + e^block_lse)
            out[:, :, rows].lerp_(block, torch.sigmoid(block_lse - rows_lse).unsqueeze(-1))
            torch.logaddexp(rows_lse, block_lse, out=rows_lse)
        ctx.save_for_backward(q, k, v, out, lse, *past)
        ctx.plan, ctx.scale = plan, scale
        return out.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse, *past = ctx.saved_tensors
        grad = grad.transpose(1, 2)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        d_past = [torch.zeros_like(x) for x in past]
        for begin, end in ctx.plan.squares.tolist():  # they partition the tokens: every row is written once
            rows = slice(begin, end)
            dq[:, :, rows], dk[:, :, rows], dv[:, :, rows] = _flash_backward(
                grad[:, :, rows],
                q[:, :, rows],
                k[:, :, rows],
                v[:, :, rows],
                out[:, :, rows],
                lse[:, :, rows],
                0.0,
                True,
                scale=ctx.scale,
            )
        for (rows, block_k, block_v), (_, block_dk, block_dv) in zip(
            _full_blocks(ctx.plan, k, v, past), _full_blocks(ctx.plan, dk, dv, d_past), strict=True
        ):
            bq, bk, bv = _flash_backward(
                grad[:, :, rows],
                q[:, :, rows],
                block_k,
                block_v,
                out[:, :, rows],
                lse[:, :, rows],
                0.0,
                False,
                scale=ctx.scale,
            )
            dq[:, :, rows] += bq
            block_dk += bk
            block_dv += bv
        return dq, dk, dv, None, None, *d_past


def _full_blocks(
    plan: TreePlan, k: Tensor, v: Tensor, past: Sequence[Tensor]
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """The queries of each full block, with its keys and values: the plan's rectangles, then the path for all queries."""
    for q_begin, q_end, k_begin, k_end in plan.rectangles.tolist():
        yield slice(q_begin, q_end), k[:, :, k_begin:k_end], v[:, :, k_begin:k_end]
    if past:
        yield slice(0, plan.tokens), past[0], past[1]
