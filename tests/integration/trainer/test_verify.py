"""`penstock trainer verify` on stored batches: its equalities, the differences that it must find, and its refusals."""

import contextlib
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from orchestrator.cli import trainer as command
from orchestrator.cli.main import app
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.deploy.home import write_template
from orchestrator.pool.quarantine import quarantine
from orchestrator.pool.runs import StoredRun
from tests.builders import Author, accepted, dispatch, finish, ready_groups
from tests.integration.trainer.rig import Pool, model, pool, scored_by
from trainer import update
from trainer.loop import train_batches
from trainer.loss.aggregation import normalisers
from trainer.update import train_step
from trainer.verify import merged
from trainer.verify.__main__ import main
from trainer.verify.compare import ComparedFigure, verify
from trainer.verify.stored import RecordedBatch, read_batch

__all__ = ["model", "pool"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("trainer")]

NOWHERE = "nats://127.0.0.1:9"  # a batch is read from the data pool alone


async def trained(pool: Pool, author: Author, **sections: Any) -> StoredRun:
    """A run with one committed batch of two groups; the second has a marked step."""
    run = await pool.run(**sections)
    await ready_groups(pool.engine, run, ["a"], author)
    [second] = await accepted(pool.engine, run, ["b"], domain="agent")
    await dispatch(pool.engine, run)
    await finish(pool.engine, run, second, author, performances=[1, 1, 0, 0], marked=[1])
    await train_batches(await pool.trainer(run), run.config["trainer"]["parts"])
    return run


async def recorded(pool: Pool, batch: int, groups: int = 0) -> RecordedBatch:
    return await read_batch(pool.trainers, "test", batch, groups)


def by_name(checks: list[ComparedFigure]) -> dict[str, ComparedFigure]:
    return {check.name: check for check in checks}


@pytest.mark.parametrize("trainer", [{}, {"loss": "gspo", "anchor": "proximal", "aggregation": "sample"}])
async def test_a_stored_batch_is_trained_merged_as_it_would_be_one_row_per_sample(
    pool: Pool, trainer: dict[str, Any]
) -> None:
    await trained(pool, scored_by(pool.model), trainer=trainer)
    stored = await recorded(pool, 0)
    checks = by_name(verify(stored, "float64"))
    assert not [check for check in checks.values() if check.missed]
    assert checks["gradient"].ours > 0 and checks["gradient"].bound == 1e-10
    assert stored.version == 0 and len(stored.parts) == len(stored.metrics) == 2
    # Both train steps are computed at the batch's initial weights, which are those that sampled.
    behavior = {name: check for name, check in checks.items() if name.startswith("behavior")}
    assert behavior.keys() == {
        "behavior logprob, version 0: mean",
        "behavior logprob, version 0: worst",
    }
    assert all(0 < check.difference < 1e-4 for check in behavior.values())
    for name in ("action tokens", "tokens of rows"):
        key = "action_tokens" if name == "action tokens" else "tokens_naive"
        assert checks[f"{name}, as stored"].theirs == sum(metrics[key] for metrics in stored.metrics) > 0
    assert checks["tokens forwarded"].ours < 0.7 * checks["tokens forwarded"].theirs


async def test_a_train_step_whose_groups_have_nothing_to_train_counts_them_and_changes_nothing(
    pool: Pool,
) -> None:
    author = scored_by(pool.model)
    run = await pool.run(queue={"batch_groups": 3, "capacity": 9}, trainer={"parts": 2})
    marks = {"a": [0, 1, 2], "b": [0, 1, 2], "c": []}
    for name, marked in marks.items():
        [group] = await accepted(pool.engine, run, [name], domain="agent" if marked else "coding")
        await dispatch(pool.engine, run)
        await finish(pool.engine, run, group, author, performances=[1, 1, 0, 0], marked=marked)
    await train_batches(await pool.trainer(run), 1)
    stored = await recorded(pool, 0)
    first, second = stored.metrics
    assert (first["groups"], first["rollouts"], first["samples"]) == (1, 4, 0)
    assert (first["applied"], first["skip_reason"], first["performance"]) == (False, "no_action_tokens", 0.5)
    assert (second["groups"], second["rollouts"], second["samples"]) == (2, 8, 12)
    assert second["applied"] and second["domains"]["agent"]["rollouts"] == 4
    assert second["domains"]["agent"]["token_share"] == 0
    checks = verify(stored, "float32")
    assert checks and not [check for check in checks if check.missed]


