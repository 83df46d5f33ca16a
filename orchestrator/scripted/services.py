"""PostgreSQL, NATS and a policy's directory for scripted runs, in a temporary directory."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from orchestrator.contracts.errors import PenstockError
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.deploy.embedded.postgres import EmbeddedPostgres
from orchestrator.deploy.stack import upgrade

CONTEXT = 262_144  # tokens: the scripted policy's tokenizer spends about one per character on unknown text


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Services shared by several runs: PostgreSQL, NATS, and a policy's directory. `directory` holds their files."""

    directory: Path
    database_url: str
    nats_url: str
    model: Path


@asynccontextmanager
async def open_services(
    prefix: str = "penstock-check-", model: Path | None = None
) -> AsyncIterator[Services]:
    """PostgreSQL, NATS and a policy's directory, all removed afterwards. `model`: an existing policy's directory, which stays."""
    with place(prefix) as directory:
        if model is None:
            model = await anyio.to_thread.run_sync(make_model, directory)
        async with (
            EmbeddedPostgres(directory / "postgres", durable=False) as postgres,
            EmbeddedNats(directory / "nats") as nats,
        ):
            await anyio.to_thread.run_sync(upgrade, postgres.url)
            yield Services(directory=directory, database_url=postgres.url, nats_url=nats.url, model=model)


def make_model(directory: Path) -> Path:
    """A policy's directory for its tokenizer; its weights are never loaded."""
    model = directory / "model"
    made = subprocess.run(
        [sys.executable, "-m", "trainer.policy", "--out", str(model)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise PenstockError(f"the scripted policy could not be made: {made.stderr.strip().splitlines()[-1:]}")
    for name, key in (
        ("config.json", "max_position_embeddings"),
        ("tokenizer_config.json", "model_max_length"),
    ):
        content = json.loads((model / name).read_text())
        (model / name).write_text(json.dumps(content | {key: CONTEXT}))
    return model


@contextmanager
def place(prefix: str) -> Iterator[Path]:
    """A new directory that PostgreSQL's user and sandbox users can traverse."""
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(directory)
