"""The synchronous half of the trainer: model, optimizer and their checkpoint. It does not use the database.

A learner is always loaded from a checkpoint and is discarded after a bad batch, so weights that are in no checkpoint
never outlive their batch.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.runtime.phase_timer import collect
from orchestrator.settings.trainer import TrainerSection
from orchestrator.trajectory.routes import check_replay
from trainer import lora
from trainer.activation_checkpointing import checkpoint_activations
from trainer.batch import BadBatch, BatchPart
from trainer.checkpoint import (
    Checkpoint,
    DamagedCheckpoint,
    TrainerState,
    open_checkpoint,
    restore_optimizer,
    save_checkpoint,
)
from trainer.expert_bias import check_biases
from trainer.loss.choose import make_loss
from trainer.loss.correction import CorrectionSettings
from trainer.loss.metrics import TrainStepMetrics
from trainer.loss.skip_reason import BAD_BATCH
from trainer.mixed_precision import compute_in
from trainer.model import check_vocabulary, load_model
from trainer.report import report
from trainer.samples import Floats, Sample
from trainer.schedule import Schedule
from trainer.tree.forward import attach_tree_attention
from trainer.tree.passes import PassBudget
from trainer.tree.replay import attach_replay, check_routes
from trainer.tree.routing import check_balance
from trainer.update import OptimizerSettings, UpdateSettings, anchored, make_optimizer, train_step

CANARY_TOKENS = 32


class Learner:
    """Trains from `checkpoint` on. All methods may run in a thread, one call at a time.

    `version` is the number under which these weights are served: the checkpoint's own, or a later one if a rewind published them again.
    """

    def __init__(self, checkpoint: Checkpoint, section: TrainerSection, version: int | None = None) -> None:
        self.checkpoint = checkpoint
        self.version = checkpoint.state.version if version is None else version
        self._section = section
        self._model, self._optimizer = self._loaded()
        if section.activation_checkpointing:
            checkpoint_activations(self._model)
        check_experts(self._model, section)
        if section.routing_replay:
            attach_replay(self._model)
        self._schedule = Schedule(
            lr=section.lr,
            kind=section.schedule,
            warmup_steps=section.warmup_steps,
            decay_steps=section.decay_steps,
            last_share=section.last_lr_share,
        )
        self._train_steps = checkpoint.state.train_steps
        self.logprobs: list[Floats | None] = []
        """TrainStepMetrics.logprobs of the last `train`, per part."""

    @classmethod
    def resume(
        cls, path: Path, manifest_sha: str, section: TrainerSection, version: int | None = None
    ) -> "Learner":
        """Load a published version. Raises DamagedCheckpoint if its files are not the published ones, ValueError if they cannot be loaded here."""
        return cls(open_published(path, manifest_sha), section, version)

    def train(
        self,
        parts: Sequence[BatchPart],
        done: Callable[[int, Mapping[str, Any]], None] = lambda part, values: None,
    ) -> list[dict[str, Any]]:
        """One train step per part; returns their reports. `done(part, report)` is called after each, in the same thread.

        Raises BadBatch if a loss, gradient or weight is not finite. The weights may already have changed, so the caller must then
        resume from the checkpoint.
        """
        reports = []
        self.logprobs = []
        settings = update_settings(self._section)
        wall, cpu = time.perf_counter(), time.process_time()  # the first includes the proximal logprobs
        self._check_ids(parts)
        try:
            with collect() as anchor:
                samples = [self._anchored(part.samples, settings) for part in parts]
        except ConfigurationError:
            raise  # the budget's fault, not this batch's
        except ValueError as error:
            raise BadBatch(f"the proximal logprobs cannot be used: {error}") from error
        spent = {"anchor": sum(anchor.seconds.values())} if anchor.seconds else {}
        for number, part in enumerate(parts):
            rate = self._schedule.rate(self._train_steps)
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            with collect() as count:
                metrics = self._train_step(samples[number], settings)
            self.logprobs.append(metrics.logprobs)
            if metrics.skip_reason in BAD_BATCH:
                raise BadBatch(f"train step {number + 1} of {len(parts)}: {metrics.skip_reason}")
            wall_s, spent = time.perf_counter() - wall, count.seconds | spent
            values = report(
                metrics,
                part.rollouts,
                lr=rate,
                cpu_s=time.process_time() - cpu,
                wall_s=wall_s,
                seconds=spent,
                replay=self._section.routing_replay,
            )
            spent = {}
            wall, cpu = time.perf_counter(), time.process_time()
            self._train_steps += 1
            done(number, values)
            reports.append(values)
        if not self._finite():
            raise BadBatch("a weight is not finite after the last train step")
        return reports

    def _check_ids(self, parts: Sequence[BatchPart]) -> None:
        """Raise BadBatch for a token or an expert that the policy does not have: it would end the process, again after every start."""
        known = self._model.get_input_embeddings().num_embeddings  # type: ignore[operator]
        for part in parts:
            for sample in part.samples:
                if sample.tokens.highest >= known:
                    raise BadBatch(
                        f"{sample.name} has the token {sample.tokens.highest}, the policy knows {known}"
                    )
        if self._section.routing_replay:
            try:
                check_routes(self._model, (sample.tokens for part in parts for sample in part.samples))
            except ValueError as error:
                raise BadBatch(f"its routes cannot be replayed: {error}") from error

    def save(self, root: Path, version: int, batch_no: int, digest: bytes) -> Checkpoint:
        """Write the next checkpoint, durable on return, and continue from it. Replaces a leftover of the same number."""
        state = TrainerState(
            version=version,
            batch_no=batch_no,
            train_steps=self._train_steps,
            extra={"batch_digest": digest.hex()},
        )
        self.checkpoint = self._written(root, state)
        self.version = version
        return self.checkpoint

    # The methods that a learner of many ranks overrides (ranks/learner.py).

    def _loaded(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Model and optimizer of the checkpoint, on the GPU if there is one."""
        model = load_model(self.checkpoint.path)
        if self._section.lora_rank:
            lora.restore(model, self.checkpoint.path / "trainer", self._section)
        if torch.cuda.is_available():
            attach_tree_attention(model.to("cuda"), "flex")
        _compute(model, self._section)
        optimizer = make_optimizer(model, optimizer_settings(self._section))
        restore_optimizer(self.checkpoint, model, optimizer)
        return model, optimizer

    def _anchored(self, samples: Sequence[Sample], settings: UpdateSettings) -> list[Sample]:
        return anchored(self._model, samples, settings)

    def _train_step(self, samples: Sequence[Sample], settings: UpdateSettings) -> TrainStepMetrics:
        return train_step(self._model, self._optimizer, samples, settings, trainer_version=self.version)

    def _finite(self) -> bool:
        """Whether every weight is finite."""
        return all(bool(torch.isfinite(parameter).all()) for parameter in self._model.parameters())

    def _written(self, root: Path, state: TrainerState) -> Checkpoint:
        return save_checkpoint(
            root,
            self._model,
            self._optimizer,
            state,
            tokenizer=self.checkpoint.path,
            canary_ids=self.checkpoint.canary.ids,
            parent=self.checkpoint,
        )

    def saved(self) -> dict[str, Any]:
        """The cost of the last `save`: files, bytes and seconds."""
        assert self.checkpoint.written is not None, "save comes first"
        return self.checkpoint.written.json()


