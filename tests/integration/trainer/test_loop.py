"""The trainer against a real data pool: claim, train, save, commit; deaths between any two of them; bad batches; ends."""

import re
import signal
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from sqlalchemy import insert, select, text

from orchestrator.contracts.states import Purpose
from orchestrator.pool.policy_versions import progress
from orchestrator.pool.runs import begin_end, close_intake
from orchestrator.pool.steps import trajectories
from orchestrator.pool.tables import (
    batch_items,
    batches,
    groups,
    outbox,
    policy_versions,
    rollout_servers,
    train_steps,
)
from orchestrator.settings.config import Config
from tests.builders import Author, accepted, dispatch, finish, ready_groups
from tests.integration.trainer.rig import SUBJECT, Pool, model, pool, scored_by, start_trainer, until
from tests.processes import closing
from trainer.checkpoint import list_checkpoints, open_checkpoint
from trainer.loop import Halted, TrainerSettings, run_trainer, train_batches
from trainer.phases import NoBatch

__all__ = ["model", "pool"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("trainer")]


async def test_a_closed_batch_becomes_version_1_with_its_metrics_and_announcement(pool: Pool) -> None:
    run = await pool.run()
    author = scored_by(pool.model)
    [first] = await ready_groups(pool.engine, run, ["a"], author, domain="coding")
    [second] = await accepted(pool.engine, run, ["b"], domain="agent")
    await dispatch(pool.engine, run)
    await finish(pool.engine, run, second, author, performances=[1, 1, 0, 0], marked=[1])
    trainer = await pool.trainer(run)
    await train_batches(trainer, 2)

    versions = await pool.rows(select(policy_versions).order_by(policy_versions.c.version))
    assert [(v.version, v.parent, v.batch_no) for v in versions] == [(0, None, None), (1, 0, 0)]
    for row in versions:
        assert open_checkpoint(Path(row.path)).manifest_sha == row.manifest_sha
    state = open_checkpoint(Path(versions[1].path)).state
    assert (state.version, state.batch_no, state.train_steps) == (1, 0, 2)
    announced = await pool.rows(select(outbox).order_by(outbox.c.outbox_id))
    assert [(row.subject, row.body["version"], row.body["manifest_sha"]) for row in announced] == [
        (SUBJECT, v.version, v.manifest_sha) for v in versions
    ]
    assert [row.state for row in await pool.rows(select(groups.c.state))] == ["trained", "trained"]
    async with pool.engine.connect() as connection:
        done = await progress(connection, run.run_id)
        stored = await trajectories(connection, run.run_id, [(rollout, 1) for rollout in range(1, 9)])
    assert (done.committed_batches, done.train_steps) == (1, 2)

    metrics = [row.metrics for row in await pool.rows(select(train_steps).order_by(train_steps.c.train_step))]
    for part, group, rollouts in zip(metrics, (first, second), (range(1, 5), range(5, 9)), strict=True):
        steps = [step for rollout in rollouts for step in stored[rollout] if not step.marks]
        assert len(steps) == (12 if group == first else 8)
        ids = [tuple(step.full.tolist()) for step in steps]
        prefixes = {full[:end] for full in ids for end in range(1, len(full) + 1)}
        assert part["tokens_naive"] == sum(map(len, ids)) and part["tokens_merged"] == len(prefixes)
        assert part["merge_ratio"] == sum(map(len, ids)) / len(prefixes) > 1.5
        assert part["action_tokens"] == sum(len(step.action) for step in steps)
        assert part["staleness"] == {"0": part["action_tokens"]}
    on_policy = metrics[0]  # the second train step already has other weights than those that sampled
    assert on_policy["max_abs_dlogprob"] < 1e-4 and on_policy["clip_fraction"] == 0
    assert on_policy["ess"] == pytest.approx(1, abs=1e-4) and on_policy["gradient_norm"] > 0
    assert metrics[1]["max_abs_dlogprob"] > 1e-4
    assert metrics[0]["domains"].keys() == {"coding"} and metrics[0]["performance"] == 0.25
    assert metrics[1]["domains"]["agent"] | {"reward": 0} == {
        "token_share": 1.0,
        "rollouts": 4,
        "reward": 0,
        "performance": 0.5,
    }
    tokens = await pool.rows(text("SELECT * FROM token_ratios ORDER BY train_step, rollout_id, idx, pos"))
    for number, part in enumerate(metrics, 1):
        own = [row for row in tokens if row.train_step == number]
        assert len(own) == part["action_tokens"] and {row.batch_no for row in own} == {0}
        away = [abs(row.trainer_logprob - row.behavior_logprob) for row in own]
        assert max(away) == pytest.approx(part["max_abs_dlogprob"], abs=1e-6)
        assert sum(row.clipped for row in own) / len(own) == pytest.approx(part["clip_fraction"], abs=1e-9)
        for row in own:
            step = stored[row.rollout_id][row.idx]
            assert not step.marks and row.token == step.full[row.pos] and row.pos >= step.state_len
            assert row.behavior_logprob == step.logprobs[row.pos - step.state_len]
            assert row.ratio == pytest.approx(np.exp(row.trainer_logprob - row.behavior_logprob), rel=1e-5)
    assert metrics[0]["wall_s"] > 0 and metrics[0]["cpu_s"] > 0
    took, files = metrics[1]["checkpoint"], open_checkpoint(Path(versions[1].path)).files
    assert took["seconds"] > 0 and 0 < took["linked_bytes"] < took["written_bytes"]
    assert took["written_bytes"] + took["linked_bytes"] == sum(entry.bytes for entry in files.values())
    assert "checkpoint" not in metrics[0], "a version is of a batch, not of each train step"


