"""Input that the trainer cannot use: one clear sentence, the batch is kept or abandoned as the sentence states, and nothing is saved over."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import select, text

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.pool.chat_format import check_chat_format_of
from orchestrator.pool.runs import close_intake
from orchestrator.pool.tables import batches, policy_versions
from orchestrator.settings.config import Config, effective
from tests.builders import Author, ready_groups
from tests.integration.trainer.rig import SUBJECT, Pool, model, pool
from trainer.checkpoint import list_checkpoints
from trainer.loop import TrainerSettings, run_trainer

__all__ = ["model", "pool"]
pytestmark = [pytest.mark.anyio, pytest.mark.services]


@pytest.mark.parametrize("anchor", ["behavior", "proximal"])
async def test_a_budget_too_small_for_one_path_keeps_the_batch_which_a_larger_one_then_trains(
    pool: Pool, anchor: str
) -> None:
    run = await pool.run(trainer={"pack_pairs": 5, "anchor": anchor})
    await ready_groups(pool.engine, run, ["a", "b"], Author())
    async with pool.engine.begin() as connection:
        assert await close_intake(connection, run.run_id)
    claimed = select(batches.c.batch_id, batches.c.state, batches.c.digest)
    settings = TrainerSettings(run=run.name, database_url=pool.url, policies=pool.policies, subject=SUBJECT)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"too small for a path of .* raise trainer\.pack_pairs"):
            await run_trainer(settings)
        [kept] = await pool.rows(claimed)
        assert kept.state == "closed" and (await pool.newest(run)).version == 0
        assert [path.name for path in list_checkpoints(pool.policies / run.name)] == ["version-000000"]
    larger = {"pack_pairs": 1 << 20}
    await run_trainer(
        TrainerSettings(
            run=run.name,
            database_url=pool.url,
            policies=pool.policies,
            subject=SUBJECT,
            process_keys={"trainer": larger},
        )
    )
    [trained] = await pool.rows(claimed)
    assert (trained.batch_id, trained.state, trained.digest) == (kept.batch_id, "committed", kept.digest)
    numbers = select(policy_versions.c.version, policy_versions.c.batch_no).order_by(
        policy_versions.c.version
    )
    assert [tuple(row) for row in await pool.rows(numbers)] == [(0, None), (1, 0)]


async def test_stored_steps_whose_spans_disagree_with_their_tokens_are_given_up_and_the_run_goes_on(
    pool: Pool,
) -> None:
    run = await pool.run()
    damaged = await ready_groups(pool.engine, run, ["a", "b"], Author())
    await ready_groups(pool.engine, run, ["c", "d"], Author())
    async with pool.engine.begin() as connection:
        assert await close_intake(connection, run.run_id)
        await connection.execute(text("SET LOCAL session_replication_role = replica"))  # rows are immutable
        await connection.execute(
            text(
                "UPDATE steps SET spans = '{0,7,9}' FROM rollouts r WHERE r.rollout_id = steps.rollout_id AND r.group_id = ANY(:groups)"
            ),
            {"groups": damaged},
        )
    await run_trainer(
        TrainerSettings(run=run.name, database_url=pool.url, policies=pool.policies, subject=SUBJECT)
    )
    given_up, trained = await pool.rows(select(batches).order_by(batches.c.batch_id))
    assert (given_up.state, trained.state) == ("voided", "committed")
    assert "version spans do not tile the action: one starts at 7 after 0 tokens" in given_up.void_detail
    assert (await pool.newest(run)).version == 1


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "tokenizer.json has changed since run"),
        (
            lambda folder: (folder / "chat_template.jinja").write_text("{{ 1 }}"),
            "chat_template.jinja is new since",
        ),
        (lambda folder: (folder / "tokenizer_config.json").unlink(), "tokenizer_config.json is gone since"),
    ],
    ids=["changed", "new", "gone"],
)
async def test_a_model_whose_tokenizer_or_template_changed_is_not_trained_or_served_until_it_is_restored(
    pool: Pool, tmp_path: Path, damage: Callable[[Path], object], sentence: str
) -> None:
    folder = tmp_path / "policy"
    shutil.copytree(pool.model, folder)
    (folder / "tokenizer_config.json").write_text("{}")
    run = await pool.run(policy={"model": str(folder)})

    async def gateway_looks() -> None:
        async with pool.engine.connect() as connection:
            await check_chat_format_of(connection, run.run_id, run.name, folder)

    await gateway_looks()  # no version exists yet
    await pool.trainer(run)
    await gateway_looks()
    shutil.copytree(folder, tmp_path / "good")
    damage(folder)
    for look in (gateway_looks, partial(pool.trainer, run)):
        with pytest.raises(ConfigurationError, match=sentence):
            await look()
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "good", folder)
    await gateway_looks()
    await pool.trainer(run)


def test_the_budget_of_a_run_is_what_its_trainer_was_started_with_and_its_learning_rate_what_it_began_with() -> (
    None
):
    own = Config.model_validate({"trainer": {"pack_tokens": 7, "pack_pairs": 9, "lr": 0.5}})
    kept = effective(Config().to_json(), own).trainer
    assert (kept.pack_tokens, kept.pack_pairs, kept.lr) == (7, 9, Config().trainer.lr)