class Learners:
    """Makes the learners of a trainer, in this process alone."""

    def first(self, root: Path, model_directory: Path, section: TrainerSection) -> Checkpoint:
        """`save_first`."""
        return save_first(root, model_directory, section)

    def at(self, checkpoint: Checkpoint, section: TrainerSection) -> Learner:
        """A learner of a checkpoint that has just been written."""
        return Learner(checkpoint, section)

    def resume(self, path: Path, manifest_sha: str, section: TrainerSection, version: int) -> Learner:
        """`Learner.resume`."""
        return Learner.resume(path, manifest_sha, section, version)

    def reported(self) -> str | None:
        """Why another rank failed over the present batch; None: none did."""
        return None


def open_published(path: Path, manifest_sha: str) -> Checkpoint:
    """The checkpoint at `path`. Raises DamagedCheckpoint if its files are not the published ones, ValueError if another release wrote it."""
    checkpoint = open_checkpoint(path)
    if checkpoint.manifest_sha != manifest_sha:
        raise DamagedCheckpoint(
            f"{path} is not the checkpoint that was published: its manifest has sha256 {checkpoint.manifest_sha}, "
            f"the data pool says {manifest_sha}"
        )
    return checkpoint


def save_first(root: Path, model_directory: Path, section: TrainerSection) -> Checkpoint:
    """Make version 0 from a Hugging Face directory: its weights, a fresh optimizer, a canary.

    Raises ValueError if no usable model with its tokenizer is found, ConfigurationError if it cannot be adapted or trained as configured.
    """
    model = load_model(model_directory)
    check_vocabulary(model, model_directory)
    check_experts(model, section)
    if section.lora_rank:
        lora.inject(model, section)
    _compute(model, section)  # for its canary
    return save_checkpoint(
        root,
        model,
        make_optimizer(model, optimizer_settings(section)),
        TrainerState(version=0, batch_no=None, train_steps=0),
        tokenizer=model_directory,
        canary_ids=canary_ids(model),
    )


def check_experts(model: nn.Module, section: TrainerSection) -> None:
    """Raise ConfigurationError if the model lacks the experts, routers or biases that the configuration needs."""
    check_balance(model, section.balance)
    if section.routing_replay:
        check_replay(model.config.to_dict(), model.name_or_path)  # type: ignore[operator, union-attr]
    if section.bias_rate:
        check_biases(model)


def _compute(model: nn.Module, section: TrainerSection) -> None:
    if section.dtype != "float32":
        compute_in(model, getattr(torch, section.dtype))


def canary_ids(model: nn.Module) -> list[int]:
    """Fixed pseudo-random ids of the model's vocabulary: the same for every version, so that canaries can be compared."""
    embeddings = model.get_input_embeddings()  # type: ignore[operator]
    drawn = np.random.default_rng(0).integers(0, embeddings.num_embeddings, CANARY_TOKENS)
    return [int(i) for i in drawn]


def optimizer_settings(section: TrainerSection) -> OptimizerSettings:
    """AdamW as configured."""
    return OptimizerSettings(
        lr=section.lr,
        betas=section.betas,
        eps=section.eps,
        weight_decay=section.weight_decay,
        decay_vectors=section.decay_vectors,
    )


def update_settings(section: TrainerSection) -> UpdateSettings:
    """The loss as configured."""
    return UpdateSettings(
        loss=make_loss(section.loss, section.ratio_min, section.ratio_max),
        correction=CorrectionSettings(
            anchor=section.anchor,
            mask=section.mask,
            tis_max=section.tis_max,
            icepop_min=section.icepop_min,
            icepop_max=section.icepop_max,
            mis_max=section.mis_max,
        ),
        aggregation=section.aggregation,
        negative_scale=section.negative_scale,
        balance=section.balance,
        bias_rate=section.bias_rate,
        max_grad_norm=section.clip_norm,
        spike_grad_norm=section.spike_norm or math.inf,
        budget=PassBudget(section.pack_tokens, section.pack_pairs),
        keep_logprobs=section.keep_logprobs,
    )
