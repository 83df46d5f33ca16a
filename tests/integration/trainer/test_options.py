"""The configured loss, anchor, rate and scale reach the train steps of a stored batch."""

import numpy as np
import pytest
from sqlalchemy import select

from orchestrator.pool.tables import train_steps
from tests.builders import ready_groups
from tests.integration.trainer.rig import Pool, model, pool, scored_by
from trainer.loop import train_batches
from trainer.phases import NoBatch

__all__ = ["model", "pool"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("trainer")]


async def test_a_run_with_another_loss_anchor_schedule_and_scale_trains_with_them(pool: Pool) -> None:
    run = await pool.run(
        trainer={
            "parts": 2,
            "lr": 1e-2,
            "loss": "grpo",
            "anchor": "proximal",
            "aggregation": "sample",
            "schedule": "linear",
            "decay_steps": 4,
        },
        reward={"batch_scale": "whiten"},
    )
    await ready_groups(pool.engine, run, ["a", "b"], scored_by(pool.model))
    trainer = await pool.trainer(run)
    batch = await trainer.claim()
    assert not isinstance(batch, NoBatch)
    parts = await trainer.read(batch)
    advantages = np.concatenate([sample.advantage for part in parts for sample in part.samples])
    assert len(parts) == 2 and abs(float(advantages.mean())) < 1e-5
    assert float(advantages.std()) == pytest.approx(1, abs=1e-3)

    await train_batches(trainer, 2)
    first, second = (row.metrics for row in await pool.rows(select(train_steps).order_by(train_steps.c.part)))
    assert (first["lr"], second["lr"]) == pytest.approx((1e-2, 0.75e-2))
    assert first["clip_fraction"] == 0  # the anchor is the trainer itself, before the batch
    assert first["applied"] and second["applied"] and first["cut_fraction"] == 0
