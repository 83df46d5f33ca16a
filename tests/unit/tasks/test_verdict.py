"""The files that a verifier leaves."""

import pytest

from orchestrator.contracts.events import TestResult
from orchestrator.tasks.verdict import parse_process, parse_results, parse_reward


@pytest.mark.parametrize(("text", "reward"), [("1\n", 1.0), (" 0", 0.0), ("0.25", 0.25), ("1e-3", 0.001)])
def test_a_reward_is_a_number_from_0_to_1(text: str, reward: float) -> None:
    assert parse_reward(text).reward == reward


@pytest.mark.parametrize("text", [None, "", "pass", "1.01", "-0.1", "nan", "inf", "1 0", "1\n0"])
def test_no_reward_or_a_bad_one_is_an_error_and_never_0(text: str | None) -> None:
    with pytest.raises(ValueError, match=r"/logs/verifier/reward.txt"):
        parse_reward(text)


@pytest.mark.parametrize(
    ("number", "reward"), [(0.2 + 0.4 + 0.3 + 0.1, 1.0), (0.7 + 0.2 + 0.1, 1.0), (0.3 - 0.1 - 0.1 - 0.1, 0.0)]
)
def test_a_sum_of_weights_that_differs_from_0_or_1_by_its_rounding_is_that_number(
    number: float, reward: float
) -> None:
    assert number != reward
    assert parse_reward(f"{number}").reward == reward
    assert parse_reward(None, f"{number}").reward == reward
    named = parse_reward(None, f'{{"score": {number}, "loss": 3e-10}}', performance="score")
    assert (named.reward, named.components) == (reward, {"score": reward, "loss": 3e-10})
    assert parse_process(f'{{"plan": [{-number}, {number}], "style": {number}}}') == {
        "plan": [-reward, reward],
        "style": reward,
    }


def test_results_are_optional_and_checked() -> None:
    assert parse_results(None) == []
    results = parse_results('[{"name": "a", "passed": true}, {"name": "b", "passed": false, "message": "m"}]')
    assert results == [TestResult(name="a", passed=True), TestResult(name="b", passed=False, message="m")]
    for bad in ("", "{}", '[{"name": "a"}]', '[{"name": "a", "passed": "yes"}]'):
        with pytest.raises(ValueError, match=r"/logs/verifier/results.json: "):
            parse_results(bad)


def test_the_process_scores_are_optional_and_checked() -> None:
    assert parse_process(None) is None
    assert parse_process('{"plan": 0.5, "edits": [1, 0, -1]}') == {"plan": 0.5, "edits": [1, 0, -1]}
    wrong = {
        "[]": "Expected `object`",
        "{": "truncated",
        '{"plan": "1"}': "Expected",
        '{"plan": true}': "Expected",
        '{"plan": null}': "Expected",
        '{"plan": 1.5}': "plan is 1.5, it must lie in",
        '{"plan": [0, -7]}': "plan is -7.0, it must lie in",
        '{"a b": 1}': "'a b' is not a name",
        "{" + ", ".join(f'"n{n}": 0' for n in range(65)) + "}": "65 names are more than 64",
    }
    for text, sentence in wrong.items():
        with pytest.raises(ValueError, match=f"/logs/verifier/process.json: .*{sentence}"):
            parse_process(text)
