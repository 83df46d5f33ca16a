"""The block mask from two integers per key equals the mask from trying every pair; FlexAttention under it is the dense reference.

Without a GPU: the mask, torch's own FlexAttention forward and backward, and how often it is compiled. With one: the kernel, forward and backward.
"""

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tests.unit.trainer.forests import MODELS, context_rewrites, qwen3, seeded
from tests.unit.trainer.vanilla import alone, distance, double_precision_throughout, merged, worst
from trainer.activation_checkpointing import checkpoint_activations
from trainer.tree import attention
from trainer.tree.attention import attend
from trainer.tree.flex import attend_flex, block_mask, compiled_kernel
from trainer.tree.plan import TreePlan

pytestmark = pytest.mark.tier("trainer")

__all__ = ["double_precision_throughout"]

SHAPES = [
    (1, 0), (5, 0), (128, 0), (129, 0), (700, 0), (1, 1), (127, 128), (300, 1), (300, 129), (128, 400), (700, 300),
]  # fmt: skip
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def plan(tokens: int, past: int = 0, seed: int = 0) -> TreePlan:
    """A random tree of `tokens` tokens below `past` others; subtrees end anywhere, so blocks of every kind come up."""
    rng = np.random.default_rng(seed)
    ends = np.zeros(tokens, np.int64)
    stack = [(0, tokens)]
    while stack:
        begin, end = stack.pop()
        run = min(end, begin + int(rng.integers(1, 200)))
        ends[begin:run] = end
        while run < end:
            child = min(end, run + int(rng.integers(1, 400)))
            stack.append((run, child))
            run = child
    nothing = np.zeros((0, 4), np.int64)
    return TreePlan(
        ids=np.zeros(tokens, np.int32),
        position_ids=np.arange(tokens),
        subtree_end=ends,
        squares=nothing[:, :2],
        rectangles=nothing,
        past=past,
    )


def inputs(
    shape: TreePlan, dtype: torch.dtype, device: str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor] | None]:
    torch.manual_seed(0)

    def some(heads: int, length: int) -> torch.Tensor:
        return torch.randn(1, heads, length, 16, dtype=dtype, device=device)

    q, k, v = some(4, shape.tokens), some(2, shape.tokens), some(2, shape.tokens)
    return q, k, v, (some(2, shape.past), some(2, shape.past)) if shape.past else None


@pytest.fixture
def may_be_slow() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        # the tracer reads .grad of every tensor that it meets
        warnings.filterwarnings("ignore", message=r"The \.grad attribute of a Tensor that is not a leaf")
        yield


@pytest.fixture
def differentiable_on_cpu(monkeypatch: pytest.MonkeyPatch, may_be_slow: None) -> None:
    """torch has the gradients of uncompiled FlexAttention on any device; one of its checks refuses them on a CPU."""
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)


@pytest.mark.parametrize(("tokens", "past"), SHAPES)
def test_the_analytic_block_mask_is_the_one_that_looking_at_every_pair_gives(tokens: int, past: int) -> None:
    for seed in range(3):
        shape = plan(tokens, past, seed)
        ours = block_mask(shape, torch.device("cpu"))
        rows, keys = ours.seq_lengths
        assert rows % 128 == keys % 128 == 0 and rows >= tokens and keys >= past + rows
        built = create_block_mask(ours.mask_mod, 1, 1, rows, keys, device="cpu", BLOCK_SIZE=128)
        for kind in ("kv_num_blocks", "kv_indices", "q_num_blocks", "q_indices"):
            for name in (kind, f"full_{kind}"):
                assert torch.equal(getattr(ours, name), getattr(built, name)), name


@pytest.mark.parametrize(("tokens", "past"), SHAPES)
def test_the_rule_of_two_integers_is_the_plans_visibility_and_padding_sees_only_itself(
    tokens: int, past: int
) -> None:
    shape = plan(tokens, past)
    mask = block_mask(shape, torch.device("cpu"))
    rows, keys = mask.seq_lengths
    query, key = torch.arange(rows)[:, None], torch.arange(keys)[None, :]
    visible = mask.mask_mod(torch.tensor(0), torch.tensor(0), query, key).numpy()
    assert visible[:tokens, :past].all()
    assert (visible[:tokens, past : past + tokens] == shape.mask()).all()
    assert not visible[:tokens, past + tokens :].any()
    padding = np.arange(tokens, rows)
    assert (visible[tokens:].sum(1) == 1).all() and visible[padding, past + padding].all()


@pytest.mark.usefixtures("may_be_slow")
@pytest.mark.parametrize(("tokens", "past"), SHAPES)
def test_flex_attention_gives_what_the_dense_reference_gives(tokens: int, past: int) -> None:
    shape = plan(tokens, past)
    q, k, v, path = inputs(shape, torch.float64)
    ours = attend_flex(q, k, v, shape, 0.3, path, kernel=flex_attention)
    torch.testing.assert_close(ours, attend(q, k, v, shape, 0.3, "dense", path), rtol=0, atol=1e-12)


