"""The scheduler gives every sequence the same result as alone, in any amount of memory."""

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from trainer.benchmarks.random_model import write_random_model
from trainer.model_directory import inspect_directory, load_tokenizer
from trainer.serving.model import Model, load_model
from trainer.serving.protocol import GenerateRequest, Sampling
from trainer.serving.scheduler import Scheduler
from trainer.serving.sequence import Sequence


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Tokenizer]:
    folder = write_random_model(tmp_path_factory.mktemp("model"), vocab_size=300, hidden=32, layers=2, mlp=64)
    directory = inspect_directory(folder)
    return load_model(directory), load_tokenizer(directory)[0]


def scheduler(loaded: tuple[Model, Tokenizer], **limits: int) -> Scheduler:
    values = {"context_length": 1024, "max_total_tokens": 65536, "max_running": 64, "seed": 0, **limits}
    return Scheduler(loaded[0], loaded[1], version="v0", **values)


def sequence(prompt: list[int], new: int, seed: int = 1, **more: Any) -> Sequence:
    request = GenerateRequest(
        rid=f"{prompt[:3]}-{seed}",
        ids=tuple(prompt),
        sampling=Sampling(max_new_tokens=new, ignore_eos=True),
        **more,
    )
    return Sequence(request=request, limit=new, seed=seed, stop_ids=frozenset())


def run(one: Scheduler, sequences: list[Sequence]) -> None:
    with torch.inference_mode():
        for each in sequences:
            one.submit(each)
        while one.has_work:
            one.step()


def prompts(count: int, length: int) -> list[list[int]]:
    return [[(i * (k + 3) + k) % 290 + 3 for i in range(length)] for k in range(count)]


def test_sequences_that_outgrow_memory_are_retracted_and_end_with_the_same_tokens(
    loaded: tuple[Model, Tokenizer],
) -> None:
    roomy, tight = scheduler(loaded), scheduler(loaded, max_total_tokens=1300)
    want = [sequence(prompt, 300) for prompt in prompts(6, 200)]
    got = [sequence(prompt, 300) for prompt in prompts(6, 200)]
    run(roomy, want)
    run(tight, got)
    assert roomy.counters.retracted == 0
    assert tight.counters.retracted > 0
    assert sum(one.retractions for one in got) == tight.counters.retracted
    assert [one.ids for one in got] == [one.ids for one in want]
    assert tight.pool.held == 0 and tight.cache.tokens <= 1300
    for one, other in zip(got, want, strict=True):
        assert max(abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True)) < 1e-4


def test_memory_in_use_never_exceeds_the_limit(loaded: tuple[Model, Tokenizer]) -> None:
    one = scheduler(loaded, max_total_tokens=3000, max_running=8)
    with torch.inference_mode():
        for prompt in prompts(20, 100):
            one.submit(sequence(prompt, 200))
        while one.has_work:
            one.step()
            assert one.pool.held + one.cache.tokens <= 3000
            assert len(one.running) <= 8
    assert one.counters.generated_tokens == 20 * 200


def test_new_requests_join_between_decode_steps(loaded: tuple[Model, Tokenizer]) -> None:
    one = scheduler(loaded)
    first, second = (sequence(prompt, 20) for prompt in prompts(2, 30))
    with torch.inference_mode():
        one.submit(first)
        for _ in range(5):
            one.step()
        one.submit(second)
        one.step()
    assert (first.completion_tokens, second.completion_tokens) == (6, 1)


def test_a_long_prompt_is_prefilled_in_chunks_alongside_a_decoding_sequence(
    loaded: tuple[Model, Tokenizer],
) -> None:
    one = scheduler(loaded, context_length=8192)
    short, long = sequence(prompts(1, 10)[0], 50), sequence(prompts(1, 3000)[0], 5, seed=2)
    with torch.inference_mode():
        one.submit(short)
        one.step()
        one.submit(long)
        for step in range(1, 4):
            one.step()
            assert short.completion_tokens == 1 + step
    assert long.completion_tokens == 1


def test_prefixes_are_shared_across_namespaces_never_and_within_one_always(
    loaded: tuple[Model, Tokenizer],
) -> None:
    one = scheduler(loaded)
    (prompt,) = prompts(1, 100)
    run(one, [sequence(prompt, 2, namespace="a")])
    again, other = sequence(prompt, 2, namespace="a"), sequence(prompt, 2, seed=2, namespace="b")
    run(one, [again])
    run(one, [other])
    assert (again.cached_tokens, other.cached_tokens) == (99, 0)
