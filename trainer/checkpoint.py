"""Checkpoints: a directory that is either whole or not there.

    <root>/version-000012/             a Hugging Face model directory: config.json, model.safetensors, tokenizer files …
    <root>/version-000012/trainer/     optimizer.safetensors, state.json (apart: engines load every *.safetensors beside
                                       the configuration)
    <root>/version-000012/manifest.json   sha256 and size of every other file, the trainer state, the canary

Written to a temporary directory, every file fsynced, renamed, the parent fsynced; so a crash or a full disk leaves the
older checkpoints only. One trainer writes to a root. No pickle: tensors are safetensors, the rest is JSON.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from orchestrator.failpoints import boundary_sync
from trainer.canary import Canary, make_canary
from trainer.model import copy_tokenizer, save_model

_SCHEMA = "penstock.checkpoint/1"
_PREFIX, _TEMPORARY, _DISCARDED = "version-", ".writing-", ".discarded-"


@dataclass(frozen=True, slots=True)
class TrainerState:
    """Where training stands. `batch_no` is the last batch that the weights contain (None: before the first)."""

    version: int
    batch_no: int | None
    train_steps: int
    extra: Mapping[str, Any] = field(default_factory=dict)  # JSON values


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose every file matched its manifest when it was opened (or has just been written)."""

    path: Path
    manifest_sha: str  # hex sha256 of manifest.json
    state: TrainerState
    canary: Canary


def save_checkpoint(
    root: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: TrainerState,
    *,
    tokenizer: Path,
    canary_ids: Sequence[int],
) -> Checkpoint:
    """Write the checkpoint of `state.version` under `root` and return it.

    One that already lies there was never committed (a version number is committed once): it is replaced. Raises OSError
    when the disk does not take it; nothing half-written stays.
    """
    root.mkdir(parents=True, exist_ok=True)
    final = root / f"{_PREFIX}{state.version:06d}"
    temporary = root / f"{_TEMPORARY}{final.name}"
    for left_over in root.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(left_over)
    try:
        save_model(model, temporary)
        copy_tokenizer(tokenizer, temporary)
        trainer = temporary / "trainer"
        trainer.mkdir()
        save_file(_optimizer_tensors(model, optimizer), trainer / "optimizer.safetensors")
        (trainer / "state.json").write_text(json.dumps(asdict(state), indent=1))
        files = sorted(path for path in temporary.rglob("*") if path.is_file())
        manifest = {
            "schema": _SCHEMA,
            "state": asdict(state),
            "canary": asdict(make_canary(model, canary_ids)),
            "files": {
                path.relative_to(temporary).as_posix(): {
                    "sha256": _sha256(path),
                    "bytes": path.stat().st_size,
                }
                for path in files
            },
        }
        (temporary / "manifest.json").write_text(json.dumps(manifest, indent=1))
        for path in [*files, temporary / "manifest.json", trainer, temporary]:
            _fsync(path, at="checkpoint.sync")
        if final.exists():
            shutil.rmtree(final)
        boundary_sync("checkpoint.rename", lambda: temporary.rename(final))
        _fsync(root, at="checkpoint.named")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return open_checkpoint(final)


def open_checkpoint(path: Path) -> Checkpoint:
    """Verify every file against the manifest. ValueError naming the first file that is missing, cut or changed."""
    manifest_path = path / "manifest.json"
    try:
        raw = manifest_path.read_bytes()
        manifest = json.loads(raw)
        schema = manifest["schema"]
        files, state, canary = manifest["files"], manifest["state"], manifest["canary"]
    except FileNotFoundError as error:
        raise ValueError(f"{path} is not a checkpoint: it has no manifest.json") from error
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"corrupt checkpoint: {manifest_path} is not a manifest ({error})") from error
    if schema != _SCHEMA:
        raise ValueError(f"{manifest_path} has schema {schema!r}; this version reads {_SCHEMA!r}")
    for name, expected in files.items():
        file = path / name
        if not file.is_file():
            raise ValueError(f"corrupt checkpoint: {file} is missing")
        if file.stat().st_size != expected["bytes"]:
            raise ValueError(
                f"corrupt checkpoint: {file} has {file.stat().st_size} bytes, not {expected['bytes']}"
            )
        if _sha256(file) != expected["sha256"]:
            raise ValueError(f"corrupt checkpoint: {file} does not match its sha256")
    return Checkpoint(
        path=path,
        manifest_sha=hashlib.sha256(raw).hexdigest(),
        state=TrainerState(**state),
        canary=Canary(tuple(canary["ids"]), tuple(canary["logprobs"])),
    )


def list_checkpoints(root: Path) -> list[Path]:
    """Checkpoint directories under `root`, newest version first, not verified."""
    found = (path for path in root.glob(f"{_PREFIX}*") if path.name.removeprefix(_PREFIX).isdigit())
    return sorted(found, key=lambda path: int(path.name.removeprefix(_PREFIX)), reverse=True)


def discard(path: Path) -> None:
    """Take a checkpoint out of use, at once; `remove_discarded` frees its place. Raises OSError."""
    boundary_sync("checkpoint.discarded", lambda: path.rename(path.with_name(f"{_DISCARDED}{path.name}")))


def bring_back(path: Path) -> None:
    """Undo `discard`, if `path` was discarded. Raises OSError."""
    discarded = path.with_name(f"{_DISCARDED}{path.name}")
    if discarded.is_dir() and not path.exists():
        boundary_sync("checkpoint.discarded", lambda: discarded.rename(path))


def remove_discarded(root: Path) -> None:
    """Delete what was discarded, now or before a crash. Raises OSError."""
    for path in root.glob(f"{_DISCARDED}*"):
        shutil.rmtree(path)


def newest_valid_checkpoint(root: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that verifies (None: there is none), and what was wrong with each newer one."""
    faults: list[str] = []
    for path in list_checkpoints(root):
        try:
            return open_checkpoint(path), faults
        except ValueError as error:
            faults.append(str(error))
    return None, faults


def restore_optimizer(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load the optimizer's state tensors by parameter name. Learning rate and the like stay the configured ones.

    Raises ValueError when the parameters of model and checkpoint differ.
    """
    file = checkpoint.path / "trainer" / "optimizer.safetensors"
    tensors = load_file(file)
    names = _parameter_names(model, optimizer)
    unknown = {key.rpartition("/")[0] for key in tensors} - set(names.values())
    if unknown:
        raise ValueError(f"{file} has state for {sorted(unknown)[0]!r}, which the model does not train")
    for parameter, name in names.items():
        state = {
            key.rpartition("/")[2]: value for key, value in tensors.items() if key.rpartition("/")[0] == name
        }
        if any(value.ndim and value.shape != parameter.shape for value in state.values()):
            raise ValueError(f"{file} has state of another shape for {name!r}")
        optimizer.state[parameter] = state


def _parameter_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[nn.Parameter, str]:
    trained = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    return {parameter: name for name, parameter in model.named_parameters() if parameter in trained}


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return {
        f"{name}/{key}": value.detach().contiguous()
        for parameter, name in _parameter_names(model, optimizer).items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync(path: Path, *, at: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        boundary_sync(at, lambda: os.fsync(descriptor))
    finally:
        os.close(descriptor)