async def test_without_trainer_logprobs_the_same_weights_come_out(pool: Pool) -> None:
    weights = []
    for keep in (True, False):
        run = await pool.run(run={"name": f"keep-{keep}".lower()}, trainer={"keep_logprobs": keep})
        await ready_groups(pool.engine, run, ["a", "b"], Author())
        await train_batches(await pool.trainer(run), 2)
        newest = Path((await pool.newest(run)).path)
        weights.append(b"".join(file.read_bytes() for file in sorted(newest.rglob("*.safetensors"))))
        kept = await pool.rows(
            text("SELECT count(*) FROM trained_steps WHERE run_id = :run").bindparams(run=run.run_id)
        )
        assert (kept[0][0] > 0) is keep
    assert weights[0] == weights[1] and weights[0]


async def test_groups_are_claimed_in_windowed_order(pool: Pool) -> None:
    run = await pool.run()  # N = 8 and f = 0.3: a window of 2
    trainer = await pool.trainer(run)
    made = await accepted(pool.engine, run, list("abcde"))
    await dispatch(pool.engine, run)
    author = Author()

    async def in_batches() -> list[tuple[int, int]]:
        query = (
            select(batches.c.batch_no, groups.c.seq)
            .select_from(batches.join(batch_items).join(groups))
            .order_by(batches.c.batch_no, batch_items.c.pos)
        )
        return [tuple(row) for row in await pool.rows(query)]

    await finish(pool.engine, run, made[2], author)
    assert await trainer.claim() is NoBatch.NOT_YET
    assert await in_batches() == []  # seq 2 is beyond the window of the head 0
    await finish(pool.engine, run, made[1], author)
    assert await trainer.claim() is NoBatch.NOT_YET
    assert await in_batches() == [(0, 1)]  # inside; the head does not move
    await finish(pool.engine, run, made[0], author)
    batch = await trainer.claim()
    assert not isinstance(batch, NoBatch) and batch.taken == 2
    assert await in_batches() == [(0, 1), (0, 0)]
    assert await trainer.claim() == batch  # until it is committed


async def test_a_death_between_any_two_phases_repeats_the_batch_with_the_same_result(pool: Pool) -> None:
    run = await pool.run()
    await ready_groups(pool.engine, run, ["a", "b"], Author())
    outcomes: list[tuple[str, Any]] = []
    for phases in range(5):  # how many phases this trainer lives through; the fourth is the commit
        trainer = await pool.trainer(run)
        batch = await trainer.claim()
        if phases == 4:
            assert batch is NoBatch.NOT_YET
            break
        assert not isinstance(batch, NoBatch)
        outcomes.append(("digest", batch.digest))
        if phases == 0:
            continue
        reports = await trainer.train(batch, await trainer.read(batch))
        outcomes.append(("losses", tuple(report["loss"] for report in reports)))
        if phases == 1:
            continue
        new = await trainer.save(batch)
        outcomes.append(("weights", new.manifest_sha))
        if phases == 3:
            assert await trainer.commit(batch, new, reports)
            assert await trainer.commit(batch, new, reports)  # the answer got lost: committed once
    assert len(outcomes) == 4 + 3 + 2 and len(set(outcomes)) == 3
    newest = await pool.newest(run)
    assert (newest.version, newest.manifest_sha) == (1, outcomes[-1][1])
    assert len(await pool.rows(select(train_steps))) == 2
    # Two batches in one life and in two lives give the same weights: optimizer moments survive too.
    await ready_groups(pool.engine, run, ["c", "d"], Author(seed=1, version=1))
    shas = []
    for survivor in (trainer, await pool.trainer(run)):
        batch = await survivor.claim()
        assert not isinstance(batch, NoBatch)
        await survivor.train(batch, await survivor.read(batch))
        shas.append((await survivor.save(batch)).manifest_sha)
    assert shas[0] == shas[1] != newest.manifest_sha


