"""Whole groups in the data pool, written through its own functions as a real run would write them: no table is touched directly.

    run = await make_run(engine, Config(...))
    first, second = await accepted(engine, run, ["a", "b"], size=4)
    await dispatch(engine, run)                       # they get seq 0 and 1
    await finish(engine, run, second, Author(seed=1), performances=[1, 0, 0, 1])   # steps, results, verdicts, rewards: ready

Ids are random. Behavior logprobs come from `Author.score`: random ones, or a model's own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.contracts.events import (
    RolloutFinished,
    StepMark,
    StepRecorded,
    StepRoutes,
    TestResult,
    VerdictReached,
)
from orchestrator.contracts.ids import (
    Ids,
    Logprobs,
    b64,
    chain_sha,
    ids_to_bytes,
    logprobs_to_bytes,
    prompt_sha,
    row_sha,
    sha256,
    trajectory_digest,
)
from orchestrator.contracts.marks import Finish, ParseStatus
from orchestrator.contracts.spans import VersionSpan, flat
from orchestrator.contracts.states import FailureClass, GroupState, Purpose, RolloutState, StepKind
from orchestrator.pool import batches, leases, results, submissions
from orchestrator.pool import groups as pool_groups
from orchestrator.pool.batches import NewVersion
from orchestrator.pool.dispatch import dispatch_train
from orchestrator.pool.ingest import Decoded, Fate, decode_step, ingest
from orchestrator.pool.leases import Lease
from orchestrator.pool.runs import StoredRun, ensure_run
from orchestrator.pool.steps import canonical
from orchestrator.pool.submissions import NewGroup
from orchestrator.pool.tables import groups, rollouts
from orchestrator.rewards.settings import RewardSettings
from orchestrator.roles.reward import reward_group
from orchestrator.settings.config import Config
from orchestrator.trajectory.routes import Routes, routes_sha, routes_to_bytes

OWNER = "builder"
SHORT: dict[str, dict[str, Any]] = {
    "stage": {"max_turns": 4, "max_context": 2048},
    "sampling": {"max_new_tokens": 256},
    "rollout": {"timeout_s": 300.0, "completion_s": 300.0, "tool_timeout_s": 60.0},
    "sandbox": {"memory_mb": 512, "processes": 64, "cpu_s": 60, "disk_mb": 64},
}
"""Limits of attempts in tests that run real ones: small, so that tests see soon when an attempt exceeds them."""
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}


@dataclass(slots=True, kw_only=True)
class Author:
    """Writes trajectories: `turns` steps that continue one another, then one that rewrites the history behind the prompt.

    `score(full, state_len)` gives the behavior logprobs of full[state_len:], float32. Every token is of policy version `version`.
    `route(full, start)` gives the routes of full[start:-1], which are recorded then.
    """

    seed: int = 0
    vocab: int = 259
    turns: int = 2
    version: int = 0
    score: Callable[[Ids, int], Logprobs] | None = None
    route: Callable[[Ids, int], Routes] | None = None
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def ids(self, low: int, high: int) -> Ids:
        """Between `low` and `high` random ids."""
        return self.rng.integers(0, self.vocab, self.rng.integers(low, high + 1)).astype(np.int32)

    def trajectory(self, lease: Lease, run: str, prompt: Ids) -> list[StepRecorded]:
        """The steps of one attempt in idx order."""
        written = _Attempt(lease=lease, run=run, prompt=prompt, author=self)
        for turn in range(self.turns):
            parent = turn - 1 if turn else None
            keep = len(written.fulls[-1]) if turn else len(prompt)
            kind = StepKind.CONTINUES if turn else StepKind.ROOT
            written.add(kind, parent, keep, self.ids(3, 6) if turn else self.ids(0, 0), self.ids(4, 9))
        written.add(StepKind.REWRITES, self.turns - 1, len(prompt), self.ids(3, 6), self.ids(4, 9))
        return written.events

    def logprobs(self, full: Ids, state_len: int) -> Logprobs:
        """Behavior logprobs of full[state_len:]."""
        if self.score is not None:
            return self.score(full, state_len)
        return -np.abs(self.rng.normal(2.0, 1.0, len(full) - state_len)).astype(np.float32)


@dataclass(slots=True, kw_only=True)
class _Attempt:
    lease: Lease
    run: str
    prompt: Ids
    author: Author
    fulls: list[Ids] = field(default_factory=list)
    chains: list[bytes] = field(default_factory=list)
    events: list[StepRecorded] = field(default_factory=list)

    def add(self, kind: StepKind, parent: int | None, keep: int, delta: Ids, action: Ids) -> None:
        idx = len(self.events)
        base = self.prompt if parent is None else self.fulls[parent]
        full = np.concatenate([base[:keep], delta, action]).astype(np.int32)
        state_len = keep + len(delta)
        prompt = ids_to_bytes(self.prompt)
        raw_delta, raw_action = ids_to_bytes(delta), ids_to_bytes(action)
        raw_logprobs = logprobs_to_bytes(self.author.logprobs(full, state_len))
        chain = chain_sha(
            prompt_sha(prompt) if parent is None else self.chains[parent], keep, raw_delta, raw_action
        )
        span = VersionSpan(self.author.version, 0, len(action))
        self.fulls.append(full)
        self.chains.append(chain)
        start = 0 if parent is None else keep - (kind is StepKind.CONTINUES)
        routed = None if self.author.route is None else self.author.route(full, start)
        self.events.append(
            StepRecorded(
                run=self.run,
                rollout=self.lease.rollout_id,
                attempt=self.lease.attempt,
                epoch=self.lease.epoch,
                idx=idx,
                kind=kind,
                parent=parent,
                root=0,
                keep_len=keep,
                state_len=state_len,
                full_len=len(full),
                delta=b64(raw_delta),
                action=b64(raw_action),
                logprobs=b64(raw_logprobs),
                spans=[span],
                chain_sha=chain.hex(),
                row_sha=row_sha(chain, raw_logprobs, flat([span]), canonical(SAMPLING)).hex(),
                sampling=SAMPLING,
                finish=Finish.STOP,
                parse=ParseStatus.OK,
                prompt=b64(prompt) if parent is None else None,
                prompt_sha=prompt_sha(prompt).hex() if parent is None else None,
                appended=[{"role": "user", "content": "go on"}],
                reply={"role": "assistant", "content": "done"},
                branch_reason="rewritten" if kind == StepKind.REWRITES else None,
                branch={"near": parent, "turn": 1, "field": "text"} if kind == StepKind.REWRITES else None,
                routes=None if routed is None else step_routes(chain, start, routed),
            )
        )


def one_expert(full: Ids, start: int) -> Routes:
    """An `Author.route` of one layer: each token goes to expert id % 4."""
    routed: Routes = (full[start:-1, None, None] % 4).astype(np.int16)
    return routed


def step_routes(chain: bytes, start: int, routes: Routes) -> StepRoutes:
    """Routes [n, layers, top_k] as a gateway reports them, one byte per id."""
    layers, top_k = routes.shape[1:]
    raw = routes_to_bytes(routes, 1)
    sha = routes_sha(chain, start, layers, top_k, 1, raw).hex()
    return StepRoutes(start=start, layers=layers, top_k=top_k, width=1, ids=b64(raw), sha=sha)


def a_lease() -> Lease:
    """Of rollout 7, of a run that does not exist."""
    return Lease(
        run_id=1,
        rollout_id=7,
        group_id=1,
        member=0,
        attempt=1,
        epoch=1,
        seed=0,
        purpose=Purpose.TRAIN,
        scaffold="shell",
        pinned_version=None,
        domain="coding",
        task_name="t",
        body={},
    )


async def make_run(engine: AsyncEngine, config: Config) -> StoredRun:
    """The run's row, queue and partition."""
    async with engine.begin() as connection:
        return await ensure_run(connection, config.run.name, config.to_json())


