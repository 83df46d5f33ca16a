"""I3, rewards and history: append-only means revisions without gaps, parts that still add up, pinned values that still match their
source."""

from orchestrator.audit.statement import Statement, with_trajectories


def _revisions(table: str, thing: str) -> Statement:
    # Revisions are 1, 2, 3 …: a gap is a deleted row.
    return Statement(
        invariant="I3",
        name=f"{table} are append-only",
        examined=f"{table} where run_id = :run",
        broken=f"""select rollout_id, array_agg(revision order by revision) as revisions from {table} where run_id = :run
             group by rollout_id having min(revision) <> 1 or max(revision) <> count(*)""",
        says=f"rollout {{rollout_id}} has {thing} of revisions {{revisions}}: one is missing",
    )


# The current state of an entity equals the last state of its history: the same transaction writes both.
_CURRENT = """select kind, entity_id, state, last_state from (
      select 'group' as kind, g.group_id as entity_id, g.state from groups g where g.run_id = :run
      union all select 'rollout', r.rollout_id, r.state from rollouts r where r.run_id = :run
      union all select 'batch', b.batch_id, b.state from batches b where b.run_id = :run
      union all select 'run', n.run_id, n.state from runs n where n.run_id = :run) now_it_is
    left join (select distinct on (kind, entity_id) kind, entity_id, to_state as last_state from transitions
                where run_id = :run order by kind, entity_id, transition_id desc) history using (kind, entity_id)
   where state is distinct from last_state"""

