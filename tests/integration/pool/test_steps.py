"""Steps: for any order of arrival, the stored tree folds to the ids that the gateway saw."""

import random
import struct
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.events import StepRecorded
from orchestrator.contracts.ids import b64, trajectory_digest
from orchestrator.contracts.spans import VersionSpan
from orchestrator.contracts.states import RolloutState, StepKind
from orchestrator.pool import leases
from orchestrator.pool.ingest import Fate, Ingested, decode_step, ingest
from orchestrator.pool.runs import StoredRun
from orchestrator.pool.steps import readings, trajectories
from orchestrator.pool.tables import prompts, step_marks, steps, tool_calls
from tests import builders
from tests.builders import a_lease
from tests.integration.pool.rig import Grown, Tree, counter, resealed, running, small

pytestmark = [pytest.mark.anyio, pytest.mark.services]


async def send(engine: AsyncEngine, run: StoredRun, events: Sequence[StepRecorded]) -> Ingested:
    async with engine.begin() as connection:
        return await ingest(connection, run.run_id, [decode_step(event) for event in events])


@pytest.mark.parametrize("seed", range(4))
async def test_any_order_with_repeats_stores_each_step_once_and_folds_alike_in_python_and_sql(
    engine: AsyncEngine, seed: int
) -> None:
    run = await builders.make_run(engine, small())
    held = await running(engine, run, members=3)
    tree, dice = Tree(seed), random.Random(seed)
    grown: list[Grown] = [step for lease in held for step in tree.grow(run.name, lease, 12)]
    mail = [step.event for step in grown] + dice.choices([step.event for step in grown], k=20)
    dice.shuffle(mail)
    fates = [
        fate for i in range(0, len(mail), 7) for fate in (await send(engine, run, mail[i : i + 7])).fates
    ]
    assert fates.count(Fate.NEW) == len(grown) and fates.count(Fate.REPEATED) == 20
    assert await counter(engine, run, "steps_repeated") == 20

    by_key = {(s.event.rollout, s.event.attempt, s.event.idx): s for s in grown}
    async with engine.connect() as connection:
        stored = await trajectories(connection, run.run_id, [(lease.rollout_id, 1) for lease in held])
        for step in [step for attempt in stored.values() for step in attempt]:
            key = step.rollout_id, step.attempt, step.idx
            expected = by_key.pop(key)
            assert np.array_equal(step.full, expected.full)
            assert step.logprobs.tobytes() == expected.logprobs.tobytes()
            assert len(step.action) == len(step.logprobs)
            assert step.spans == tuple(expected.event.spans)
            where = {"run": run.run_id, "rollout": key[0], "att": key[1], "idx": key[2]}
            ids = await connection.scalar(text("SELECT step_ids(:run, :rollout, :att, :idx)"), where)
            assert ids == expected.full.tolist()
            floats = await connection.scalar(text("SELECT step_logprobs(:run, :rollout, :att, :idx)"), where)
            assert np.array(floats, dtype=np.float32).tobytes() == expected.logprobs.tobytes()
        assert by_key == {}
        for lease in held:
            mine = [bytes.fromhex(s.event.chain_sha) for s in grown if s.event.rollout == lease.rollout_id]
            whole = func.sha256(text("string_agg(chain_sha, ''::bytea ORDER BY idx)"))
            query = select(whole).where(steps.c.run_id == run.run_id, steps.c.rollout_id == lease.rollout_id)
            assert await connection.scalar(query) == trajectory_digest(mine)
            assert await broken(engine, run, lease.rollout_id) == []


async def broken(engine: AsyncEngine, run: StoredRun, rollout_id: int) -> list[int]:
    async with engine.connect() as connection:
        found = await connection.scalars(
            text("SELECT idx FROM broken_steps(:run, :rollout, 1) ORDER BY idx"),
            {"run": run.run_id, "rollout": rollout_id},
        )
        return list(found.all())


