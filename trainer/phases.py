"""One batch, phase by phase. A crash between two phases loses only time.

| phase | durable effect | after a crash there |
|---|---|---|
| claim | rows of taken groups; the digest of a closed batch | the same batch is claimed again |
| train | none | the same batch is trained again, from the checkpoint of the batch before, with the same result |
| save | a checkpoint directory that no row names | it is written again in place of the leftover, with the same bytes |
| commit | batch, groups, policy version, metrics, outbox: one transaction | nothing to do |

A batch that cannot be trained, or fails repeatedly (failures.py), is quarantined instead: nothing is saved, and the learner reloads its checkpoint.
After a rewind it also reloads its checkpoint. It notices a rewind at the next claim, when the newest version is not its own, or at commit, when the
batch is no longer closed.
"""

import errno
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import torch
from safetensors import SafetensorError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.states import BatchState
from orchestrator.pool import batches as pool_batches
from orchestrator.pool.batches import LiveBatch, NewVersion
from orchestrator.pool.chat_format import check_chat_format
from orchestrator.pool.policy_versions import (
    PolicyVersion,
    needed_checkpoints,
    newest_version,
    next_version,
    progress,
)
from orchestrator.pool.quarantine import (
    MAX_FAILURES,
    failures,
    quarantine,
    quarantined_in_a_row,
    record_failure,
)
from orchestrator.pool.runs import StoredRun, first_dispatch_age
from orchestrator.pool.trainer_logprobs import TrainedStep
from orchestrator.pool.transact import transact
from orchestrator.pool.transitions import lock_run
from orchestrator.runtime.liveness import current
from orchestrator.runtime.log import get
from orchestrator.runtime.metrics import measured
from orchestrator.runtime.run_option import FILE, run_option
from orchestrator.scheduling.queue_policies import queue_policy
from orchestrator.settings.config import Config
from orchestrator.settings.timeouts import timeouts
from trainer.advantage_scale import scaled_parts
from trainer.batch import BatchPart, parts_of, read_rows, unreadable
from trainer.checkpoint import (
    Checkpoint,
    DamagedCheckpoint,
    bring_back,
    discard,
    list_checkpoints,
    remove_discarded,
)
from trainer.failures import RankFailed, described, loading, no_memory, of_platform
from trainer.learner import Learner, Learners
from trainer.logprob_rows import trained_steps
from trainer.metrics import TrainerMetrics
from trainer.ranks.rank_env import RankLost, sentence

log = get(__name__)
T = TypeVar("T")

SAVE_S = 600.0  # writing a large model takes minutes
COUNT_S = 20.0  # Postgres has so long to count the failure of a rank that has ended
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_INTACT = (
    "the files of the checkpoint are as they were published, so the cause is this machine or its libraries: look there and start again, "
    "no batch has to be given up"
)


class NoBatch(Enum):
    """Why no batch is closed."""

    NOT_YET = "not_yet"
    RUN_ENDED = "run_ended"  # the stage or the run ends here
    REWOUND = "rewound"  # the next batch follows other weights than this trainer's: resume


