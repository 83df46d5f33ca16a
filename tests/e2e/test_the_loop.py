"""The whole loop, small: tasks in, policy versions out, and the accounts balance."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator.contracts.states import GroupState
from orchestrator.pool.batches import contents
from orchestrator.pool.transact import transact
from orchestrator.scheduling.queue_policies import queue_policy
from orchestrator.scheduling.replay import Transition, replay
from orchestrator.settings.config import load
from tests.e2e import scraped
from tests.e2e.observer import Observer, observing
from tests.e2e.stack_rig import Stack
from trainer.batch import parts_of, read_rows

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(400)]

BATCHES = 3
# The log entries of each process about a rollout that trained.
LOGGED = {
    "gateway": {"session.opened", "session.sealed"},
    "orchestrator": {"rollout.reported", "rollout.verdict", "group.concluded"},
    "runner": {"work.started", "rollout.finished"},
    "trainer": {"train_step.members"},
    "verifier": {"work.started", "verdict"},
}
LOGGED_OF_GROUP = {process: LOGGED[process] for process in ("gateway", "runner", "verifier")} | {
    "orchestrator": {"group.concluded"}
}
TRAINED_STEPS = """
select b.batch_id, s.full_len - s.state_len as action_len,
       step_ids(s.run_id, s.rollout_id, s.attempt, s.idx) as ids, step_logprobs(s.run_id, s.rollout_id, s.attempt, s.idx) as logprobs
  from batches b
  join batch_rollouts r on r.batch_id = b.batch_id
  join rewards w on w.rollout_id = r.rollout_id and w.revision = r.reward_revision
  join steps s on s.run_id = b.run_id and s.rollout_id = r.rollout_id and s.attempt = r.attempt
 where b.run_id = :run and b.state = 'committed' and (w.per_step -> s.idx ->> 'weight')::float > 0 and s.full_len > s.state_len
 order by b.batch_no, s.rollout_id, s.idx"""


async def test_the_loop_trains_and_loses_nothing(stack: Stack, model: Path) -> None:
    stack.configure(model, batches=BATCHES)
    await stack.up()
    async with observing(stack.home) as seen:
        await seen.publish(2 * BATCHES - 1)  # too few for the run to end: every process can still be queried
        await seen.until_batches(1)
        scraped.check(await scraped.scraped(stack))
        await seen.publish(15 - 2 * BATCHES)
        await seen.until_ended()
        await seen.nothing_lost()
        await check_versions(seen)
        await check_schedule(seen, stack)
        await check_tokens(seen)
        await check_times(seen)
        await check_logs(seen, stack)
    done = stack.penstock(
        "sql", "select state, count(*) as n from groups where state = 'trained' group by 1", "--json"
    )
    assert json.loads(done.stdout) == {"state": "trained", "n": 2 * BATCHES}, done
    assert stack.penstock("down").stdout == "stopped\n"
    assert (stack.left_running(), stack.sandboxes_left()) == ([], [])


async def check_logs(seen: Observer, stack: Stack) -> None:
    """One id follows a rollout through every process, to the batch that it trained in."""
    row = (
        await seen.rows(
            "select r.rollout_id, r.group_id from batch_rollouts r join batches using (batch_id) where run_id = :run limit 1"
        )
    )[0]
    for kind, number, wanted in (
        ("rollout", row.rollout_id, LOGGED),
        ("group", row.group_id, LOGGED_OF_GROUP),
    ):
        logged = scraped.followed(stack, kind, number)
        missing = {process: expected - set(logged.get(process, [])) for process, expected in wanted.items()}
        assert not any(missing.values()), (kind, missing, logged)


async def check_versions(seen: Observer) -> None:
    """One version per batch after the first, each of a whole checkpoint, the last one serving after a passed canary."""
    versions = await seen.rows(
        "select version, parent, batch_no, path from policy_versions where run_id = :run order by 1"
    )
    expected = [(0, None, None), *((n + 1, n, n) for n in range(BATCHES))]
    assert [(v.version, v.parent, v.batch_no) for v in versions] == expected
    assert (Path(versions[-1].path) / "manifest.json").exists()
    await seen.until_served(BATCHES)
    (server,) = await seen.rows("select * from rollout_servers where run_id = :run")
    assert server.detail.startswith("canary difference 0.0"), server.detail


async def check_times(seen: Observer) -> None:
    """The waiting and generation times of its steps fit into a rollout's duration, and each first token lies inside its generation."""
    late = await seen.rows("select * from steps where run_id = :run and not t_first <= t_gen")
    over = await seen.rows(
        "select * from rollout_summary where run_id = :run and state = 'verified' and generation_s > extract(epoch from ended - started)"
    )
    assert (late, over) == ([], [])