@pytest.mark.usefixtures("may_be_slow")
def test_heads_smaller_than_the_compiled_kernel_allows_are_padded_and_give_the_dense_outputs() -> None:
    shape = plan(150, 40)
    sizes: list[int] = []

    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
        sizes.extend(x.shape[3] for x in (q, k, v))
        output: torch.Tensor = flex_attention(q, k, v, **options)
        return output

    q, k, v, path = inputs(shape, torch.float64)
    assert path is not None
    q, k, v = (x[..., :8] for x in (q, k, v))
    small_path = (path[0][..., :8], path[1][..., :8])
    ours = attend_flex(q, k, v, shape, 0.3, small_path, kernel=kernel)
    assert sizes == [16, 16, 16] and ours.shape[3] == 8
    reference = attend(q, k, v, shape, 0.3, "dense", small_path)
    torch.testing.assert_close(ours, reference, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("differentiable_on_cpu")
@pytest.mark.parametrize(("tokens", "past"), SHAPES)
def test_its_gradients_are_those_of_the_dense_reference(tokens: int, past: int) -> None:
    shape = plan(tokens, past)
    q, k, v, path = inputs(shape, torch.float64)
    given = [x.requires_grad_() for x in (q, k, v, *(path or ()))]
    ours = attend_flex(q, k, v, shape, 0.3, path, kernel=flex_attention)
    reference = attend(q, k, v, shape, 0.3, "dense", path)
    outer = torch.randn_like(reference)
    for one, other in zip(
        torch.autograd.grad(ours, given, outer), torch.autograd.grad(reference, given, outer), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("differentiable_on_cpu", "double_precision_throughout")
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("budget", [10_000, 20], ids=["one_pass", "many_passes"])
@pytest.mark.parametrize("model", MODELS)
def test_through_flex_a_models_gradients_equal_one_sample_at_a_time_in_float64(
    model: str, budget: int, checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "attend_flex", partial(attend_flex, kernel=flex_attention))
    policy, samples = seeded(MODELS[model], dtype=torch.float64), context_rewrites()
    loss, reference = alone(policy, samples)
    if checkpointing:
        checkpoint_activations(policy)
        policy.train()
    ours_loss, ours = merged(policy, samples, "flex", budget)
    assert abs(ours_loss - loss) <= 1e-12 and worst(ours, reference) <= 1e-10


@pytest.mark.usefixtures("differentiable_on_cpu")
def test_it_is_compiled_at_most_once_with_gradients_and_once_without_for_plans_and_paths_of_every_length() -> (
    None
):
    counter = CompileCounter()  # replaces the compiler: counts, and runs the given code unchanged
    counts = []
    for tokens, past in (
        (512, 0),
        (300, 130),
        (1, 0),
        (700, 130),
        (130, 300),
        (600, 600),
        (640, 0),
        (1, 1),
        (1000, 256),
        (257, 1100),
    ):
        shape = plan(tokens, past)
        for gradients in (
            False,
            True,
        ):  # the executor looks ahead along a trunk without gradients, then trains with them
            q, k, v, path = inputs(shape, torch.float32)
            for x in (q, k, v, *(path or ())):
                x.requires_grad_(gradients)
            with torch.set_grad_enabled(gradients):
                attend_flex(q, k, v, shape, 0.3, path, kernel=compiled_kernel(counter))
        counts.append(counter.frame_count)
    assert counts[-1] <= 2 and len(set(counts)) == 1


def test_the_compiled_kernel_refuses_a_cpu_and_names_what_to_use() -> None:
    shape = plan(10)
    q, k, v, _ = inputs(shape, torch.float32)
    with pytest.raises(
        ValueError, match=r"runs on a CUDA device .* not cpu in torch\.float32; on CPU use rectangles"
    ):
        attend(q, k, v, shape, 0.3, "flex")


@GPU
@pytest.mark.gpu
@pytest.mark.parametrize(("tokens", "past"), SHAPES)
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-2), (torch.bfloat16, 5e-2)], ids=["float32", "bfloat16"]
)
def test_on_a_gpu_the_compiled_kernel_gives_the_dense_outputs_and_gradients(
    dtype: torch.dtype, bound: float, tokens: int, past: int
) -> None:
    """float32 against TF32's rounding: the kernel's products may use it."""
    shape = plan(tokens, past)
    q, k, v, path = inputs(shape, dtype, "cuda")
    given = [x.requires_grad_() for x in (q, k, v, *(path or ()))]
    results = []
    for backend in ("flex", "dense"):
        out = attend(q, k, v, shape, 0.25, backend, path)
        results.append([out, *torch.autograd.grad(out, given, torch.ones_like(out))])
    for ours, reference in zip(*results, strict=True):
        torch.testing.assert_close(ours, reference, rtol=bound, atol=bound)


@GPU
@pytest.mark.gpu
@pytest.mark.parametrize("budget", [10_000, 40], ids=["one_pass", "many_passes"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_on_a_gpu_a_model_gets_the_dense_gradients_also_with_activation_checkpointing(
    checkpointing: bool, budget: int
) -> None:
    policy, samples = seeded(qwen3).cuda(), context_rewrites()
    if checkpointing:
        checkpoint_activations(policy)
    policy.train()
    _, reference = merged(policy, samples, "dense")
    _, ours = merged(policy, samples, "flex", budget)
    assert distance(ours, reference) <= 1e-2  # its products may be TF32's


@GPU
@pytest.mark.gpu
@pytest.mark.parametrize("budget", [10_000, 40], ids=["one_pass", "many_passes"])
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-2), (torch.bfloat16, 5e-2)], ids=["float32", "bfloat16"]
)
@pytest.mark.parametrize("model", MODELS)
def test_on_a_gpu_every_model_gets_the_dense_gradients(
    model: str, dtype: torch.dtype, bound: float, budget: int
) -> None:
    """Of equal passes, so that both sides round alike but in attention."""
    policy, samples = seeded(MODELS[model], dtype=dtype).cuda(), context_rewrites()
    reference_loss, reference = merged(policy, samples, "dense", budget)
    loss, ours = merged(policy, samples, "flex", budget)
    assert abs(loss - reference_loss) <= bound * max(1.0, abs(reference_loss))
    assert distance(ours, reference) <= bound
