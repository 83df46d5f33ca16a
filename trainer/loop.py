"""The trainer process: batches in, policy versions out, until the run, the stage or the requested train steps end.

| produces | waits for | unblocked by |
|---|---|---|
| policy versions, metrics, free places in the queue | a batch that the window lets fill | ready groups: the orchestrator, runners |

All its state is in the data pool and in the checkpoint of the newest version. It may be killed at any instruction (phases.py).
"""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.choices import Anchor
from orchestrator.contracts.errors import ConfigurationError, PenstockError
from orchestrator.pool.batches import LiveBatch
from orchestrator.pool.engine import Role
from orchestrator.pool.heartbeats import send_heartbeats
from orchestrator.pool.opened import opened
from orchestrator.pool.runs import StoredRun, find_run
from orchestrator.pool.transact import transact
from orchestrator.runtime.liveness import current, track_loop
from orchestrator.runtime.log import bind, get
from orchestrator.runtime.metrics import measured
from orchestrator.runtime.phase_timer import Count, collect, phase
from orchestrator.settings.config import Config, effective
from orchestrator.settings.timeouts import timeouts, use
from orchestrator.settings.trainer import RATIO_BOUNDS
from trainer.batch import BadBatch
from trainer.learner import Learners
from trainer.lock import only_trainer
from trainer.metrics import TrainerMetrics
from trainer.phases import NoBatch, Trainer, option_of
from trainer.ranks.rank_env import Place

log = get(__name__)

POLL_S = 0.1
BAD_BATCHES = 3
LOAD_S = 600.0  # loading a large model takes minutes


class Halted(PenstockError):
    """Too many bad batches in a row: further training would only use up data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """`policies` has one directory per run. `train_steps`: stop after this many (whole batches); 0: when the run ends."""

    run: str
    database_url: str
    policies: Path
    subject: str  # of PolicyPublished
    train_steps: int = 0
    retry: bool = False  # continue although the last batches were bad
    place: Place | None = None  # rank 0 of several; None: the only one
    # By section; missing: the run's.
    process_keys: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def arguments(self) -> dict[str, str]:
        """The arguments that must be the same on every rank."""
        return {"run": self.run, "policies": str(self.policies), "subject": self.subject}


async def run_trainer(settings: TrainerSettings) -> None:
    """Train until done. Raises PenstockError or ValueError, one sentence each."""
    async with AsyncExitStack() as stack:
        stack.enter_context(bind(run=settings.run))
        engine = await stack.enter_async_context(
            opened(
                settings.database_url,
                Role.TRAINER,
                size=2,
                name="penstock-trainer",
                patience_s=timeouts().pool_start_s,
            )
        )
        run = await wait_for_run(engine, settings.run)
        config = effective(run.config, settings.process_keys)
        check_config(config)
        stack.enter_context(use(config.timeouts))
        root = settings.policies / run.name
        stack.enter_context(only_trainer(root))
        learners = await all_ranks(stack, settings, config) if settings.place else None
        trainer = Trainer(engine, run, config=config, root=root, subject=settings.subject, learners=learners)
        await stack.enter_async_context(send_heartbeats(engine, run.run_id))
        loop = stack.enter_context(track_loop("train", forever=False))
        loop.busy("the newest version", on="disk", within=LOAD_S)
        await trainer.resume()
        await train_batches(trainer, settings.train_steps, retry=settings.retry)


async def all_ranks(stack: AsyncExitStack, settings: TrainerSettings, config: Config) -> Learners:
    """The learners of all ranks together. The ranks meet first and end with `stack`."""
    from trainer.ranks.learner import LeadingLearners
    from trainer.ranks.rendezvous import leading  # loads torch.distributed

    assert settings.place is not None
    rendezvous = leading(settings.place, config, settings.arguments)
    ranks, orders = await anyio.to_thread.run_sync(rendezvous.__enter__, abandon_on_cancel=True)
    stack.push(rendezvous)
    log.info("ranks.joined", ranks=ranks.size, device=str(ranks.device))
    return LeadingLearners(ranks, orders)


async def wait_for_run(engine: AsyncEngine, name: str) -> StoredRun:
    """Wait for the run's row and return it. Another process creates it at the start of the run."""
    waiting = False
    while True:
        run = await transact(engine, lambda connection: find_run(connection, name), at="trainer.read")
        if run is not None:
            return run
        if not waiting:
            log.info("trainer.waiting", reason=f"run {name!r} does not exist in this database yet")
            waiting = True
        await anyio.sleep(POLL_S)


