"""The learner of one rank, and the orders by which rank 0 makes the other ranks do the same work.

    rank 0   Trainer (phases.py) ─▶ LeadingLearners ─▶ LeadingLearner: gives an order, then does it itself
    others   serve: take an order, do it, take the next

All ranks carry out every order with the same collectives. The ranks agree on an error of a single rank before any other rank waits for it:
all raise the same error, rank 0 decides its consequence for the run, and the others take the next order.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.runtime.log import get
from orchestrator.settings.trainer import TrainerSection
from trainer import lora
from trainer.batch import BadBatch, BatchPart
from trainer.canary import make_canary
from trainer.checkpoint import (
    Checkpoint,
    CheckpointContent,
    DamagedCheckpoint,
    TrainerState,
    optimizer_tensors,
    parameter_names,
    write_checkpoint,
)
from trainer.failures import RankFailed, described, loading, of_platform
from trainer.files import CheckpointFiles, FileEntry
from trainer.learner import Learner, Learners, open_published, optimizer_settings
from trainer.loss.metrics import TrainStepMetrics
from trainer.model import stored_weights
from trainer.optimizer_shards import read_shards, stored, write_shards
from trainer.ranks.codec import parts_from_bytes, parts_to_bytes
from trainer.ranks.fsdp import local, whole
from trainer.ranks.load_sharded import dealt_model
from trainer.ranks.process_group import Ranks, lost
from trainer.ranks.rank_env import RankLost, sentence
from trainer.ranks.rendezvous import (
    End,
    LoadOrder,
    Orders,
    Save,
    Train,
)
from trainer.ranks.update import anchored_together, train_step_together
from trainer.samples import Sample
from trainer.update import UpdateSettings, make_optimizer

log = get(__name__)


class SpreadLearner(Learner):
    """One rank's part of a learner; every call is a collective."""

    def __init__(
        self, checkpoint: Checkpoint, *, section: TrainerSection, version: int | None, ranks: Ranks
    ) -> None:
        self._ranks = ranks
        super().__init__(checkpoint, section, version)

    def _loaded(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Rank 0 reads the whole model and distributes it."""
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
        finite = all(bool(torch.isfinite(local(parameter)).all()) for parameter in self._model.parameters())
        return all(self._ranks.exchange(finite))

    def _written(self, root: Path, state: TrainerState) -> Checkpoint:
        """Rank 0 writes weights and manifest, every rank its own moments. Raises OSError, on all ranks for an error with the moments."""
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
        content = CheckpointContent(
            model=self._model, weights=weights, canary=canary, add_moments=add_moments
        )
        try:
            return write_checkpoint(
                root, content, state, tokenizer=self.checkpoint.path, parent=self.checkpoint
            )
        except OSError as error:
            if not moments.met:  # the others wait for the place
                moments.write(error)
            raise


class _Moments:
    """Writes the optimizer's tensors to a checkpoint. All ranks meet once; rank 0 names the place."""

    def __init__(self, tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
        self._tensors, self._ranks = tensors, ranks
        self.met = False

    def add(self, files: CheckpointFiles) -> None:
        """On rank 0: make all ranks write below `files`. Raises OSError."""
        directory = files.directory / "trainer"
        directory.mkdir()
        for name, entry in self.write(directory).items():
            files.adopt(f"trainer/{name}", entry)

    def write(self, place: Path | OSError | None) -> dict[str, FileEntry]:
        """Write this rank's shard to rank 0's `place` (None on the others); returns all ranks' files. Raises OSError, also one passed as `place`."""
        self.met = True
        with self._ranks.agreeing(OSError):
            if isinstance(place, OSError):
                raise place
        directory = self._ranks.exchange(None if place is None else str(place))[0]
        written: dict[str, FileEntry] = {}
        error: OSError | None = None
        try:
            written = write_shards(Path(directory), self._tensors, self._ranks.rank)
        except OSError as raised:
            error = raised
        with self._ranks.agreeing(OSError):
            if error is not None:
                raise error
        reported = self._ranks.exchange({name: asdict(entry) for name, entry in written.items()})
        return {name: FileEntry(**entry) for files in reported for name, entry in files.items()}


def whole_tensors(model: nn.Module, *, keep: bool) -> dict[str, Tensor]:
    """The model's whole state by name, in this process's memory; tied names share one tensor. Empty unless `keep`. A collective."""
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
        stored = gathered[id(tensor)]
        if stored is not None:
            found[name] = stored
    return found


def restore_moments(place: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load this rank's part of the optimizer's state, written by any number of ranks. Raises ValueError as `restore_optimizer` does."""
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
    """Rank 0's learner: every call first gives the others an order. Raises RankLost in place of a collective's error."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        section: TrainerSection,
        version: int | None,
        ranks: Ranks,
        orders: Orders,
    ) -> None:
        super().__init__(checkpoint, section=section, version=version, ranks=ranks)
        self._orders = orders

    def train(
        self,
        parts: Sequence[BatchPart],
        done: Callable[[int, Mapping[str, Any]], None] = lambda part, values: None,
    ) -> list[dict[str, Any]]:
        """`Learner.train` on all ranks."""
        self._orders.give(Train())
        with self._together("while it trained", _AGREED[Train]):
            self._ranks.share(parts_to_bytes(parts))
            return super().train(parts, done)

    def save(self, root: Path, version: int, batch_no: int, digest: bytes) -> Checkpoint:
        """`Learner.save` on all ranks."""
        self._orders.give(Save(root=str(root), version=version, batch_no=batch_no, digest=digest.hex()))
        with self._together("while it saved", _AGREED[Save]):
            return super().save(root, version, batch_no, digest)

    @contextmanager
    def _together(self, when: str, agreed: tuple[type[Exception], ...]) -> Iterator[None]:
        """Work of all ranks. Raises RankFailed for an error of one rank alone that may be the fault of the batch's content."""
        try:
            with unbroken(when):
                yield
        except RankLost as error:
            if why := self._orders.failed():
                raise RankFailed(why) from error
            raise
        except agreed:
            raise
        except Exception as error:
            if of_platform(error):
                raise
            raise RankFailed(described(error)) from error


class LeadingLearners(Learners):
    """Makes the learners of a trainer of many ranks. Rank 0 alone makes the first version."""

    def __init__(self, ranks: Ranks, orders: Orders) -> None:
        self._ranks, self._orders = ranks, orders

    def at(self, checkpoint: Checkpoint, section: TrainerSection) -> Learner:
        """A learner of a checkpoint that has just been written."""
        return self.resume(checkpoint.path, checkpoint.manifest_sha, section, checkpoint.state.version)

    def resume(self, path: Path, manifest_sha: str, section: TrainerSection, version: int) -> Learner:
        """`Learner.resume` on all ranks."""
        self._orders.give(LoadOrder(str(path), manifest_sha, version))
        with unbroken("while it loaded"):
            checkpoint = _opened(path, manifest_sha, self._ranks)
            return LeadingLearner(
                checkpoint, section=section, version=version, ranks=self._ranks, orders=self._orders
            )

    def reported(self) -> str | None:
        """`Learners.reported`."""
        return self._orders.failed()


def serve(ranks: Ranks, orders: Orders, section: TrainerSection) -> None:
    """The loop of every rank but 0, until rank 0 orders the end. Raises RankLost, or NoMemory for a load."""
    learner: SpreadLearner | None = None
    with unbroken("while it worked"):
        while True:
            order = orders.next()
            try:
                match order:
                    case End():
                        return
                    case LoadOrder(path, manifest_sha, version):
                        learner = None
                        with loading():
                            checkpoint = _opened(Path(path), manifest_sha, ranks)
                            learner = SpreadLearner(checkpoint, section=section, version=version, ranks=ranks)
                    case Train():
                        assert learner is not None
                        learner.train(parts_from_bytes(ranks.share(b"")))
                    case Save(root=root, version=version, batch_no=batch_no, digest=digest):
                        assert learner is not None
                        learner.save(Path(root), version, batch_no, bytes.fromhex(digest))
            except _AGREED[type(order)] as error:  # rank 0 raises it too, and handles it
                log.info("order.failed", order=type(order).__name__, detail=str(error))
            except Exception as error:  # the other ranks wait in a collective
                if not isinstance(order, Train | Save) or lost(error) or of_platform(error):
                    raise
                why = described(error)
                orders.fail(f"rank {ranks.rank}: {why}")
                log.error("rank.failed", reason=why, exc_info=error)
                raise RankLost(sentence(why)) from error


_AGREED: Mapping[type, tuple[type[Exception], ...]] = {
    End: (),
    LoadOrder: (ValueError,),
    Train: (BadBatch, ConfigurationError),
    Save: (OSError,),
}


@contextmanager
def unbroken(when: str) -> Iterator[None]:
    """Raise RankLost if a collective fails because another rank is missing."""
    try:
        yield
    except RuntimeError as error:
        if not lost(error):
            raise
        log.error("rank.lost", when=when, detail=str(error).partition("\n")[0][:300])
        raise RankLost(sentence(f"a rank was lost {when}")) from error


def _opened(path: Path, manifest_sha: str, ranks: Ranks) -> Checkpoint:
    """The published checkpoint, verified by every rank: they need not see the same disk. It is damaged if rank 0, which wrote it, finds it so.
    Raises DamagedCheckpoint or ValueError, on every rank the same."""
    with ranks.agreeing(DamagedCheckpoint, ValueError):
        try:
            checkpoint = open_published(path, manifest_sha)
        except DamagedCheckpoint as error:
            if ranks.rank:
                raise ValueError(f"{error}: its host must have the directory of rank 0") from error
            raise
    return checkpoint
