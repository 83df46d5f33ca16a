"""`penstock trainer tree`: a stored train step's tree as a picture, and its refusals."""

import contextlib
import io
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio.to_thread
import pytest
from typer.testing import CliRunner

from orchestrator.cli import trainer as command
from orchestrator.cli.main import app
from orchestrator.contracts.errors import PenstockError
from orchestrator.deploy.home import write_template
from tests.builders import Author, ready_groups
from tests.integration.trainer.rig import Pool, model, pool
from trainer.loop import train_batches
from trainer.picture.__main__ import main

__all__ = ["model", "pool"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("trainer")]


def in_this_process(module: str, arguments: Sequence[str], *, environment: dict[str, str]) -> str:
    """The output of `python -m trainer.picture`, without another import of torch."""
    assert module == "trainer.picture"
    printed, errors = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(errors),
    ):
        patch.setattr(sys, "argv", [module, *arguments])
        patch.setenv("DATABASE_URL", environment["DATABASE_URL"])
        if main():
            raise PenstockError(errors.getvalue().strip())
    return printed.getvalue()


async def test_a_stored_train_step_is_drawn_whole_or_in_part_and_bad_options_are_refused_in_one_sentence(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await pool.run(trainer={"parts": 2})
    await ready_groups(pool.engine, run, ["a", "b"], Author())
    await train_batches(await pool.trainer(run), 2)
    monkeypatch.setattr(command, "torch_process", in_this_process)
    write_template(tmp_path / "run", "test", str(pool.model))
    file = tmp_path / "tree.svg"

    async def draw(*options: str) -> str:
        arguments = ["trainer", "tree", "-c", str(tmp_path / "run"), *options]
        environment = {"DATABASE_URL": pool.url, "NATS_URL": "nats://127.0.0.1:9"}
        done = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(app, arguments, env=environment))
        return done.stdout if done.exit_code == 0 else str(done.exception)

    output = await draw("--batch", "0", "--svg", str(file), "--train-step", "2")
    assert output == f"{file}: train step 2 of batch 0 of run 'test', 12 samples of 1 groups\n"
    assert "given, in 12 samples" in file.read_text() and "sampled by the policy" in file.read_text()
    assert await draw("--batch", "0", "--svg", str(file), "--train-step", "3") == (
        "batch 0 has train steps 1 to 2"
    )
    assert await draw("--batch", "7", "--svg", str(file)) == "batch 7 does not exist; known: 0 to 0"
    nowhere = tmp_path / "no" / "tree.svg"
    assert await draw("--batch", "0", "--svg", str(nowhere)) == (
        f"{nowhere} cannot be written: No such file or directory"
    )
