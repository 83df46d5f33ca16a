"""Checkpoints: each is a directory that is either complete or absent.

    <root>/version-000012/             a Hugging Face model directory: config.json, model.safetensors, tokenizer files …
    <root>/version-000012/trainer/     optimizer.safetensors (of many ranks: their shards, optimizer_shards.py), state.json, an adapter
                                       (lora.py; apart, because engines load every *.safetensors next to config.json)
    <root>/version-000012/manifest.json   sha256 and size of every other file, the trainer state, the canary

Tensors beyond `SHARD_BYTES` are in shards, NAME-00001-of-0000N.safetensors, the model's with its model.safetensors.index.json.
Frozen and trained tensors share no shard. A file that the parent version has with the same content is a hard link to it
(files.py).

A checkpoint is written to a temporary directory, every file is fsynced, the directory is renamed and its parent fsynced. A crash or a
full disk therefore leaves only the older checkpoints. One trainer writes to a root. No pickle: tensors are safetensors, the rest is JSON.
"""

import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from orchestrator.runtime.failpoints import boundary_sync
from trainer import lora
from trainer.canary import Canary, make_canary
from trainer.files import SHARD_BYTES, CheckpointFiles, FileEntry, Written, sha256_of, split
from trainer.model import save_configuration, stored_weights, tokenizer_files

_SCHEMA = "penstock.checkpoint/1"
_PREFIX, _TEMPORARY, _DISCARDED = "version-", ".writing-", ".discarded-"


class DamagedCheckpoint(ValueError):
    """The files of a published checkpoint are not as they were published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerState:
    """The progress of training. `batch_no` is the last batch that the weights contain (None: before the first)."""

    version: int
    batch_no: int | None
    train_steps: int
    extra: Mapping[str, Any] = field(default_factory=dict)  # JSON values


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint whose files all matched its manifest when it was opened or written."""

    path: Path
    manifest_sha: str  # hex sha256 of manifest.json
    state: TrainerState
    canary: Canary
    files: Mapping[str, FileEntry]  # by name; all but the manifest
    written: Written | None = field(default=None, compare=False)  # None if it was only opened


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointContent:
    """The content of a checkpoint. `weights`: model.stored_weights. `add_moments` adds the optimizer's files below the directory's trainer/."""

    model: nn.Module  # only its configuration is read
    weights: Sequence[dict[str, torch.Tensor]]
    canary: Canary
    add_moments: Callable[[CheckpointFiles], None]