async def test_the_control_trains_on_permuted_advantages_the_same_ones_every_time(pool: Pool) -> None:
    run = await pool.run(trainer={"permute_advantages": True, "parts": 1})
    await ready_groups(pool.engine, run, ["a", "b"], Author())
    trainer = await pool.trainer(run)
    batch = await trainer.claim()
    assert not isinstance(batch, NoBatch)
    [control] = await trainer.read(batch)
    [again] = await (await pool.trainer(run)).read(batch)
    trainer.config = Config.from_json(
        run.config | {"trainer": run.config["trainer"] | {"permute_advantages": False}}
    )
    [plain] = await trainer.read(batch)

    def of(part: Any) -> list[float]:
        return [float(sample.advantage[0]) for sample in part.samples if sample.step == 0]

    assert of(control) == of(again) != of(plain)
    assert sorted(of(control)) == sorted(of(plain)) and len(set(of(plain))) > 1


async def test_a_batch_that_cannot_be_trained_is_quarantined_and_the_third_in_a_row_halts(pool: Pool) -> None:
    run = await pool.run(queue={"batch_groups": 1})
    nan = Author(score=lambda full, state_len: np.full(len(full) - state_len, np.nan, np.float32))
    trainer = await pool.trainer(run)
    await ready_groups(pool.engine, run, ["bad 1", "bad 2"], nan)
    await ready_groups(pool.engine, run, ["good"], Author())
    await train_batches(trainer, 1)
    newest = await pool.newest(run)
    assert (newest.version, newest.batch_no) == (1, 0)
    query = select(groups.c.submission, groups.c.state, groups.c.reason).order_by(groups.c.group_id)
    assert [tuple(row) for row in await pool.rows(query)] == [
        ("bad 1", "filtered", "quarantined"),
        ("bad 2", "filtered", "quarantined"),
        ("good", "trained", None),
    ]
    await ready_groups(pool.engine, run, ["bad 3", "bad 4", "bad 5", "fine"], nan)
    for _ in range(2):  # a restart does not forget
        with pytest.raises(Halted, match="the last 3 batches had to be quarantined"):
            await train_batches(await pool.trainer(run))
    assert await pool.newest(run) == newest
    assert [row.state for row in await pool.rows(query)][-1] == "ready"
    details = await pool.rows(select(batches.c.state, batches.c.void_detail).order_by(batches.c.batch_id))
    bad = re.compile(
        r"rollout \d+ \(attempt 1\) has a step that cannot be trained: .* holds a value that is not finite"
    )
    assert [detail is not None and bad.fullmatch(detail) is not None for _, detail in details] == [
        state == "voided" for state, _ in details
    ]
    assert sum(state == "voided" for state, _ in details) == 5


