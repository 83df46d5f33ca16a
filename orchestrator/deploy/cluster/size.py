"""The throughput of a topology for a workload, and its bottleneck: `penstock size`. Pure; ops/guides/sizing.md explains the formulas.

Rates are per second unless named; groups are dispatched groups, filtered ones included; GB are 10^9 bytes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from orchestrator.deploy.cluster.queueing import asymptotic, mean_values, parallel
from orchestrator.deploy.cluster.rehearsal import (
    Durations,
    Rehearsal,
    apart,
    rehearse,
)
from orchestrator.deploy.cluster.topology import Topology
from orchestrator.deploy.cluster.workload import Workload, product
from orchestrator.scheduling.admission import QueueSettings
from orchestrator.settings.config import Config

ROLLOUTS_REHEARSED = 20_000
NEAR = 0.01  # of a rollout's time in its slot
DAY = 86_400
CHANGES_OF_ROLLOUT, CHANGES_OF_GROUP = 6, 4
"""waiting → queued → running → reported → finished → verifying → verified; accepted → dispatched → ready → taken → trained."""
MESSAGES_OF_ROLLOUT, RELAYED_OF_ROLLOUT = 4, 2
"""RolloutAssigned, RolloutFinished, VerifyAssigned, VerdictReached; the assignments are the orchestrator's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The throughput-relevant values of a topology, or of one machine's configuration."""

    slots: int
    verify_slots: int
    servers: int  # that train
    gateways: int
    orchestrators: int
    queue: QueueSettings
    longest_over_mean: float = 1.0  # of groups
    keep_checkpoints: int = 1
    spool_mb: float = 512.0  # of each gateway
    journal_gb: float = 0.0  # of each gateway; 0: unknown
    postgres_gb: float = 0.0
    shared_gb: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """One possible bottleneck: the groups per second that it allows at most, and the used share of that. `why`: the arithmetic."""

    name: str
    most: float
    utilisation: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """The prediction. `asymptotic_*`: exact bounds of the slots' network, rollouts per second; `rollout_s`: in its slot, by mean
    value analysis."""

    binds: str
    stages: tuple[Bottleneck, ...]
    groups_h: float
    trained_groups_h: float
    rollouts: float
    completions: float
    new_tokens: float
    batch_s: float  # between two commits
    train_s: float  # of one batch in the trainer
    rollout_s: float
    asymptotic_least: float
    asymptotic_most: float
    least_in_flight: int  # N
    least_window: int  # W
    least_staleness: int  # S
    staleness: float  # mean, batches
    stalest: int
    step_rows: float
    state_changes: float
    postgres_gb_day: float
    journal_mb_s: float  # of each gateway
    outage_s: float  # outage of Postgres that the spool of a gateway can bridge
    nats_messages: float
    checkpoint_gb_h: float  # written
    checkpoint_gb_s: float  # read, so that every rollout server has a version before the next one
    gateways_needed: int
    warnings: tuple[str, ...]


def plan_of(topology: Topology) -> Plan:
    """The plan of a topology at its start (`replicas`, not `max_replicas`)."""
    config = topology.penstock
    slots = sum(pool.replicas * pool.slots for pool in topology.runners)
    return Plan(
        slots=slots,
        verify_slots=sum(pool.replicas * pool.slots for pool in topology.verifiers),
        servers=sum(pool.replicas for pool in topology.servers) - config.servers.evaluation,
        gateways=topology.gateways.replicas,
        orchestrators=topology.orchestrators.replicas,
        queue=replace(QueueSettings.of(config), running_rollouts=slots + config.queue.group_size - 1),
        longest_over_mean=topology.load.longest_over_mean,
        keep_checkpoints=config.trainer.keep_checkpoints,
        spool_mb=config.gateway.spool_mb,
        journal_gb=topology.gateways.journal_gb,
        postgres_gb=topology.postgres.store_gb,
        shared_gb=topology.shared.size_gb,
    )


def plan_of_config(config: Config) -> Plan:
    """The plan of a run's own configuration."""
    return Plan(
        slots=config.rollout.slots,
        verify_slots=config.rollout.verify_slots,
        servers=(len(config.servers.urls) or config.servers.embedded) - config.servers.evaluation,
        gateways=len(config.gateway.urls) or 1,
        orchestrators=1,
        queue=QueueSettings.of(config),
        keep_checkpoints=config.trainer.keep_checkpoints,
        spool_mb=config.gateway.spool_mb,
    )