async def accepted(
    engine: AsyncEngine,
    run: StoredRun,
    names: Sequence[str],
    *,
    domain: str = "coding",
    size: int = 4,
    purpose: Purpose = Purpose.TRAIN,
    pinned_version: int | None = None,
    difficulty: str = "unknown",
    label: str | None = None,
) -> list[int]:
    """Accept one submission per name; returns their group ids."""
    made: list[int] = []
    async with engine.begin() as connection:
        for name in names:
            new = NewGroup(
                submission=name,
                task_sha=sha256(name.encode()),
                task_name=name,
                domain=domain,
                settings={"metadata": {"difficulty": difficulty}},
                body={"files": {}},
                purpose=purpose,
                scaffold="shell",
                size=size,
                seed=len(made),
                pinned_version=pinned_version,
                label=label,
                difficulty=difficulty
                if purpose is Purpose.TRAIN and run.config.get("stage", {}).get("then")
                else None,
            )
            await submissions.accept(connection, run.run_id, new)
            found = await connection.scalar(
                select(groups.c.group_id).where(groups.c.run_id == run.run_id, groups.c.submission == name)
            )
            assert found is not None
            made.append(found)
    return made


async def dispatch(engine: AsyncEngine, run: StoredRun) -> None:
    """Dispatch every accepted training group without admission: domain by domain, oldest first."""
    async with engine.begin() as connection:
        await dispatch_train(
            connection,
            run.run_id,
            lambda view: [
                domain for domain, waiting in sorted(view.accepted.items()) for _ in range(waiting)
            ],
        )


