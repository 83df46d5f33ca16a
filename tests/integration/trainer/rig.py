"""A run in a database of its own, a tiny policy, and trainers of it: objects in the test's process, or processes."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
import torch
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.ids import Ids, Logprobs
from orchestrator.pool.engine import Role, open_engine
from orchestrator.pool.policy_versions import PolicyVersion, newest_version
from orchestrator.pool.runs import StoredRun
from orchestrator.settings.config import Config
from tests.builders import Author, make_run
from trainer.benchmarks.random_model import write_random_model
from trainer.model import load_model
from trainer.phases import Trainer

SUBJECT = "policy.test"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Qwen3 with a byte-level tokenizer of 259 ids."""
    directory = tmp_path_factory.mktemp("model")
    return write_random_model(
        directory, vocab_size=259, hidden=16, layers=2, heads=2, kv_heads=1, head_dim=8, mlp=24
    )


@dataclass(frozen=True, kw_only=True)
class Pool:
    """One run in its own database. `engine` is the orchestrator's, `trainers` has the trainer's role."""

    url: str
    engine: AsyncEngine
    trainers: AsyncEngine
    policies: Path
    model: Path

    async def run(self, **sections: dict[str, Any]) -> StoredRun:
        queue = {"batch_groups": 2, "capacity": 8, "window_fraction": 0.3} | sections.pop("queue", {})
        trainer = {"parts": 2, "lr": 1e-3} | sections.pop("trainer", {})
        config = Config.model_validate(
            {
                "run": {"name": "test"},
                "policy": {"model": str(self.model)},
                "queue": queue,
                "trainer": trainer,
            }
            | sections
        )
        return await make_run(self.engine, config)

    async def trainer(self, run: StoredRun) -> Trainer:
        """A trainer as a fresh process would be: nothing but rows and files."""
        trainer = Trainer(
            self.trainers,
            run,
            config=Config.from_json(run.config),
            root=self.policies / run.name,
            subject=SUBJECT,
        )
        await trainer.resume()
        return trainer

    async def newest(self, run: StoredRun) -> PolicyVersion:
        async with self.engine.connect() as connection:
            found = await newest_version(connection, run.run_id)
        assert found is not None
        return found

    async def rows(self, query: Any) -> list[Any]:
        async with self.engine.connect() as connection:
            return list((await connection.execute(query)).all())


@pytest.fixture
async def pool(database_url: str, tmp_path: Path, model: Path) -> AsyncIterator[Pool]:
    async with (
        open_engine(database_url) as engine,
        open_engine(database_url, Role.TRAINER, size=2) as trainers,
    ):
        yield Pool(
            url=database_url, engine=engine, trainers=trainers, policies=tmp_path / "policies", model=model
        )


async def start_trainer(pool: Pool, log: int = subprocess.PIPE, **environment: str) -> Process:
    """The process, with `environment` in addition to the variables that it needs. `log`: a descriptor for its output, if the
    test does not read it while it runs."""
    command = [
        sys.executable, "-m", "trainer", "--run", "test", "--policies", str(pool.policies), "--subject", SUBJECT
    ]  # fmt: skip
    needed = {"DATABASE_URL": pool.url, "OMP_NUM_THREADS": "1"}
    return await anyio.open_process(command, env=os.environ | needed | environment, stdout=None, stderr=log)


async def until(process: Process, event: str) -> list[str]:
    """The events of its log up to `event`."""
    assert process.stderr is not None
    lines = BufferedByteReceiveStream(process.stderr)
    seen: list[str] = []
    with anyio.fail_after(100):  # loading torch takes its time on a busy machine
        while event not in seen:
            line = await lines.receive_until(b"\n", 1 << 20)
            seen.append(json.loads(line)["event"] if line.startswith(b"{") else line.decode())
    return seen


def scored_by(model: Path) -> Author:
    """An author whose behavior logprobs are the model's own, by plain Hugging Face code: the trained samples are then on-policy."""
    network: Any = load_model(model, backend=None).eval()

    def score(full: Ids, state_len: int) -> Logprobs:
        with torch.no_grad():
            logits = network(input_ids=torch.from_numpy(full)[None].long(), use_cache=False).logits[0]
        logp = logits.log_softmax(-1)[state_len - 1 : -1]
        targets = torch.from_numpy(full[state_len:]).long()
        return np.asarray(logp.gather(1, targets[:, None])[:, 0].numpy(), np.float32)

    return Author(score=score)