def slot_network(plan: Plan, work: Workload) -> tuple[list[float], float]:
    """Demands and think time of one rollout in its slot, seconds. Servers: turns · new_tokens at the speed of one stream, server_tokens_s ÷
    stream_tokens_s of them at a time in each server. Gateways: CPU of a session and its calls,
    and the additional wait of a call there."""
    streams = max(1.0, plan.servers * work.server_tokens_s / work.stream_tokens_s)
    served, stays = parallel(work.turns * work.new_tokens / work.stream_tokens_s, streams)
    cpu, waits = parallel(product("session_cpu") + work.turns / product("completions_cpu"), plan.gateways)
    added = work.turns * max(0.0, product("gateway_wait") - 1 / product("completions_cpu"))
    return [served, cpu], stays + waits + added + work.overhead_s + work.turns * work.tool_s


def train_s(plan: Plan, work: Workload) -> float:
    """Seconds of one batch: fixed + P · G · tokens of a rollout ÷ tokens per second."""
    tokens = plan.queue.batch_groups * plan.queue.group_size * work.tokens_of_rollout
    return work.train_fixed_s + tokens / work.train_tokens_s


def waits(work: Workload) -> float:
    """Seconds between free capacity in the queue and a ready group in which the group is not worked on, given free slots."""
    return work.admit_s + work.dispatch_s + work.settle_s + work.conclude_s + 2 * work.report_s


def bytes_of_step(work: Workload) -> float:
    """Bytes in Postgres: 4 per added token, 8 per generated token (id and logprob), plus rows, indexes, messages and prompts."""
    tokens = 4 * work.added_tokens + 8 * work.new_tokens
    return tokens + product("step_bytes") + product("message_bytes") + product("prompt_bytes")


