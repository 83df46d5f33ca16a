"""A pack keeps every sample and its values; logprobs of chosen tokens equal a plain log-softmax."""

import pytest
import torch
from torch import nn

from tests.unit.trainer.forests import Forest, everything, group_of_rollouts
from trainer.logprobs import token_logprobs
from trainer.samples import Sample
from trainer.tree.attention import attend
from trainer.tree.pack import pack_samples
from trainer.tree.passes import PassBudget
from trainer.tree.plan import FlatTree


def test_a_pack_holds_every_sample_once_in_the_order_given_with_all_that_is_its_own() -> None:
    samples = everything()
    pack = pack_samples(samples, PassBudget(30))
    assert pack.indices == tuple(range(len(samples))) and list(pack.samples) == samples
    for i, sample in enumerate(samples):
        mine = pack.edges.sample == i
        assert pack.edges.target[mine].tolist() == sample.action.tolist()
        assert pack.edges.offset[mine].tolist() == list(range(sample.action_len))
    advantages = pack.edges.gather(samples, lambda sample: sample.advantage)
    assert advantages.tolist() == [float(a) for sample in samples for a in sample.advantage]


def test_what_groups_share_is_forwarded_once() -> None:
    samples = [
        Sample.of(
            [1, 2, 3], [group, 5], behavior_logprobs=[0.0, 0.0], advantage=0.0, group=str(group), seq=group
        )
        for group in (7, 8, 9)
    ]
    assert pack_samples(samples, PassBudget(100)).plan.tokens == 3 + 3 * 2


def test_without_samples_a_pack_has_no_passes() -> None:
    pack = pack_samples([], PassBudget(1))
    assert (pack.samples, pack.passes, len(pack.edges), pack.plan.tokens) == ((), (), 0, 0)


def test_loss_edges_lead_from_the_last_shared_token_to_each_branch() -> None:
    forest = Forest()
    state = forest.ids(4)
    forest.add(state, state[:1] * 0 + 1)
    forest.add(state, state[:1] * 0 + 2)
    pack = pack_samples(forest.samples, PassBudget(100))
    assert pack.plan.tokens == 6
    assert pack.edges.position.tolist() == [3, 3]
    assert pack.edges.target.tolist() == [1, 2]


def test_weight_zero_leaves_samples_and_edges_out_of_training_but_not_out_of_recomputation() -> None:
    samples = [
        Sample.of([1], [2, 3], behavior_logprobs=[0.0, 0.0], advantage=0.0, weight=[0.0, 1.0]),
        Sample.of([4], [5], behavior_logprobs=[0.0], advantage=0.0, weight=0.0),
    ]
    trained = pack_samples(samples, PassBudget(100))
    assert trained.indices == (0,) and trained.edges.offset.tolist() == [1] and trained.plan.tokens == 3
    every = pack_samples(samples, PassBudget(100), trained_only=False)
    assert every.indices == (0, 1) and every.edges.target.tolist() == [2, 3, 5]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_chunked_logprobs_entropies_and_gradients_equal_a_plain_log_softmax(bias: bool, chunk: int) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(10, 8, dtype=torch.float64, requires_grad=True)
    head = nn.Linear(8, 30, bias=bias, dtype=torch.float64)
    target, temperature = torch.randint(0, 30, (10,)), torch.rand(10, dtype=torch.float64) + 0.5
    upstream = torch.randn(10, dtype=torch.float64)
    inputs = [hidden, *head.parameters()]
    logp, entropy = token_logprobs(hidden, head, target, temperature, chunk)
    grads = torch.autograd.grad(logp, inputs, upstream)
    plain = (head(hidden) / temperature[:, None]).log_softmax(-1)
    expected = plain[torch.arange(10), target]
    expected_grads = torch.autograd.grad(expected, inputs, upstream)
    torch.testing.assert_close(logp, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(entropy, -(plain.exp() * plain).sum(-1), rtol=0, atol=1e-12)
    assert not entropy.requires_grad
    for ours, theirs in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_a_bfloat16_head_computes_in_float32() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(6, 16).bfloat16().requires_grad_()
    head = nn.Linear(16, 40, bias=False).bfloat16()
    target = torch.randint(0, 40, (6,))
    logp, _ = token_logprobs(hidden, head, target, torch.ones(6))
    wide = (hidden.float() @ head.weight.float().T).log_softmax(-1)[torch.arange(6), target]
    assert logp.dtype == torch.float32
    torch.testing.assert_close(logp, wide, rtol=0, atol=1e-5)
    logp.sum().backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None and hidden.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_rectangles_equal_the_dense_reference_with_grouped_queries(kv_heads: int) -> None:
    torch.manual_seed(0)
    plan = FlatTree([sample.tokens for sample in everything()]).plan
    q = torch.randn(1, 4, plan.tokens, 16, dtype=torch.float64, requires_grad=True)
    k, v = (
        torch.randn(1, kv_heads, plan.tokens, 16, dtype=torch.float64, requires_grad=True) for _ in range(2)
    )
    outputs = [attend(q, k, v, plan, 0.3, backend) for backend in ("rectangles", "dense")]
    upstream = torch.randn_like(outputs[0])
    grads = [torch.autograd.grad(out, (q, k, v), upstream) for out in outputs]
    for ours, reference in zip([outputs[0], *grads[0]], [outputs[1], *grads[1]], strict=True):
        torch.testing.assert_close(ours, reference, rtol=0, atol=1e-12)


def test_attention_refuses_what_does_not_fit_the_plan() -> None:
    plan = FlatTree([sample.tokens for sample in group_of_rollouts()]).plan
    q = torch.zeros(1, 2, plan.tokens, 16)
    with pytest.raises(ValueError, match="for a plan of"):
        attend(q[:, :, 1:], q, q, plan, 1.0, "rectangles")
    with pytest.raises(ValueError, match="runs on CPU, not on meta; use flex on a GPU, else dense"):
        attend(q.to("meta"), q.to("meta"), q.to("meta"), plan, 1.0, "rectangles")
    with pytest.raises(ValueError, match="equal head sizes"):
        attend(q, q, q[..., :8], plan, 1.0, "rectangles")