async def test_a_missing_parent_breaks_what_hangs_on_it_until_it_arrives(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    [held, _] = await running(engine, run)
    events = builders.Author().trajectory(held, run.name, builders.Author().ids(5, 5))
    await send(engine, run, events[1:])
    assert await broken(engine, run, held.rollout_id) == [1]  # step 2 hangs on step 1
    await send(engine, run, events[:1])
    assert await broken(engine, run, held.rollout_id) == []


async def test_a_step_that_does_not_follow_from_its_parent_is_found(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    [held, _] = await running(engine, run)
    events = builders.Author().trajectory(held, run.name, builders.Author().ids(5, 5))
    forged = resealed(events[1], chain_sha="ab" * 32)
    await send(engine, run, [events[0], forged])
    assert await broken(engine, run, held.rollout_id) == [1]


async def test_a_stored_step_never_changes_when_another_version_arrives(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    [held, _] = await running(engine, run)
    [root] = [step.event for step in Tree(5).grow(run.name, held, 1)]
    other = resealed(root, sampling={"temperature": 0.5})
    # The first to arrive is stored, within one batch and across batches; only the others are refused.
    assert (await send(engine, run, [root, other, root])).fates == [Fate.NEW, Fate.CONFLICTING, Fate.REPEATED]
    assert (await send(engine, run, [other])).fates == [Fate.CONFLICTING]
    assert await counter(engine, run, "steps_conflicting") == 2
    async with engine.connect() as connection:
        stored = await connection.scalar(select(steps.c.row_sha).where(steps.c.run_id == run.run_id))
    assert stored is not None and stored.hex() == root.row_sha


async def test_a_step_of_an_old_epoch_is_refused_and_counted_but_its_late_repeat_is_not(
    engine: AsyncEngine,
) -> None:
    run = await builders.make_run(engine, small())
    [held, other] = await running(engine, run)
    early, late, *_ = [step.event for step in Tree(6).grow(run.name, held, 3)]
    assert (await send(engine, run, [early])).fates == [Fate.NEW]
    async with engine.begin() as connection:
        again = await leases.retry(
            connection, held.rollout_id, RolloutState.RUNNING, 1, reason="test", delay_s=0
        )
    assert again == (2, 2)
    unknown = msgspec.structs.replace(late, rollout=10**12)
    elsewhere = msgspec.structs.replace(late, rollout=other.rollout_id, epoch=2)
    fates = (await send(engine, run, [late, early, unknown, elsewhere])).fates
    assert fates == [Fate.STALE, Fate.REPEATED, Fate.STALE, Fate.STALE]
    assert await counter(engine, run, "steps_stale") == 3


async def test_a_mark_that_a_step_was_recorded_with_stands_before_any_result_says_it(
    engine: AsyncEngine,
) -> None:
    run = await builders.make_run(engine, small())
    author = builders.Author()
    held, _ = await running(engine, run)
    plain, marked = author.trajectory(held, run.name, author.ids(5, 5))[:2]
    marked = msgspec.structs.replace(marked, marks=["auxiliary"])
    await send(engine, run, [plain, marked])
    assert (await send(engine, run, [marked])).fates == [Fate.REPEATED]
    async with engine.connect() as connection:
        marks = (await connection.execute(select(step_marks.c.idx, step_marks.c.reason))).all()
    assert [tuple(mark) for mark in marks] == [(marked.idx, "auxiliary")]


async def test_steps_of_another_runs_rollout_are_refused(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small("one"))
    other = await builders.make_run(engine, small("two"))
    [held, _] = await running(engine, run)
    [root] = [step.event for step in Tree(7).grow(run.name, held, 1)]
    assert (await send(engine, other, [root])).fates == [Fate.STALE]


async def test_a_prompt_is_stored_once_for_all_members_of_a_group(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    author = builders.Author()
    prompt = author.ids(30, 30)
    for held in await running(engine, run, members=4):
        await send(engine, run, author.trajectory(held, run.name, prompt))
    async with engine.connect() as connection:
        assert (await connection.scalars(select(prompts.c.n))).all() == [30]


@pytest.mark.parametrize(("calls", "unrecorded"), [(999, []), (1000, [3, 4, 5])])
async def test_steps_from_the_last_tool_call_that_is_recorded_may_lack_results(
    engine: AsyncEngine, calls: int, unrecorded: list[int]
) -> None:
    run = await builders.make_run(engine, small())
    [held, other] = await running(engine, run)
    for each in (held, other):
        await send(engine, run, [step.event for step in Tree(8).grow(run.name, each, 6)])
    key = {"run_id": run.run_id, "rollout_id": held.rollout_id, "attempt": 1, "name": "bash"}
    async with engine.begin() as connection:
        rows = [key | {"idx": 3 if call else 0, "call": call} for call in range(calls)]
        await connection.execute(tool_calls.insert(), rows)
        read = await readings(connection, run.run_id, [(held.rollout_id, 1), (other.rollout_id, 1)])
    assert [step.idx for step in read[held.rollout_id] if step.unrecorded] == unrecorded
    assert not any(step.unrecorded for step in read[other.rollout_id])


async def test_a_reading_tells_whether_its_prompt_shows_tools_also_of_a_step_that_continues(
    engine: AsyncEngine,
) -> None:
    run = await builders.make_run(engine, small())
    [held, _] = await running(engine, run)
    events = [step.event for step in Tree(8).grow(run.name, held, 12)]
    shown = {"role": "tools", "content": "", "sha": "a", "tools": [{"name": "bash"}]}
    new = [event.idx for event in events if event.kind is not StepKind.CONTINUES]
    assert len(new) > 2 and len(new) < len(events)
    expected: dict[int | None, bool] = {}
    for at, event in enumerate(events):
        if event.idx in new:
            appended = {0: [shown, *event.appended], 1: [*event.appended], 2: []}[new.index(event.idx) % 3]
            events[at] = resealed(event, appended=appended)
            expected[event.idx] = new.index(event.idx) % 3 != 1
        else:
            expected[event.idx] = expected[event.parent]
    await send(engine, run, events)
    async with engine.connect() as connection:
        read = (await readings(connection, run.run_id, [(held.rollout_id, 1)]))[held.rollout_id]
    assert {step.idx: step.shows_tools for step in read} == expected
    assert set(expected.values()) == {True, False}


async def test_readings_tell_what_rewards_need_without_the_tokens(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    [held, _] = await running(engine, run)
    grown = Tree(8).grow(run.name, held, 6)
    await send(engine, run, [step.event for step in grown])
    async with engine.begin() as connection:
        mark = {"run_id": run.run_id, "rollout_id": held.rollout_id, "attempt": 1}
        reasons = {2: ("auxiliary", "cut_off"), 4: ("cut_off",)}
        for idx, each in reasons.items():
            for reason in each:
                await connection.execute(step_marks.insert().values(**mark, idx=idx, reason=reason))
        read = (await readings(connection, run.run_id, [(held.rollout_id, 1)]))[held.rollout_id]
        full = (await trajectories(connection, run.run_id, [(held.rollout_id, 1)]))[held.rollout_id]
        assert await readings(connection, run.run_id, []) == {}
        assert await trajectories(connection, run.run_id, []) == {}
    assert [step.idx for step in read] == list(range(6))
    assert [step.marks for step in read] == [step.marks for step in full]
    assert {step.idx: step.marks for step in read if step.marks} == {
        2: {"auxiliary", "cut_off"},
        4: {"cut_off"},
    }
    assert [step.kept_out for step in full] == [i == 2 for i in range(6)]
    assert [step.versions for step in read] == [frozenset(s.version for s in g.event.spans) for g in grown]
    assert [step.reply for step in read] == [g.event.reply for g in grown]


FLOATS = [
    0.0, -0.0, 1.0, -1.5, 3.4028234663852886e38, -3.4028234663852886e38, 1.1754943508222875e-38,
    1.1754942106924411e-38, 1.401298464324817e-45, -1.401298464324817e-45, float("inf"), float("-inf"), -0.1,
]  # fmt: skip


async def test_f4_and_i4_are_exact_to_the_bit(engine: AsyncEngine) -> None:
    dice = random.Random(0)
    words = [dice.getrandbits(32) for _ in range(3000)]
    words = [w for w in words if (w >> 23) & 255 != 255]  # NaN has many bit patterns
    raw = struct.pack(f"<{len(FLOATS)}f", *FLOATS) + struct.pack(f"<{len(words)}I", *words)
    ids = [0, -1, 1, 2**31 - 1, -(2**31), 255, 256, 65536, 151_643]
    async with engine.connect() as connection:
        back = await connection.scalar(text("SELECT f4(:raw)"), {"raw": raw})
        assert struct.pack(f"<{len(back)}f", *back) == raw
        nan = await connection.scalar(text("SELECT f4(:raw)"), {"raw": struct.pack("<f", float("nan"))})
        assert str(nan) == "[nan]"
        packed = struct.pack(f"<{len(ids)}i", *ids)
        assert await connection.scalar(text("SELECT i4(:raw)"), {"raw": packed}) == ids
        assert await connection.scalar(text("SELECT i4(:raw)"), {"raw": b""}) == []
        assert await connection.scalar(text("SELECT f4(:raw)"), {"raw": b""}) == []


async def test_step_tokens_gives_every_action_token_its_logprob_and_version(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    [held, _] = await running(engine, run)
    grown = Tree(9).grow(run.name, held, 8)
    await send(engine, run, [step.event for step in grown])
    expected = [
        (g.event.idx, pos, int(g.full[g.event.state_len + pos]), float(g.logprobs[pos]), span.version)
        for g in grown
        for span in g.event.spans
        for pos in range(span.start, span.end)
    ]
    async with engine.connect() as connection:
        query = text(
            "SELECT idx, pos, token_id, logprob, version FROM step_tokens WHERE run_id = :r ORDER BY idx, pos"
        )
        rows = (await connection.execute(query, {"r": run.run_id})).all()
    assert [(i, p, t, float(np.float32(lp)), v) for i, p, t, lp, v in rows] == expected


def root_of(seed: int = 2) -> StepRecorded:
    held = a_lease()
    grown = Tree(seed).grow("run", held, 4)
    root = grown[0].event
    assert root.idx == 0 and root.prompt and root.full_len > root.state_len + 1
    return root


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"delta": "AA=="}, "delta does not hold"),
        ({"delta": "no base64"}, "step 7:1:0"),
        ({"parent": 0}, "a root has no parent"),
        ({"root": 3}, "its own root"),
        ({"kind": "continues"}, "an earlier parent"),
        ({"prompt": None}, "carries its prompt"),
        ({"keep_len": -1}, "must ascend from 0"),
        ({"keep_len": 10**6, "state_len": 10**6, "full_len": 10**6}, "longer than the prompt"),
        ({"prompt": b64(b"\0\0\0\0")}, "not the digest of the prompt"),
        ({"spans": []}, "do not cover the action"),
        ({"spans": [VersionSpan(1, 1, 2)]}, "do not tile the action"),
        ({"chain_sha": "ab" * 32}, "chain_sha is not the digest of the root"),
        ({"chain_sha": "ab"}, "row_sha is not the digest"),
        ({"row_sha": "ab" * 32}, "row_sha is not the digest"),
        ({"sampling": {"temperature": 9.0}}, "row_sha is not the digest"),
        ({"request_digest": "xyz"}, "step 7:1:0"),
    ],
)
def test_a_step_that_contradicts_itself_is_refused_with_the_reason(
    changes: dict[str, object], sentence: str
) -> None:
    with pytest.raises(MessageError, match="step 7:1:0") as caught:
        decode_step(msgspec.structs.replace(root_of(), **changes))
    assert sentence in str(caught.value)


def test_a_whole_step_is_taken() -> None:
    assert decode_step(root_of()).event == root_of()