async def check_schedule(seen: Observer, stack: Stack) -> None:
    """Every claim is the claim that the window allows; no token is older than admission permits."""
    queue = load(stack.directory / "penstock.toml").queue
    policy = queue_policy(queue.policy, queue.capacity, queue.window_fraction)
    history = await seen.rows(
        "select transition_id, seq, to_state from transitions where run_id = :run and kind = 'group' and seq is not null order by 1"
    )
    claims = replay(
        [Transition(row.transition_id, row.seq, GroupState(row.to_state)) for row in history], policy
    )
    assert claims and all(claim.agrees for claim in claims), claims
    trained = await seen.rows("select seq from groups where run_id = :run and state = 'trained'")
    assert {row.seq for row in trained} <= {seq for claim in claims for seq in claim.recorded}
    oldest = await seen.value("select max(staleness) from staleness where run_id = :run")
    # While a new version is on its way to the servers the old one still answers: one more than admission's own bound.
    assert 0 <= oldest <= queue.max_staleness + -(-(queue.window - 1) // queue.batch_groups) + 1


async def check_tokens(seen: Observer) -> None:
    """The trainer's tokens are exactly the fold of the stored steps, and its metrics agree."""
    stored = await seen.rows(TRAINED_STEPS)
    metrics = await seen.rows(
        "select b.batch_id, t.metrics from train_steps t join batches b using (batch_id) where t.run_id = :run order by b.batch_no"
    )
    assert len(metrics) == BATCHES
    for row in metrics:
        steps = [step for step in stored if step.batch_id == row.batch_id]
        rows = await transact(
            seen.engine, partial(read_rows, run_id=seen.run_id, batch_id=row.batch_id), at="tests"
        )
        (part,) = parts_of(rows, 1, None)
        trained = sorted(part.samples, key=lambda sample: (int(sample.rollout), sample.step))
        assert [sample.ids.tolist() for sample in trained] == [step.ids for step in steps]
        assert [sample.behavior_logprobs.tolist() for sample in trained] == [step.logprobs for step in steps]
        measured = row.metrics
        assert measured["samples"] == len(steps) > 0
        assert measured["tokens_naive"] == sum(len(step.ids) for step in steps)
        assert measured["tokens_merged"] == different_prefixes([step.ids for step in steps])
        assert measured["action_tokens"] == sum(step.action_len for step in steps)
        assert measured["applied"] and measured["gradient_norm"] > 0 and measured["entropy"] > 0
        assert sum(measured["staleness"].values()) == measured["action_tokens"]
    # The first batch was made by the weights that it trains: server and trainer agree on every token.
    assert metrics[0].metrics["staleness"].keys() == {"0"} and metrics[0].metrics["max_abs_dlogprob"] < 1e-3
    assert len(await transact(seen.engine, lambda c: contents(c, metrics[0].batch_id), at="tests")) == 4


def different_prefixes(sequences: Sequence[Sequence[int]]) -> int:
    """The tokens of a trie of these sequences."""
    trie: dict[int, dict[Any, Any]] = {}
    nodes = 0
    for sequence in sequences:
        at = trie
        for token in sequence:
            if token not in at:
                at[token] = {}
                nodes += 1
            at = at[token]
    return nodes