RECORDS = (
    # Only unneeded data may be dropped: the run has ended, and so has all work submitted to it later.
    Statement(
        invariant="I3",
        name="pruned runs are over",
        examined="runs where run_id = :run and pruned is not null",
        broken="""select n.state, (select count(*) from groups g where g.run_id = n.run_id and not g.done) as open_groups,
                  (select count(*) from batches b where b.run_id = n.run_id and b.state in ('open', 'closed')) as open_batches
             from runs n where n.run_id = :run and n.pruned is not null
              and (n.state <> 'ended' or exists (select 1 from groups g where g.run_id = n.run_id and not g.done)
                   or exists (select 1 from batches b where b.run_id = n.run_id and b.state in ('open', 'closed')))""",
        says="the run's steps were pruned, but it is {state}, with {open_groups} open groups and {open_batches} batches to train",
    ),
    # Prompts are content-addressed: every prompt's sha was computed from these ids.
    Statement(
        invariant="I3",
        name="digests of prompts",
        examined="prompts where run_id = :run",
        broken="select sha as prompt, n from prompts where run_id = :run and sha <> sha256(ids)",
        says="a prompt of {n} ids is not the one that was recorded: its sha does not match its ids",
        skip=with_trajectories,
    ),
    # trajectory.routes.routes_sha, in SQL.
    Statement(
        invariant="I3",
        name="digests of routes",
        examined="step_routes where run_id = :run",
        broken="""select e.rollout_id, e.attempt, e.idx, s.idx is null as of_no_step from step_routes e
             left join steps s on (s.run_id, s.rollout_id, s.attempt, s.idx) = (e.run_id, e.rollout_id, e.attempt, e.idx)
            where e.run_id = :run
              and (s.idx is null or e.sha <> sha256(s.chain_sha || int4send(e.start) || int4send(e.layers) || int4send(e.top_k)
                                                     || int4send(e.width) || e.routes)
                   or e.start + length(e.routes) / (e.layers::integer * e.top_k * e.width) >= s.full_len)""",
        says="step {rollout_id}:{attempt}:{idx} has other routes than when they were recorded, or is none (of no step: {of_no_step})",
        skip=with_trajectories,
    ),
    # One float per action token, for a step of a rollout that the batch trained. A voided batch keeps its trainer logprobs.
    Statement(
        invariant="I3",
        name="trainer logprobs are of what was trained",
        examined="trained_steps where run_id = :run",
        broken="""select t.rollout_id, t.attempt, t.idx, b.batch_no, length(t.logprobs) / 4 as n, s.full_len - s.state_len as tokens
             from trained_steps t
             left join steps s on (s.run_id, s.rollout_id, s.attempt, s.idx) = (t.run_id, t.rollout_id, t.attempt, t.idx)
             left join batches b on b.batch_id = t.batch_id and b.run_id = t.run_id and b.state in ('committed', 'voided')
             left join batch_rollouts r on r.batch_id = t.batch_id and r.rollout_id = t.rollout_id and r.attempt = t.attempt
            where t.run_id = :run and (s.idx is null or b.batch_id is null or r.batch_id is null
                                       or length(t.logprobs) <> 4 * (s.full_len - s.state_len))""",
        says="step {rollout_id}:{attempt}:{idx} has {n} trainer logprobs of batch {batch_no}, for {tokens} action tokens",
        skip=with_trajectories,
    ),
    _revisions("verdicts", "verdicts"),
    _revisions("rewards", "rewards"),
    Statement(
        invariant="I3",
        name="verified rollouts have their verdict",
        examined="rollouts where run_id = :run and state = 'verified'",
        broken="""select r.rollout_id, r.attempt from rollouts r
            where r.run_id = :run and r.state = 'verified'
              and not exists (select 1 from verdicts v where v.rollout_id = r.rollout_id and v.attempt = r.attempt)""",
        says="rollout {rollout_id} is verified, but has no verdict of its attempt {attempt}",
    ),
    # A reward names its verdict and repeats its number: neither may change alone.
    Statement(
        invariant="I3",
        name="rewards are of their verdicts",
        examined="rewards where run_id = :run",
        broken="""select w.rollout_id, w.revision, w.verdict_revision, w.performance, v.reward as verdict
             from rewards w left join verdicts v on v.rollout_id = w.rollout_id and v.revision = w.verdict_revision
            where w.run_id = :run and (v.rollout_id is null or v.attempt <> w.attempt or v.reward <> w.performance)""",
        says="reward {rollout_id}/{revision} has performance {performance}, but its verdict (revision {verdict_revision}) says {verdict}",
    ),
    Statement(
        invariant="I3",
        name="rewards are the sum of their parts",
        examined="rewards where run_id = :run",
        broken="""select rollout_id, revision, total, performance + beta * speed + alpha * process as parts, advantage from rewards
            where run_id = :run and (abs(total - (performance + beta * speed + alpha * process)) > 1e-6
                                  or abs(advantage - (per_step -> 0 ->> 'advantage')::float8) > 1e-9)""",
        says="reward {rollout_id}/{revision} has total {total} and advantage {advantage}, which its parts do not give ({parts})",
    ),
    # A batch pins its rewards by revision and copies their values: the named row must still have them.
    Statement(
        invariant="I3",
        name="pinned rewards are those that they name",
        examined="batch_rollouts br join batches b on b.batch_id = br.batch_id where b.run_id = :run",
        broken="""select b.batch_no, br.rollout_id, br.reward_revision, br.advantage as pinned, w.advantage as named
             from batch_rollouts br join batches b on b.batch_id = br.batch_id
             left join rewards w on w.rollout_id = br.rollout_id and w.revision = br.reward_revision
            where b.run_id = :run
              and (w.attempt, w.baseline, w.divisor, w.advantage) is distinct from (br.attempt, br.baseline, br.divisor, br.advantage)""",
        says="batch {batch_no} pinned advantage {pinned} of rollout {rollout_id}, "
        "but reward revision {reward_revision} says {named} or has other parts",
    ),
    Statement(
        invariant="I3",
        name="histories end in the current state",
        examined="transitions where run_id = :run",
        broken=_CURRENT,
        says="{kind} {entity_id} is {state}, but its history ends with {last_state}",
    ),
    # Each change starts in the state where the previous one ended, and is a transition of the state machine.
    Statement(
        invariant="I3",
        name="histories have no gaps and no impossible changes",
        examined="transitions where run_id = :run",
        broken="""select transition_id, kind, entity_id, before, from_state, to_state from (
             select *, lag(to_state) over (partition by kind, entity_id order by transition_id) as before
               from transitions where run_id = :run) t
            where from_state is distinct from before
               or kind || ':' || coalesce(from_state, '') || '>' || to_state <> all(cast(:moves as text[]))""",
        says="{kind} {entity_id} went from {from_state} to {to_state} when it was {before} (transition {transition_id})",
    ),
)
