"""I1: every accepted task ends in exactly one terminal state: trained, scored, filtered (reason) or dead (reason)."""

from orchestrator.audit.snapshot import Snapshot
from orchestrator.audit.statement import Statement, at_the_end


def _ledger(snapshot: Snapshot) -> str | None:
    return "no ledger was given" if snapshot.outside.ledger is None else at_the_end(snapshot)


ACCEPTED = (
    # Each submitter was promised an answer, and the answer is a row. While the run is live, the message may still be on the bus.
    Statement(
        invariant="I1",
        name="submissions of the ledger are answered",
        examined="unnest(cast(:ledger as text[])) as l(submission)",
        broken="""select l.submission from unnest(cast(:ledger as text[])) as l(submission)
             left join submissions s on s.run_id = :run and s.submission = l.submission
            where s.submission is null""",
        says="submission {submission} is in the ledger, but has no answer: it was lost",
        skip=_ledger,
    ),
    # The submission's row and its group are written in one transaction: one without the other is a task without a state.
    Statement(
        invariant="I1",
        name="accepted submissions have a group",
        examined="submissions where run_id = :run and status = 'accepted'",
        broken="""select s.submission, s.at from submissions s left join groups g on g.run_id = s.run_id and g.submission = s.submission
            where s.run_id = :run and s.status = 'accepted' and g.group_id is null""",
        says="submission {submission} was accepted, but has no group",
    ),
    Statement(
        invariant="I1",
        name="groups were accepted",
        examined="groups where run_id = :run",
        broken="""select g.group_id, g.submission, s.status
             from groups g left join submissions s on s.run_id = g.run_id and s.submission = g.submission
            where g.run_id = :run and s.status is distinct from 'accepted'""",
        says="group {group_id} exists, but its submission {submission} was not accepted (status: {status})",
    ),
    Statement(
        invariant="I1",
        name="rejections have a reason",
        examined="submissions where run_id = :run and status = 'rejected'",
        broken="""select submission from submissions
            where run_id = :run and status = 'rejected' and coalesce(btrim(reason), '') = ''""",
        says="submission {submission} was rejected without a reason",
    ),
    # A run ends when its last training group is terminal. Evaluations may come later, while an orchestrator is there to work on them.
    Statement(
        invariant="I1",
        name="groups of an ended run are terminal",
        examined="groups where run_id = :run",
        broken="""select group_id, submission, purpose, state from groups
            where run_id = :run and state <> all(cast(:final as text[])) and (purpose = 'train' or :all_groups)""",
        says="the run has ended, but group {group_id} (submission {submission}) is still {state}",
        skip=at_the_end,
    ),
    # Exactly one: a group in a terminal state may enter another only after a rewind took it out of the first.
    Statement(
        invariant="I1",
        name="terminal states are entered once",
        examined="transitions where run_id = :run and kind = 'group'",
        broken="""select entity_id as group_id, array_agg(transition_id order by transition_id) as transitions,
                  array_agg(to_state order by transition_id) as states
             from transitions where run_id = :run and kind = 'group'
            group by entity_id
           having count(*) filter (where to_state = any(cast(:final as text[])))
                - count(*) filter (where from_state = any(cast(:final as text[]))) > 1""",
        says="group {group_id} ended more than once: its states were {states}",
    ),
    # A group's state follows from its members: it is concluded in the transaction that ends the last one, and cancelled together with them.
    Statement(
        invariant="I1",
        name="states of groups follow from their rollouts",
        examined="groups where run_id = :run",
        broken="""select * from (
             select g.group_id, g.state, m.members, m.unfinished, m.verified,
                    case when m.members <> g.size then 'has ' || m.members || ' rollouts, not ' || g.size
                         when g.state = 'accepted' and m.waiting < g.size then 'is accepted, but its rollouts have started'
                         when g.state = 'dispatched' and m.waiting > 0 then 'is dispatched, but ' || m.waiting || ' of its rollouts wait for that'
                         when g.state = 'dispatched' and m.unfinished = 0 then 'is still dispatched, but all its rollouts have ended: it hangs'
                         when g.state not in ('accepted', 'dispatched') and m.unfinished > 0
                              then 'is ' || g.state || ', but ' || m.unfinished || ' of its rollouts have not ended'
                         when g.state in ('ready', 'taken', 'trained', 'scored') and m.verified = 0
                              then 'is ' || g.state || ', but none of its rollouts has a verdict'
                         when g.state = 'dead' and m.poison < g.size then 'is dead, but not all of its rollouts are poison or without a verdict'
                    end as problem
               from groups g
               left join lateral (
                 select count(*) as members, count(*) filter (where r.state = 'waiting') as waiting,
                        count(*) filter (where r.state not in ('verified', 'lost')) as unfinished,
                        count(*) filter (where r.state = 'verified') as verified,
                        count(*) filter (where r.state = 'lost' and r.failure_class in ('poison', 'verifier_failure')) as poison
                   from rollouts r where r.group_id = g.group_id) m on true
              where g.run_id = :run) g where problem is not null""",
        says="group {group_id} {problem}",
    ),
    # Filtered and dead need a reason; without it, it is unknown why the task was not trained.
    Statement(
        invariant="I1",
        name="filtered and dead groups have a reason",
        examined="groups where run_id = :run and state in ('filtered', 'dead')",
        broken="""select group_id, state, reason from groups
            where run_id = :run and ((state = 'filtered' and (reason = any(cast(:filters as text[]))) is not true)
                                  or (state = 'dead' and coalesce(btrim(reason), '') = ''))""",
        says="group {group_id} is {state} without a reason that is known (reason: {reason!r})",
    ),
    Statement(
        invariant="I1",
        name="lost rollouts have a failure class and a reason",
        examined="rollouts where run_id = :run and state = 'lost'",
        broken="""select rollout_id, group_id, failure_class, reason from rollouts
            where run_id = :run and state = 'lost' and (failure_class is null or coalesce(btrim(reason), '') = '')""",
        says="rollout {rollout_id} is lost without a failure class and a reason",
    ),
    Statement(
        invariant="I1",
        name="dead letters have a reason",
        examined="dead_letters where run_id = :run",
        broken="""select dead_letter_id, stream, subject from dead_letters
            where run_id = :run and coalesce(btrim(reason), '') = ''""",
        says="dead letter {dead_letter_id} ({subject}) has no reason",
    ),
)
