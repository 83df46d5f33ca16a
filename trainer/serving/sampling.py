"""From logits to tokens and their logprobs.

A token is the argmax of logprob + Gumbel noise (Gumbel 1954: exactly a draw from the distribution), and the noise of
token v at position t of a request is a hash of (the request's seed, t, v). So a seeded request gives the same tokens
alone or in a batch, after a retraction, and when its partial output is sent back as a prompt. Batches change logits by
rounding errors of about 1e-6, and the argmax turns those into another token about once in 1e6 draws (walking along
cumulative probabilities would do so once per 1e6 / vocabulary size). Logprobs are those of the temperature-scaled
distribution, before top-k, top-p and min-p.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.serving.protocol import Sampling

_WORD = (1 << 64) - 1


def _signed(word: int) -> int:
    """The 64-bit pattern as the int64 that torch holds."""
    word &= _WORD
    return word - (1 << 64) if word >> 63 else word


_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""The splitmix64 generator (Steele, Lea, Flood 2014): its increment, and the shifts and factors of its finalizer."""


def _mix(x: int) -> int:
    for shift, factor in _MULTIPLIERS:
        x = ((x ^ (x >> shift)) * factor) & _WORD
    return x ^ (x >> 31)


def noise_key(seed: int, position: int) -> int:
    """The int64 key of the noise for the token at `position` (prompt included) of a request with `seed`."""
    return _signed(_mix((_mix(seed & _WORD) + _GOLDEN * (position + 1)) & _WORD))


def gumbel(keys: Many[int], vocab_size: int) -> Tensor:
    """Standard Gumbel noise, fp32 [len(keys), vocab_size]: −log E with E = −log(1 − u) and u a hash of (key, token).

    u has 24 bits, so tokens of probability below about 6e-8 are never drawn."""
    x = torch.tensor(keys)[:, None] + torch.arange(vocab_size) * _signed(_GOLDEN)
    for shift, factor in _MULTIPLIERS:
        x ^= (x >> shift) & ((1 << (64 - shift)) - 1)  # torch shifts arithmetically
        x *= _signed(factor)
    x ^= (x >> 31) & ((1 << 33) - 1)
    u = ((x >> 40) & 0xFFFFFF).to(torch.float32).add_(0.5).mul_(2.0**-24)
    u.clamp_(max=1 - 2.0**-24)  # the largest rounds to 1, whose noise is -inf
    return u.neg_().log1p_().neg_().log_().neg_()


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """How to draw from one row of logits. `key`: see noise_key; `forbidden`: ids that must not be drawn (min_new_tokens)."""

    sampling: Sampling
    key: int
    forbidden: tuple[int, ...] = ()
    top: int = 0
    mask: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """The token, its logprob; the `top` likeliest (logprob, id); for a truncated draw with `mask` the ids that could be
    drawn (in no guaranteed order) and the token's logprob among them."""

    token: int
    logprob: float
    top: list[tuple[float, int]]
    kept: list[int] | None
    kept_logprob: float


def _kept(probabilities: Tensor, sampling: Sampling) -> Tensor:
    """The ids [K] that top-k, then top-p, then min-p leave of one distribution [V], likeliest first."""
    sorted_p, ids = probabilities.sort(descending=True, stable=True)
    mask = torch.ones_like(sorted_p, dtype=torch.bool)
    if sampling.top_k > 0:
        mask[sampling.top_k :] = False
    if sampling.top_p < 1.0:
        mask &= sorted_p.cumsum(0) - sorted_p <= sampling.top_p
    if sampling.min_p > 0.0:
        mask &= sorted_p >= sorted_p[0] * sampling.min_p
    mask[0] = True
    return ids[mask]


def likeliest(logprobs: Tensor, count: int) -> list[tuple[float, int]]:
    values, ids = logprobs.topk(count)
    return list(zip(values.tolist(), ids.tolist(), strict=True))


def draw(logits: Tensor, draws: Many[Draw]) -> list[Drawn]:
    """One token per row of `logits` (fp32 [M, V], changed in place)."""
    for row, request in enumerate(draws):
        for token, bias in request.sampling.logit_bias:
            logits[row, token] += bias
        if request.forbidden:
            logits[row, list(request.forbidden)] = float("-inf")
    if any(request.sampling.temperature != 1.0 for request in draws):
        logits /= torch.tensor([request.sampling.temperature for request in draws])[:, None]
    logprobs = torch.log_softmax(logits, -1)
    truncated: dict[int, tuple[list[int], float]] = {}
    if all(request.sampling.greedy for request in draws):
        tokens = logprobs.argmax(-1)
    else:
        scores = gumbel([request.key for request in draws], logits.shape[1]).add_(logprobs)
        candidates: dict[int, Tensor] = {}
        for row, request in enumerate(draws):
            if request.sampling.greedy:
                scores[row] = logprobs[row]
            elif request.sampling.truncates:
                candidates[row] = _kept(logprobs[row].exp(), request.sampling)
                allowed = scores[row, candidates[row]]
                scores[row] = float("-inf")
                scores[row, candidates[row]] = allowed
        tokens = scores.argmax(-1)
        for row, ids in candidates.items():
            total = float(logprobs[row, ids].to(torch.float64).logsumexp(-1))
            logprob = float(logprobs[row, int(tokens[row])]) - total
            truncated[row] = (ids.tolist() if draws[row].mask else [], logprob)
    chosen = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
    return [
        Drawn(
            token=token,
            logprob=chosen[row],
            top=likeliest(logprobs[row], draws[row].top) if draws[row].top else [],
            kept=truncated[row][0] if row in truncated else None,
            kept_logprob=truncated[row][1] if row in truncated else chosen[row],
        )
        for row, token in enumerate(tokens.tolist())
    ]
