"""I4: queue order, window and head survive any restart, because they are rows: positions, takes and the history agree."""

from orchestrator.audit.findings import Checked, Findings
from orchestrator.audit.snapshot import Snapshot
from orchestrator.audit.statement import Statement
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.states import GroupState
from orchestrator.scheduling.queue_policies import queue_policy
from orchestrator.scheduling.replay import Transition, replay

QUEUE = (
    # seq is assigned under the lock of the queue row, one by one from 0: each value below next_seq was assigned once, none above.
    Statement(
        invariant="I4",
        name="queue positions have no gaps",
        examined="groups where run_id = :run and seq is not null",
        broken="""select p.seq from queue q cross join lateral generate_series(0, q.next_seq - 1) as p(seq)
             left join groups g on g.run_id = q.run_id and g.seq = p.seq
            where q.run_id = :run and g.group_id is null""",
        says="queue position {seq} was given out, but no group has it",
    ),
    Statement(
        invariant="I4",
        name="queue positions are unique",
        examined="groups where run_id = :run and seq is not null",
        broken="""select g.seq, q.next_seq, array_agg(g.group_id order by g.group_id) as groups
             from groups g join queue q on q.run_id = g.run_id
            where g.run_id = :run and g.seq is not null
            group by g.seq, q.next_seq having count(*) > 1 or g.seq >= q.next_seq or g.seq < 0""",
        says="queue position {seq} (next: {next_seq}) is held by groups {groups}: positions are given once, in order",
    ),
    # A training group gets its position when it is dispatched and keeps it; evaluations and recordings never have one.
    Statement(
        invariant="I4",
        name="dispatched training groups, and only they, have a position",
        examined="groups where run_id = :run",
        broken="""select group_id, purpose, state, seq from groups
            where run_id = :run
              and ((purpose = 'train' and state in ('dispatched', 'ready', 'taken', 'trained') and seq is null)
                or (seq is not null and (purpose <> 'train' or state = 'accepted'))
                or (purpose = 'train') <> (state in ('ready', 'taken', 'trained')) and state in ('ready', 'taken', 'trained', 'scored'))""",
        says="group {group_id} ({purpose}) is {state} with queue position {seq}",
    ),
    # A claim starts its scan at floor_seq: an open position below it would never be taken, and would block the window forever.
    Statement(
        invariant="I4",
        name="no open position lies below the floor",
        examined="window_state where run_id = :run",
        broken="""select w.seq, w.group_id, w.state, w.head, q.floor_seq from window_state w join queue q on q.run_id = w.run_id
            where w.run_id = :run and w.state in ('dispatched', 'ready') and (w.seq < q.floor_seq or w.seq < w.head)""",
        says="group {group_id} at position {seq} is {state} below the floor ({floor_seq}) or head ({head}): it can never be taken",
    ),
    # The history is in commit order, so positions ascend with it; this check finds a changed position.
    Statement(
        invariant="I4",
        name="positions are in the order of dispatch",
        examined="transitions where run_id = :run and kind = 'group' and from_state = 'accepted' and to_state = 'dispatched' and seq is not null",
        broken="""select t.entity_id as group_id, t.transition_id, t.seq as dispatched_as, t.seq_before, g.seq
             from (select *, lag(seq) over (order by transition_id) as seq_before from transitions
                    where run_id = :run and kind = 'group' and from_state = 'accepted' and to_state = 'dispatched'
                      and seq is not null) t
             left join groups g on g.group_id = t.entity_id
            where t.seq <= t.seq_before or g.seq is distinct from t.seq""",
        says="group {group_id} was dispatched at position {dispatched_as} after {seq_before}, and has position {seq}",
    ),
)

_HISTORY = """select transition_id, seq, to_state from transitions
               where run_id = :run and kind = 'group' and seq is not null order by transition_id"""


async def takes(snapshot: Snapshot) -> Checked:
    """Replay the history of the queue through the run's configured policy: each take must be one that the policy allows."""
    findings = Findings(invariant="I4", name="takes follow the queue policy")
    queue = snapshot.config.queue
    try:
        policy = queue_policy(queue.policy, queue.capacity, queue.window_fraction)
    except ConfigurationError as unknown:
        return findings.skipped(str(unknown))
    history = [
        Transition(row.transition_id, row.seq, GroupState(row.to_state))
        for row in await snapshot.rows(_HISTORY)
    ]
    for claim in replay(history, policy):
        findings.examined += len(claim.recorded)
        if not claim.agrees:
            findings.add(
                f"positions {list(claim.recorded)} were taken when the policy {queue.policy} (window {queue.window}) allows {list(claim.derived)}",
                transition_id=claim.order,
                taken=list(claim.recorded),
                allowed=list(claim.derived),
            )
    return findings.checked()