def check_config(config: Config) -> None:
    """Raise ConfigurationError for settings with which no batch could be trained."""
    if fault := config.sampling.untrainable or config.trainer.untrainable:
        raise ConfigurationError(fault)
    bounded = config.trainer.loss in RATIO_BOUNDS
    if bounded and config.trainer.anchor == Anchor.PROXIMAL and config.trainer.parts == 1:
        log.warning(
            "trainer.ratio_is_one",
            reason="the anchor is the trainer before the batch, and a batch is one train step: ratio bounds do nothing",
            advice="begin a new run with trainer.parts = 2 or more, or trainer.anchor = 'behavior'",
        )


async def train_batches(trainer: Trainer, train_steps: int = 0, *, retry: bool = False) -> None:
    """Claim, train, save, commit, until nothing is left or `train_steps` are done. Raises Halted."""
    done = 0
    late_seconds: dict[str, float] = {}  # seconds of the batch before that came after its report
    metrics = measured(TrainerMetrics)
    await trainer.prune()  # a crash may have prevented it
    if not retry:
        await halt_if_hopeless(trainer)
    while True:
        with collect() as count:
            began = anyio.current_time()
            with phase("claim"):
                batch = await trainer.claim()
            if batch is NoBatch.RUN_ENDED:
                log.info("trainer.done", train_steps=done)
                return
            if batch is NoBatch.REWOUND:
                log.info("trainer.rewound")
                await trainer.resume()
                continue
            if isinstance(batch, NoBatch):
                current().idle("ready groups")
                metrics.version.set(trainer.learner.version)
                await anyio.sleep(POLL_S)
                metrics.phase_s.labels("wait").inc(anyio.current_time() - began)
                continue
            current().busy(f"batch {batch.batch_no}")
            with bind(batch=batch.batch_no):
                log.info("batch.claimed", groups=batch.taken)
                outcome = await train_or_count(trainer, batch, count, late_seconds)
                if outcome is None:
                    current().busy("the newest version", on="disk", within=LOAD_S)
                    await trainer.resume()
                    continue
                reports, committed = outcome
                if committed:
                    with phase("prune"):
                        await trainer.prune()
                late_seconds = {
                    phase: count.seconds[phase] for phase in ("commit", "prune") if phase in count.seconds
                }
                metrics.spent(count.seconds)
                if not committed:
                    await trainer.resume()
                    continue
                metrics.version.set(trainer.learner.version)
        done += len(reports)
        if train_steps and done >= train_steps:
            log.info("trainer.done", train_steps=done)
            return


async def train_or_count(
    trainer: Trainer, batch: LiveBatch, count: Count, late_seconds: dict[str, float]
) -> tuple[list[dict[str, Any]], bool] | None:
    """`train_batch`. None: the batch failed, and that is in its history. The error, whose frames hold the failed step's tensors, ends here, before
    the checkpoint is loaded again. Raises Halted."""
    try:
        return await train_batch(trainer, batch, count, late_seconds)
    except Exception as error:  # noqa: BLE001  # counted and logged: one batch can end only itself
        if isinstance(error, BadBatch):
            quarantined = await trainer.quarantine(batch, str(error))
        else:
            quarantined = await trainer.failed(batch, error)
    if quarantined:  # a batch that is tried again makes nothing worse
        await halt_if_hopeless(trainer)
    return None


async def train_batch(
    trainer: Trainer, batch: LiveBatch, count: Count, late_seconds: dict[str, float]
) -> tuple[list[dict[str, Any]], bool]:
    """Read, train, save and commit one batch: the reports of its train steps, and whether it is committed (`Trainer.commit`)."""
    with phase("read"):
        parts = await trainer.read(batch)
    reports = await trainer.train(batch, parts)
    with phase("save"):
        new = await trainer.save(batch)
    reports[-1]["seconds"] |= count.seconds | late_seconds
    reports[-1]["checkpoint"] = trainer.learner.saved()
    current().busy(f"the commit of batch {batch.batch_no}")
    with phase("commit"):
        committed = await trainer.commit(batch, new, reports)
    return reports, committed


async def halt_if_hopeless(trainer: Trainer) -> None:
    """Raise Halted if the last batches, restarts included, were all bad."""
    bad = await trainer.bad_in_a_row()
    if bad >= BAD_BATCHES:
        raise Halted(
            f"the last {bad} batches had to be quarantined, so the trainer halts: look for batch.quarantined in its log, "
            f"then let it continue: `penstock run retry{option_of(trainer.root)}`"
        )
