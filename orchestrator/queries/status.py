"""Status of a run: its unfinished work by stage, the process that blocks it, and in one sentence why it waits. The data of `penstock
status`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import BacklogStageName, RunState
from orchestrator.pool.backlog import BacklogStage, stages
from orchestrator.pool.dispatch import ended_lately
from orchestrator.pool.heartbeats import ProcessReport, present
from orchestrator.pool.runs import RUN_ENDS, StoredRun
from orchestrator.pool.stall_causes import (
    StallCause,
    eased,
    stall_causes,
    stuck,
)
from orchestrator.pool.tables import queue
from orchestrator.queries.training_signal import no_signal, without_verdict
from orchestrator.scheduling.admission import QueueSettings
from orchestrator.scheduling.breaker import BreakerSettings, halts
from orchestrator.settings.config import Config

# If nothing is stuck, stages are reported in this order: the first whose waiting blocks all later ones.
TELLING = (
    BacklogStageName.COMMIT,
    BacklogStageName.TAKE,
    BacklogStageName.DISPATCH,
    BacklogStageName.VERIFY,
    BacklogStageName.GRADE,
    BacklogStageName.RUN,
    BacklogStageName.LEASE,
    BacklogStageName.SYNC,
    BacklogStageName.PUBLISH,
    BacklogStageName.CONCLUDE,
)

_LEFT = text("SELECT count(*) FROM groups WHERE run_id = :run AND NOT done")
_HEAD = text(
    """
    SELECT g.group_id, g.seq, g.size,
           (SELECT count(*) FROM rollouts r WHERE r.group_id = g.group_id AND r.state IN ('verified', 'lost')) AS over
    FROM groups g WHERE g.run_id = :run AND NOT g.done AND g.seq IS NOT NULL AND g.state IN ('dispatched', 'ready')
    ORDER BY g.seq LIMIT 1
    """
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLine:
    """One stage with open work. `held`: why its waiting is expected; `stall_cause`: else the responsible party, as a sentence. Times in
    seconds."""

    name: str
    open: int
    item: str
    oldest_s: float
    late_s: float
    held: str
    stall_cause: str
    process: str
    loop: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """`why` is one sentence; `bad`: a person should act on it. `stuck`: every loop and process that hangs. `no_signal`: one sentence when the
    newest groups all scored alike, so that nothing trains; `without_verdict`: one about their rollouts that have none."""

    state: RunState
    why: str
    bad: bool
    stages: list[StageLine]
    stuck: list[str]
    admission_open: bool
    admission_reason: str | None
    no_signal: str | None
    without_verdict: str | None = None


async def run_status(
    connection: AsyncConnection, run: StoredRun, config: Config, settings: QueueSettings
) -> RunStatus:
    """`config`: as the run stores it; `settings`: of admission."""
    limit = config.watchdog.no_progress_s
    processes = await present(connection, run.run_id)
    found = eased(await stages(connection, run.run_id, config, settings), processes)
    cause_by_stage = stall_causes(found, processes, limit)
    row = (await connection.execute(select(queue).where(queue.c.run_id == run.run_id))).one()
    lines = [_line(stage, cause_by_stage.get(stage.name)) for stage in found if stage.open]
    stuck_sentences = stuck(processes, limit)
    reason, bad = await _why(connection, run, config, found, cause_by_stage, stuck_sentences, processes, row)
    no_signal_note = await no_signal(connection, run.run_id)
    return RunStatus(
        state=run.state,
        why=reason,
        bad=bad,
        stages=lines,
        stuck=stuck_sentences,
        admission_open=row.admission_open,
        admission_reason=row.admission_reason,
        no_signal=no_signal_note,
        without_verdict=await without_verdict(connection, run.run_id),
    )


def _line(stage: BacklogStage, stall_cause: StallCause | None) -> StageLine:
    return StageLine(
        name=stage.name,
        open=stage.open,
        item=stage.item,
        oldest_s=stage.oldest_s,
        late_s=stage.late_s,
        held=stage.held,
        stall_cause=stall_cause.sentence if stall_cause else "",
        process=stall_cause.process if stall_cause else "",
        loop=stall_cause.loop if stall_cause else "",
    )


async def _why(
    connection: AsyncConnection,
    run: StoredRun,
    config: Config,
    found: Sequence[BacklogStage],
    blamed: dict[str, StallCause],
    hanging: Sequence[str],
    processes: Sequence[ProcessReport],
    row: Row[Any],
) -> tuple[str, bool]:
    if run.state is RunState.ENDED:
        reason = (row.admission_reason or "").removeprefix(RUN_ENDS)
        return f"The run has ended{': ' + reason if reason else ''}.", False
    if blamed:
        longest = max(blamed.values(), key=lambda stall_cause: stall_cause.seconds)
        return f"It is stuck at {longest.stage.name}: {longest.sentence}.", True
    if hanging:
        return f"{hanging[0][0].upper()}{hanging[0][1:]}.", True
    alive = [process for process in processes if not process.stopped]
    if run.state is RunState.ENDING:
        left = await connection.scalar(_LEFT, {"run": run.run_id})
        return f"The run is ending: {left} of its groups are still open.", False
    breaker = BreakerSettings(
        config.queue.breaker_rate, config.queue.breaker_attempts, config.queue.breaker_window_s
    )
    ended, failed = await ended_lately(connection, run.run_id, breaker.window_s)
    if halts(ended, failed, breaker):
        return (
            f"The circuit breaker is open: {failed} of the last {ended} attempts failed for the platform's sake, so nothing is dispatched.",
            True,
        )
    by_name = {stage.name: stage for stage in found if stage.open}
    if not row.admission_open:
        running = by_name[BacklogStageName.RUN].open if BacklogStageName.RUN in by_name else 0
        left = f"{running} rollouts still run" if running else "nothing runs any more"
        return f"Admission is {row.admission_reason or 'closed'}; {left}.", False
    if by_name and not alive:
        return "No process of this run lives: start them with `penstock up`.", True
    if not by_name:
        return "Nothing is unfinished: the run waits for tasks (`penstock tasks publish`).", False
    if (take := by_name.get(BacklogStageName.TAKE)) is not None and take.waits_for_head:
        return await _head(connection, run.run_id, take), False
    stage = next((by_name[name] for name in TELLING if name in by_name), next(iter(by_name.values())))
    return _sentence(stage), False


_WORDS = {  # singular, plural
    BacklogStageName.DISPATCH: (
        "an accepted group waits for dispatch",
        "{n} accepted groups wait for dispatch",
    ),
    BacklogStageName.LEASE: ("{item} waits for a runner", "{n} rollouts wait for a runner"),
    BacklogStageName.RUN: ("{item} runs", "{n} rollouts run"),
    BacklogStageName.SETTLE: ("{item} waits for its last steps", "{n} rollouts wait for their last steps"),
    BacklogStageName.VERIFY: (
        "{item} waits for a verifier runner",
        "{n} rollouts wait for a verifier runner",
    ),
    BacklogStageName.GRADE: ("{item} is verified", "{n} rollouts are verified"),
    BacklogStageName.REAP: ("a lease has run out", "{n} leases have run out"),
    BacklogStageName.CONCLUDE: ("{item} is about to be concluded", "{n} groups are about to be concluded"),
    BacklogStageName.TAKE: ("{item} is ready for the trainer", "{n} groups are ready for the trainer"),
    BacklogStageName.COMMIT: ("{item} is closed", "{n} batches are closed"),
    BacklogStageName.PUBLISH: ("a message waits to be published", "{n} messages wait to be published"),
    BacklogStageName.SYNC: (
        "{item} is on its way",
        "the newest version is on its way to {n} rollout servers",
    ),
}


def _sentence(stage: BacklogStage) -> str:
    sentence = _WORDS[stage.name][stage.open != 1].format(n=stage.open, item=stage.item)
    return f"{sentence[0].upper()}{sentence[1:]}{': ' + stage.held if stage.held else ''}."


async def _head(connection: AsyncConnection, run_id: int, take: BacklogStage) -> str:
    head = (await connection.execute(_HEAD, {"run": run_id})).first()
    if head is None:
        return _sentence(take)
    left = head.size - head.over
    return (
        f"{take.open} {'group is' if take.open == 1 else 'groups are'} ready, but the window waits for its head, "
        f"group {head.group_id} at position {head.seq}: "
        f"{left} of its {head.size} rollouts {'is' if left == 1 else 'are'} not over."
    )