async def test_the_gradient_of_a_run_with_adapters_is_that_of_its_adapters(pool: Pool) -> None:
    run = await trained(pool, scored_by(pool.model), trainer={"parts": 1, "lora_rank": 2})
    newest = Path((await pool.newest(run)).path)
    await ready_groups(pool.engine, run, ["c", "d"], scored_by(newest))
    await train_batches(await pool.trainer(run), 1)
    for batch in (0, 1):
        stored = await recorded(pool, batch)
        checks = by_name(verify(stored, "float64", bfloat16=True))
        assert not [check for check in checks.values() if check.missed]
        [metrics] = stored.metrics
        assert checks["gradient"].ours == pytest.approx(metrics["gradient_norm"], rel=1e-4)
        assert 1e-4 < checks["bfloat16 gradient, from float32"].ours < 0.2


async def test_in_float32_its_own_bounds_hold_and_a_part_of_the_batch_is_enough(pool: Pool) -> None:
    await trained(pool, scored_by(pool.model), trainer={"parts": 1})
    checks = by_name(verify(await recorded(pool, 0, groups=1), "float32"))
    assert not [check for check in checks.values() if check.missed]
    assert checks["gradient"].bound == 1e-5 and checks["gradient"].difference > 1e-10
    whole = by_name(verify(await recorded(pool, 0), "float32"))
    assert checks["action tokens"].ours < whole["action tokens"].ours
    assert "action tokens, as stored" in whole.keys() - checks.keys()


async def test_bfloat16_rounding_is_reported_for_both_sides_and_held_to_no_bound(pool: Pool) -> None:
    await trained(pool, scored_by(pool.model), trainer={"parts": 2})
    stored = await recorded(pool, 0)
    plain, checks = by_name(verify(stored, "float64")), by_name(verify(stored, "float64", bfloat16=True))
    rounded = checks.pop("bfloat16 gradient, from float32")
    assert checks == plain
    assert 1e-4 < rounded.ours < 2 * rounded.theirs < 0.2
    assert rounded.bound is None and rounded.difference == rounded.ours - rounded.theirs


