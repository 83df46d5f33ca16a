"""Bodies of /generate are read completely or refused with the field named."""

from typing import Any

import pytest

from trainer.serving.protocol import GenerateRequest, Limits, Refusal, parse_generate

LIMITS = Limits(vocab_size=100, context_length=50)


def parse(**body: Any) -> tuple[GenerateRequest, ...]:
    return parse_generate(body, LIMITS, lambda text: [ord(c) % 100 for c in text]).requests


def test_defaults_are_sglangs() -> None:
    (one,) = parse(input_ids=[1, 2])
    sampling = one.sampling
    assert (sampling.max_new_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (
        128,
        1.0,
        1.0,
        -1,
    )
    assert not (sampling.greedy or sampling.ignore_eos or one.return_logprob or one.stream)
    assert len(one.rid) == 32


def test_temperature_zero_is_greedy_at_temperature_one() -> None:
    (one,) = parse(input_ids=[1], sampling_params={"temperature": 0})
    assert (one.sampling.greedy, one.sampling.temperature) == (True, 1.0)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "should be provided"),
        ({"input_ids": []}, "non-empty list"),
        ({"input_ids": [1, "2"]}, "list of integers"),
        ({"input_ids": [1, True]}, "list of integers"),
        ({"input_ids": [1, 100]}, r"input_ids\[1\] = 100 is outside the vocabulary"),
        ({"input_ids": [[1], []]}, "must not be empty"),
        ({"input_ids": [1] * 50}, "longer than the model's context length"),
        ({"input_ids": [1] * 40, "sampling_params": {"max_new_tokens": 11}}, "exceeds the model's maximum"),
        ({"input_ids": [1] * 45}, r"exceeds the maximum allowed length \(44 tokens\)"),
        ({"input_ids": [1], "text": "a"}, "Only one of"),
        ({"input_ids": [1], "sampling_params": {"temperature": -1}}, "temperature must be non-negative"),
        (
            {"input_ids": [1], "sampling_params": {"temperature": "hot"}},
            "temperature must be a finite number",
        ),
        (
            {"input_ids": [1], "sampling_params": {"temperature": 10**400}},
            "temperature must be a finite number",
        ),
        ({"input_ids": [1], "sampling_params": {"temperature": 1e39}}, "temperature must be a finite number"),
        ({"input_ids": [1], "sampling_params": {"top_p": -(10**400)}}, "top_p must be a finite number"),
        ({"input_ids": [1], "sampling_params": {"min_p": float("nan")}}, "min_p must be a finite number"),
        ({"input_ids": [1], "sampling_params": {"logit_bias": {"5": 10**400}}}, "logit_bias must map"),
        ({"input_ids": [1], "sampling_params": {"logit_bias": {"5": 1e39}}}, "logit_bias must map ids"),
        (
            {"input_ids": [1], "sampling_params": {"logit_bias": {"5": float("nan")}}},
            "logit_bias must map ids",
        ),
        ({"input_ids": [1], "sampling_params": {"logit_bias": {"9" * 400: 1}}}, "logit_bias must map ids"),
        ({"input_ids": [1], "sampling_params": {"top_p": 0}}, "top_p must be in"),
        ({"input_ids": [1], "sampling_params": {"top_k": 0}}, "top_k must be"),
        ({"input_ids": [1], "sampling_params": {"max_new_tokens": 4, "min_new_tokens": 5}}, "min_new_tokens"),
        ({"input_ids": [1], "sampling_params": {"stop_token_ids": [100]}}, r"stop_token_ids\[0\] = 100"),
        ({"input_ids": [1], "sampling_params": {"stop": [""]}}, "non-empty strings"),
        ({"input_ids": [1], "sampling_params": {"n": 0}}, "n must be in"),
        ({"input_ids": [1], "sampling_params": {"json_schema": "{}"}}, "json_schema is not supported"),
        (
            {"input_ids": [1], "sampling_params": {"frequency_penalty": 0.5}},
            "frequency_penalty is not supported",
        ),
        ({"input_ids": [1], "sampling_params": [1]}, "must be an object"),
        ({"input_ids": [1], "rid": 5}, "rid must be a string"),
        ({"input_ids": [[1], [2]], "rid": ["a", "a"]}, "differently"),
        ({"input_ids": [[1], [2]], "stream": True}, "streams single completions only"),
        ({"input_ids": [1], "return_logprob": True, "logprob_start_len": 1}, "logprob_start_len"),
    ],
)
def test_a_bad_body_is_refused_with_the_field_named(body: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refusal, match=reason) as refused:
        parse(**body)
    assert refused.value.body == {"error": {"message": str(refused.value)}}


def test_an_unknown_sampling_key_is_refused_with_a_plain_string() -> None:
    with pytest.raises(Refusal) as refused:
        parse(input_ids=[1], sampling_params={"temperatur": 1})
    assert isinstance(refused.value.body["error"], str)


def test_parameters_that_ask_for_nothing_are_accepted() -> None:
    nothing = {"frequency_penalty": 0.0, "repetition_penalty": 1.0, "json_schema": None, "watermark": False}
    assert len(parse(input_ids=[1], sampling_params=nothing)) == 1


def test_batches_and_samples_become_one_request_each() -> None:
    requests = parse(input_ids=[[1], [2]], rid=["a", "b"], sampling_params={"n": 2, "max_new_tokens": 3})
    assert [(one.rid, one.ids) for one in requests] == [
        ("a_0", (1,)),
        ("a_1", (1,)),
        ("b_0", (2,)),
        ("b_1", (2,)),
    ]
    per_prompt = parse(input_ids=[[1], [2]], sampling_params=[{"top_k": 3}, {"top_k": 4}])
    assert [one.sampling.top_k for one in per_prompt] == [3, 4]


def test_samples_of_a_seeded_prompt_take_successive_seeds() -> None:
    requests = parse(input_ids=[1], sampling_params={"n": 3, "sampling_seed": 7})
    assert [one.sampling.seed for one in requests] == [7, 8, 9]
