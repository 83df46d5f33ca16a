"""From stored steps to samples, the control's permutation, and a learner that survives bad batches."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.marks import Finish, MarkReason, ParseStatus
from orchestrator.contracts.spans import VersionSpan
from orchestrator.contracts.states import StepKind
from orchestrator.pool.batches import BatchRollout
from orchestrator.pool.steps import StoredStep
from orchestrator.settings.trainer import TrainerSection
from orchestrator.trajectory.branch import Branch
from tests.unit.trainer.forests import VOCAB, group_of_rollouts
from trainer.batch import BadBatch, BatchPart, make_parts, permuted, rollout_samples
from trainer.benchmarks.random_model import write_random_model
from trainer.checkpoint import open_checkpoint
from trainer.learner import Learner, save_first
from trainer.lock import only_trainer


def rollout(rollout_id: int, *, seq: int = 0, advantages: list[float] | None = None) -> BatchRollout:
    values = [0.5, -0.25] if advantages is None else advantages
    return BatchRollout(
        group_id=seq + 100,
        seq=seq,
        domain="coding",
        rollout_id=rollout_id,
        attempt=1,
        reward_revision=1,
        performance=1.0,
        total=1.0,
        advantages=values,
        weights=[1] * len(values),
    )


def step(idx: int, *, rollout_id: int = 1, marked: bool = False) -> StoredStep:
    full = np.arange(2 + idx, dtype=np.int32)
    full = np.concatenate([full, np.array([7, 8, 9], np.int32)])
    logprobs = np.array([-1.0, -2.0, -3.0], np.float32)
    return StoredStep(
        rollout_id=rollout_id,
        attempt=1,
        idx=idx,
        kind=StepKind.ROOT,
        parent=None,
        keep_len=0,
        state_len=2 + idx,
        tokens=Branch(own=full),
        logprobs=logprobs,
        spans=(VersionSpan(3, 0, 2), VersionSpan(4, 2, 3)),
        agent="main",
        parse=ParseStatus.OK,
        marks=frozenset({MarkReason.AUXILIARY}) if marked else frozenset(),
        temperature=0.7,
        reply={},
        finish=Finish.STOP,
    )


def test_a_sample_has_its_steps_ids_logprobs_versions_advantage_and_temperature() -> None:
    first, second = rollout_samples(rollout(1), [step(0), step(1)])
    assert first.ids.tolist() == [0, 1, 7, 8, 9] and second.state_len == 3
    assert first.versions.tolist() == [3, 3, 4]
    assert first.behavior_logprobs.tolist() == [-1.0, -2.0, -3.0]
    assert first.advantage.tolist() == [0.5] * 3 and second.advantage.tolist() == [-0.25] * 3
    assert (first.temperature, first.group, first.rollout, second.step) == (0.7, "100", "1", 1)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (
            {"spans": (VersionSpan(3, 0, 2),)},
            "version spans do not cover the action: they end after 2 of 3 tokens",
        ),
        ({"spans": (VersionSpan(3, 0, 2), VersionSpan(4, 5, 6))}, "one starts at 5 after 2 tokens"),
        ({"spans": (VersionSpan(3, 0, 2), VersionSpan(4, 2, 9))}, "they end after 9 of 3 tokens"),
        ({"spans": (VersionSpan(3, 0, 3), VersionSpan(4, 3, 3))}, "one is empty at 3"),
        ({"logprobs": np.array([-1.0, -2.0], np.float32)}, "2 logprobs for 3 sampled tokens"),
        ({"state_len": 9}, "a state of 9 tokens in 5 of state and action together"),
        ({"state_len": 0}, "a state of 0 tokens in 5"),
    ],
)
def test_tokens_logprobs_and_spans_that_disagree_are_a_bad_batch(
    damage: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(
        BadBatch, match=rf"rollout 1 \(attempt 1\) has a step that cannot be trained: .*{sentence}"
    ):
        rollout_samples(rollout(1, advantages=[0.5]), [replace(step(0), **damage)])


def test_a_marked_step_and_one_of_train_weight_0_make_no_sample() -> None:
    assert [s.step for s in rollout_samples(rollout(1), [step(0, marked=True), step(1)])] == [1]
    unweighted = replace(rollout(1), weights=[1, 0])
    assert [s.step for s in rollout_samples(unweighted, [step(0), step(1)])] == [0]


def test_steps_other_than_the_rewarded_ones_make_the_batch_bad() -> None:
    with pytest.raises(BadBatch, match=r"rollout 1 \(attempt 1\) has 1 steps, its reward was for 2"):
        rollout_samples(rollout(1), [step(0)])


def test_groups_are_split_by_queue_position_and_one_without_samples_counts_in_its_train_step() -> None:
    rollouts = [rollout(i, seq=seq) for i, seq in enumerate([4, 2, 4, 9])]
    recorded = {i: [step(0, rollout_id=i), step(1, rollout_id=i)] for i in range(4)}
    parts = make_parts(rollouts, recorded, 2)
    assert [{r.seq for r in part.rollouts} for part in parts] == [{2}, {4, 9}]
    assert [{s.seq for s in part.samples} for part in parts] == [{2}, {4, 9}]
    left_out = [replace(one, weights=[0, 0]) if one.seq == 4 else one for one in rollouts]
    parts = make_parts(left_out, recorded, 2)
    assert [{r.seq for r in part.rollouts} for part in parts] == [{2}, {4, 9}]
    assert [{s.seq for s in part.samples} for part in parts] == [{2}, {9}]
    without = rollout(1, advantages=[])
    assert [(list(part.samples), list(part.rollouts)) for part in make_parts([without], {}, 2)] == [
        ([], [without])
    ]
    assert [(list(part.samples), list(part.rollouts)) for part in make_parts([], {}, 2)] == [([], [])]


def test_the_control_gives_each_rollout_the_advantages_of_a_random_one_always_the_same_for_a_seed() -> None:
    rollouts = [rollout(i, advantages=[float(i)] * (1 + i % 3)) for i in range(20)]
    shuffled = permuted(rollouts, [7, 3])
    assert sorted(r.advantages[0] for r in shuffled) == [float(i) for i in range(20)]
    assert [len(r.advantages) for r in shuffled] == [len(r.advantages) for r in rollouts]
    assert sum(a.advantages == b.advantages for a, b in zip(shuffled, rollouts, strict=True)) < 5
    assert permuted(rollouts, [7, 3]) == shuffled != permuted(rollouts, [7, 4])
    assert [replace(r, advantages=[]) for r in shuffled] == [replace(r, advantages=[]) for r in rollouts]


def test_a_rollout_without_steps_takes_no_part_in_the_permutation() -> None:
    rollouts = [rollout(1, advantages=[1.0]), rollout(2, advantages=[]), rollout(3, advantages=[3.0, 4.0])]
    for seed in range(5):
        first, none, last = permuted(rollouts, [seed])
        assert none.advantages == [] and len(last.advantages) == 2
        assert (first.advantages, last.advantages) in (([1.0], [3.0, 4.0]), ([3.0], [1.0, 1.0]))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    return write_random_model(
        directory, vocab_size=259, hidden=16, layers=1, heads=2, kv_heads=1, head_dim=8, mlp=24
    )


def test_a_gradient_that_is_not_finite_is_never_saved_and_leaves_no_trace_after_a_resume(
    model: Path, tmp_path: Path
) -> None:
    assert VOCAB <= 259
    section = TrainerSection(lr=1e-3)
    good = BatchPart(group_of_rollouts(), [])
    first = save_first(tmp_path, model, section)
    straight = Learner.resume(first.path, first.manifest_sha, section)
    straight.train([good])
    expected = straight.save(tmp_path / "straight", 1, 0, b"digest").manifest_sha
    infinite = [
        replace(sample, advantage=np.full(sample.action_len, 3e38, np.float32)) for sample in good.samples
    ]
    learner = Learner.resume(first.path, first.manifest_sha, section)
    with pytest.raises(BadBatch, match=r"train step 2 of 2: (loss|gradient)_not_finite"):
        learner.train([good, BatchPart(infinite, [])])
    again = Learner.resume(first.path, first.manifest_sha, section)
    [values] = again.train([good])
    assert values["applied"] and again.save(tmp_path / "again", 1, 0, b"digest").manifest_sha == expected


@pytest.mark.parametrize("anchor", ["behavior", "proximal"])
def test_a_token_that_the_policy_does_not_know_makes_the_batch_bad(
    model: Path, tmp_path: Path, anchor: Any
) -> None:
    settings = TrainerSection(anchor=anchor)
    known = group_of_rollouts()[0]
    ids = known.ids.copy()
    ids[-1] = 259
    foreign = replace(known, tokens=Branch(own=ids))
    with pytest.raises(BadBatch, match="has the token 259, the policy knows 259"):
        Learner(save_first(tmp_path, model, settings), settings).train([BatchPart([foreign], [])])


@pytest.mark.parametrize("anchor", ["behavior", "proximal"])
def test_a_budget_too_small_for_the_longest_sample_ends_training_and_keeps_the_batch(
    model: Path, tmp_path: Path, anchor: Any
) -> None:
    section = TrainerSection(pack_pairs=5, anchor=anchor)
    first = save_first(tmp_path, model, TrainerSection())
    learner = Learner.resume(first.path, first.manifest_sha, section)
    with pytest.raises(ConfigurationError, match="budget of 5 attention pairs is too small for a path of"):
        learner.train([BatchPart(group_of_rollouts(), [])])  # BadBatch would give the batch up


def test_a_checkpoint_other_than_the_published_one_is_refused(model: Path, tmp_path: Path) -> None:
    first = save_first(tmp_path, model, TrainerSection())
    assert open_checkpoint(first.path).state.batch_no is None and len(first.canary.ids) == 32
    with pytest.raises(ValueError, match="is not the checkpoint that was published"):
        Learner.resume(first.path, "0" * 64, TrainerSection())


def test_a_second_trainer_of_the_same_run_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    with only_trainer(tmp_path):
        with pytest.raises(ConfigurationError, match="another trainer is at work"):
            with only_trainer(tmp_path):
                pass
    with only_trainer(tmp_path):
        pass
