"""Rebuilds the train steps of a stored batch from the data pool, and finds the checkpoint from which it was trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.pool.policy_versions import PolicyVersion
from orchestrator.pool.runs import StoredRun, get_run
from orchestrator.queries.trained_batch import StoredBatch, stored_batch
from orchestrator.settings.config import Config, effective
from trainer.batch import BadBatch, BatchPart
from trainer.checkpoint import open_checkpoint
from trainer.phases import Trainer


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RecordedBatch:
    """One stored batch, ready to be computed again. `metrics`: the reports of its train steps; empty for a part of the batch."""

    config: Config
    version: int
    checkpoint: Path
    parts: Sequence[BatchPart]
    metrics: Sequence[Mapping[str, Any]]


async def read_batch(
    engine: AsyncEngine,
    run: str,
    batch_no: int,
    groups: int = 0,
    *,
    process_keys: Mapping[str, Mapping[str, Any]] | None = None,
) -> RecordedBatch:
    """Read batch `batch_no` as the trainer reads it; with `groups` only the first `groups` groups of each train step. `process_keys`: by
    section, those that this process was started with.

    Raises the errors of `read_train_steps`, and ValueError if the batch's checkpoint is gone or not the published one.
    """
    config, stored, parts = await read_train_steps(engine, run, batch_no, groups, process_keys=process_keys)
    path = _published(stored.trained_from, batch_no, config.trainer.keep_checkpoints)
    return RecordedBatch(
        config=config,
        version=stored.trained_from.version,
        checkpoint=path,
        parts=parts,
        metrics=() if groups else stored.metrics,
    )


async def read_train_steps(
    engine: AsyncEngine,
    run: str,
    batch_no: int,
    groups: int = 0,
    *,
    process_keys: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[Config, StoredBatch, Sequence[BatchPart]]:
    """A batch and its train steps, without the weights; with `groups` only the first `groups` groups of each train step.

    Raises ConfigurationError for an unknown run. Raises ValueError, one sentence, if the batch is missing, if nothing in it is trained, or if
    its steps are pruned or do not make samples.
    """
    async with engine.connect() as connection:
        found = await get_run(connection, run)
        stored = await stored_batch(connection, found.run_id, batch_no)
    if found.pruned is not None:
        raise ValueError(f"the steps of run {run!r} are pruned, so its batches cannot be computed again")
    config = _config(found.config, process_keys or {})
    parts = await _parts(engine, found, config, stored)
    if groups:
        parts = [_first(part, groups) for part in parts]
    if not any(sample.trained_tokens for part in parts for sample in part.samples):
        raise ValueError(
            f"batch {batch_no} trains no token: every step of it is marked or has train weight 0"
        )
    return config, stored, parts


def _config(stored: dict[str, Any], process_keys: Mapping[str, Mapping[str, Any]]) -> Config:
    """The run's configuration with those process keys. A tolerance that is not given follows the run's dtype, as in the gateway."""
    gateway = {key: value for key, value in stored.get("gateway", {}).items() if key != "canary_tolerance"}
    return effective({**stored, "gateway": gateway}, process_keys)


async def _parts(
    engine: AsyncEngine, run: StoredRun, config: Config, stored: StoredBatch
) -> Sequence[BatchPart]:
    root = Path(stored.trained_from.path).parent
    try:
        return await Trainer(engine, run, config=config, root=root, subject="").read(stored.batch)
    except BadBatch as error:
        raise ValueError(f"batch {stored.batch.batch_no} cannot be trained: {error}") from error


def _published(version: PolicyVersion, batch_no: int, kept: int) -> Path:
    """The directory of a version. Raises ValueError if it is missing or its manifest is not the published one."""
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


def _first(part: BatchPart, groups: int) -> BatchPart:
    chosen = set(sorted({sample.seq for sample in part.samples})[:groups])
    return replace(part, samples=[sample for sample in part.samples if sample.seq in chosen])
