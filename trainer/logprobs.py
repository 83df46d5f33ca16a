"""Log-probabilities of chosen tokens from hidden states, without keeping logits.

The head runs in chunks of rows in float32 (float64 stays float64): a bfloat16 head alone visibly lowers the agreement between
trainer and rollout server. The backward pass recomputes each chunk's logits, so memory is
chunk × vocabulary, not E × vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

CHUNK = 512  # rows of logits held at once


def token_logprobs(
    hidden: Tensor, head: nn.Module, target: Tensor, temperature: Tensor, chunk: int = CHUNK
) -> tuple[Tensor, Tensor]:
    """log softmax(head(hidden) / temperature)[target] and the entropy of that distribution, both [E].

    hidden [E, hidden] selected *before* the head; target int64[E]; temperature [E] > 0. The result has the head's
    compute dtype: float32, or float64 for a float64 model. The entropy is detached.
    """
    weight, bias = head.weight, getattr(head, "bias", None)
    logp, entropy = _TokenLogprobs.apply(hidden, weight, bias, target, temperature, chunk)  # type: ignore[no-untyped-call]
    return logp, entropy


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: Tensor) -> Tensor:
    logits = nn.functional.linear(hidden, weight, bias)
    return logits.div_(temperature.unsqueeze(-1))


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        temperature: Tensor,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        compute = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        temperature = temperature.to(compute)
        wide, wide_bias = weight.to(compute), None if bias is None else bias.to(compute)
        lse = hidden.new_empty(len(hidden), dtype=compute)
        logp, entropy = torch.empty_like(lse), torch.empty_like(lse)
        for begin in range(0, len(hidden), chunk):
            rows = slice(begin, begin + chunk)
            logits = _logits(hidden[rows].to(compute), wide, wide_bias, temperature[rows])
            lse[rows] = logits.logsumexp(-1)
            logp[rows] = logits.gather(1, target[rows].unsqueeze(1)).squeeze(1) - lse[rows]
            probs = (logits - lse[rows].unsqueeze(1)).exp_()
            entropy[rows] = lse[rows] - (probs * logits).sum(-1)
        ctx.save_for_backward(hidden, weight, bias, target, temperature, lse)
        ctx.chunk, ctx.compute = chunk, compute
        ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, target, temperature, lse = ctx.saved_tensors
        compute = ctx.compute
        wide, wide_bias = weight.to(compute), None if bias is None else bias.to(compute)
        d_hidden, d_weight = torch.empty_like(hidden), torch.zeros_like(wide)
        d_bias = None if wide_bias is None else torch.zeros_like(wide_bias)
        for begin in range(0, len(hidden), ctx.chunk):
            rows = slice(begin, begin + ctx.chunk)
            part = hidden[rows].to(compute)
            # d logp / d logits = (onehot(target) − softmax) / temperature
            d_logits = (
                (_logits(part, wide, wide_bias, temperature[rows]) - lse[rows].unsqueeze(1)).exp_().neg_()
            )
            d_logits.scatter_add_(1, target[rows].unsqueeze(1), torch.ones_like(d_logits[:, :1]))
            d_logits.mul_((grad[rows] / temperature[rows]).unsqueeze(1))
            d_hidden[rows] = (d_logits @ wide).to(hidden.dtype)
            d_weight.addmm_(d_logits.T, part)
            if d_bias is not None:
                d_bias += d_logits.sum(0)
        d_bias = None if d_bias is None else d_bias.to(bias.dtype)
        return d_hidden, d_weight.to(weight.dtype), d_bias, None, None, None