def save_checkpoint(
    root: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: TrainerState,
    *,
    tokenizer: Path,
    canary_ids: Sequence[int],
    parent: Checkpoint | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> Checkpoint:
    """`write_checkpoint` of a model and optimizer that are whole in this process."""

    def add_moments(files: CheckpointFiles) -> None:
        files.add_tensors("trainer/optimizer", split(optimizer_tensors(model, optimizer), shard_bytes))
        if adapter:
            lora.add_adapter(files, tensors, shard_bytes)

    adapter, tensors = lora.adapted(model), model.state_dict()
    weights = stored_weights(model, lora.merged(model, tensors) if adapter else tensors)
    content = CheckpointContent(
        model=model, weights=weights, canary=make_canary(model, canary_ids), add_moments=add_moments
    )
    return write_checkpoint(root, content, state, tokenizer=tokenizer, parent=parent, shard_bytes=shard_bytes)


def write_checkpoint(
    root: Path,
    content: CheckpointContent,
    state: TrainerState,
    *,
    tokenizer: Path,
    parent: Checkpoint | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> Checkpoint:
    """Write the checkpoint of `state.version` under `root` and return it.

    Files that `parent` has with the same content are linked to it. No shard is larger than `shard_bytes`, unless one tensor is.
    A checkpoint that is already there was never committed (a version number is committed once): it is replaced. Raises OSError
    if the disk does not take it, where nothing half-written stays, or returns other bytes.
    """
    started = time.perf_counter()
    root.mkdir(parents=True, exist_ok=True)
    final = root / f"{_PREFIX}{state.version:06d}"
    temporary = root / f"{_TEMPORARY}{final.name}"
    for stale in root.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(stale)
    known = {parent.path / name: entry for name, entry in parent.files.items()} if parent else {}
    files = CheckpointFiles(temporary, known)
    try:
        temporary.mkdir()
        content.add_moments(files)
        _add_model(files, content, temporary, shard_bytes)
        for file in tokenizer_files(tokenizer):
            files.add(file.name, file.read_bytes())
        files.add("trainer/state.json", json.dumps(asdict(state), indent=1).encode())
        manifest = {
            "schema": _SCHEMA,
            "state": asdict(state),
            "canary": asdict(content.canary),
            "files": {name: asdict(entry) for name, entry in files.entries.items()},
        }
        (temporary / "manifest.json").write_text(json.dumps(manifest, indent=1))
        for name in [*files.entries, "manifest.json", "trainer", "."]:
            _fsync(temporary / name, at="checkpoint.sync")
        if final.exists():
            shutil.rmtree(final)
        boundary_sync("checkpoint.rename", lambda: temporary.rename(final))
        _fsync(root, at="checkpoint.named")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    try:
        saved = _open(final, checked=files.linked)  # linked files were compared when they were linked
    except ValueError as error:
        # It was just written: the disk is at fault, and the weights are still in memory.
        raise OSError(errno.EIO, f"it was not stored as it was written: {error}") from error
    return replace(saved, written=files.summary(time.perf_counter() - started))


def _add_model(files: CheckpointFiles, content: CheckpointContent, directory: Path, shard_bytes: int) -> None:
    """Add configuration and weights in the layout of a Hugging Face directory."""
    save_configuration(content.model, directory)
    saved_files = (path for path in sorted(directory.iterdir()) if path.is_file())
    for path in saved_files:  # small: the library writes them, then they are added like all others
        data = path.read_bytes()
        path.unlink()
        files.add(path.name, data)
    shards = [shard for half in content.weights for shard in split(half, shard_bytes)]
    places = files.add_tensors("model", shards)
    if len(shards) > 1:
        size = sum(tensor.nbytes for shard in shards for tensor in shard.values())
        index = {"metadata": {"total_size": size}, "weight_map": places}
        files.add("model.safetensors.index.json", json.dumps(index, indent=1, sort_keys=True).encode())


def open_checkpoint(path: Path) -> Checkpoint:
    """Verify every file against the manifest. Raises DamagedCheckpoint naming the first file that is missing, truncated or changed, ValueError for
    a manifest of another release."""
    return _open(path, checked=())


def _open(path: Path, *, checked: Container[str]) -> Checkpoint:
    """Like `open_checkpoint`, without reading the content of the files in `checked`."""
    manifest_path = path / "manifest.json"
    try:
        raw = manifest_path.read_bytes()
        manifest = json.loads(raw)
        schema = manifest["schema"]
        files, state, canary = manifest["files"], manifest["state"], manifest["canary"]
    except FileNotFoundError as error:
        raise DamagedCheckpoint(f"{path} is not a checkpoint: it has no manifest.json") from error
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise DamagedCheckpoint(f"corrupt checkpoint: {manifest_path} is not a manifest ({error})") from error
    if schema != _SCHEMA:
        raise ValueError(f"{manifest_path} has schema {schema!r}; this version reads {_SCHEMA!r}")
    for name, expected in files.items():
        file = path / name
        if not file.is_file():
            raise DamagedCheckpoint(f"corrupt checkpoint: {file} is missing")
        if file.stat().st_size != expected["bytes"]:
            raise DamagedCheckpoint(
                f"corrupt checkpoint: {file} has {file.stat().st_size} bytes, not {expected['bytes']}"
            )
        if name not in checked and sha256_of(file) != expected["sha256"]:
            raise DamagedCheckpoint(f"corrupt checkpoint: {file} does not match its sha256")
    return Checkpoint(
        path=path,
        manifest_sha=hashlib.sha256(raw).hexdigest(),
        state=TrainerState(**state),
        canary=Canary(tuple(canary["ids"]), tuple(canary["logprobs"])),
        files={name: FileEntry(entry["sha256"], entry["bytes"]) for name, entry in files.items()},
    )


def list_checkpoints(root: Path) -> list[Path]:
    """Checkpoint directories under `root`, newest version first, not verified."""
    found = (path for path in root.glob(f"{_PREFIX}*") if path.name.removeprefix(_PREFIX).isdigit())
    return sorted(found, key=lambda path: int(path.name.removeprefix(_PREFIX)), reverse=True)


def discard(path: Path) -> None:
    """Take a checkpoint out of use, at once; `remove_discarded` frees its space. Raises OSError."""
    boundary_sync("checkpoint.discarded", lambda: path.rename(path.with_name(f"{_DISCARDED}{path.name}")))


def bring_back(path: Path) -> None:
    """Undo `discard`, if `path` was discarded. Raises OSError."""
    discarded = path.with_name(f"{_DISCARDED}{path.name}")
    if discarded.is_dir() and not path.exists():
        boundary_sync("checkpoint.discarded", lambda: discarded.rename(path))


def remove_discarded(root: Path) -> None:
    """Delete discarded checkpoints, including those from before a crash. Raises OSError."""
    for path in root.glob(f"{_DISCARDED}*"):
        shutil.rmtree(path)


def restore_optimizer(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load the optimizer's state tensors by parameter name. The learning rate and other settings stay as configured.

    Raises ValueError if the parameters of model and checkpoint differ.
    """
    directory = checkpoint.path / "trainer"
    tensors = _read_moments(directory)
    names = parameter_names(model, optimizer)
    unknown = {key.rpartition("/")[0] for key in tensors} - set(names.values())
    if unknown:
        raise ValueError(f"{directory} has state for {sorted(unknown)[0]!r}, which the model does not train")
    for parameter, name in names.items():
        state = {
            key.rpartition("/")[2]: value.to(parameter.device)
            for key, value in tensors.items()
            if key.rpartition("/")[0] == name
        }
        if any(value.ndim and value.shape != parameter.shape for value in state.values()):
            raise ValueError(f"{directory} has state of another shape for {name!r}")
        optimizer.state[parameter] = state


def _read_moments(place: Path) -> dict[str, torch.Tensor]:
    """State tensors as "PARAMETER/KEY", written by one process or by many ranks."""
    files = sorted(place.glob("optimizer*.safetensors"))
    if not files:
        from trainer.optimizer_shards import read_whole  # loads torch.distributed

        return read_whole(place)
    return {key: value for file in files for key, value in load_file(file).items()}


def parameter_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[nn.Parameter, str]:
    """The name of each parameter that the optimizer has."""
    trained = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    return {parameter: name for name, parameter in model.named_parameters() if parameter in trained}


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimizer's state tensors as "PARAMETER/KEY"."""
    return {
        f"{name}/{key}": value
        for parameter, name in parameter_names(model, optimizer).items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def _fsync(path: Path, *, at: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        boundary_sync(at, lambda: os.fsync(descriptor))
    finally:
        os.close(descriptor)
