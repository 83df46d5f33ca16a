"""A mixture of experts trains on stored batches with the experts that its rollout server used."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sqlalchemy import select

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.events import StepRecorded
from orchestrator.contracts.ids import Ids, Logprobs
from orchestrator.pool.leases import Lease
from orchestrator.pool.tables import train_steps
from orchestrator.trajectory.routes import Routes
from tests.builders import Author, one_expert, ready_groups
from tests.integration.trainer.rig import Pool, pool
from tests.unit.trainer.forests import minimax_m2, qwen3, saved
from trainer.batch import BadBatch
from trainer.expert_bias import biases_of
from trainer.loop import train_batches
from trainer.model import load_model
from trainer.tree.replay import attach_replay, routes_of
from trainer.verify.compare import verify
from trainer.verify.stored import read_batch

__all__ = ["pool"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("trainer")]
VOCAB = 259


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny MiniMax-M2: two layers, two of four experts per token."""
    return saved(minimax_m2, tmp_path_factory.mktemp("model"), VOCAB)


class OtherKernel(Author):
    """A rollout server that sends tokens where the trainer would not, and differently for every second rollout; its logprobs
    follow its own routes."""

    def __init__(self, model: Path) -> None:
        super().__init__(score=self._score, route=self._route)
        self._network: Any = load_model(model, backend=None).eval()
        attach_replay(self._network)
        self._shift = 0

    def trajectory(self, lease: Lease, run: str, prompt: Ids) -> list[StepRecorded]:
        self._shift = lease.rollout_id % 2
        return super().trajectory(lease, run, prompt)

    def _route(self, full: Ids, start: int) -> Routes:
        first = (full[start:-1] + np.arange(start, len(full) - 1) + self._shift) % 4
        both = np.sort(np.stack([first, (first + 1) % 4], 1), 1)
        return np.stack([both, both], 1).astype(np.int16)

    def _score(self, full: Ids, state_len: int) -> Logprobs:
        ids = torch.from_numpy(full[:-1])[None].long()
        with torch.no_grad():
            output = self._network(
                input_ids=ids, use_cache=False, **routes_of(self._network, self._route(full, 0))
            )
        logp = output.logits[0].log_softmax(-1)[state_len - 1 :]
        return np.asarray(
            logp.gather(1, torch.from_numpy(full[state_len:]).long()[:, None])[:, 0].numpy(), np.float32
        )


async def metrics_of(pool: Pool) -> list[dict[str, Any]]:
    rows = await pool.rows(select(train_steps).order_by(train_steps.c.part))
    return [row.metrics for row in rows]


async def test_recorded_experts_are_replayed_exactly_and_the_biases_move(pool: Pool) -> None:
    run = await pool.run(trainer={"parts": 1, "routing_replay": True, "bias_rate": 0.01})
    await ready_groups(pool.engine, run, ["a", "b"], OtherKernel(pool.model))
    trainer = await pool.trainer(run)
    await train_batches(trainer, 1)
    [metrics] = await metrics_of(pool)
    assert metrics["applied"] and metrics["max_abs_dlogprob"] < 1e-4  # as the server computed it
    leaves = 2 * metrics["rollouts"]  # the last token of the last turn, and the last token of the rewrite
    assert metrics["replayed_share"] == pytest.approx(1 - leaves / metrics["tokens_naive"])
    assert metrics["route_conflicts"] >= 2 and metrics["merge_ratio"] > 1.5
    published = Path((await pool.newest(run)).path)
    before, after = (load_model(path, backend=None) for path in (pool.model, published))
    moved = [(new - old).abs() for old, new in zip(biases_of(before), biases_of(after), strict=True)]
    assert max(float(m.max()) for m in moved) == pytest.approx(0.01, rel=1e-4)
    assert metrics["bias_range"] == pytest.approx(max(float(b.max() - b.min()) for b in biases_of(after)))
    stored = await read_batch(pool.trainers, "test", 0)
    missed = [check for check in verify(stored, "float64") if check.missed]
    assert not missed


async def test_a_batch_without_any_recorded_route_has_a_replayed_share_of_0(pool: Pool) -> None:
    run = await pool.run(trainer={"parts": 1, "routing_replay": True})
    await ready_groups(pool.engine, run, ["a", "b"], Author(vocab=VOCAB))
    await train_batches(await pool.trainer(run), 1)
    [metrics] = await metrics_of(pool)
    assert metrics["replayed_share"] == 0.0


async def test_routes_of_another_model_make_a_bad_batch(pool: Pool) -> None:
    run = await pool.run(trainer={"parts": 1, "routing_replay": True})
    await ready_groups(pool.engine, run, ["a", "b"], Author(vocab=VOCAB, route=one_expert))
    trainer = await pool.trainer(run)
    batch = await trainer.claim()
    with pytest.raises(
        BadBatch, match="its routes cannot be replayed: routes of 1 layers, 1 experts per token"
    ):
        await trainer.train(batch, await trainer.read(batch))  # type: ignore[arg-type]


async def test_a_dense_policy_cannot_replay_routes(pool: Pool, tmp_path: Path) -> None:
    dense = Pool(
        url=pool.url,
        engine=pool.engine,
        trainers=pool.trainers,
        policies=pool.policies,
        model=saved(qwen3, tmp_path, VOCAB),
    )
    run = await dense.run(trainer={"routing_replay": True})
    with pytest.raises(
        ConfigurationError, match=r"routing_replay is true, but the policy in .* has no experts"
    ):
        await dense.trainer(run)
