"""The denominator of a train step."""

import pytest

from orchestrator.contracts.choices import Aggregation
from trainer.loss.aggregation import normalisers
from trainer.samples import Sample


def weighted(group: str, tokens: int, weight: float | list[float] = 1.0) -> Sample:
    return Sample.of(
        [1], [2] * tokens, behavior_logprobs=[0.0] * tokens, advantage=1.0, group=group, weight=weight
    )


def test_the_three_aggregations_by_hand() -> None:
    samples = [weighted("a", 3), weighted("a", 1), weighted("b", 2)]
    assert normalisers(samples, Aggregation.TOKEN) == pytest.approx([1 / 6, 1 / 6, 1 / 6])
    assert normalisers(samples, Aggregation.PROMPT) == pytest.approx([1 / 8, 1 / 8, 1 / 4])
    assert normalisers(samples, Aggregation.SAMPLE) == pytest.approx([1 / 9, 1 / 3, 1 / 6])


def test_the_denominator_counts_action_tokens_of_weight_above_zero() -> None:
    samples = [weighted("a", 3), weighted("a", 2, [0.0, 0.5]), weighted("b", 4, 0.0), weighted("c", 1)]
    assert normalisers(samples, Aggregation.TOKEN) == pytest.approx([1 / 5, 1 / 5, 0.0, 1 / 5])
    # Two prompts have trainable tokens: a with 4, c with 1; and three samples.
    assert normalisers(samples, Aggregation.PROMPT) == pytest.approx([1 / 8, 1 / 8, 0.0, 1 / 2])
    assert normalisers(samples, Aggregation.SAMPLE) == pytest.approx([1 / 9, 1 / 3, 0.0, 1 / 3])


@pytest.mark.parametrize("aggregation", Aggregation)
def test_the_shares_of_all_tokens_add_up_to_one(aggregation: Aggregation) -> None:
    samples = [weighted("a", 3), weighted("a", 2, [0.0, 0.5]), weighted("b", 4, 0.0), weighted("c", 1)]
    factors = normalisers(samples, aggregation)
    assert sum(
        f * sample.trained_tokens for f, sample in zip(factors, samples, strict=True)
    ) == pytest.approx(1)


def test_an_unknown_aggregation_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="known: token, prompt, sample"):
        normalisers([], "sequence")  # type: ignore[arg-type]
