"""The record of an attempt while it runs, and the result that a runner sends of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from scaffolds.base import Scaffold

from orchestrator.bus import subjects
from orchestrator.bus.base import Outgoing
from orchestrator.contracts.events import ArtifactFile, RolloutFinished, ToolCallTimed, encode
from orchestrator.contracts.limits import MAX_SYSTEM
from orchestrator.contracts.quote import cut_to
from orchestrator.gateway_client import Seal
from orchestrator.pool.leases import Lease
from orchestrator.pool.settled import MessageKey, MessageKind
from orchestrator.rewards.speed import at_least_shortest
from orchestrator.runner.clocks import Clocks
from orchestrator.runner.gateways import KnownGateway
from orchestrator.runner.outcome import AttemptOutcome
from orchestrator.runner.oversize import readable
from orchestrator.runtime.log import get
from orchestrator.tasks.artifact_blobs import NONE, Carried
from sandboxes.base import ArtifactLimits

log = get(__name__)


@dataclass(slots=True, kw_only=True)
class AttemptRecord:
    """Data gathered by an attempt so far, independent of its end, and its gateway."""

    gateway: KnownGateway
    scaffold: Scaffold | None = None
    opened: bool = False
    queued_s: float = 0.0  # opening the session and the sandbox
    clocks: Clocks | None = None
    tool_calls: list[ToolCallTimed] = field(default_factory=list)
    artifacts: list[ArtifactFile] = field(default_factory=list)
    left: Carried = NONE
    system: str | None = None  # of its sandbox


def key_of(lease: Lease) -> dict[str, int]:
    """The session of a lease, as the gateway's admin API names it."""
    return {"rollout": lease.rollout_id, "attempt": lease.attempt, "epoch": lease.epoch}


def result_of(
    run: str,
    lease: Lease,
    outcome: AttemptOutcome,
    seal: Seal | None,
    record: AttemptRecord,
    spent: Mapping[str, float],
    limits: ArtifactLimits,
) -> Outgoing:
    """The message that ends an attempt. `spent`: seconds by phase; `limits`: what the reader lets cross."""
    event = readable(_finished(run, lease, outcome, seal, record, spent), record.artifacts, limits)
    log.info(
        "rollout.finished",
        failure=event.failure_class,
        reason=event.reason,
        steps=event.steps,
        agent_s=round(event.agent_s, 3),
        queued_s=round(event.queued_s, 3),
        spent={phase: round(seconds, 3) for phase, seconds in spent.items()},
    )
    return Outgoing(
        subject=subjects.results_rollout(run),
        msg_id=str(
            MessageKey(rollout_id=lease.rollout_id, epoch=lease.epoch, idx=0, kind=MessageKind.RESULT)
        ),
        schema=RolloutFinished.schema(),
        body=encode(event),
    )


def _finished(
    run: str,
    lease: Lease,
    outcome: AttemptOutcome,
    seal: Seal | None,
    record: AttemptRecord,
    spent: Mapping[str, float],
) -> RolloutFinished:
    clocks = record.clocks
    waited = clocks.waiting_s if clocks is not None else 0.0
    own_s = clocks.own_s if clocks is not None else 0.0
    manifest = record.scaffold.manifest if record.scaffold is not None else None
    left = NONE if outcome.infra or outcome.ungradable else record.left
    return RolloutFinished(
        run=run,
        rollout=lease.rollout_id,
        attempt=lease.attempt,
        epoch=lease.epoch,
        failure_class=outcome.failure,
        reason=outcome.reason,
        steps=seal.steps if seal else 0,
        last_idx=seal.last_idx if seal else -1,
        digest=seal.digest if seal else None,
        marks=list(seal.marks) if seal else [],
        answer=outcome.answer,
        artifacts=left.listed,
        listing=left.listing,
        tool_calls=record.tool_calls,
        log=outcome.log,
        agent_s=at_least_shortest(own_s),
        queued_s=record.queued_s + waited,
        scaffold=lease.scaffold,
        scaffold_version=manifest.version if manifest else None,
        scaffold_sha=manifest.sha if manifest else None,
        resumable=outcome.resumable and manifest is not None and manifest.replayable,
        replay=outcome.replay,
        replayed=seal.replayed if seal else 0,
        ungradable=None if outcome.infra else outcome.ungradable,
        generation_s=clocks.generation_s + clocks.replayed_s if clocks is not None else None,
        waiting_s=clocks.waiting_s if clocks is not None else None,
        system=None if record.system is None else cut_to(record.system, MAX_SYSTEM),
        spent={phase: round(seconds, 6) for phase, seconds in spent.items()},
    )
