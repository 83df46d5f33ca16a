"""`penstock run retry`: every later start of a halted trainer continues, so also one by `penstock up`, systemd or Kubernetes, without an option."""

import json
from functools import partial
from pathlib import Path

import anyio.to_thread
import numpy as np
import pytest
from sqlalchemy import text
from typer.testing import CliRunner, Result

from orchestrator.cli.main import app
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.deploy.home import write_template
from tests.builders import Author, ready_groups
from tests.integration.trainer.rig import Pool, model, pool
from trainer.loop import Halted, train_batches

__all__ = ["model", "pool"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("trainer")]

BAD = Author(score=lambda full, state_len: np.full(len(full) - state_len, np.nan, np.float32))


async def retry(home: Path, *arguments: str) -> Result:
    call = partial(CliRunner().invoke, app, ["run", "retry", "-c", str(home), *arguments])
    return await anyio.to_thread.run_sync(call)


async def test_every_later_start_continues_until_three_more_batches_are_bad(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", pool.url)
    monkeypatch.delenv("NATS_URL", raising=False)
    home = write_template(tmp_path / "home", "test", "").parent
    run = await pool.run(queue={"batch_groups": 1})
    await ready_groups(pool.engine, run, ["bad 1", "bad 2", "bad 3"], BAD)
    for _ in range(2):
        with pytest.raises(Halted, match=r"^the last 3 batches .*: `penstock run retry -c RUN`$"):
            await train_batches(await pool.trainer(run))
    done = json.loads((await retry(home, "--json", "--reason", "their servers are repaired")).stdout)
    assert (done["order"], done["quarantined"]) == ("retry", 3)
    [action] = await pool.rows(text("SELECT what, target, before, reason FROM actions"))
    assert tuple(action) == ("retry", "trainer", {"quarantined": 3}, "their servers are repaired")
    refused = await retry(home)
    assert isinstance(refused.exception, ConfigurationError)
    assert str(refused.exception).startswith("no batch was quarantined since the last commit")
    await ready_groups(pool.engine, run, ["bad 4", "bad 5"], BAD)
    await ready_groups(pool.engine, run, ["good"], Author())
    await train_batches(await pool.trainer(run), 1)
    assert (await pool.newest(run)).version == 1
    await ready_groups(pool.engine, run, ["bad 6", "bad 7", "bad 8"], BAD)
    with pytest.raises(Halted):
        await train_batches(await pool.trainer(run))
