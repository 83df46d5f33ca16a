"""The answers of a rollout server, and the expected ones of transformers."""

from typing import Any

import torch

from orchestrator.gateway.servers.client import Generation, SamplingParams

PROMPT = [1, 100, 101, 102, 103, 104, 2, 7]
CONTEXT = 8192
VOCABULARY = 733


def logprobs_of(model: Any, ids: list[int], temperature: float = 1.0) -> list[float]:
    """Logprobs of ids[1:], each given the ids before it."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1]
    table = torch.log_softmax(logits / temperature, -1)
    return [float(table[i, token]) for i, token in enumerate(ids[1:])]


def assert_close(ours: Any, theirs: Any) -> None:
    worst = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    assert worst < 1e-4, worst


def spans(generation: Generation) -> list[tuple[str, int, int]]:
    return [(span.version, span.start, span.end) for span in generation.spans]


def plain(new: int, **more: Any) -> SamplingParams:
    return SamplingParams(max_new_tokens=new, ignore_eos=True, **more)
