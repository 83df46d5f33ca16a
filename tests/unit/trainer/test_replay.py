"""Recorded experts are replayed in training, merged or not: the same gradients, by a reference that writes the routers out once more."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.trajectory.branch import Branch
from orchestrator.trajectory.routes import NOT_RECORDED, REPLAYED, Routes
from tests.unit.trainer.forests import FORESTS, llama, minimax_m2, qwen3_moe, seeded
from tests.unit.trainer.vanilla import Gradients, alone, double_precision_throughout, merged, worst
from trainer.activation_checkpointing import checkpoint_activations
from trainer.samples import Sample
from trainer.tree.execute import score
from trainer.tree.forward import attach_tree_attention
from trainer.tree.pack import pack_samples
from trainer.tree.passes import PassBudget
from trainer.tree.plan import FlatTree
from trainer.tree.replay import _GATES, attach_replay, check_routes, replayed_tokens
from trainer.tree.routing import Routing, multiplicities, routers_of
from trainer.update import UpdateSettings, recompute_logprobs
from trainer.verify.merged import step_gradients
from trainer.verify.precision import Float64Throughout
from trainer.verify.vanilla import detach_tree_attention, vanilla_gradients

__all__ = ["double_precision_throughout"]

LAYERS, EXPERTS, TOP_K = 2, 4, 2
MOE = {"qwen3_moe": qwen3_moe, "minimax_m2": minimax_m2}


def route(variant: int) -> Routes:
    """int16[layers, top_k]: one of several ways to send a token; −1: not recorded."""
    if variant < 0:
        return np.full((LAYERS, TOP_K), NOT_RECORDED, np.int16)
    first = (variant + np.arange(LAYERS)) % EXPERTS
    return np.sort(np.stack([first, (first + 1 + variant // EXPERTS) % EXPERTS], 1), 1).astype(np.int16)


def routed(sample: Sample, variants: Sequence[int]) -> Sample:
    """The sample, expanded, with one way per token."""
    return replace(sample, tokens=Branch(own=sample.ids, routes=np.stack([route(v) for v in variants])))


def drawn(samples: list[Sample], seed: int, ways: Sequence[int]) -> list[Sample]:
    """Ways that depend on the token and its place, so that equal prefixes mostly have equal ones; in the second half of some samples others."""
    rng = np.random.default_rng(seed)
    shift = rng.integers(0, 2, len(samples))
    return [
        routed(
            s,
            [
                ways[(int(t) + at + int(other) * (2 * at > len(s.ids))) % len(ways)]
                for at, t in enumerate(s.ids)
            ],
        )
        for s, other in zip(samples, shift, strict=True)
    ]


@contextmanager
def forced(model: Any, routes: Routes) -> Iterator[None]:
    """The reference: every router sends its tokens to the experts of `routes`, by its formula."""

    def forward(layer: int, router: Any, hidden: torch.Tensor, *bias: torch.Tensor) -> Any:
        logits = hidden.reshape(-1, router.hidden_dim) @ router.weight.T
        scores = logits.sigmoid() if bias else logits.softmax(-1)
        live = (scores + bias[0] if bias else scores).topk(router.top_k, dim=-1).indices
        recorded = torch.from_numpy(routes[:, layer]).long()
        chosen = torch.where(recorded < 0, live, recorded)
        gates = scores.gather(1, chosen)
        return logits, gates / gates.sum(-1, keepdim=True), chosen

    routers: list[Any] = routers_of(model)
    for layer, router in enumerate(routers):
        router.forward = lambda *given, layer=layer, router=router: forward(layer, router, *given)
    try:
        yield
    finally:
        for router in routers:
            del router.forward


def one_at_a_time(build: Any, samples: list[Sample]) -> tuple[float, Gradients]:
    policy = seeded(build, dtype=torch.float64)
    total, grads = 0.0, dict[str, torch.Tensor]()
    tokens = sum(sample.action_len for sample in samples)
    for sample in samples:
        routes = sample.tokens.full_routes
        assert routes is not None
        with forced(policy, routes):
            loss, own = alone(policy, [replace(sample, tokens=Branch(own=sample.ids))])
        share = sample.action_len / tokens
        total += loss * share
        grads = {name: grads.get(name, 0) + gradient * share for name, gradient in own.items()}
    return total, grads


def replaying(build: Any, dtype: torch.dtype = torch.float64) -> Any:
    policy = seeded(build, dtype=dtype)
    attach_tree_attention(policy)
    attach_replay(policy)
    return policy


@pytest.mark.usefixtures("double_precision_throughout")
@pytest.mark.parametrize("budget", [10_000, 20], ids=["one_pass", "many_passes"])
@pytest.mark.parametrize("name", MOE)
def test_replayed_gradients_equal_one_sample_at_a_time_in_float64(name: str, budget: int) -> None:
    samples = drawn([s for f in ("context_rewrites", "duplicates") for s in FORESTS[f]()], 1, (0, 1, 5, -1))
    pack = pack_samples(samples, PassBudget(budget))
    assert pack.route_conflicts > 2 and pack.plan.tokens < pack.naive_tokens
    loss, grads = merged(replaying(MOE[name]), samples, "rectangles", budget)
    reference_loss, reference = one_at_a_time(MOE[name], samples)
    assert abs(loss - reference_loss) <= 1e-12 and worst(grads, reference) <= 1e-10
    _, live = merged(
        replaying(MOE[name]), [replace(s, tokens=Branch(own=s.ids)) for s in samples], "rectangles"
    )
    assert worst(grads, live) > 1e-3  # the replayed routes differ from the live ones


@st.composite
def conflicting(draw: st.DrawFn) -> list[Sample]:
    """Samples over two ids and three ways, stored as branches of one another."""
    made: list[Branch] = []
    for _ in range(draw(st.integers(2, 6))):
        ids = np.array(draw(st.lists(st.integers(0, 1), min_size=2, max_size=6)), np.int32)
        ways = draw(st.none() | st.lists(st.integers(-1, 1), min_size=len(ids), max_size=len(ids)))
        routes = None if ways is None else np.stack([route(v) for v in ways])
        parent = draw(st.none() | st.sampled_from(made)) if made else None
        keep = 0 if parent is None else draw(st.integers(0, len(parent)))
        made.append(Branch(own=ids, parent=parent, keep_len=keep, routes=routes))
    rng = np.random.default_rng(0)
    samples = []
    for branch in made:
        n = len(branch) - 1
        logprobs, advantage = rng.normal(-1, 0.3, (2, n)).astype(np.float32)
        plain = Sample.of([0], [0] * n, behavior_logprobs=logprobs, advantage=advantage)
        samples.append(replace(plain, tokens=branch))
    return samples


@settings(max_examples=8, deadline=None)
@given(conflicting())
def test_whatever_routes_conflict_merging_changes_no_gradient(samples: list[Sample]) -> None:
    policy = replaying(qwen3_moe)
    with Float64Throughout():
        _, ours = step_gradients(policy, samples, UpdateSettings(balance=0.1))
        detach_tree_attention(policy)
        theirs = vanilla_gradients(policy, samples, UpdateSettings(balance=0.1)).gradients
    assert worst(dict(ours), dict(theirs)) <= 1e-10


@settings(max_examples=60, deadline=None)
@given(conflicting())
def test_tokens_are_merged_exactly_where_ids_and_routes_agree(samples: list[Sample]) -> None:
    tree = FlatTree([sample.tokens for sample in samples])
    some = any(sample.tokens.full_routes is not None for sample in samples)
    prefixes = set[tuple[tuple[int, bytes], ...]]()
    for sample in samples:
        routes = sample.tokens.full_routes
        rows = [route(-1)] * len(sample.ids) if routes is None else list(routes)
        whole = [(int(t), row.tobytes()) for t, row in zip(sample.ids, rows, strict=True)]
        prefixes |= {tuple(whole[: n + 1]) for n in range(len(whole))}
        if some:
            assert tree.plan.routes is not None
            places = tree.locate(sample.tokens, 0, len(sample.tokens))
            assert np.array_equal(tree.plan.routes[places], np.stack(rows))
    assert tree.plan.tokens == len(prefixes)
    ways: dict[tuple[Any, int], set[bytes]] = {}
    for prefix in prefixes:
        ways.setdefault((prefix[:-1], prefix[-1][0]), set()).add(prefix[-1][1])
    assert tree.route_conflicts == sum(len(found) - 1 for found in ways.values())


@pytest.mark.parametrize("name", MOE)
def test_what_the_routers_would_choose_anyway_changes_nothing_when_it_is_replayed(name: str) -> None:
    policy = replaying(MOE[name], torch.float32)
    samples = FORESTS["context_rewrites"]()
    chosen: list[list[torch.Tensor]] = []
    hooks = [
        r.register_forward_hook(lambda _, __, out: chosen[-1].append(out[2])) for r in routers_of(policy)
    ]
    detach_tree_attention(policy)
    for sample in samples:
        chosen.append([])
        policy(input_ids=torch.from_numpy(sample.ids)[None].long(), use_cache=False)
    for hook in hooks:
        hook.remove()
    attach_tree_attention(policy)
    recorded = [
        replace(
            s,
            tokens=Branch(own=s.ids, routes=torch.stack(layers, 1).sort(-1).values.numpy().astype(np.int16)),
        )
        for s, layers in zip(samples, chosen, strict=True)
    ]
    plain, live = step_gradients(policy, samples, UpdateSettings())
    metrics, replayed = step_gradients(policy, recorded, UpdateSettings())
    assert metrics.merged_tokens == plain.merged_tokens and metrics.route_conflicts == 0
    assert (plain.replayed_share, metrics.replayed_share) == (None, 1.0)
    assert worst(dict(live), dict(replayed)) <= 1e-6


@pytest.mark.usefixtures("double_precision_throughout")
def test_activation_checkpointing_replays_the_same_routes_again() -> None:
    samples = drawn(FORESTS["context_rewrites"](), 2, (0, 1, 2, -1))
    policy = replaying(qwen3_moe)
    _, plain = merged(policy, samples, "rectangles", 20)
    checkpoint_activations(policy)
    policy.train()
    _, checkpointed = merged(policy, samples, "rectangles", 20)
    assert worst(plain, checkpointed) <= 1e-12


def test_conflicts_and_the_replayed_share_are_reported_and_the_load_is_that_of_the_replayed_experts() -> None:
    f = [Sample.of([1, 2, 3], [4, 5], behavior_logprobs=[-1.0, -1.0], advantage=1.0) for _ in range(3)]
    samples = [routed(f[0], [0, 0, 0, 0, 0]), routed(f[1], [0, 1, 1, 1, 1]), routed(f[2], [0, 0, 0, 0, -1])]
    policy = replaying(qwen3_moe, torch.float32)
    metrics, _ = step_gradients(policy, samples, UpdateSettings())
    assert metrics.route_conflicts == 2  # behind the first token, and the last one
    assert metrics.replayed_share == pytest.approx(14 / 15)
    assert (metrics.naive_tokens, metrics.merged_tokens) == (15, 10)
    pack = pack_samples(samples[:2], PassBudget(100))
    routing = Routing(routers_of(policy), multiplicities(pack.plan, pack.last), 0.0)
    assert replayed_tokens(pack.plan, pack.last) == 10
    score(policy, pack, routing=routing)
    # way 0 sends to experts 0 and 1 in the first layer, way 1 to 1 and 2: 6 and 4 of 10 tokens
    assert routing.load is not None and routing.load[0].tolist() == [6.0, 10.0, 4.0, 0.0]


def test_a_dense_model_and_unknown_routers_are_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(
        ValueError,
        match=r"routing_replay is true, but the policy in  has no experts: begin a new run with .* = f",
    ):
        attach_replay(seeded(llama))
    assert set(_GATES) == set(REPLAYED)
    monkeypatch.setattr("orchestrator.trajectory.routes.REPLAYED", ("other",))
    with pytest.raises(ValueError, match=r"model_type is qwen3_moe; known: other\): begin a new run with"):
        attach_replay(seeded(qwen3_moe))


def test_routes_of_a_model_of_another_shape_are_refused() -> None:
    policy = seeded(qwen3_moe)
    ids = np.zeros(2, np.int32)
    check_routes(policy, [Branch(own=ids)])
    check_routes(
        policy, [Branch(own=ids, parent=Branch(own=ids), keep_len=1, routes=np.stack([route(0), route(-1)]))]
    )
    three_layers = np.zeros((2, 3, TOP_K), np.int16)
    with pytest.raises(
        ValueError, match="routes of 3 layers, 2 experts per token and ids up to 0: this model"
    ):
        check_routes(policy, [Branch(own=ids, parent=Branch(own=ids, routes=three_layers), keep_len=1)])
    with pytest.raises(ValueError, match="ids up to 4: this model has 2 layers, 2 of 4 experts per token"):
        check_routes(policy, [Branch(own=ids, routes=np.full((2, LAYERS, TOP_K), EXPERTS, np.int16))])
    with pytest.raises(ValueError, match="a step has routes of 3 tokens and 2 tokens"):
        Branch(own=ids, routes=np.zeros((3, LAYERS, TOP_K), np.int16))


def test_recomputed_logprobs_are_those_of_the_recorded_experts() -> None:
    policy = replaying(minimax_m2, torch.float32)
    sample = drawn(FORESTS["append_only_chain"](), 3, (0, 1, 2))[-1]
    routes = sample.tokens.full_routes
    assert routes is not None
    (ours,) = recompute_logprobs(policy, [sample], UpdateSettings())
    detach_tree_attention(policy)
    ids = torch.from_numpy(sample.ids).long()
    with forced(policy, routes), torch.no_grad():
        logits = policy(input_ids=ids[None], use_cache=False).logits[0, :-1]
    theirs = (logits / sample.temperature).log_softmax(-1).gather(1, ids[1:, None])[:, 0]
    assert np.abs(ours - theirs[sample.state_len - 1 :].numpy()).max() <= 1e-5
