"""The contents of top as rows of text: for the terminal's tables and for a single print."""

from collections.abc import Iterator, Sequence

from orchestrator.queries.queue import Mix
from orchestrator.runtime.figures import short_age, sparkline
from orchestrator.top.picture import LEGEND, picture
from orchestrator.top.snapshot import Snapshot

ROLLOUTS = (
    "rollout",
    "group",
    "seq",
    "domain",
    "scaffold",
    "state",
    "for",
    "try",
    "steps",
    "tokens",
    "version",
    "last step",
    "worker",
)
SERVERS = ("rollout server", "state", "version", "gateway", "detail")
PROCESSES = ("process", "host", "last seen", "works on")
MIX = ("domain", "offered", "served", "wait")


def worker(owner: str | None) -> str:
    """The name of a lease's owner without its host and directory."""
    return "" if owner is None else owner.rpartition(":")[2].rpartition("/")[2]


def rollouts(found: Snapshot) -> list[Sequence[str]]:
    """The active rollouts, longest in their state first."""
    return [
        (
            str(r.rollout_id),
            str(r.group_id),
            "" if r.seq is None else str(r.seq),
            r.domain,
            r.scaffold,
            r.state,
            short_age(r.for_s),
            str(r.attempt),
            str(r.steps),
            str(r.action_tokens),
            "" if r.version is None else str(r.version),
            short_age(r.last_step_s),
            worker(r.owner),
        )
        for r in found.work.rollouts
    ]


def servers(found: Snapshot) -> list[Sequence[str]]:
    """The rollout servers, with expired leases marked."""
    rows: list[Sequence[str]] = []
    for s in found.work.servers:
        lease_note = "its gateway's lease has run out" if s.lease_s is not None and s.lease_s < 0 else ""
        drain_note = "drains: no new calls" if s.draining else ""
        problems = "; ".join(part for part in (drain_note, s.detail or "", lease_note) if part)
        rows.append((s.url, s.state, "" if s.version is None else str(s.version), worker(s.owner), problems))
    return rows


def processes(found: Snapshot) -> list[Sequence[str]]:
    """The processes and their current work, hanging ones first."""
    rows: list[Sequence[str]] = []
    for p in found.work.processes:
        last_report = "stopped" if p.stopped else f"{short_age(p.silent_s)} ago"
        stuck = f"HANGS for {short_age(p.stuck_s)}; " if p.stuck_s else ""
        left = f"drains, {p.left} left; " if p.left else "drains; " if p.left is None else "drained; "
        state = stuck + (left if p.draining else "")
        rows.append((p.name, p.host, last_report, state + ("; ".join(p.busy[:3]) if not p.stopped else "")))
    return rows


def mix(found: Snapshot) -> list[Sequence[str]]:
    """The mix of domains: share of the stage, share of the latest positions, groups that wait."""
    served = sum(each.served for each in found.queue.mix) or 1
    return [_mixed(each, served) for each in found.queue.mix]


def _mixed(each: Mix, served: int) -> Sequence[str]:
    return each.domain, f"{each.share:.0%}", f"{each.served / served:.0%}", str(each.waiting)


def trainer(found: Snapshot) -> str:
    """The trainer's newest version, its last train step and that step's metrics."""
    t = found.work.trainer
    if t.train_step is None:
        return "no train step yet" if t.version is None else f"version {t.version}, no train step yet"
    names = ("loss", "reward", "performance", "entropy", "clip_fraction", "merge_ratio")
    figures = " ".join(
        f"{name} {t.metrics[name]:.3g}" for name in names if isinstance(t.metrics.get(name), int | float)
    )
    return f"version {t.version}, train step {t.train_step} of batch {t.batch_no}, {short_age(t.since_s)} ago: {figures}"


def head_line(found: Snapshot) -> str:
    """The counts of the run in one line."""
    q = found.queue
    states = ", ".join(f"{n} {state}" for state, n in found.work.states.items()) or "none"
    batch = (
        ""
        if q.open_batch is None
        else f"; batch {q.open_batch} has {q.open_batch_taken} of {q.batch_groups} groups"
    )
    head = "nothing is open" if q.head is None else f"head {q.head}, window {q.window}"
    return f"{q.outstanding} of {q.capacity} positions outstanding, {head}{batch}; rollouts: {states}"


def whole(found: Snapshot, width: int) -> Iterator[str | tuple[Sequence[str], list[Sequence[str]]]]:
    """The whole view: lines, and (columns, rows) of tables."""
    yield f"run {found.run!r} is {found.queue.status.state}. {found.queue.status.why}"
    if found.queue.status.no_signal:
        yield f"no signal: {found.queue.status.no_signal}"
    if found.queue.status.without_verdict:
        yield f"no verdict: {found.queue.status.without_verdict}"
    yield head_line(found)
    drawn = picture(found.queue, width)
    if drawn.cells:
        yield f"positions {drawn.first} to {drawn.last}"
        yield drawn.cells
        if drawn.below:
            yield drawn.below
        yield LEGEND
    yield trainer(found)
    if found.work.trainer.performances:
        yield f"performance of the last train steps: |{sparkline(found.work.trainer.performances[::-1])}|"
    for columns, rows in (
        (ROLLOUTS, rollouts(found)),
        (SERVERS, servers(found)),
        (PROCESSES, processes(found)),
        (MIX, mix(found)),
    ):
        if rows:
            yield columns, rows
