"""A learner of one rank, and how rank 0 has the others do as it does.

    rank 0   Trainer (phases.py) ─▶ LeadingLearners ─▶ LeadingLearner: gives an order, then does it itself
    others   serve: take an order, do it, take the next

Every order is carried out by all ranks with the same collectives. What goes wrong on one of them alone is agreed on before anybody waits for it:
then all raise the same error, rank 0 says what it means for the run, and the others take the next order.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from orchestrator.config import TrainerSection
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.log import get
from trainer import lora
from trainer.batch import BadBatch, Part
from trainer.canary import make_canary
from trainer.checkpoint import (
    Checkpoint,
    Content,
    TrainerState,
    optimizer_tensors,
    parameter_names,
    write_checkpoint,
)
from trainer.files import CheckpointFiles, FileEntry
from trainer.learner import Learner, Learners, open_published, optimizer_settings
from trainer.loss.metrics import TrainStepMetrics
from trainer.model import stored_weights
from trainer.ranks.deal import dealt_model
from trainer.ranks.join import End, Load, Orders, Save, Train
from trainer.ranks.meeting import Ranks, lost
from trainer.ranks.place import RankLost, sentence
from trainer.ranks.shard import local, whole
from trainer.ranks.shards import read_shards, stored, write_shards
from trainer.ranks.update import anchored_together, train_step_together
from trainer.ranks.wire import parts_from_bytes, parts_to_bytes
from trainer.samples import Sample
from trainer.update import UpdateSettings, make_optimizer

log = get(__name__)


class SpreadLearner(Learner):
    """One rank's part of a learner; every call is a collective."""

    def __init__(
        self, checkpoint: Checkpoint, section: TrainerSection, version: int | None, ranks: Ranks
    ) -> None:
        self._ranks = ranks
        super().__init__(checkpoint, section, version)

    def _loaded(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Rank 0 reads the whole model and deals it out."""
        model = dealt_model(self.checkpoint.path, self._section, self._ranks)
        optimizer = make_optimizer(model, optimizer_settings(self._section))
        with self._ranks.agreeing(ValueError):
            restore_moments(self.checkpoint.path / "trainer", model, optimizer)
        return model, optimizer

    def _anchored(self, samples: Sequence[Sample], settings: UpdateSettings) -> list[Sample]:
        return anchored_together(self._model, samples, settings, self._ranks)

    def _train_step(self, samples: Sequence[Sample], settings: UpdateSettings) -> TrainStepMetrics:
        return train_step_together(
            self._model, self._optimizer, samples, settings, self._ranks, trainer_version=self.version
        )

    def _finite(self) -> bool:
        mine = all(bool(torch.isfinite(local(parameter)).all()) for parameter in self._model.parameters())
        return all(self._ranks.exchange(mine))

    def _written(self, root: Path, state: TrainerState) -> Checkpoint:
        """Rank 0 writes weights and manifest, every rank its own moments. Raises OSError; on all ranks if it is of the moments."""
        canary = make_canary(self._model, self.checkpoint.canary.ids)
        tensors = whole_tensors(self._model, keep=self._ranks.leads)
        moments = _Moments(optimizer_tensors(self._model, self._optimizer), self._ranks)
        if not self._ranks.leads:
            moments.write(None)
            return replace(self.checkpoint, state=state)
        adapter = lora.adapted(self._model)

        def add_moments(files: CheckpointFiles) -> None:
            moments.add(files)
            if adapter:
                lora.add_adapter(files, tensors)

        weights = stored_weights(self._model, lora.merged(self._model, tensors) if adapter else tensors)
        content = Content(self._model, weights, canary, add_moments)
        try:
            return write_checkpoint(
                root, content, state, tokenizer=self.checkpoint.path, parent=self.checkpoint
            )
        except OSError as error:
            if not moments.met:  # the others wait to be told where
                moments.write(error)
            raise


class _Moments:
    """The optimizer's tensors on their way to a checkpoint; all ranks meet once, where rank 0 says."""

    def __init__(self, tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
        self._tensors, self._ranks = tensors, ranks
        self.met = False

    def add(self, files: CheckpointFiles) -> None:
        """Of rank 0: have all write below `files`. Raises OSError."""
        place = files.directory / "trainer"
        place.mkdir()
        for name, entry in self.write(place).items():
            files.adopt(f"trainer/{name}", entry)

    def write(self, place: Path | OSError | None) -> dict[str, FileEntry]:
        """Write this rank's shard to rank 0's `place`, None on the others; every rank's files. Raises OSError, rank 0's `place` being one too."""
        self.met = True
        with self._ranks.agreeing(OSError):
            if isinstance(place, OSError):
                raise place
        where = self._ranks.exchange(None if place is None else str(place))[0]
        written: dict[str, FileEntry] = {}
        error: OSError | None = None
        try:
            written = write_shards(Path(where), self._tensors, self._ranks.rank)
        except OSError as raised:
            error = raised
        with self._ranks.agreeing(OSError):
            if error is not None:
                raise error
        said = self._ranks.exchange({name: asdict(entry) for name, entry in written.items()})
        return {name: FileEntry(**entry) for one in said for name, entry in one.items()}


def whole_tensors(model: nn.Module, *, keep: bool) -> dict[str, Tensor]:
    """The model's state by name, whole, in this process's memory; tied ones are one tensor. Empty unless `keep`. A collective."""
    spread = dict(model.named_parameters(remove_duplicate=False)) | dict(
        model.named_buffers(remove_duplicate=False)
    )
    found: dict[str, Tensor] = {}
    gathered: dict[int, Tensor | None] = {}
    for name in model.state_dict():
        tensor = spread[name]
        if id(tensor) not in gathered:
            full = whole(tensor)  # every rank takes part
            gathered[id(tensor)] = full.cpu() if keep else None
        kept = gathered[id(tensor)]
        if kept is not None:
            found[name] = kept
    return found


def restore_moments(place: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load this rank's part of the optimizer's state, whoever wrote it. Raises ValueError as `restore_optimizer` does."""
    known = stored(place)
    into: dict[str, Tensor] = {}
    for parameter, name in parameter_names(model, optimizer).items():
        for key, (shape, dtype) in known.items():
            owner, _, field = key.rpartition("/")
            if owner != name:
                continue
            if shape and shape != parameter.shape:
                raise ValueError(f"{place} has state of another shape for {name!r}")
            tensor = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
            into[key] = tensor if shape else torch.zeros((), dtype=dtype, device=local(parameter).device)
            optimizer.state[parameter][field] = into[key]
    if unknown := sorted(set(known) - set(into)):
        raise ValueError(
            f"{place} has state for {unknown[0].rpartition('/')[0]!r}, which the model does not train"
        )
    read_shards(place, into)


class LeadingLearner(SpreadLearner):
    """Rank 0's: every call is an order to the others first. Raises RankLost in the place of a collective's error."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        section: TrainerSection,
        version: int | None,
        ranks: Ranks,
        orders: Orders,
    ) -> None:
        super().__init__(checkpoint, section, version, ranks)
        self._orders = orders

    def train(
        self,
        parts: Sequence[Part],
        done: Callable[[int, Mapping[str, Any]], None] = lambda part, values: None,
    ) -> list[dict[str, Any]]:
        """As one rank's."""
        self._orders.give(Train())
        with unbroken("while it trained"):
            self._ranks.share(parts_to_bytes(parts))
            return super().train(parts, done)

    def save(self, root: Path, version: int, batch_no: int, digest: bytes) -> Checkpoint:
        """As one rank's."""
        self._orders.give(Save(str(root), version, batch_no, digest.hex()))
        with unbroken("while it saved"):
            return super().save(root, version, batch_no, digest)


class LeadingLearners(Learners):
    """How a trainer of many ranks gets its learners. The first version is made by rank 0 alone."""

    def __init__(self, ranks: Ranks, orders: Orders) -> None:
        self._ranks, self._orders = ranks, orders

    def at(self, checkpoint: Checkpoint, section: TrainerSection) -> Learner:
        """A learner that stands on a checkpoint which has just been written."""
        return self.resume(checkpoint.path, checkpoint.manifest_sha, section, checkpoint.state.version)

    def resume(self, path: Path, manifest_sha: str, section: TrainerSection, version: int) -> Learner:
        """As one rank's, on all ranks."""
        self._orders.give(Load(str(path), manifest_sha, version))
        with unbroken("while it loaded"):
            checkpoint = _opened(path, manifest_sha, self._ranks)
            return LeadingLearner(checkpoint, section, version, self._ranks, self._orders)


def serve(ranks: Ranks, orders: Orders, section: TrainerSection) -> None:
    """What every other rank does until rank 0 says that it is over. Raises RankLost."""
    learner: SpreadLearner | None = None
    with unbroken("while it worked"):
        while True:
            order = orders.next()
            try:
                match order:
                    case End():
                        return
                    case Load(path, manifest_sha, version):
                        learner = None  # its memory is free for the next
                        checkpoint = _opened(Path(path), manifest_sha, ranks)
                        learner = SpreadLearner(checkpoint, section, version, ranks)
                    case Train():
                        assert learner is not None
                        learner.train(parts_from_bytes(ranks.share(b"")))
                    case Save(root, version, batch_no, digest):
                        assert learner is not None
                        learner.save(Path(root), version, batch_no, bytes.fromhex(digest))
            except _AGREED[type(order)] as error:  # rank 0 has it too, and says what it means
                log.info("order.failed", order=type(order).__name__, detail=str(error))


_AGREED: Mapping[type, tuple[type[Exception], ...]] = {
    End: (),
    Load: (ValueError,),
    Train: (BadBatch, ConfigurationError),
    Save: (OSError,),
}


@contextmanager
def unbroken(when: str) -> Iterator[None]:
    """Raise RankLost for a collective that another rank did not come to."""
    try:
        yield
    except RuntimeError as error:
        if not lost(error):
            raise
        log.error("rank.lost", when=when, detail=str(error).partition("\n")[0][:300])
        raise RankLost(sentence(f"a rank was lost {when}")) from error


def _opened(path: Path, manifest_sha: str, ranks: Ranks) -> Checkpoint:
    """Verified by every rank: they need not see the same disk."""
    with ranks.agreeing(ValueError):
        checkpoint = open_published(path, manifest_sha)
    return checkpoint
