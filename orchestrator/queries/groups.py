"""One group: its rollouts side by side, with their differences. Times are seconds since the epoch, durations seconds."""

from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.errors import NotFoundError
from orchestrator.contracts.states import BatchState, GroupState, Purpose
from orchestrator.pool.rows import from_row
from orchestrator.queries.differences import FileDifference, differences
from orchestrator.queries.files import sha_of, size_of
from orchestrator.queries.instructions import instruction_of
from orchestrator.queries.latest_reward import reward_of
from orchestrator.queries.rollout_summary import PRUNED, RolloutSummary, steps_of
from orchestrator.queries.texts import Cut, cut_or_none


@dataclass(frozen=True, slots=True)
class MemberFile:
    """A file that a member left; `bytes` None: it deleted it. `sha`: the first hex digits of its sha256, to find equal files."""

    path: str
    bytes: int | None
    sha: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(RolloutSummary):
    """One rollout. performance, speed·beta and process·alpha add up to total; None: not rewarded. `files`: the first of its `all_files`."""

    performance: float | None
    speed_part: float | None
    process_part: float | None
    total: float | None
    baseline: float | None
    advantage: float | None
    agent_s: float | None
    queued_s: float | None
    answer: Cut | None
    tests_passed: int | None
    tests: int | None
    files: list[MemberFile]
    all_files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """`seq`: its queue position, None if it is not trained or not dispatched. `batch_no`: the batch that took it. `pruned`: the steps and
    files of its run were dropped."""

    group_id: int
    seq: int | None
    state: GroupState
    reason: str | None
    purpose: Purpose
    label: str | None
    domain: str
    scaffold: str
    task: str
    difficulty: str | None
    instruction: Cut | None
    size: int
    stage: int | None
    pinned_version: int | None
    submission: str
    created: float
    dispatched: float | None
    ready: float | None
    ended: float | None
    batch_no: int | None
    batch_state: BatchState | None
    pruned: bool
    members: list[Member]


_HEAD = text(
    f"""SELECT g.group_id, g.seq, g.state, g.reason, g.purpose, g.label, g.domain, g.scaffold, t.name AS task, g.difficulty,
              {instruction_of("t")} AS instruction, g.size, g.stage, g.pinned_version, g.submission,
              extract(epoch FROM g.created)::float8 AS created, extract(epoch FROM g.dispatched)::float8 AS dispatched,
              extract(epoch FROM g.ready)::float8 AS ready, extract(epoch FROM g.ended)::float8 AS ended, b.batch_no, b.state AS batch_state,
              {PRUNED} AS pruned
         FROM groups g JOIN tasks t ON t.task_id = g.task_id
         LEFT JOIN (batch_items i JOIN batches b ON b.batch_id = i.batch_id) ON i.group_id = g.group_id AND NOT i.voided
        WHERE g.run_id = :run AND g.group_id = :group"""
)
_MEMBERS = text(
    f"""SELECT r.rollout_id, r.member, r.state, r.failure_class, r.reason, r.attempt, s.steps, s.action_tokens, s.longest, s.v_lo, s.v_hi,
              w.performance, w.beta * w.speed AS speed_part, w.alpha * w.process AS process_part, w.total, w.baseline, w.advantage,
              a.agent_s, a.queued_s, left(a.answer, 2000) AS answer, length(a.answer) AS answer_length, v.tests
         FROM rollouts r
         LEFT JOIN attempts a ON a.rollout_id = r.rollout_id AND a.attempt = r.attempt
         {reward_of("r")}
         LEFT JOIN LATERAL (SELECT tests FROM verdicts v WHERE v.rollout_id = r.rollout_id AND r.state = 'verified'
                             ORDER BY v.revision DESC LIMIT 1) v ON true
         {steps_of("r")}
        WHERE r.run_id = :run AND r.group_id = :group ORDER BY r.member"""
)
_FILES = text(
    f"""SELECT f.rollout_id, f.path, {size_of("f")} AS bytes, left(encode({sha_of("f")}, 'hex'), 12) AS sha
         FROM artifacts f JOIN rollouts r ON r.rollout_id = f.rollout_id AND r.attempt = f.attempt
        WHERE r.run_id = :run AND r.group_id = :group
          AND f.step = (SELECT max(l.step) FROM artifacts l WHERE l.rollout_id = f.rollout_id AND l.attempt = f.attempt)
        ORDER BY f.rollout_id, f.path"""
)
MEMBER_FILES = 200


async def group(connection: AsyncConnection, run_id: int, group_id: int) -> Group:
    """One group with its members. Raises NotFoundError."""
    key = {"run": run_id, "group": group_id}
    head = (await connection.execute(_HEAD, key)).first()
    if head is None:
        raise NotFoundError(f"group {group_id} does not exist in this run")
    files: dict[int, list[MemberFile]] = {}
    for row in await connection.execute(_FILES, key):
        files.setdefault(row.rollout_id, []).append(MemberFile(row.path, row.bytes, row.sha))
    members = []
    for row in await connection.execute(_MEMBERS, key):
        tests = [test for test in row.tests or [] if isinstance(test, dict)]
        members.append(
            from_row(
                Member,
                row,
                without=("answer_length",),
                answer=Cut(row.answer, row.answer_length) if row.answer else None,
                tests_passed=sum(bool(test.get("passed")) for test in tests)
                if row.tests is not None
                else None,
                tests=len(tests) if row.tests is not None else None,
                files=files.get(row.rollout_id, [])[:MEMBER_FILES],
                all_files=len(files.get(row.rollout_id, [])),
            )
        )
    return from_row(Group, head, instruction=cut_or_none(head.instruction), members=members)


async def group_differences(
    connection: AsyncConnection, run_id: int, group_id: int, left: int, right: int
) -> list[FileDifference]:
    """Differences between the final files of two members, given by their numbers in the group. Raises NotFoundError."""
    rows = await connection.execute(
        text("SELECT member, rollout_id FROM rollouts WHERE run_id = :run AND group_id = :group"),
        {"run": run_id, "group": group_id},
    )
    ids: dict[int, int] = {row.member: row.rollout_id for row in rows}
    if not ids:
        raise NotFoundError(f"group {group_id} does not exist in this run")
    for member in (left, right):
        if member not in ids:
            raise NotFoundError(f"group {group_id} has no member {member}: it has 0 to {len(ids) - 1}")
    return await differences(connection, run_id, ids[left], ids[right])
