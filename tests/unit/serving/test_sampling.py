"""Tokens are drawn from the right distribution, by seed and position alone."""

import math

import pytest
import torch

from trainer.serving.protocol import GREEDY_BELOW, MAX_NUMBER, Sampling
from trainer.serving.sampling import Draw, draw, gumbel, noise_key


def table(*probabilities: float) -> torch.Tensor:
    return torch.tensor([probabilities]).log()


def share(sampling: Sampling, *probabilities: float, n: int = 4000) -> list[float]:
    logits = table(*probabilities).expand(n, -1).clone()
    drawn = draw(logits, [Draw(sampling=sampling, key=noise_key(1, i)) for i in range(n)])
    return [sum(one.token == token for one in drawn) / n for token in range(len(probabilities))]


def assert_near(shares: list[float], wanted: list[float]) -> None:
    """Four standard deviations of 4,000 draws."""
    assert all(abs(a - b) <= 4 * math.sqrt(0.25 / 4000) for a, b in zip(shares, wanted, strict=True)), shares


def test_shares_follow_the_distribution_and_its_temperature() -> None:
    assert_near(share(Sampling(), 0.5, 0.3, 0.2), [0.5, 0.3, 0.2])
    squared = [0.25, 0.09, 0.04]
    assert_near(share(Sampling(temperature=0.5), 0.5, 0.3, 0.2), [p / sum(squared) for p in squared])


def test_top_k_top_p_and_min_p_keep_the_likeliest_and_renormalize() -> None:
    assert_near(share(Sampling(top_k=2), 0.2, 0.5, 0.3), [0.0, 0.625, 0.375])
    assert_near(share(Sampling(top_p=0.6), 0.2, 0.5, 0.3), [0.0, 0.625, 0.375])
    assert_near(share(Sampling(min_p=0.5), 0.2, 0.5, 0.3), [0.0, 0.625, 0.375])
    assert share(Sampling(top_p=0.5), 0.2, 0.6, 0.2) == [0.0, 1.0, 0.0]


def test_logprobs_are_taken_before_truncation_and_kept_ids_carry_their_own() -> None:
    chances = {1: (0.5, 0.625), 2: (0.3, 0.375)}
    for position in range(20):
        key = noise_key(1, position)
        (one,) = draw(table(0.2, 0.5, 0.3), [Draw(sampling=Sampling(top_k=2), key=key, mask=True)])
        before, after = chances[one.token]
        assert math.isclose(one.logprob, math.log(before), rel_tol=1e-5)
        assert sorted(one.kept or []) == [1, 2]
        assert math.isclose(one.kept_logprob, math.log(after), rel_tol=1e-5)


def test_rows_of_one_batch_keep_their_own_parameters() -> None:
    logits = table(0.2, 0.5, 0.3).expand(4, -1).clone()
    draws = [
        Draw(sampling=Sampling(greedy=True), key=5),
        Draw(sampling=Sampling(top_k=1), key=6),
        Draw(sampling=Sampling(), key=7, forbidden=(0, 1)),
        Draw(sampling=Sampling(logit_bias=((0, 50.0),)), key=8, top=2),
    ]
    drawn = draw(logits, draws)
    assert [one.token for one in drawn] == [1, 1, 2, 0]
    assert math.isclose(drawn[2].logprob, 0.0, abs_tol=1e-6)
    assert [token for _, token in drawn[3].top] == [0, 1]


def test_noise_depends_on_seed_position_and_token_only_and_is_gumbel() -> None:
    keys = [noise_key(seed, position) for seed in range(20) for position in range(20)]
    noise = gumbel(keys, 500)
    assert torch.equal(noise[37], gumbel([keys[37]], 700)[0, :500])
    assert len(torch.unique(noise)) > 0.98 * noise.numel()
    assert bool(torch.isfinite(noise).all())
    mean, variance = float(noise.mean()), float(noise.var())
    assert abs(mean - 0.5772) < 0.015 and abs(variance - math.pi**2 / 6) < 0.03  # 200,000 values
    flat = torch.exp(-torch.exp(-noise))  # uniform again
    for rows in (flat, flat.t(), flat.view(20, 20, 500).transpose(0, 1).reshape(400, 500)):
        assert abs(float((rows[:-1] * rows[1:]).mean()) - 0.25) < 0.004  # neighbours are not correlated


def test_the_noise_of_the_largest_hash_is_finite_and_its_token_can_be_drawn() -> None:
    key, token = 0x37F11132FC5C4B2F, 5  # whose hash has 24 bits of 1
    noise = gumbel([key], 8)[0]
    assert math.isclose(noise[token], -math.log(24 * math.log(2)), rel_tol=1e-6)
    logits = torch.full((1, 8), -5.0)
    logits[0, token] = 5.0
    (one,) = draw(logits, [Draw(sampling=Sampling(top_k=1), key=key)])
    assert one.token == token


@pytest.mark.parametrize("temperature", [GREEDY_BELOW, 1.0, MAX_NUMBER])
@pytest.mark.parametrize("bias", [-MAX_NUMBER, 0.0, MAX_NUMBER])
def test_the_largest_numbers_that_are_accepted_give_finite_logprobs(temperature: float, bias: float) -> None:
    sampling = Sampling(temperature=temperature, logit_bias=((0, bias),))
    (drawn,) = draw(
        table(0.2, 0.5, 0.3), [Draw(sampling=sampling, key=noise_key(1, 1), forbidden=(1,), top=2)]
    )
    assert drawn.token != 1
    assert math.isfinite(drawn.logprob) and drawn.logprob <= 0
    assert all(math.isfinite(logprob) for logprob, _ in drawn.top)
