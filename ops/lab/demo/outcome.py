"""The demo's figures: by SQL from the data pool, checked against the ledger that was kept outside it."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import text

from ops.lab.demo.phases import Client, Evaluation
from orchestrator.audit import Report

# lost = submissions counted outside - those in a terminal state; the ids of the ledger come in as :ledger.
LOST = """select cardinality(cast(:ledger as text[])) - (
  select count(*) from submissions s left join groups g on g.run_id = s.run_id and g.submission = s.submission
   where s.run_id = :run and s.submission = any(cast(:ledger as text[])) and (s.status = 'rejected' or g.done)) as lost"""
TRAINED_TWICE = """select count(*) as trained_twice from (
  select i.group_id from batch_items i join batches b on b.batch_id = i.batch_id
   where b.run_id = :run and b.state = 'committed' and not i.voided group by 1 having count(*) > 1) twice"""
COUNTS = """select count(distinct g.group_id) as groups, count(r.rollout_id) as rollouts,
       count(r.rollout_id) filter (where g.scaffold <> 'shell') as blackbox
  from groups g left join rollouts r on r.group_id = g.group_id and r.state in ('verified', 'lost') and r.failure_class <> 'cancelled'
 where g.run_id = :run and g.purpose = 'train' and g.seq is not null"""
TOKENS = """select coalesce(sum((length(s.delta) + length(s.action)) / 4), 0)
         + (select coalesce(sum(n), 0) from prompts where run_id = :run) as stored,
       coalesce(sum(s.full_len), 0) as naive, count(*) as steps
  from steps s where s.run_id = :run"""
MERGE = """select sum((metrics->>'tokens_naive')::bigint)::float / nullif(sum((metrics->>'tokens_merged')::bigint), 0) as merge_ratio,
       count(*) as train_steps
  from train_steps t join batches b on b.batch_id = t.batch_id and b.state = 'committed' where t.run_id = :run"""
FIRST_ATTEMPT = "select extract(epoch from min(started)) from attempts where run_id = :run"
FIRST_STEP = "select extract(epoch from min(at)) from steps where run_id = :run"
# All verified training rollouts in the order of their rewards, in tenths: batches would leave out zero-signal groups.
PROGRESS = """select tenth, avg(performance) as reward from (
  select w.performance, ntile(10) over (order by w.at) as tenth from rewards w join rollouts r on r.rollout_id = w.rollout_id
    join groups g on g.group_id = r.group_id where w.run_id = :run and g.purpose = 'train') t group by 1 order by 1"""

QUESTIONS = (
    (
        "Which domain earns what, and from which scaffold?",
        "select domain, scaffold, count(*) as rollouts, round(avg(performance)::numeric, 3) as success,"
        " round(avg(process)::numeric, 3) as process, round(avg(t_agent)::numeric, 2) as seconds"
        " from reward_breakdown where purpose = 'train' group by 1, 2 order by 1, 2",
    ),
    (
        "How stale are the tokens that were trained?",
        "select staleness, sum(tokens) as tokens, round(100 * sum(tokens) / sum(sum(tokens)) over (), 1) as percent"
        " from staleness group by 1 order by 1",
    ),
    (
        "How did the groups end?",
        "select purpose, state, coalesce(left(reason, 40), '') as reason, count(*) from groups group by 1, 2, 3 order by 1, 4 desc",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    """All figures that the report prints about the run itself. `ledger`: the number of submissions that `LOST` checks."""

    run_id: int
    ledger: int
    lost: int
    trained_twice: int
    groups: int
    rollouts: int
    blackbox: int
    steps: int
    tokens_stored: int
    tokens_naive: int
    merge_ratio: float
    train_steps: int
    version: int
    checkpoint: str
    first_attempt: float  # when the first rollout started, in seconds since the epoch
    first_step: float  # when the first completion was recorded
    curve: list[tuple[int, float]]
    answers: list[tuple[str, str, list[str], list[tuple[Any, ...]]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The results of a demo: evaluations before and after, each at T = 1 and greedy; `audit` covers I1–I7."""

    before: Evaluation
    greedy_before: Evaluation
    after: Evaluation
    greedy_after: Evaluation
    run: DemoOutcome
    run_s: float
    audit: Report


async def outcome(client: Client) -> DemoOutcome:
    """Query the data pool."""
    ledger = client.ledger.read_text(encoding="utf-8").split()
    counts = (await client.rows(COUNTS))[0]
    tokens = (await client.rows(TOKENS))[0]
    merge = (await client.rows(MERGE))[0]
    newest = (
        await client.rows(
            "select version, path from policy_versions where run_id = :run and superseded_by is null order by 1 desc limit 1"
        )
    )[0]
    answers = []
    for question, statement in QUESTIONS:
        async with client.engine.connect() as connection:
            result = await connection.execute(text(statement))
            answers.append((question, statement, list(result.keys()), [tuple(row) for row in result]))
    return DemoOutcome(
        run_id=client.run_id,
        ledger=len(ledger),
        lost=int(await client.value(LOST, ledger=ledger)),
        trained_twice=int(await client.value(TRAINED_TWICE)),
        groups=counts.groups,
        rollouts=counts.rollouts,
        blackbox=counts.blackbox,
        steps=tokens.steps,
        tokens_stored=int(tokens.stored),
        tokens_naive=int(tokens.naive),
        merge_ratio=float(merge.merge_ratio or 0.0),
        train_steps=int(merge.train_steps),
        first_attempt=float(await client.value(FIRST_ATTEMPT)),
        first_step=float(await client.value(FIRST_STEP)),
        version=newest.version,
        checkpoint=newest.path,
        curve=[(int(row.tenth), float(row.reward)) for row in await client.rows(PROGRESS)],
        answers=answers,
    )
