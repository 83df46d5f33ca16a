"""I7: an infrastructure failure never becomes a reward, and every reward is a finite number."""

from orchestrator.audit.statement import Statement

# Two columns record the outcome: the attempt's, as its runner announced it, and the rollout's, as decided.
_FAILED = """(r.failure_class in ('infra_failure', 'verifier_failure', 'poison', 'cancelled')
           or a.failure_class in ('infra_failure', 'verifier_failure', 'poison', 'cancelled'))"""
_ENDED = """left join rollouts r on r.rollout_id = w.rollout_id and r.run_id = :run
            left join attempts a on a.rollout_id = r.rollout_id and a.attempt = r.attempt"""
_NUMBERS = ("performance", "speed", "process", "alpha", "beta", "total", "baseline", "divisor", "advantage")
_NOT_FINITE = " or ".join(
    f"w.{name} in ('NaN'::float8, 'Infinity'::float8, '-Infinity'::float8)" for name in _NUMBERS
)

# After a rescore sent a rollout back, its older rewards count only in the batches that pinned them.
_STANDS = """not exists (select 1 from transitions t where t.run_id = :run and t.kind = 'rollout' and t.entity_id = w.rollout_id
                             and t.from_state = 'verified' and t.to_state = 'finished' and t.at > w.at)"""

FAILURES = (
    Statement(
        invariant="I7",
        name="infrastructure failures have no reward",
        examined="rewards where run_id = :run",
        broken=f"""select w.rollout_id, w.revision, w.attempt, w.total, coalesce(r.failure_class, a.failure_class) as failure_class,
                   a.failure_class as of_attempt from rewards w {_ENDED}
             where w.run_id = :run and {_FAILED} and {_STANDS}""",
        says="rollout {rollout_id} ended as {failure_class} (its attempt: {of_attempt}), but has a reward of {total} (revision {revision})",
    ),
    # Verified is the only end with a verdict, and the verdict belongs to the attempt that counts.
    Statement(
        invariant="I7",
        name="rewards are of verified rollouts",
        examined="rewards where run_id = :run",
        broken=f"""select w.rollout_id, w.revision, w.attempt, r.attempt as current_attempt, r.state from rewards w {_ENDED}
             where w.run_id = :run and (r.state is distinct from 'verified' or w.attempt is distinct from r.attempt) and {_STANDS}""",
        says="reward {rollout_id}/{revision} is of attempt {attempt}, but the rollout is {state} at attempt {current_attempt}",
    ),
    Statement(
        invariant="I7",
        name="infrastructure failures are in no batch",
        examined="batch_rollouts w join batches b on b.batch_id = w.batch_id where b.run_id = :run",
        broken=f"""select b.batch_no, w.rollout_id, w.advantage, coalesce(r.failure_class, a.failure_class) as failure_class
              from batch_rollouts w join batches b on b.batch_id = w.batch_id {_ENDED}
             where b.run_id = :run and b.state <> 'voided'
               and ({_FAILED} or r.state is distinct from 'verified' or w.attempt is distinct from r.attempt)""",
        says="batch {batch_no} has rollout {rollout_id} with advantage {advantage}, which ended as {failure_class}, or is another attempt",
    ),
    Statement(
        invariant="I7",
        name="rewards are finite",
        examined="rewards where run_id = :run",
        broken=f"""select w.rollout_id, w.revision, w.performance, w.total, w.advantage from rewards w
             where w.run_id = :run and ({_NOT_FINITE} or w.performance < 0 or w.performance > 1 or w.divisor <= 0)""",
        says="reward {rollout_id}/{revision} is not a valid reward: performance {performance}, total {total}, advantage {advantage}",
    ),
    Statement(
        invariant="I7",
        name="advantages of batches are finite",
        examined="batch_rollouts w join batches b on b.batch_id = w.batch_id where b.run_id = :run",
        broken="""select b.batch_no, w.rollout_id, w.baseline, w.divisor, w.advantage
             from batch_rollouts w join batches b on b.batch_id = w.batch_id
            where b.run_id = :run and 'NaN'::float8 = any(array[w.baseline, w.divisor, w.advantage, w.advantage - w.advantage])""",
        says="batch {batch_no} has rollout {rollout_id} with advantage {advantage}, which nothing can be trained with",
    ),
)
