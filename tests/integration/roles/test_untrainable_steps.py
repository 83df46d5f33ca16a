"""A step that the trainer could not use is refused before it is stored: it would take its whole batch along."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.bus import subjects
from orchestrator.contracts.ids import NO_PARENT, b64, chain_sha, ids_to_bytes
from orchestrator.contracts.states import Purpose
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.pool.dispatch import dispatch_other
from orchestrator.pool.leases import Lease
from orchestrator.roles.ingest import ingest_steps
from tests import builders
from tests.integration.pool.rig import rollouts_of, running, take
from tests.integration.roles.rig import Stage, playing, staged
from tests.integration.roles.test_forged_events import a_root

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("roles")]


async def evaluated(stage: Stage) -> Lease:
    """A leased rollout of an evaluation."""
    engine, run = stage.context.engine, stage.run
    [group_id] = await builders.accepted(engine, run, ["greedy"], size=1, purpose=Purpose.EVAL)
    async with engine.begin() as connection:
        await dispatch_other(connection, run.run_id, 8)
        lease = await take(connection, (await rollouts_of(connection, group_id))[0])
    assert lease is not None
    return lease


def with_ids(state: int, action: int) -> dict[str, Any]:
    """Changes of a root: the id of its state, and the second one of its action."""
    delta, ids = ids_to_bytes([state]), ids_to_bytes([5, action])
    return {
        "delta": b64(delta),
        "action": b64(ids),
        "chain_sha": chain_sha(NO_PARENT, 0, delta, ids).hex(),
    }


async def send(stage: Stage, lease: Lease, *steps: dict[str, Any]) -> None:
    """Roots of one rollout with these changes, in order."""
    subject = subjects.steps(stage.run.name, str(lease.rollout_id))
    for idx, changes in enumerate(steps):
        await stage.send(subject, a_root(lease, stage.run.name, idx, [-1.0, -1.0], **changes))


@pytest.mark.parametrize("temperature", [0.0, 9e-7])
async def test_a_greedy_step_is_refused_in_a_training_group_and_stored_in_an_evaluation(
    stage: Stage, temperature: float
) -> None:
    await stage.serves(3)
    held, _ = await running(stage.context.engine, stage.run, 2)
    greedy: dict[str, Any] = {"sampling": {"temperature": temperature}}
    await send(stage, held, greedy, {}, {"sampling": {"scripted": True}})
    await send(stage, await evaluated(stage), greedy)
    async with playing([partial(ingest_steps, stage.context)]):
        await stage.reaches(3, "steps")
        await stage.reaches(1, "dead_letters")
    (reason,) = await stage.reasons()
    assert reason == (
        f"step {(held.rollout_id, 1, 0)} of a training group has temperature {temperature:g}: "
        "greedy samples have no log-probabilities to train on"
    )


async def test_a_run_that_is_greedy_itself_stores_its_steps(
    engine: AsyncEngine, nats_server: EmbeddedNats
) -> None:
    async with staged(engine, nats_server.url, sampling={"temperature": 0.0}) as stage:
        await stage.serves(3)
        held, _ = await running(stage.context.engine, stage.run, 2)
        await send(stage, held, {"sampling": {"temperature": 0.0}})
        async with playing([partial(ingest_steps, stage.context)]):
            await stage.reaches(1, "steps")


@pytest.mark.parametrize("config", [{"vocab_size": 100}, {"text_config": {"vocab_size": 100}}])
async def test_a_step_with_an_id_outside_the_vocabulary_of_the_policy_is_refused(
    engine: AsyncEngine, nats_server: EmbeddedNats, tmp_path: Path, config: dict[str, Any]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    async with staged(engine, nats_server.url, policy={"model": str(tmp_path)}) as stage:
        await stage.serves(3)
        held, _ = await running(stage.context.engine, stage.run, 2)
        await send(stage, held, with_ids(99, 99), with_ids(100, 6), with_ids(4, 2**31 - 1))
        async with playing([partial(ingest_steps, stage.context)]):
            await stage.reaches(1, "steps")
            await stage.reaches(2, "dead_letters")
        key = held.rollout_id, 1
        assert sorted(await stage.reasons()) == [
            f"step {(*key, 1)} has the token id 100, and the policy knows 0 … 99",
            f"step {(*key, 2)} has the token id 2147483647, and the policy knows 0 … 99",
        ]


@pytest.mark.parametrize("content", [None, "", "[]", '{"vocab_size": "many"}', '{"text_config": 7}'])
async def test_ids_pass_where_the_vocabulary_cannot_be_read(
    engine: AsyncEngine, nats_server: EmbeddedNats, tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    async with staged(engine, nats_server.url, policy={"model": str(tmp_path)}) as stage:
        await stage.serves(3)
        held, _ = await running(stage.context.engine, stage.run, 2)
        await send(stage, held, with_ids(4, 2**31 - 1))
        async with playing([partial(ingest_steps, stage.context)]):
            await stage.reaches(1, "steps")