async def test_a_gradient_that_is_off_by_a_thousandth_and_a_missing_one_are_found(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await trained(pool, scored_by(pool.model))
    stored = await recorded(pool, 0)

    def missed() -> set[str]:
        return {check.name for check in verify(stored, "float64") if check.missed}

    with monkeypatch.context() as patch:
        patch.setattr(
            update, "normalisers", lambda samples, how: [1.001 * f for f in normalisers(samples, how)]
        )
        assert missed() == {"loss", "gradient", "gradient, worst element"}

    def skipping(policy: Any, optimizer: Any, samples: Any, settings: Any, **more: Any) -> Any:
        return train_step(policy, optimizer, [], settings, **more)

    monkeypatch.setattr(merged, "train_step", skipping)
    assert {"gradient", "gradient, worst element"} <= missed()


def in_this_process(module: str, arguments: Sequence[str], *, environment: dict[str, str]) -> str:
    """The output of `python -m trainer.verify`, without another import of torch."""
    assert module == "trainer.verify"
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", [module, *arguments])
        patch.setenv("DATABASE_URL", environment["DATABASE_URL"])
        assert main() == 0
    return printed.getvalue()


async def test_the_command_prints_its_checks_and_ends_with_1_where_the_rollout_server_disagreed(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await trained(pool, Author())  # its behavior logprobs do not come from a model
    write_template(tmp_path / "run", "test", str(pool.model))
    monkeypatch.setattr(command, "torch_process", in_this_process)
    arguments = ["trainer", "verify", "--batch", "0", "-c", str(tmp_path / "run"), "--json", "--bf16"]
    environment = {"DATABASE_URL": pool.url, "NATS_URL": NOWHERE}
    done = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(app, arguments, env=environment))
    assert done.exit_code == 1, done.exception
    report = json.loads(done.stdout)
    assert (report["run"], report["batch"], report["version"], report["ok"]) == ("test", 0, 0, False)
    assert (report["train_steps"], report["samples"], report["dtype"]) == (2, 20, "float64")
    missed = [check["name"] for check in report["checks"] if not check["ok"]]
    assert missed == ["behavior logprob, version 0: mean"]
    assert "bfloat16 gradient, from float32" in {check["name"] for check in report["checks"]}


async def test_the_command_goes_by_the_budget_and_the_tolerance_of_the_file(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await trained(pool, Author())  # its behavior logprobs do not come from a model
    async with pool.engine.begin() as connection:
        await connection.execute(
            text(
                "UPDATE runs SET config = jsonb_set(config, '{trainer,pack_pairs}', '1') WHERE run_id = :run"
            ),
            {"run": run.run_id},
        )
    write_template(tmp_path / "run", "test", str(pool.model))
    file = tmp_path / "run" / "penstock.toml"
    template = file.read_text()
    monkeypatch.setattr(command, "torch_process", in_this_process)
    arguments = [
        "trainer",
        "verify",
        "--batch",
        "0",
        "-c",
        str(tmp_path / "run"),
        "--json",
        "--dtype",
        "float32",
    ]
    environment = {"DATABASE_URL": pool.url, "NATS_URL": NOWHERE}

    async def mean(values: str) -> dict[str, Any]:
        file.write_text(template + values)
        done = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(app, arguments, env=environment))
        checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
        found: dict[str, Any] = checks["behavior logprob, version 0: mean"]
        assert done.exit_code == (0 if found["ok"] else 1)
        return found

    default, raised = await mean(""), await mean("\n[gateway]\ncanary_tolerance = 1000.0\n")
    assert (default["bound"], default["ok"]) == (0.02, False)
    assert (raised["bound"], raised["ok"]) == (1000.0, True)


async def test_a_batch_that_cannot_be_recomputed_is_refused_in_one_sentence(pool: Pool) -> None:
    with pytest.raises(ConfigurationError, match=r"run 'test' does not exist"):
        await recorded(pool, 0)
    run = await trained(pool, Author())
    with pytest.raises(ValueError, match=r"^batch 3 does not exist; known: 0 to 0$"):
        await recorded(pool, 3)
    trainer = await pool.trainer(run)
    await ready_groups(pool.engine, run, ["c"], Author(version=1))
    await trainer.claim()
    with pytest.raises(ValueError, match=r"^batch 1 is still open: it can be looked at once it has all"):
        await recorded(pool, 1)
    await ready_groups(pool.engine, run, ["d"], Author(seed=1, version=1))
    batch: Any = await trainer.claim()
    assert (await recorded(pool, 1)).version == 1  # closed, not committed: it will be trained from the newest
    newest = Path((await pool.newest(run)).path)
    (newest / "config.json").unlink()  # other versions share the file
    (newest / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"^corrupt checkpoint: .*config\.json"):
        await recorded(pool, 1)
    newest.rename(newest.with_name("elsewhere"))
    with pytest.raises(
        ValueError, match=r"^the checkpoint that batch 1 was trained from is gone \(version 1, .*keep_checkp"
    ):
        await recorded(pool, 1)
    async with pool.engine.begin() as connection:
        assert await quarantine(connection, run.run_id, batch.batch_id, "bad")
    with pytest.raises(ValueError, match=r"^batch 1 was undone by a rewind or a quarantine: nothing was"):
        await recorded(pool, 1)
    async with pool.engine.begin() as connection:
        await connection.execute(
            text("UPDATE policy_versions SET manifest_sha = repeat('0', 64) WHERE version = 0")
        )
    with pytest.raises(ValueError, match=r"is not the checkpoint that was published as version 0: "):
        await recorded(pool, 0)


def answer(ok: bool) -> str:
    line = {
        "name": "gradient",
        "ours": 0.25,
        "theirs": 0.25,
        "difference": 0.0 if ok else None,
        "bound": 1e-10,
        "ok": ok,
    }
    report = {
        "run": "r",
        "batch": 7,
        "version": 6,
        "dtype": "float64",
        "train_steps": 1,
        "samples": 12,
        "seconds": 1.5,
    }
    return json.dumps({**report, "checks": [line], "ok": ok})


@pytest.mark.parametrize(("ok", "status", "verdict"), [(True, 0, "ok"), (False, 1, "missed")])
def test_the_table_has_a_verdict_per_check_and_the_exit_status_is_theirs(
    ok: bool, status: int, verdict: str, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_template(tmp_path / "run", "r", str(model))
    monkeypatch.setattr(command, "torch_process", lambda *_, **__: answer(ok))
    environment = {"DATABASE_URL": "postgresql://nowhere/none", "NATS_URL": NOWHERE}
    arguments = ["trainer", "verify", "--batch", "7", "-c", str(tmp_path / "run")]
    done = CliRunner().invoke(app, arguments, env=environment)
    assert done.exit_code == status
    assert verdict in done.stdout and "gradient" in done.stdout
    assert "batch 7 of run 'r', trained from version 6: 12 samples in 1 train steps" in done.stdout


def test_without_a_command_it_is_the_trainer_process(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_template(tmp_path / "run", "r", str(model))
    become: list[list[str]] = []
    monkeypatch.setattr(os, "execve", lambda _, arguments, __: become.append(arguments[1:]))
    arguments = ["trainer", "-c", str(tmp_path / "run"), "--train-steps", "2", "--retry"]
    environment = {"DATABASE_URL": "postgresql://nowhere/none", "NATS_URL": NOWHERE}
    assert CliRunner().invoke(app, arguments, env=environment).exit_code == 0
    [started] = become
    assert started[:4] == ["-m", "trainer", "--run", "r"]
    assert started[-3:] == ["--train-steps", "2", "--retry"]
