"""The parts of many ranks that are not collectives: shares, rounds, samples as bytes, the place of a process."""

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.trajectory.branch import Branch
from tests.unit.trainer import forests
from trainer.batch import BatchPart
from trainer.ranks.balance import shares
from trainer.ranks.codec import parts_from_bytes, parts_to_bytes
from trainer.ranks.consistency import Facts, difference
from trainer.ranks.lockstep import aligned
from trainer.ranks.rank_env import Place, place_given
from trainer.ranks.rendezvous import device_of
from trainer.samples import Sample
from trainer.tree.plan import FlatTree

pytestmark = pytest.mark.tier("trainer")


def cost(samples: Sequence[Sample], places: Sequence[int]) -> float:
    plan = FlatTree([samples[i].tokens for i in places]).plan
    return plan.tokens + 0.1 * plan.pairs


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_every_trained_sample_is_in_one_share_and_no_group_in_two_where_groups_are_even(ranks: int) -> None:
    f = forests.Forest(7)
    for group in range(3 * ranks):
        prompt = f.ids(6)
        for rollout in "12":
            f.turns(prompt, 3, rollout, str(group), seq=group)
    f.samples[1] = replace(f.samples[1], weight=np.zeros_like(f.samples[1].weight))
    found = shares(f.samples, ranks, 0.1)
    assert sorted(i for share in found for i in share) == [i for i in range(len(f.samples)) if i != 1]
    assert all(share == sorted(share) for share in found)
    owners = {(f.samples[i].group, rank) for rank, share in enumerate(found) for i in share}
    assert len(owners) == 3 * ranks
    costs = [cost(f.samples, share) for share in found]
    assert max(costs) < 1.25 * min(costs)


def test_one_group_alone_is_shared_by_rollout_and_one_rollout_alone_is_not_shared() -> None:
    f = forests.Forest(3)
    prompt = f.ids(4)
    for rollout in "1234":
        f.turns(prompt, 4, rollout)
    found = shares(f.samples, 2, 0.0)
    rollouts = [{f.samples[i].rollout for i in share} for share in found]
    assert [len(one) for one in rollouts] == [2, 2] and not rollouts[0] & rollouts[1]
    chain = forests.append_only_chain()
    assert shares(chain, 2, 0.0) == [list(range(len(chain))), []]
    assert shares([], 2, 0.0) == [[], []]


plans = st.lists(st.lists(st.booleans(), max_size=8), min_size=1, max_size=5)


@given(plans)
def test_rounds_are_the_same_kinds_on_all_ranks_and_hold_every_visit_in_its_order(
    plans: list[list[bool]],
) -> None:
    found = aligned(plans)
    kinds = [learn for learn, _ in found[0]]
    for plan, rounds in zip(plans, found, strict=True):
        assert [learn for learn, _ in rounds] == kinds
        assert [learn for learn, mine in rounds if mine] == plan
    assert all(any(rounds[i][1] for rounds in found) for i in range(len(kinds))), (
        "no round without a receiver"
    )
    assert len(kinds) <= sum(map(len, plans))


def test_samples_arrive_as_they_were_sent_and_shared_tokens_are_sent_once() -> None:
    samples = forests.everything()
    before = len(parts_to_bytes([BatchPart(samples, [])]))
    root = Branch(own=np.arange(1000, dtype=np.int32))
    step = Branch(own=np.array([5, 6, 7], np.int32), parent=root, keep_len=1000)
    for number in range(20):
        tokens = Branch(own=np.array([8, number], np.int32), parent=step, keep_len=1002)
        made = Sample.of([1], [2, 3], behavior_logprobs=[-1.0, -2.0], advantage=0.5, domain="ä", seq=number)
        samples.append(replace(made, tokens=tokens, state_len=1002))
    data = parts_to_bytes([BatchPart(samples, []), BatchPart(samples[-2:], [])])
    first, second = parts_from_bytes(data)
    assert len(second.samples) == 2 and second.samples[0].tokens is first.samples[-2].tokens
    assert first.samples[-1].tokens.parent is first.samples[-2].tokens.parent
    assert len(data) - before < 4000 + 22 * 600, "the root alone has 4,000 bytes, and 20 samples keep it"
    for mine, theirs in zip(samples, first.samples, strict=True):
        assert np.array_equal(mine.ids, theirs.ids)
        for field in fields(Sample):
            ours, others = getattr(mine, field.name), getattr(theirs, field.name)
            if isinstance(ours, np.ndarray):
                assert ours.dtype == others.dtype and np.array_equal(ours, others)
            elif field.name != "tokens":
                assert ours == others


def test_what_torchrun_says_is_taken_and_what_it_says_in_part_is_refused() -> None:
    environment = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    assert place_given(environment) == Place(1, 4)
    assert place_given({}) is None and place_given(environment | {"WORLD_SIZE": "1", "RANK": "0"}) is None
    with pytest.raises(ValueError, match=r"not \$MASTER_PORT: start ranks with torchrun"):
        place_given({key: value for key, value in environment.items() if key != "MASTER_PORT"})
    with pytest.raises(ValueError, match="that rank does not exist"):
        place_given(environment | {"RANK": "4"})


def test_a_rank_takes_its_hosts_gpu_also_where_only_the_rank_of_all_hosts_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert [device_of(Place(rank, 4)).index for rank in range(4)] == [0, 1, 0, 1]
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert device_of(Place(2, 4)).index == 1


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"libraries": {"torch": "2.11.0"}}, "rank 2 runs torch 2.11.0, rank 0 has 2.13.0"),
        ({"code": "b"}, "rank 2 runs other code of Penstock than rank 0"),
        ({"device": "cuda"}, "rank 2 computes on cuda, rank 0 on cpu"),
        ({"arguments": {"run": "x"}}, "rank 2 was started with --run x, rank 0 with r"),
    ],
)
def test_the_first_difference_between_ranks_is_named(other: dict[str, object], sentence: str) -> None:
    facts = {"code": "a", "libraries": {"torch": "2.13.0"}, "device": "cpu", "arguments": {"run": "r"}}
    first, different = Facts(**facts), Facts(**(facts | other))  # type: ignore[arg-type]
    assert difference([first, first, first]) == ""
    assert difference([first, first, different]).startswith(sentence)
