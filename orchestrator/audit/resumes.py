"""Resumes: an attempt continues under another lease only if a row allows it, after its last recorded step, and counts only if its replay
matched."""

from orchestrator.audit.statement import Statement

RESUMES = (
    # A resume is a re-lease: the transaction that writes its row also raises the rollout's epoch to it.
    Statement(
        invariant="I5",
        name="resumes are re-leases of their attempt",
        examined="resumes where run_id = :run",
        broken="""select m.rollout_id, m.attempt, m.epoch, r.attempt as current_attempt, r.lease_epoch from resumes m
             left join rollouts r on r.rollout_id = m.rollout_id and r.run_id = m.run_id
            where m.run_id = :run and (r.rollout_id is null or m.epoch < 2 or m.epoch > r.lease_epoch or m.attempt > r.attempt)""",
        says="the resume of rollout {rollout_id}, attempt {attempt}, has epoch {epoch}, but the rollout is at attempt {current_attempt}, "
        "epoch {lease_epoch}",
    ),
    # A rollout that kills its runner every time must end. Resumes of work that a stopping runner gave back do not count.
    Statement(
        invariant="I5",
        name="resumes are bounded",
        examined="resumes where run_id = :run",
        broken="""select m.rollout_id, count(*) as resumed, min(b.most) as most from resumes m,
                  (select coalesce((config -> 'rollout' ->> 'max_resumes')::int, 3) as most from runs where run_id = :run) b
            where m.run_id = :run and not m.given_back
            group by m.rollout_id having count(*) > min(b.most)""",
        says="rollout {rollout_id} was resumed {resumed} times, {most} are allowed",
    ),
    # Fencing: an attempt may continue under a later epoch than its first only after a resume.
    Statement(
        invariant="I5",
        name="attempts change their epoch by a resume",
        examined="steps where run_id = :run",
        broken="""select s.rollout_id, s.attempt, s.epoch, s.steps from (
             select rollout_id, attempt, epoch, count(*) as steps, min(epoch) over (partition by rollout_id, attempt) as first
               from steps where run_id = :run group by rollout_id, attempt, epoch) s
             left join resumes m on m.rollout_id = s.rollout_id and m.attempt = s.attempt and m.epoch = s.epoch
            where s.epoch > s.first and m.rollout_id is null""",
        says="{steps} steps of rollout {rollout_id}, attempt {attempt}, are of epoch {epoch}, under which it was not resumed",
    ),
    # Recorded steps stay and are not generated again: steps after a resume have the indices after them.
    Statement(
        invariant="I3",
        name="resumed attempts go on after their recorded steps",
        examined="resumes where run_id = :run",
        broken="""select s.rollout_id, s.attempt, s.idx, s.epoch, m.steps, m.epoch as resumed from resumes m
             join steps s on s.run_id = m.run_id and s.rollout_id = m.rollout_id and s.attempt = m.attempt
            where m.run_id = :run and (s.idx < m.steps) <> (s.epoch < m.epoch)""",
        says="step {rollout_id}:{attempt}:{idx} is of epoch {epoch}, but the attempt was resumed after {steps} steps under epoch {resumed}",
    ),
    # The scaffold of a rewarded trajectory went through it from beginning to end.
    Statement(
        invariant="I3",
        name="attempts that count did not part from their record",
        examined="resumes where run_id = :run",
        broken="""select m.rollout_id, m.attempt, m.epoch, m.replay from rollouts r
             join attempts a on a.rollout_id = r.rollout_id and a.attempt = r.attempt
             join resumes m on m.rollout_id = r.rollout_id and m.attempt = r.attempt
            where r.run_id = :run and r.state in ('finished', 'verifying', 'verified')
              and (m.replay = 'diverged' or (m.epoch = a.epoch and m.replay is distinct from 'continued'))""",
        says="rollout {rollout_id} counts with attempt {attempt}, whose resume under epoch {epoch} is {replay}",
    ),
)
