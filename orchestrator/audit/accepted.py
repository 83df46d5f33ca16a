"""I1: every accepted task ends in exactly one terminal state: trained, scored, filtered (reason) or dead (reason)."""

from orchestrator.audit.snapshot import Snapshot
from orchestrator.audit.statement import Statement, at_the_end


def _ledger(snapshot: Snapshot) -> str:
    return "no ledger was given" if snapshot.outside.ledger is None else at_the_end(snapshot)


ACCEPTED = (
    # Whoever submitted was promised an answer, and the answer is a row. While the run lives, the message may still lie on the bus.
    Statement(
        "I1",
        "submissions of the ledger are answered",
        "unnest(cast(:ledger as text[])) as l(submission)",
        """select l.submission from unnest(cast(:ledger as text[])) as l(submission)
             left join submissions s on s.run_id = :run and s.submission = l.submission
            where s.submission is null""",
        "submission {submission} is in the ledger, but has no answer: it was lost",
        _ledger,
    ),
    # The submission's row and its group are written in one transaction: one without the other is a task without a state.
    Statement(
        "I1",
        "accepted submissions have a group",
        "submissions where run_id = :run and status = 'accepted'",
        """select s.submission, s.at from submissions s left join groups g on g.run_id = s.run_id and g.submission = s.submission
            where s.run_id = :run and s.status = 'accepted' and g.group_id is null""",
        "submission {submission} was accepted, but has no group",
    ),
    Statement(
        "I1",
        "groups were accepted",
        "groups where run_id = :run",
        """select g.group_id, g.submission, s.status
             from groups g left join submissions s on s.run_id = g.run_id and s.submission = g.submission
            where g.run_id = :run and s.status is distinct from 'accepted'""",
        "group {group_id} exists, but its submission {submission} was not accepted (status: {status})",
    ),
    Statement(
        "I1",
        "rejections have a reason",
        "submissions where run_id = :run and status = 'rejected'",
        """select submission from submissions
            where run_id = :run and status = 'rejected' and coalesce(btrim(reason), '') = ''""",
        "submission {submission} was rejected without a reason",
    ),
    # A run ends when its last training group is terminal. Evaluations may come later, while an orchestrator is there to work on them.
    Statement(
        "I1",
        "groups of an ended run are terminal",
        "groups where run_id = :run",
        """select group_id, submission, purpose, state from groups
            where run_id = :run and state <> all(cast(:final as text[])) and (purpose = 'train' or :everybody)""",
        "the run has ended, but group {group_id} (submission {submission}) is still {state}",
        at_the_end,
    ),
    # Exactly one: whatever enters a terminal state may enter one again only after a rewind took it out of the first.
    Statement(
        "I1",
        "terminal states are entered once",
        "transitions where run_id = :run and kind = 'group'",
        """select entity_id as group_id, array_agg(transition_id order by transition_id) as transitions,
                  array_agg(to_state order by transition_id) as states
             from transitions where run_id = :run and kind = 'group'
            group by entity_id
           having count(*) filter (where to_state = any(cast(:final as text[])))
                - count(*) filter (where from_state = any(cast(:final as text[]))) > 1""",
        "group {group_id} ended more than once: its states were {states}",
    ),
    # A group is what its members are: concluded in the transaction that ends the last one, cancelled together with them.
    Statement(
        "I1",
        "states of groups follow from their rollouts",
        "groups where run_id = :run",
        """select * from (
             select g.group_id, g.state, m.members, m.unfinished, m.verified,
                    case when m.members <> g.size then 'has ' || m.members || ' rollouts, not ' || g.size
                         when g.state = 'accepted' and m.waiting < g.size then 'is accepted, but its rollouts have begun'
                         when g.state = 'dispatched' and m.waiting > 0 then 'is dispatched, but ' || m.waiting || ' of its rollouts wait for that'
                         when g.state = 'dispatched' and m.unfinished = 0 then 'is still dispatched, but all its rollouts have ended: it hangs'
                         when g.state not in ('accepted', 'dispatched') and m.unfinished > 0
                              then 'is ' || g.state || ', but ' || m.unfinished || ' of its rollouts have not ended'
                         when g.state in ('ready', 'taken', 'trained', 'scored') and m.verified = 0
                              then 'is ' || g.state || ', but none of its rollouts has a verdict'
                         when g.state = 'dead' and m.poison < g.size then 'is dead, but not all of its rollouts are poison'
                    end as problem
               from groups g
               left join lateral (
                 select count(*) as members, count(*) filter (where r.state = 'waiting') as waiting,
                        count(*) filter (where r.state not in ('verified', 'lost')) as unfinished,
                        count(*) filter (where r.state = 'verified') as verified,
                        count(*) filter (where r.state = 'lost' and r.failure_class = 'poison') as poison
                   from rollouts r where r.group_id = g.group_id) m on true
              where g.run_id = :run) g where problem is not null""",
        "group {group_id} {problem}",
    ),
    # Filtered and dead are ends with a reason; without one nobody can say why the task was not trained.
    Statement(
        "I1",
        "filtered and dead groups have a reason",
        "groups where run_id = :run and state in ('filtered', 'dead')",
        """select group_id, state, reason from groups
            where run_id = :run and ((state = 'filtered' and (reason = any(cast(:filters as text[]))) is not true)
                                  or (state = 'dead' and coalesce(btrim(reason), '') = ''))""",
        "group {group_id} is {state} without a reason that is known (reason: {reason!r})",
    ),
    Statement(
        "I1",
        "lost rollouts have a failure class and a reason",
        "rollouts where run_id = :run and state = 'lost'",
        """select rollout_id, group_id, failure_class, reason from rollouts
            where run_id = :run and state = 'lost' and (failure_class is null or coalesce(btrim(reason), '') = '')""",
        "rollout {rollout_id} is lost without a failure class and a reason",
    ),
    Statement(
        "I1",
        "dead letters have a reason",
        "dead_letters where run_id = :run",
        """select dead_letter_id, stream, subject from dead_letters
            where run_id = :run and coalesce(btrim(reason), '') = ''""",
        "dead letter {dead_letter_id} ({subject}) has no reason",
    ),
)