class Trainer:
    """The trainer of one run. Call `resume` first; then claim, train, save and commit in a loop."""

    def __init__(
        self,
        engine: AsyncEngine,
        run: StoredRun,
        *,
        config: Config,
        root: Path,
        subject: str,
        learners: Learners | None = None,
    ) -> None:
        """`config`: the run's, with this process's own keys. `root`: this run's checkpoint directory. `subject`: where new
        versions are announced. `learners`: those of many ranks, if any."""
        self.run_id, self.run = run.run_id, run.name
        self.config = config
        self.root = root
        self._engine = engine
        self._subject = subject
        queue = self.config.queue
        self._queue_policy = queue_policy(queue.policy, queue.capacity, queue.window_fraction)
        self._learners = learners or Learners()
        self._learner: Learner | None = None
        self._trained: list[TrainedStep] = []  # of the last trained batch

    @property
    def learner(self) -> Learner:
        """The learner; its weights are those of the newest version's checkpoint, except between train and commit."""
        assert self._learner is not None, "resume comes first"
        return self._learner

    async def resume(self) -> None:
        """Load the newest version that no rewind superseded, or make and publish version 0.

        Raises ConfigurationError, ValueError or NoMemory, one sentence, if the model or the checkpoint cannot be used.
        """
        found = await transact(
            self._engine, lambda connection: newest_version(connection, self.run_id), at="trainer.read"
        )
        section = self.config.trainer
        if found is not None:
            path = Path(found.path)
            await _when_there_is_room(f"checkpoint {path.name}", lambda: bring_back(path))
            try:
                await self._load(
                    lambda: self._learners.resume(path, found.manifest_sha, section, found.version)
                )
            except DamagedCheckpoint as error:
                raise ConfigurationError(f"{error}; {_way_out(found, self.root)}") from None
            except ConfigurationError:
                raise
            except ValueError as error:
                raise ConfigurationError(f"{error}; {_INTACT}") from error
            copies = {name: entry.sha256 for name, entry in self.learner.checkpoint.files.items()}
            check_chat_format(Path(self.config.policy.model), copies, self.run)
            log.info("trainer.resumed", version=found.version, batch=found.batch_no)
            return
        if not self.config.policy.model:
            raise ConfigurationError(
                "policy.model names no directory: it must be a Hugging Face model with its tokenizer"
            )
        model = Path(self.config.policy.model)
        checkpoint = await _when_there_is_room(
            f"the first version in {self.root}", lambda: self._learners.first(self.root, model, section)
        )
        await transact(
            self._engine, lambda connection: self._publish_first(connection, checkpoint), at="trainer.first"
        )
        await self._load(lambda: self._learners.at(checkpoint, section))
        log.info("policy.published", version=0, path=str(checkpoint.path))

    async def _load(self, make: Callable[[], Learner]) -> None:
        """Let the learner of `make` take the place of the present one, which is dropped first: memory need not hold both."""
        self._learner = None

        def load() -> None:
            with loading():
                self._learner = make()

        await _in_thread(load)

    async def _publish_first(self, connection: AsyncConnection, first: Checkpoint) -> None:
        if await newest_version(connection, self.run_id) is None:
            new = new_version(first, parent=None)
            await pool_batches.publish(connection, self.run_id, self.run, new, self._subject, None)

    async def claim(self) -> LiveBatch | NoBatch:
        """Fill the live batch as far as the window allows; return it once it is closed."""
        queue, stage = self.config.queue, self.config.stage

        async def work(connection: AsyncConnection) -> LiveBatch | NoBatch:
            await lock_run(connection, self.run_id)  # no rewind between this check and the claim
            newest = await newest_version(connection, self.run_id)
            if newest is None or newest.version != self.learner.version:
                return NoBatch.REWOUND
            done = await progress(connection, self.run_id)
            reached = stage.reached(
                batches=done.committed_batches,
                train_steps=done.train_steps,
                seconds=await first_dispatch_age(connection, self.run_id),
            )
            if reached is not None:
                return await pool_batches.closed_batch(connection, self.run_id) or NoBatch.RUN_ENDED
            batch = await pool_batches.take(
                connection, self.run_id, self._queue_policy, queue.batch_groups, queue.short_batch, stage
            )
            if batch is None:
                return NoBatch.RUN_ENDED
            return batch if batch.state is BatchState.CLOSED else NoBatch.NOT_YET

        return await transact(self._engine, work, at="trainer.claim")

    async def read(self, batch: LiveBatch) -> list[BatchPart]:
        """The batch's train steps, from the data pool. Raises BadBatch."""
        seed = (
            [self.config.run.seed % 2**32, batch.batch_no] if self.config.trainer.permute_advantages else None
        )
        rows = await transact(
            self._engine,
            lambda connection: read_rows(
                connection, self.run_id, batch.batch_id, routes=self.config.trainer.routing_replay
            ),
            at="trainer.read",
        )
        parts = await _in_thread(lambda: parts_of(rows, self.config.trainer.parts, seed))
        return scaled_parts(parts, self.config.reward.batch_scale)

    async def train(self, batch: LiveBatch, parts: Sequence[BatchPart]) -> list[dict[str, Any]]:
        """All train steps of the batch; returns their reports. Raises BadBatch."""
        state = self.learner.checkpoint.state
        before = -1 if state.batch_no is None else state.batch_no
        assert batch.batch_no == before + 1, f"batch {batch.batch_no} does not follow batch {before}"

        def done(part: int, values: Mapping[str, Any]) -> None:
            reported = ("loss", "reward", "performance", "gradient_norm", "merge_ratio", "samples", "wall_s")
            log.info("train_step.done", part=part, **{key: values[key] for key in reported})
            measured(TrainerMetrics).trained(values)
            measured(TrainerMetrics).spent(values["seconds"])

        for part, content in enumerate(parts):
            groups = sorted({rollout.group_id for rollout in content.rollouts})
            members = [rollout.rollout_id for rollout in content.rollouts]
            log.info("train_step.members", part=part, groups=groups, rollouts=members)

        async with self._with_ranks(batch):
            reports = await _in_thread(lambda: self.learner.train(parts, done))
        self._trained = trained_steps(parts, self.learner.logprobs)
        return reports

    async def save(self, batch: LiveBatch) -> NewVersion:
        """Write the next version's checkpoint. While the disk is full, log an error and retry: the weights exist only in memory."""
        assert batch.digest is not None
        digest = batch.digest
        version = await transact(
            self._engine, lambda connection: next_version(connection, self.run_id), at="trainer.read"
        )
        parent = self.learner.version
        current().busy(f"the checkpoint of batch {batch.batch_no}", on="disk")
        async with self._with_ranks(batch):
            saved = await _when_there_is_room(
                f"version {version}",
                lambda: self.learner.save(self.root, version, batch.batch_no, digest),
                whatever=True,
            )
        assert saved.written is not None
        measured(TrainerMetrics).saved(saved.written.json())
        log.info("checkpoint.saved", version=version, path=str(saved.path), **saved.written.json())
        return new_version(saved, parent=parent)

    @asynccontextmanager
    async def _with_ranks(self, batch: LiveBatch) -> AsyncIterator[None]:
        """Work of all ranks on the batch. If it is cancelled, perhaps because another rank has ended, the failure that the rank reported counts."""
        try:
            yield
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(COUNT_S, shield=True):
                if (why := await _in_thread(self._learners.reported)) is not None:
                    await self._count_failure(batch, why)
            raise

    async def commit(self, batch: LiveBatch, new: NewVersion, reports: Sequence[Mapping[str, Any]]) -> bool:
        """Commit batch, version, metrics and announcement in one transaction. False: a rewind undid the batch; resume."""

        async def work(connection: AsyncConnection) -> bool:
            if await pool_batches.commit(
                connection,
                self.run_id,
                self.run,
                batch=batch,
                new=new,
                metrics=reports,
                subject=self._subject,
                trained=self._trained,
            ):
                return True
            newest = await newest_version(connection, self.run_id)  # ours, if only the reply was lost
            return newest is not None and newest.manifest_sha == new.manifest_sha

        committed = await transact(self._engine, work, at="trainer.commit")
        measured(TrainerMetrics).batches.labels("committed" if committed else "undone").inc()
        log.info("batch.committed" if committed else "batch.undone", version=new.version)
        return committed

    async def quarantine(self, batch: LiveBatch, reason: str) -> bool:
        """Abandon the batch, with `reason` in its row; False: a rewind undid it before. The caller resumes."""
        if not await transact(
            self._engine,
            lambda connection: quarantine(connection, self.run_id, batch.batch_id, reason),
            at="trainer.quarantine",
        ):
            log.info("batch.undone", batch=batch.batch_no, reason="it is no longer closed")
            return False
        measured(TrainerMetrics).batches.labels("quarantined").inc()
        log.error("batch.quarantined", batch=batch.batch_no, groups=batch.taken, reason=reason)
        return True

    async def failed(self, batch: LiveBatch, error: Exception) -> bool:
        """Count a failure that may be the batch's own, in its history: once the caller resumes, the batch is trained again; after MAX_FAILURES it is
        quarantined (True). Raises `error` if the platform is at fault, NoMemory if that is a GPU, RankLost if the ranks must start again."""
        if isinstance(error, RankFailed):
            with anyio.move_on_after(COUNT_S, shield=True):  # the end of a rank cancels this process's work
                await self._count_failure(batch, str(error))
            raise RankLost(sentence(f"batch {batch.batch_no} failed: {error}")) from error
        if isinstance(error, torch.OutOfMemoryError):
            raise no_memory(batch.batch_no) from error
        if of_platform(error):
            raise error
        return await self._count_failure(batch, described(error), error)

    async def _count_failure(self, batch: LiveBatch, why: str, error: Exception | None = None) -> bool:
        """Whether this failure ended in a quarantine."""
        earlier = await transact(
            self._engine, lambda connection: failures(connection, batch.batch_id), at="trainer.read"
        )
        times = await transact(
            self._engine,
            lambda connection: record_failure(connection, self.run_id, batch.batch_id, why, earlier=earlier),
            at="trainer.quarantine",
        )
        measured(TrainerMetrics).batches.labels("failed").inc()
        log.error("batch.failed", batch=batch.batch_no, reason=why, times=times, exc_info=error)
        if times >= MAX_FAILURES:
            rollouts: Sequence[str] = ()
            with anyio.move_on_after(COUNT_S / 3):  # without an answer the batch is given up as well
                rollouts = await transact(
                    self._engine,
                    lambda connection: unreadable(
                        connection, self.run_id, batch.batch_id, routes=self.config.trainer.routing_replay
                    ),
                    at="trainer.read",
                )
            where = f"; unreadable: {'; '.join(rollouts)}" if rollouts else ""
            return await self.quarantine(
                batch, f"training it failed {times} times, the last time with {why}{where}"
            )
        return False

    async def bad_in_a_row(self) -> int:
        """Batches quarantined since the last commit, restarts included."""
        return await transact(
            self._engine, lambda connection: quarantined_in_a_row(connection, self.run_id), at="trainer.read"
        )

    async def prune(self) -> None:
        """Delete unneeded checkpoints: older than the newest few, not the first, neither served nor pinned."""
        keep_count = self.config.trainer.keep_checkpoints
        version = self.learner.version

        async def set_aside(connection: AsyncConnection) -> bool:
            await lock_run(connection, self.run_id)  # a rewind may be about to need one of them
            needed = await needed_checkpoints(connection, self.run_id, keep_count)
            restored = True
            for name in needed:  # discarded by an earlier attempt that lost its lock
                try:
                    bring_back(self.root / name)
                except OSError as error:
                    # A disk error must not leave here: transact would take it for a lost Postgres.
                    log.error("checkpoint.not_restored", path=str(self.root / name), detail=str(error))
                    restored = False
            for path in list_checkpoints(self.root):
                if int(path.name.rpartition("-")[2]) > version or path.name in needed:
                    continue
                try:
                    discard(path)
                except OSError as error:
                    log.warning("checkpoint.kept", path=str(path), detail=str(error))
            return restored

        if not await transact(self._engine, set_aside, at="trainer.prune"):
            return  # a discarded checkpoint is still needed
        try:
            await _in_thread(lambda: remove_discarded(self.root))
        except OSError as error:
            log.warning("checkpoint.kept", path=str(self.root), detail=str(error))