async def finish(
    engine: AsyncEngine,
    run: StoredRun,
    group_id: int,
    author: Author,
    *,
    performances: Sequence[float] = (1.0, 0.0, 0.0, 0.0),
    marked: Sequence[int] = (),
) -> None:
    """Run every rollout of a dispatched group to its end; the group becomes ready. `marked` step indices have train weight 0."""
    prompt = author.ids(8, 14)
    async with engine.begin() as connection:
        rows = await connection.scalars(
            select(rollouts.c.rollout_id).where(rollouts.c.group_id == group_id).order_by(rollouts.c.member)
        )
        for rollout_id, performance in zip(rows.all(), performances, strict=True):
            await _finish_rollout(connection, run, rollout_id, author, prompt, performance, marked)
        group = await pool_groups.terminal_group(connection, run.run_id, group_id)
        assert group is not None
        rewarded = reward_group(group, [member.member for member in group.members], RewardSettings())
        await pool_groups.write_rewards(connection, run.run_id, rewarded.rewards)
        assert await pool_groups.conclude(connection, group_id, GroupState.READY, None)


async def ready_groups(
    engine: AsyncEngine, run: StoredRun, names: Sequence[str], author: Author, *, domain: str = "coding"
) -> list[int]:
    """Groups of 4 rollouts, accepted, dispatched and ready, one per name; performances differ inside each."""
    made = await accepted(engine, run, names, domain=domain)
    await dispatch(engine, run)
    for group_id in made:
        await finish(engine, run, group_id, author)
    return made


async def publish_first(connection: AsyncConnection, run: StoredRun) -> None:
    """Publish policy version 0 of the run, as a trainer does before its first batch."""
    first = NewVersion(version=0, parent=None, path="/v0", manifest_sha="00")
    await batches.publish(connection, run.run_id, run.name, first, "policy.x", None)


def _decoded(event: StepRecorded) -> Decoded:
    """Decode with any logprobs: no ingest stores one that is not a number, and a trainer must survive a row that has one all the same."""
    with patch("orchestrator.pool.ingest._wrong_logprobs", return_value=[]):
        return decode_step(event)


async def _finish_rollout(
    connection: AsyncConnection,
    run: StoredRun,
    rollout_id: int,
    author: Author,
    prompt: Ids,
    performance: float,
    marked: Sequence[int],
) -> None:
    lease = await leases.lease(connection, run.run_id, rollout_id, 1, OWNER, 60.0)
    assert lease is not None
    written = author.trajectory(lease, run.name, prompt)
    ingested = await ingest(connection, run.run_id, [_decoded(event) for event in written])
    assert set(ingested.fates) == {Fate.NEW}
    announced = RolloutFinished(
        run=run.name,
        rollout=rollout_id,
        attempt=lease.attempt,
        epoch=lease.epoch,
        failure_class=FailureClass.COMPLETED,
        steps=len(written),
        last_idx=len(written) - 1,
        digest=trajectory_digest([bytes.fromhex(event.chain_sha) for event in written]).hex(),
        marks=[StepMark(idx, "auxiliary") for idx in marked],
        agent_s=2.0,
        spent={"session": 0.25, "agent": 2.0, "seal": 0.125},
    )
    assert await results.report(connection, run.run_id, announced)
    [arrived] = await results.reported(connection, [rollout_id])
    assert arrived.arrived == arrived.announced and arrived.digest_matches
    epoch = await results.finish(connection, rollout_id, lease.epoch, arrived.failure_class)
    assert epoch is not None
    verifying = await leases.lease(
        connection, run.run_id, rollout_id, epoch, OWNER, 60.0, before=RolloutState.FINISHED
    )
    assert verifying is not None
    reached = VerdictReached(
        run=run.name,
        rollout=rollout_id,
        attempt=lease.attempt,
        epoch=epoch,
        failure_class=FailureClass.COMPLETED,
        reward=performance,
        tests=[TestResult("test_answer", performance == 1.0)],
    )
    assert await results.verdict(connection, run.run_id, reached)
