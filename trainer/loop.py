"""The trainer process: batches in, policy versions out, until the run, the stage or the order given ends.

| produces | waits for | unblocked by |
|---|---|---|
| policy versions, metrics, free places in the queue | a batch that the window lets fill | ready groups: the orchestrator, runners |

Everything it knows lies in the data pool and in the checkpoint of the newest version; it may be killed at any instruction (phases.py).
"""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import anyio.to_thread
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.clock import clock, ticking
from orchestrator.config import Config
from orchestrator.contracts.errors import ConfigurationError, PenstockError
from orchestrator.log import bind, get
from orchestrator.metrics import measured
from orchestrator.pool.engine import Role, check_revision, open_engine
from orchestrator.pool.presence import announced
from orchestrator.pool.runs import Run, find_run
from orchestrator.pool.transact import transact
from orchestrator.progress import current, looping
from orchestrator.spent import counting, spending
from trainer.batch import BadBatch
from trainer.exclusive import only_trainer
from trainer.learner import Learners
from trainer.metrics import TrainerMetrics
from trainer.phases import Nothing, Trainer
from trainer.ranks.place import Place

log = get(__name__)

POLL_S = 0.1
BAD_BATCHES = 3
LOAD_S = 600.0  # a large model is loaded for minutes


class Halted(PenstockError):
    """Too many bad batches in a row: training on would only use up data."""


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """`policies` holds one directory per run. `train_steps`: stop after so many (whole batches), 0 = when the run ends."""

    run: str
    database_url: str
    policies: Path
    subject: str  # of PolicyPublished
    train_steps: int = 0
    retry: bool = False  # go on although the last batches were bad
    place: Place | None = None  # rank 0 of several; None: the only one
    budget: Mapping[str, int] = field(default_factory=dict)  # trainer.pack_*; not given: as the run began

    @property
    def arguments(self) -> dict[str, str]:
        """What every rank must have been started with."""
        return {"run": self.run, "policies": str(self.policies), "subject": self.subject}


async def run_trainer(settings: TrainerSettings) -> None:
    """Train until done. Raises PenstockError or ValueError, one sentence each."""
    async with AsyncExitStack() as stack:
        stack.enter_context(bind(run=settings.run))
        engine = await stack.enter_async_context(
            open_engine(
                settings.database_url,
                Role.TRAINER,
                size=2,
                name="penstock-trainer",
                patience_s=clock().pool_start_s,
            )
        )
        async with engine.connect() as connection:
            await check_revision(connection)
        run = await wait_for_run(engine, settings.run)
        run = replace(run, config=run.config | {"trainer": run.config["trainer"] | dict(settings.budget)})
        config = Config.from_json(run.config)
        check_config(config)
        stack.enter_context(ticking(config.clock))
        root = settings.policies / run.name
        stack.enter_context(only_trainer(root))
        learners = await all_ranks(stack, settings, config) if settings.place else None
        trainer = Trainer(engine, run, root, settings.subject, learners)
        await stack.enter_async_context(announced(engine, run.run_id))
        loop = stack.enter_context(looping("train", forever=False))
        loop.works("the newest version", on="disk", within=LOAD_S)
        await trainer.resume()
        await train_batches(trainer, settings.train_steps, retry=settings.retry)


async def all_ranks(stack: AsyncExitStack, settings: TrainerSettings, config: Config) -> Learners:
    """The learners of all ranks together, which meet first and end with `stack`."""
    from trainer.ranks.join import leading  # loads torch.distributed
    from trainer.ranks.learner import LeadingLearners

    assert settings.place is not None
    meeting = leading(settings.place, config, settings.arguments)
    ranks, orders = await anyio.to_thread.run_sync(meeting.__enter__, abandon_on_cancel=True)
    stack.push(meeting)
    log.info("ranks.met", ranks=ranks.size, device=str(ranks.device))
    return LeadingLearners(ranks, orders)


async def wait_for_run(engine: AsyncEngine, name: str) -> Run:
    """The run's row, which whoever starts the run makes."""
    waiting = False
    while True:
        run = await transact(engine, lambda connection: find_run(connection, name), at="trainer.read")
        if run is not None:
            return run
        if not waiting:
            log.info("trainer.waiting", reason=f"there is no run {name!r} in this database yet")
            waiting = True
        await anyio.sleep(POLL_S)


def check_config(config: Config) -> None:
    """Raise ConfigurationError for what no batch could be trained with."""
    if config.sampling.untrainable:
        raise ConfigurationError(config.sampling.untrainable)
    if config.trainer.anchor == "proximal" and config.trainer.parts == 1:
        log.warning(
            "trainer.ratio_is_one",
            reason="the anchor is the trainer before the batch, and a batch is one train step: ratio bounds do nothing",
            advice="set trainer.parts to 2 or more, or trainer.anchor to behavior",
        )


async def train_batches(trainer: Trainer, train_steps: int = 0, *, retry: bool = False) -> None:
    """Claim, train, save, commit, until nothing is left or `train_steps` are done. Raises Halted."""
    done = 0
    before: dict[str, float] = {}  # what the batch before still took when its report was written
    metrics = measured(TrainerMetrics)
    await trainer.prune()  # what a crash kept it from
    if not retry:
        await halt_if_hopeless(trainer)
    while True:
        with counting() as count:
            with spending("claim"):
                batch = await trainer.claim()
            if batch is Nothing.EVER:
                log.info("trainer.done", train_steps=done)
                return
            if batch is Nothing.REWOUND:
                log.info("trainer.rewound")
                await trainer.resume()
                continue
            if isinstance(batch, Nothing):
                current().rests("ready groups")
                metrics.version.set(trainer.learner.version)
                metrics.phase_s.labels("wait").inc(POLL_S)
                await anyio.sleep(POLL_S)
                continue
            current().works(f"batch {batch.batch_no}")
            with bind(batch=batch.batch_no):
                log.info("batch.claimed", groups=batch.taken)
                try:
                    with spending("read"):
                        parts = await trainer.read(batch)
                    reports = await trainer.train(batch, parts)
                except BadBatch as error:
                    current().works("the newest version", on="disk", within=LOAD_S)
                    await trainer.quarantine(batch, str(error))
                    await halt_if_hopeless(trainer)
                    continue
                with spending("save"):
                    new = await trainer.save(batch)
                reports[-1]["seconds"] |= count.seconds | before
                reports[-1]["checkpoint"] = trainer.learner.saved()
                current().works(f"the commit of batch {batch.batch_no}")
                with spending("commit"):
                    committed = await trainer.commit(batch, new, reports)
                if committed:
                    with spending("prune"):
                        await trainer.prune()
                before = {
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


async def halt_if_hopeless(trainer: Trainer) -> None:
    """Raise Halted when the last batches, restarts included, were all bad."""
    bad = await trainer.bad_in_a_row()
    if bad >= BAD_BATCHES:
        raise Halted(
            f"the last {bad} batches had to be quarantined, so the trainer halts: look for batch.quarantined in its log, "
            "then start it with --retry"
        )
