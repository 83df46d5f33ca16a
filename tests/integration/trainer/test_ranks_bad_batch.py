"""A batch that reads well and then gives no finite loss: many ranks abandon it as one rank does, and three in a row halt them all."""

import asyncio
import secrets
from pathlib import Path

import pytest
from safetensors.torch import load_file
from sqlalchemy import select, text

from orchestrator.pool.engine import open_engine
from orchestrator.pool.runs import close_intake
from orchestrator.pool.tables import batches, groups, policy_versions
from orchestrator.settings.config import Config
from tests.builders import Author, make_run, ready_groups
from tests.integration.trainer.rig import model
from tests.integration.trainer.test_ranks import RUN, live
from tests.services import Databases
from trainer.checkpoint import open_checkpoint

__all__ = ["model"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(600), pytest.mark.tier("trainer")]

HALT = (
    "trainer: the last 3 batches had to be quarantined, so the trainer halts: look for batch.quarantined in its log, "
    "then let it continue: `penstock run retry -c RUN`"
)
# Each is a number, so the batch reads well; their product overflows float32.
OVERFLOWING = text("""UPDATE rewards SET per_step = (
SELECT json_agg(s::jsonb || jsonb_build_object('advantage', 3e38::float8, 'weight', 3e38::float8)) FROM json_array_elements(per_step::json) s)
WHERE rollout_id IN (SELECT rollout_id FROM rollouts WHERE group_id = ANY(:groups))""")


async def prepare(url: str, model: Path) -> None:
    config = Config.model_validate(
        {
            "run": {"name": RUN},
            "policy": {"model": str(model)},
            "queue": {"batch_groups": 1, "capacity": 8, "window_fraction": 0.3},
            "trainer": {"lr": 1e-3},
        }
    )
    async with open_engine(url, name="test") as engine:
        run = await make_run(engine, config)
        bad = []
        for name in ("bad 1", "good", "bad 2", "bad 3", "bad 4", "kept"):
            made = await ready_groups(engine, run, [name], Author())
            bad += made if name.startswith("bad") else []
        async with engine.begin() as connection:
            # Rows are immutable.
            await connection.execute(text("SET LOCAL session_replication_role = replica"))
            await connection.execute(OVERFLOWING, {"groups": bad})
            assert await close_intake(connection, run.run_id)


def test_a_batch_without_a_finite_loss_is_given_up_by_all_ranks_and_three_in_a_row_halt_them(
    databases: Databases, template_database: str, services_runner: asyncio.Runner, model: Path, tmp_path: Path
) -> None:
    urls = {ranks: f"bad_{secrets.token_hex(6)}" for ranks in (1, 2)}
    plan = []
    for ranks, name in urls.items():
        url = databases.create(name, template=template_database)
        services_runner.run(prepare(url, model))
        plan.append({"ranks": ranks, "database": url, "policies": str(tmp_path / str(ranks))})
    weights = []
    for life, of in zip(live(plan), plan, strict=True):
        assert (life["ended"], life["log"]) == (1, [HALT]), life["events"]
        assert life["events"].count("batch.quarantined") == 4
        weights.append(services_runner.run(left(str(of["database"]))))
    one, two = (load_file(path / "model.safetensors") for path in weights)
    assert one.keys() == two.keys()
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-5
    for name in urls.values():
        databases.drop(name)


async def left(url: str) -> Path:
    """The files of the halted trainer: the one good batch's checkpoint, as it was published."""
    async with open_engine(url, name="test") as engine, engine.connect() as connection:
        found = (
            await connection.execute(
                select(batches.c.state, batches.c.void_detail).order_by(batches.c.batch_id)
            )
        ).all()
        versions = (
            await connection.execute(select(policy_versions).order_by(policy_versions.c.version))
        ).all()
        states = (
            (await connection.execute(select(groups.c.state).order_by(groups.c.group_id))).scalars().all()
        )
    assert [row.state for row in found][:5] == ["voided", "committed", "voided", "voided", "voided"]
    reasons = {row.void_detail for row in found if row.state == "voided"}
    assert len(reasons) == 1 and "not finite" in reasons.pop().replace("_", " ")
    assert states[-1] == "ready"
    assert [row.version for row in versions] == [0, 1]
    paths = [Path(row.path) for row in versions]
    assert sorted(path.name for path in paths[0].parent.glob("version-*")) == [path.name for path in paths]
    for row, path in zip(versions, paths, strict=True):
        assert open_checkpoint(path).manifest_sha == row.manifest_sha
    return paths[1]
