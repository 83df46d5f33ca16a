"""Resumes: an attempt goes on under another lease only where a row says so, from where its steps ended, and counts only if it went the same way."""

from orchestrator.audit.statement import Statement

RESUMES = (
    # A resume is a re-lease: the transaction that writes its row raises the epoch to the row's.
    Statement(
        "I5",
        "resumes are re-leases of their attempt",
        "resumes where run_id = :run",
        """select m.rollout_id, m.attempt, m.epoch, r.attempt as current_attempt, r.lease_epoch from resumes m
             left join rollouts r on r.rollout_id = m.rollout_id and r.run_id = m.run_id
            where m.run_id = :run and (r.rollout_id is null or m.epoch < 2 or m.epoch > r.lease_epoch or m.attempt > r.attempt)""",
        "the resume of rollout {rollout_id}, attempt {attempt}, has epoch {epoch}, but the rollout is at attempt {current_attempt}, "
        "epoch {lease_epoch}",
    ),
    # One that kills its runner every time must come to an end. Work that a stopping runner gave back does not count.
    Statement(
        "I5",
        "resumes are bounded",
        "resumes where run_id = :run",
        """select m.rollout_id, count(*) as resumed, min(b.most) as most from resumes m,
                  (select coalesce((config -> 'rollout' ->> 'max_resumes')::int, 3) as most from runs where run_id = :run) b
            where m.run_id = :run and not m.given_back
            group by m.rollout_id having count(*) > min(b.most)""",
        "rollout {rollout_id} was resumed {resumed} times, {most} are allowed",
    ),
    # Fencing: under another epoch than its first an attempt may only go on where it was resumed.
    Statement(
        "I5",
        "attempts change their epoch by a resume",
        "steps where run_id = :run",
        """select s.rollout_id, s.attempt, s.epoch, s.steps from (
             select rollout_id, attempt, epoch, count(*) as steps, min(epoch) over (partition by rollout_id, attempt) as first
               from steps where run_id = :run group by rollout_id, attempt, epoch) s
             left join resumes m on m.rollout_id = s.rollout_id and m.attempt = s.attempt and m.epoch = s.epoch
            where s.epoch > s.first and m.rollout_id is null""",
        "{steps} steps of rollout {rollout_id}, attempt {attempt}, are of epoch {epoch}, under which it was not resumed",
    ),
    # What is recorded stays and is not generated again: whatever comes after a resume has the numbers after it.
    Statement(
        "I3",
        "resumed attempts go on after their recorded steps",
        "resumes where run_id = :run",
        """select s.rollout_id, s.attempt, s.idx, s.epoch, m.steps, m.epoch as resumed from resumes m
             join steps s on s.run_id = m.run_id and s.rollout_id = m.rollout_id and s.attempt = m.attempt
            where m.run_id = :run and (s.idx < m.steps) <> (s.epoch < m.epoch)""",
        "step {rollout_id}:{attempt}:{idx} is of epoch {epoch}, but the attempt was resumed after {steps} steps under epoch {resumed}",
    ),
    # A trajectory that is rewarded is one that its scaffold went through from the beginning to the end.
    Statement(
        "I3",
        "attempts that count did not part from their record",
        "resumes where run_id = :run",
        """select m.rollout_id, m.attempt, m.epoch, m.replay from rollouts r join attempts a on a.rollout_id = r.rollout_id and a.attempt = r.attempt
             join resumes m on m.rollout_id = r.rollout_id and m.attempt = r.attempt
            where r.run_id = :run and r.state in ('finished', 'verifying', 'verified')
              and (m.replay = 'diverged' or (m.epoch = a.epoch and m.replay is distinct from 'continued'))""",
        "rollout {rollout_id} counts with attempt {attempt}, whose resume under epoch {epoch} is {replay}",
    ),
)