async def test_a_retry_goes_on_after_a_try_that_merely_failed_and_halts_after_a_quarantine(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await pool.run(queue={"batch_groups": 1})
    nan = Author(score=lambda full, state_len: np.full(len(full) - state_len, np.nan, np.float32))
    await ready_groups(pool.engine, run, ["bad 1", "bad 2", "bad 3", "bad 4"], nan)
    await ready_groups(pool.engine, run, ["good"], Author())
    for retry in (False, True):
        with pytest.raises(Halted):
            await train_batches(await pool.trainer(run), retry=retry)
    trainer = await pool.trainer(run)
    read, errors = trainer.read, [KeyError("once")]

    async def fails_once(batch: Any) -> Any:
        if errors:
            raise errors.pop()
        return await read(batch)

    monkeypatch.setattr(trainer, "read", fails_once)
    await train_batches(trainer, 1, retry=True)
    assert not errors and (await pool.newest(run)).version == 1


async def test_checkpoints_are_pruned_but_for_the_newest_the_first_the_served_and_the_pinned(
    pool: Pool,
) -> None:
    run = await pool.run(queue={"batch_groups": 1}, trainer={"keep_checkpoints": 1, "parts": 1})
    trainer = await pool.trainer(run)
    kept = []
    for version in range(5):
        if version == 1:
            await accepted(pool.engine, run, ["eval"], purpose=Purpose.EVAL, pinned_version=1)
        if version == 2:
            async with pool.engine.begin() as connection:
                await connection.execute(
                    insert(rollout_servers).values(run_id=run.run_id, url="http://x", version=2)
                )
        await ready_groups(pool.engine, run, [f"g{version}"], Author(seed=version, version=version))
        await train_batches(trainer, 1)
        kept.append([int(path.name.rpartition("-")[2]) for path in list_checkpoints(trainer.root)])
    assert kept == [[1, 0], [2, 1, 0], [3, 2, 1, 0], [4, 2, 1, 0], [5, 2, 1, 0]]


async def test_a_stage_ends_after_its_batches(pool: Pool) -> None:
    run = await pool.run(stage={"end_batches": 1})
    await ready_groups(pool.engine, run, list("abcd"), Author())
    trainer = await pool.trainer(run)
    await train_batches(trainer)
    states = select(groups.c.state).order_by(groups.c.group_id)
    assert [row.state for row in await pool.rows(states)] == ["trained"] * 2 + ["ready"] * 2
    assert await trainer.claim() is NoBatch.RUN_ENDED


async def test_an_ending_run_still_commits_its_closed_batch(pool: Pool) -> None:
    run = await pool.run()
    await ready_groups(pool.engine, run, list("abc"), Author())
    trainer = await pool.trainer(run)
    assert not isinstance(await trainer.claim(), NoBatch)
    async with pool.engine.begin() as connection:
        assert await begin_end(connection, run.run_id, "test")
    await train_batches(await pool.trainer(run))
    assert (await pool.newest(run)).version == 1


async def test_the_last_batch_closes_short_and_the_process_ends_with_the_run(pool: Pool) -> None:
    run = await pool.run()
    await ready_groups(pool.engine, run, list("abc"), Author())
    async with pool.engine.begin() as connection:
        assert await close_intake(connection, run.run_id)
    settings = TrainerSettings(run=run.name, database_url=pool.url, policies=pool.policies, subject=SUBJECT)
    with anyio.fail_after(60):
        await run_trainer(settings)
    sizes = await pool.rows(select(batches.c.size).order_by(batches.c.batch_no))
    assert [row.size for row in sizes] == [2, 1]


async def test_a_batch_of_a_killed_process_is_repeated_with_the_same_result(pool: Pool) -> None:
    run = await pool.run()
    await ready_groups(pool.engine, run, ["a", "b"], Author())
    reference = await pool.trainer(run)
    batch = await reference.claim()
    assert not isinstance(batch, NoBatch)
    await reference.train(batch, await reference.read(batch))
    expected = (await reference.save(batch)).manifest_sha  # never committed: a left-over for later lives
    async with closing(await start_trainer(pool)) as process:
        await until(process, "train_step.done")
        process.send_signal(signal.SIGKILL)
        assert await process.wait() == -signal.SIGKILL
    if (await pool.newest(run)).version == 0:  # it may have been faster than the signal
        await train_batches(await pool.trainer(run), 2)
    assert (await pool.newest(run)).manifest_sha == expected
    assert len(await pool.rows(select(train_steps))) == 2


async def test_sigterm_ends_the_process_with_status_0(pool: Pool) -> None:
    run = await pool.run()
    await ready_groups(pool.engine, run, ["a", "b"], Author())
    async with closing(await start_trainer(pool)) as process:
        await until(process, "batch.claimed")
        with anyio.fail_after(60):
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
    if (await pool.newest(run)).version == 0:
        await train_batches(await pool.trainer(run), 2)
    assert [row.state for row in await pool.rows(select(groups.c.state))] == ["trained", "trained"]


async def test_the_kl_of_a_train_step_is_the_mean_over_its_tokens_that_the_column_describes(
    pool: Pool,
) -> None:
    run = await pool.run()
    await ready_groups(pool.engine, run, ["a", "b"], Author())
    await train_batches(await pool.trainer(run), 2)
    [described] = await pool.rows(
        text(
            "SELECT col_description(attrelid, attnum) AS by FROM pg_attribute WHERE attrelid = 'train_curve'::regclass AND attname = 'kl_k3'"
        )
    )
    assert described.by.startswith("mean over action tokens of r log r - (r - 1)")
    found = await pool.rows(
        text(
            "SELECT c.kl_k3, (SELECT avg(ratio * ln(ratio) - (ratio - 1)) FROM token_ratios t WHERE t.train_step = c.train_step) AS mean "
            "FROM train_curve c ORDER BY c.train_step"
        )
    )
    assert len(found) == 2 and all(row.kl_k3 > 0 for row in found)
    assert [row.kl_k3 for row in found] == pytest.approx([row.mean for row in found], rel=1e-4)