def rehearsed(plan: Plan, work: Workload, *, batches: int = 0, seed: int = 0) -> tuple[Rehearsal, float]:
    """The run under a fake clock; and seconds of a rollout in its slot, by mean value analysis with the rehearsal's average number of occupied
    slots. `batches` 0: enough for 20,000 rollouts, 6 to 40."""
    queue = plan.queue
    batches = batches or max(6, min(40, ROLLOUTS_REHEARSED // (queue.batch_groups * queue.group_size)))
    busy = float(customers(plan))
    while True:
        slot = slot_s(plan, work, busy)
        durations = Durations(
            slot=slot,
            verify=work.verify_s,
            train=train_s(plan, work),
            slot_cv=work.slot_cv,
            verify_cv=work.verify_cv,
            dispatch=work.dispatch_s,
            settle=work.settle_s,
            claim=work.claim_s,
            filtered=work.filtered,
            admit=work.admit_s,
            conclude=work.conclude_s,
            dispatch_cv=work.dispatch_cv,
            settle_cv=work.settle_cv,
            slot_alike=work.slot_alike,
            verify_alike=work.verify_alike,
            report=work.report_s,
        )
        run = rehearse(queue, plan.slots, plan.verify_slots, durations, batches=batches, seed=seed)
        # Fewer rollouts in slots are faster, which makes them fewer still: this converges from above.
        fewer = min(busy, max(1.0, run.slots_busy * plan.slots))
        if slot_s(plan, work, fewer) > slot * (1 - NEAR):
            return run, slot
        busy = fewer


def customers(plan: Plan) -> int:
    """The most rollouts that can hold a slot."""
    return max(1, min(plan.slots, plan.queue.places * plan.queue.group_size))


def slot_s(plan: Plan, work: Workload, busy: float) -> float:
    """Seconds of a rollout in its slot with `busy` ≥ 1 occupied slots on average; linear interpolation between whole numbers."""
    demands, think = slot_network(plan, work)
    lower = mean_values(math.floor(busy), demands, think).cycle
    upper = mean_values(math.ceil(busy), demands, think).cycle
    return lower + (upper - lower) * (busy - math.floor(busy))


def _slowest(plan: Plan, work: Workload) -> float:
    """The ratio of the slowest rollout of a group to the mean: the topology's value, but at least the bound on the mean of a maximum of G,
    1 + cv · (G − 1) ÷ √(2G − 1), with the cv of members of one group. Source: Gumbel; Hartley, David, Annals of Mathematical
    Statistics 25 (1954)."""
    members = plan.queue.group_size
    _, within = apart(work.slot_cv, work.slot_alike)
    return max(plan.longest_over_mean, 1 + within * (members - 1) / math.sqrt(2 * members - 1))


def size(plan: Plan, work: Workload) -> Sizing:
    """The prediction for a plan."""
    queue, members = plan.queue, plan.queue.group_size
    demands, think = slot_network(plan, work)
    bounds = asymptotic(customers(plan), demands, think)
    run, cycle = rehearsed(plan, work)
    trained = run.groups / run.seconds
    rollouts = run.rollouts / run.seconds
    groups = rollouts / members
    completions = rollouts * work.turns
    batch = train_s(plan, work)
    stages = tuple(_stages(plan, work, sum(demands) + think, batch, groups, run))
    binding = min(stages, key=lambda stage: stage.most)
    lowest_bound = min(stage.most for stage in stages if stage.name != "queue")
    fullest = slot_s(plan, work, customers(plan))  # the value once the queue lets all slots be full
    slowest = waits(work) + fullest * _slowest(plan, work) + work.verify_s
    minimum = max(queue.batch_groups, math.ceil(round(lowest_bound * slowest, 9)) + queue.batch_groups)
    overtaken = plan.slots / members * plan.longest_over_mean
    step = 4 * work.added_tokens + 8 * work.new_tokens
    changes = groups * (members * CHANGES_OF_ROLLOUT + CHANGES_OF_GROUP)
    # Tokens in base64.
    journal = completions * (step * 4 / 3 + product("message_bytes")) / 1e6 / plan.gateways
    commits = trained / queue.batch_groups
    found = Sizing(
        binds=binding.name,
        stages=stages,
        groups_h=groups * 3600,
        trained_groups_h=trained * 3600,
        rollouts=rollouts,
        completions=completions,
        new_tokens=completions * work.new_tokens,
        batch_s=1 / commits,
        train_s=batch,
        rollout_s=cycle,
        asymptotic_least=bounds.least,
        asymptotic_most=bounds.most,
        least_in_flight=minimum,
        least_window=max(1, math.ceil(round(overtaken - minimum, 9))),
        least_staleness=math.ceil(minimum / queue.batch_groups) - 1,
        staleness=run.staleness,
        stalest=run.stalest,
        step_rows=completions,
        state_changes=changes,
        postgres_gb_day=completions * bytes_of_step(work) * DAY / 1e9,
        journal_mb_s=journal,
        outage_s=plan.spool_mb / journal if journal else math.inf,
        nats_messages=completions + rollouts * MESSAGES_OF_ROLLOUT + groups + commits,
        checkpoint_gb_h=work.checkpoint_gb * commits * 3600,
        checkpoint_gb_s=work.checkpoint_gb * plan.servers * commits,
        gateways_needed=max(1, math.ceil(completions / product("completions_target"))),
        warnings=(),
    )
    return replace(found, warnings=tuple(_warnings(plan, work, found)))


def _stages(
    plan: Plan, work: Workload, cycle: float, batch: float, groups: float, run: Rehearsal
) -> Iterator[Bottleneck]:
    """Every possible bottleneck, in the order of a rollout's path, each as if it were the only one. `cycle`: of a rollout without waits."""
    members, queue = plan.queue.group_size, plan.queue
    calls = members * work.turns

    def stage(name: str, most: float, why: str, used: float | None = None) -> Bottleneck:
        return Bottleneck(name=name, most=most, utilisation=groups / most if used is None else used, why=why)

    places = queue.places
    minimum_s = waits(work) + cycle + work.verify_s + work.claim_s + batch
    yield stage(
        "queue",
        places / minimum_s,
        f"{places} groups in flight ÷ {minimum_s:.4g} s from room in the queue to consumed",
    )
    yield stage(
        "slots",
        plan.slots / (members * cycle),
        f"{plan.slots} slots ÷ ({members} × {cycle:.4g} s)",
        run.slots_busy,
    )
    yield stage(
        "rollout servers",
        plan.servers * work.server_tokens_s / (calls * work.new_tokens),
        f"{plan.servers} × {work.server_tokens_s:.4g} tokens/s ÷ ({members} × {work.turns:.4g} × {work.new_tokens:.4g} tokens)",
    )
    cpu = members * product("session_cpu") + calls / product("completions_cpu")
    yield stage(
        "gateways",
        plan.gateways / cpu,
        f"{plan.gateways} ÷ ({members} × {product('session_cpu'):g} + {calls:.4g} ÷ {product('completions_cpu'):g} CPU-seconds)",
    )
    yield stage(
        "verifiers",
        plan.verify_slots / (members * work.verify_s),
        f"{plan.verify_slots} slots ÷ ({members} × {work.verify_s:.4g} s)",
        run.verifiers_busy,
    )
    yield stage(
        "trainer",
        queue.batch_groups / batch / (1 - work.filtered),
        f"{queue.batch_groups} groups ÷ {batch:.4g} s ÷ {1 - work.filtered:.4g} that train",
        run.trainer_busy,
    )
    changes = members * CHANGES_OF_ROLLOUT + CHANGES_OF_GROUP
    yield stage(
        "Postgres",
        1 / (calls / product("step_rows") + changes / product("changes")),
        f"1 ÷ ({calls:.4g} ÷ {product('step_rows'):g} + {changes} ÷ {product('changes'):g} s)",
    )
    yield stage(
        "orchestrators",
        plan.orchestrators * product("relayed") / (RELAYED_OF_ROLLOUT * members),
        f"{plan.orchestrators} × {product('relayed'):g} messages/s ÷ ({RELAYED_OF_ROLLOUT} × {members})",
    )


def _warnings(plan: Plan, work: Workload, found: Sizing) -> Iterator[str]:
    """Warnings, one sentence each, with the arithmetic."""
    queue = plan.queue
    places = queue.places
    if places < found.least_in_flight:
        setting = (
            "queue.capacity"
            if queue.capacity <= places
            else f"queue.max_staleness ((S + 1) · P = {queue.max_staleness + 1} · {queue.batch_groups})"
        )
        yield (
            f"the queue lets {places} groups be in flight, and {found.least_in_flight} are needed so that nothing waits for it: raise {setting} "
            f"to {found.least_in_flight if setting == 'queue.capacity' else found.least_staleness}"
        )
    overtaken = plan.slots / queue.group_size * plan.longest_over_mean
    if queue.reach < overtaken:
        yield (
            f"min(N, (S+1)·P) + W = {places} + {queue.window} = {queue.reach:g} groups, but {plan.slots} ÷ {queue.group_size} × "
            f"{plan.longest_over_mean:g} = {overtaken:g} pass the slowest one: the window will idle the trainer"
        )
    if plan.gateways < found.gateways_needed:
        yield (
            f"{found.completions:.0f} completions/s ÷ {product('completions_target'):g} need {found.gateways_needed} gateways, and there are "
            f"{plan.gateways}"
        )
    if plan.journal_gb and plan.journal_gb * 1000 < plan.spool_mb:
        yield f"gateways.journal_gb = {plan.journal_gb:g} holds less than gateway.spool_mb = {plan.spool_mb:g}"
    if plan.postgres_gb and found.postgres_gb_day * 7 > plan.postgres_gb:
        yield (
            f"postgres.store_gb = {plan.postgres_gb:g} is full after {plan.postgres_gb / found.postgres_gb_day:.1f} days at "
            f"{found.postgres_gb_day:.1f} GB/day: raise it, or prune"
        )
    checkpoints_gb = work.checkpoint_gb * (plan.keep_checkpoints + 1)
    if plan.shared_gb and checkpoints_gb > plan.shared_gb:
        yield (
            f"(trainer.keep_checkpoints + 1) × checkpoint_gb = {plan.keep_checkpoints + 1} × {work.checkpoint_gb:g} = {checkpoints_gb:g} GB exceed "
            f"shared.size_gb = {plan.shared_gb:g}"
        )
    if not work.slot_cv:
        yield "slot_cv = 0: rollouts are taken as equally long, so what waiting for the slowest of a group costs is left out"
    for stage in found.stages:
        if stage.name != found.binds and stage.utilisation > 0.9:
            yield f"{stage.name} are at {100 * stage.utilisation:.0f} %, close to the bottleneck: {stage.why} = {stage.most:.4g} groups/s"
