"""From logits to tokens and their logprobs.

Every sampled token uses one uniform number u(seed, position), a counter-based hash of the request's seed and of the
token's absolute position, and takes the first token whose cumulative probability exceeds it. So a seeded request gives
the same tokens alone or in a batch, after a retraction, and when its partial output is sent back as a prompt, as far as
logits agree. Logprobs are those of the temperature-scaled distribution, before top-k, top-p and min-p.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.serving.protocol import Sampling

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(x: int) -> int:
    """The splitmix64 finalizer (Steele, Lea, Flood 2014)."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments."""
    return (_mix((_mix(seed & _MASK) + _GOLDEN * (position + 1)) & _MASK) >> 11) * 2.0**-53


@dataclass(frozen=True, slots=True)
class Draw:
    """What one row of logits is to become. `forbidden`: ids that may not be drawn now (min_new_tokens)."""

    sampling: Sampling
    u: float
    forbidden: tuple[int, ...] = ()
    top: int = 0
    mask: bool = False


@dataclass(frozen=True, slots=True)
class Drawn:
    """The token, its logprob; the `top` likeliest (logprob, id); for a truncated draw with `mask` the ids that could be
    drawn (in no promised order) and the token's logprob among them."""

    token: int
    logprob: float
    top: list[tuple[float, int]]
    kept: list[int] | None
    kept_logprob: float


def _kept(probabilities: Tensor, sampling: Sampling) -> Tensor:
    """The ids [K] that top-k, then top-p, then min-p leave of one distribution [V], likeliest first."""
    sorted_p, ids = probabilities.sort(descending=True, stable=True)
    keep = torch.ones_like(sorted_p, dtype=torch.bool)
    if sampling.top_k > 0:
        keep[sampling.top_k :] = False
    if sampling.top_p < 1.0:
        keep &= sorted_p.cumsum(0) - sorted_p <= sampling.top_p
    if sampling.min_p > 0.0:
        keep &= sorted_p >= sorted_p[0] * sampling.min_p
    keep[0] = True
    return ids[keep]


def likeliest(logprobs: Tensor, count: int) -> list[tuple[float, int]]:
    values, ids = logprobs.topk(count)
    return list(zip(values.tolist(), ids.tolist(), strict=True))


def draw(logits: Tensor, draws: Many[Draw]) -> list[Drawn]:
    """One token per row of `logits` (fp32 [M, V], changed in place)."""
    for row, one in enumerate(draws):
        for token, bias in one.sampling.logit_bias:
            logits[row, token] += bias
        if one.forbidden:
            logits[row, list(one.forbidden)] = float("-inf")
    if any(one.sampling.temperature != 1.0 for one in draws):
        logits /= torch.tensor([one.sampling.temperature for one in draws])[:, None]
    logprobs = torch.log_softmax(logits, -1)
    if all(one.sampling.greedy for one in draws):
        tokens = logprobs.argmax(-1)
    else:
        cumulative = logprobs.exp().cumsum(-1, dtype=torch.float64)
        target = torch.tensor([[one.u] for one in draws], dtype=torch.float64) * cumulative[:, -1:]
        tokens = torch.searchsorted(cumulative, target, right=True).clamp_(max=logits.shape[1] - 1)[:, 0]
        greedy = [row for row, one in enumerate(draws) if one.sampling.greedy]
        if greedy:
            tokens[greedy] = logprobs[greedy].argmax(-1)
    kept: dict[int, tuple[list[int], float]] = {}
    for row, one in enumerate(draws):
        if one.sampling.truncates:
            ids = _kept(logprobs[row].exp(), one.sampling)
            among = logprobs[row, ids].to(torch.float64).log_softmax(-1)
            sums = among.exp().cumsum(-1)
            at = min(int(torch.searchsorted(sums, one.u * float(sums[-1]), right=True)), len(ids) - 1)
            tokens[row] = ids[at]
            kept[row] = (ids.tolist() if one.mask else [], float(among[at]))
    chosen = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
    return [
        Drawn(
            token=token,
            logprob=chosen[row],
            top=likeliest(logprobs[row], draws[row].top) if draws[row].top else [],
            kept=kept[row][0] if row in kept else None,
            kept_logprob=kept[row][1] if row in kept else chosen[row],
        )
        for row, token in enumerate(tokens.tolist())
    ]
