"""A batch as the data pool keeps it, made into train steps again, and the checkpoint that it was trained from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.config import Config
from orchestrator.pool.engine import check_revision
from orchestrator.pool.policies import PolicyVersion
from orchestrator.pool.runs import Run, get_run
from orchestrator.pool.trained import StoredBatch, stored_batch
from trainer.batch import BadBatch, Part
from trainer.checkpoint import open_checkpoint
from trainer.phases import Trainer


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """One stored batch, ready to be computed again. `metrics`: what its train steps reported; none of a part of the batch."""

    config: Config
    version: int
    checkpoint: Path
    parts: Sequence[Part]
    metrics: Sequence[Mapping[str, Any]]


async def read_batch(engine: AsyncEngine, run: str, batch_no: int, groups: int = 0) -> Recorded:
    """Read batch `batch_no` as the trainer reads it; with `groups` only the first so many groups of each train step.

    Raises what `read_train_steps` raises, and ValueError when the batch's checkpoint is gone or not the published one.
    """
    config, stored, parts = await read_train_steps(engine, run, batch_no, groups)
    path = _published(stored.trained_from, batch_no, config.trainer.keep_checkpoints)
    return Recorded(config, stored.trained_from.version, path, parts, () if groups else stored.metrics)


async def read_train_steps(
    engine: AsyncEngine, run: str, batch_no: int, groups: int = 0
) -> tuple[Config, StoredBatch, Sequence[Part]]:
    """A batch and its train steps, without the weights; with `groups` only the first so many groups of each train step.

    ConfigurationError for an unknown run. ValueError, one sentence: no such batch, nothing in it to train, its steps are pruned or do not
    make samples.
    """
    async with engine.connect() as connection:
        await check_revision(connection)
        found = await get_run(connection, run)
        stored = await stored_batch(connection, found.run_id, batch_no)
    if found.pruned is not None:
        raise ValueError(f"the steps of run {run!r} are pruned, so its batches cannot be computed again")
    parts = await _parts(engine, found, stored)
    if groups:
        parts = [_first(part, groups) for part in parts]
    if not any(sample.trained_tokens for part in parts for sample in part.samples):
        raise ValueError(
            f"batch {batch_no} trains no token: every step of it is marked or has train weight 0"
        )
    return Config.from_json(found.config), stored, parts


async def _parts(engine: AsyncEngine, run: Run, stored: StoredBatch) -> Sequence[Part]:
    root = Path(stored.trained_from.path).parent
    try:
        return await Trainer(engine, run, root, subject="").read(stored.batch)
    except BadBatch as error:
        raise ValueError(f"batch {stored.batch.batch_no} cannot be trained: {error}") from error


def _published(version: PolicyVersion, batch_no: int, kept: int) -> Path:
    """The directory of a version, whose manifest is the published one. ValueError otherwise."""
    path = Path(version.path)
    if not path.is_dir():
        raise ValueError(
            f"the checkpoint that batch {batch_no} was trained from is gone (version {version.version}, {path}): trainer.keep_checkpoints "
            f"keeps the newest {kept}, the first, and those that are served or pinned"
        )
    opened = open_checkpoint(path)
    if opened.manifest_sha != version.manifest_sha:
        raise ValueError(
            f"{path} is not the checkpoint that was published as version {version.version}: its manifest has sha256 "
            f"{opened.manifest_sha}, the data pool says {version.manifest_sha}"
        )
    return path


def _first(part: Part, groups: int) -> Part:
    chosen = set(sorted({sample.seq for sample in part.samples})[:groups])
    return replace(part, samples=[sample for sample in part.samples if sample.seq in chosen])