def _way_out(damaged: PolicyVersion, root: Path) -> str:
    """The remedy for a checkpoint below `root` that cannot be used. The trainer continues only from published weights."""
    if damaged.batch_no is None:
        return "restore it from a copy"
    return f"restore it from a copy, or give its batch up: `penstock rewind{option_of(root)} --to-batch {damaged.batch_no - 1}`"


def option_of(root: Path) -> str:
    """The option that names the run in a recommended command: by its directory, if the checkpoints below `root` lie in its `.penstock`."""
    files = (place.parent / FILE for place in root.resolve().parents if place.name == ".penstock")
    return next((run_option(file) for file in files if file.exists()), " -c RUN")


def new_version(saved: Checkpoint, *, parent: int | None) -> NewVersion:
    """A checkpoint's values for the data pool. The path is absolute: other processes open it."""
    return NewVersion(
        version=saved.state.version,
        parent=parent,
        path=str(saved.path.resolve()),
        manifest_sha=saved.manifest_sha,
    )


async def _when_there_is_room(what: str, write: Callable[[], T], *, whatever: bool = False) -> T:
    """Run `write` in a thread and return its result. While the disk has no room for `what`, log an error and retry. With `whatever`, every other
    disk error is retried too, for weights that exist only in memory; otherwise it becomes a ConfigurationError."""
    while True:
        current().within = SAVE_S
        try:
            return await _in_thread(write)
        except (OSError, SafetensorError) as error:
            if not whatever and getattr(error, "errno", None) not in _NO_ROOM:
                raise ConfigurationError(
                    f"{what} cannot be written: {error}; fix that and start again"
                ) from error
            log.error("checkpoint.failed", what=what, detail=str(error), wait_s=timeouts().disk_retry_s)
            current().within = 0.0
            await anyio.sleep(timeouts().disk_retry_s)


async def _in_thread(work: Callable[[], T]) -> T:
    """Run blocking work in a thread. If cancelled, the thread continues alone; its result is not committed."""
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
