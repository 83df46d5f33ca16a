"""A rescore: new revisions of verdicts and rewards for groups that no batch has; a batch's content stays as it was pinned."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncEngine
from typer.testing import CliRunner

from orchestrator.cli.main import app
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.events import VerdictReached
from orchestrator.contracts.states import BatchState, FailureClass, Purpose, RolloutState
from orchestrator.deploy.home import write_template
from orchestrator.pool import batches, blobs, leases, results
from orchestrator.pool.batches import LiveBatch, NewVersion
from orchestrator.pool.rescore import Chosen
from orchestrator.pool.rewind import FIRST, rewind
from orchestrator.pool.submissions import NewGroup, accept
from orchestrator.pool.tables import batch_rollouts, groups
from orchestrator.queries import attempts, search
from orchestrator.queries.attempt_filters import AttemptFilters, Bound
from orchestrator.queries.groups import group
from orchestrator.queries.recorded import Selection, recorded
from orchestrator.queries.rollouts import rollout
from orchestrator.queries.tokens import token_map
from orchestrator.roles.context import OrchestratorContext
from orchestrator.roles.rescore import Rescored, rescore
from orchestrator.scheduling.queue_policies import Windowed
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.message import MAX_MESSAGE_BYTES
from tests import builders
from tests.integration.audit.audited import AuditedRun
from tests.integration.pool.rig import context_of, counter, owed, rollout_row, rollouts_of, small, verify

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("pool")]

AUTHOR = builders.Author(turns=1)
ALL = Chosen()


@dataclass(frozen=True, kw_only=True)
class Scene(AuditedRun):
    """A run with groups a, b, c, d of two rollouts, all ready with performances 1 and 0; a and b are in a committed batch."""

    context: OrchestratorContext
    ids: dict[str, int]

    async def rescore(self, chosen: Chosen = ALL, corrected: dict[str, Task] | None = None) -> Rescored:
        rescored: Rescored = await self.do(
            lambda c: rescore(c, self.run, chosen, "ada: corrected", corrected or {})
        )
        return rescored

    async def take(self) -> LiveBatch:
        batch: LiveBatch | None = await self.do(lambda c: batches.take(c, self.run.run_id, Windowed(2), 2, 1))
        assert batch is not None
        return batch

    async def commit(self, batch: LiveBatch, number: int = 1) -> None:
        new = NewVersion(
            version=number, parent=number - 1, path=f"/p/version-{number:06d}", manifest_sha=f"{number:02x}"
        )
        assert await self.do(
            lambda c: batches.commit(
                c, self.run.run_id, self.run.name, batch=batch, new=new, metrics=[{}], subject="policy.run"
            )
        )

    async def states(self) -> dict[str, str]:
        query = select(groups.c.submission, groups.c.state).order_by(groups.c.group_id)
        return {name: state for name, state in await self.do(lambda c: c.execute(query))}

    async def judged(self, name: str, rewards: Sequence[float | None]) -> None:
        """Report these rewards for the group's rollouts, as the verifier runners do."""
        ids = await self.do(lambda c: rollouts_of(c, self.ids[name]))
        for rollout_id, reward in zip(ids, rewards, strict=True):
            while (await rollout_row(self.engine, rollout_id)).state == RolloutState.FINISHED:
                await verify(self.context, rollout_id, reward)

    async def revisions(self, table: str, name: str) -> list[list[float]]:
        """By rollout, the rewards or performances of its revisions in order."""
        column = {"verdicts": "reward", "rewards": "performance"}[table]
        rows = await self.do(
            lambda c: c.execute(
                text(
                    f"SELECT array_agg(v.{column} ORDER BY v.revision) FROM {table} v JOIN rollouts r USING (rollout_id) "
                    "WHERE r.group_id = :g GROUP BY rollout_id ORDER BY rollout_id"
                ),
                {"g": self.ids[name]},
            )
        )
        return [row[0] for row in rows]


@pytest.fixture
async def scene(engine: AsyncEngine) -> Scene:
    run = await builders.make_run(engine, small(capacity=10))
    made = Scene(engine=engine, run=run, context=context_of(engine, run), ids={})
    first = NewVersion(version=0, parent=None, path="/p/version-000000", manifest_sha="00")
    await made.do(lambda c: batches.publish(c, run.run_id, run.name, first, "policy.run", None))
    for name, domain in zip("abcd", ("coding", "coding", "coding", "agent"), strict=True):
        [made.ids[name]] = await builders.accepted(engine, run, [name], size=2, domain=domain)
        await builders.dispatch(engine, run)
        await builders.finish(engine, run, made.ids[name], AUTHOR, performances=(1.0, 0.0))
    await made.commit(await made.take())
    return made


async def test_rollouts_of_no_batch_get_new_revisions_and_are_ready_again(scene: Scene) -> None:
    done = await scene.rescore()
    assert done == Rescored(groups=2, rollouts=4, left_alone={"trained": 2})
    assert await scene.states() == {"a": "trained", "b": "trained", "c": "dispatched", "d": "dispatched"}
    assert (await scene.take()).taken == 0, "a half rescored group is not taken"
    await scene.audited()
    await scene.judged("c", (0.0, 1.0))
    assert (await scene.states())["c"] == "ready"
    assert await scene.revisions("verdicts", "c") == await scene.revisions("rewards", "c") == [[1, 0], [0, 1]]
    assert await scene.revisions("rewards", "a") == [[1], [0]]
    assert (await scene.take()).taken == 1
    pinned = select(batch_rollouts.c.reward_revision, batch_rollouts.c.advantage).where(
        batch_rollouts.c.group_id == scene.ids["c"]
    )
    rows = (await scene.do(lambda c: c.execute(pinned.order_by(batch_rollouts.c.rollout_id)))).all()
    assert [row.reward_revision for row in rows] == [2, 2] and rows[0].advantage < 0 < rows[1].advantage
    assert await counter(scene.engine, scene.run, "verdicts_rescored") == 4
    await scene.judged("d", (1.0, 0.5))
    assert (await scene.states())["d"] == "ready"
    await scene.audited()


async def test_the_chosen_groups_keep_their_position_and_a_repeat_supersedes_what_is_under_way(
    scene: Scene,
) -> None:
    places = select(groups.c.seq, groups.c.dispatched).where(groups.c.seq.is_not(None)).order_by(groups.c.seq)
    before = await scene.do(lambda c: c.execute(places))
    with pytest.raises(
        ConfigurationError, match=r"^domain 'agnet': run .* has none of that name; known: .*agent"
    ):
        await scene.rescore(Chosen(domains=("agent", "agnet")))
    assert (await scene.rescore(Chosen(domains=("agent",)))).groups == 1
    assert (await scene.rescore(Chosen(tasks=("d",)))).rollouts == 0, "they wait for a verdict already"
    [first, _] = await scene.do(lambda c: rollouts_of(c, scene.ids["d"]))
    row = await rollout_row(scene.engine, first)
    held = await scene.do(
        lambda c: leases.lease(
            c, scene.run.run_id, first, row.lease_epoch, "old", 60.0, before=RolloutState.FINISHED
        )
    )
    assert held is not None
    assert (await scene.rescore(Chosen(tasks=("d",)))).rollouts == 1
    late = VerdictReached(
        run=scene.run.name,
        rollout=first,
        attempt=held.attempt,
        epoch=held.epoch,
        failure_class=FailureClass.COMPLETED,
        reward=0.25,
    )
    assert not await scene.do(lambda c: results.verdict(c, scene.run.run_id, late))
    await scene.judged("d", (0.0, 1.0))
    assert await scene.revisions("verdicts", "d") == [[1, 0], [0, 1]]
    after = await scene.do(lambda c: c.execute(places))
    assert before.all() == after.all()
    assert (await scene.states())["c"] == "ready"
    await scene.audited()


async def test_a_group_that_gives_no_training_signal_any_more_is_filtered(scene: Scene) -> None:
    await scene.rescore(Chosen(tasks=("c",)))
    await scene.judged("c", (1.0, 1.0))
    assert (await scene.states())["c"] == "filtered"
    done = await scene.rescore()
    assert done == Rescored(groups=1, rollouts=2, left_alone={"filtered": 1, "trained": 2})
    ended = r"no open group has a task named 'c': group \d+ is filtered \(zero_signal\); only a group"
    with pytest.raises(ConfigurationError, match=ended):
        await scene.rescore(Chosen(tasks=("c",)))
    await scene.audited()


async def test_a_rollout_whose_verification_fails_now_is_in_no_batch_with_what_it_had(scene: Scene) -> None:
    [wide] = await builders.accepted(scene.engine, scene.run, ["w"], size=4)
    await builders.dispatch(scene.engine, scene.run)
    await builders.finish(scene.engine, scene.run, wide, AUTHOR, performances=(1, 0, 0, 1))
    scene.ids["w"] = wide
    await scene.rescore(Chosen(tasks=("w",)))
    await scene.judged("w", (1.0, 0.0, 0.0, None))
    assert (await scene.states())["w"] == "ready"
    assert (await scene.take()).state is BatchState.CLOSED  # c and d
    await scene.do(lambda c: rewind(c, scene.run.run_id, FIRST, "policy.run", "test", lambda version: True))
    for number in (3, 4):  # a and b, c and d
        await scene.commit(await scene.take(), number)
    assert (await scene.take()).taken == 1
    query = select(batch_rollouts.c.rollout_id).where(batch_rollouts.c.group_id == wide)
    assert len((await scene.do(lambda c: c.execute(query))).all()) == 3
    await scene.audited()


async def test_groups_that_a_rewind_freed_may_be_judged_again_and_trained_on_the_new_rewards(
    scene: Scene,
) -> None:
    await scene.do(lambda c: rewind(c, scene.run.run_id, FIRST, "policy.run", "test", lambda version: True))
    assert (await scene.rescore(Chosen(tasks=("a",)))).groups == 1
    await scene.judged("a", (None, 1.0))
    assert (await scene.states())["a"] == "filtered", "one of two is too few"
    await scene.audited()


async def test_a_reward_of_a_verdict_that_is_not_the_newest_counts_nowhere(scene: Scene) -> None:
    """Of c, one member is judged 0 now and the other is lost: too few for rewards. Of d, both wait for a verdict."""
    await scene.rescore()
    await scene.judged("c", (0.0, None))
    assert (await scene.states())["c"] == "filtered"
    assert await scene.revisions("rewards", "c") == [[1], [0]]
    async with scene.engine.connect() as connection:
        run_id, c = scene.run.run_id, scene.ids["c"]
        first, second = await rollouts_of(connection, c)
        exported = [each.rollout_id async for each in recorded(connection, run_id, Selection())]
        assert len(exported) == 4 and not {first, second} & {*exported}
        now = Bound(at=await connection.scalar(text("SELECT clock_timestamp()")))
        judged, lost = await attempts.page(
            connection, scene.run, AttemptFilters(rollouts=(first, second)), now, None
        )
        assert (judged.reward, lost.reward, lost.verdict) == (None, None, None)
        assert judged.verdict is not None and (judged.verdict.revision, judged.verdict.reward) == (2, 0.0)
        listed = (await search.rollout_list(connection, run_id)).rollouts
        assert {row.rollout_id for row in listed if row.total is not None} == {*exported}
        shown = next(row for row in (await search.group_list(connection, run_id)).groups if row.group_id == c)
        assert (shown.judged, shown.reward, shown.highest) == (0, None, None)
        members = (await group(connection, run_id, c)).members
        assert [(member.performance, member.total) for member in members] == [(None, None)] * 2
        page = await rollout(connection, run_id, first)
        assert page.reward is None and [each.total for each in page.siblings] == [None, None]
        assert [step.rewards for step in page.steps] == [None] * len(page.steps)
        assert (await token_map(connection, run_id, first, 1, 0)).weight is None
        for view, sign in (("latest_rewards", "performance"), ("rollout_summary", "reward")):
            query = text(f"SELECT rollout_id FROM {view} WHERE run_id = :run AND {sign} IS NOT NULL")
            assert {*(await connection.scalars(query, {"run": run_id}))} == {*exported}


async def test_a_member_that_a_rescore_lost_is_neither_solved_nor_in_a_mean(scene: Scene) -> None:
    [wide] = await builders.accepted(scene.engine, scene.run, ["w"], size=4)
    await builders.dispatch(scene.engine, scene.run)
    await builders.finish(scene.engine, scene.run, wide, AUTHOR, performances=(1, 0, 1, 1))
    scene.ids["w"] = wide
    await scene.rescore(Chosen(tasks=("w",)))
    await scene.judged("w", (1.0, 0.0, 0.5, None))
    async with scene.engine.connect() as connection:
        query = text("SELECT verified, solved, performance, spread FROM group_summary WHERE group_id = :g")
        assert (await connection.execute(query, {"g": wide})).one() == (3, 1, 0.5, 1.0)
        listed = (await search.group_list(connection, scene.run.run_id)).groups
        assert [(row.done, row.judged) for row in listed if row.group_id == wide] == [(4, 3)]
        members = (await group(connection, scene.run.run_id, wide)).members
        assert [member.performance for member in members] == [1.0, 0.0, 0.5, None]


def edition(
    tests: str = "echo 1 > /logs/verifier/reward.txt", instruction: str = "write hi", **files: bytes
) -> Task:
    toml = b'[metadata]\nname = "hello"\ndomain = "general"\n'
    files = {
        "task.toml": toml,
        "instruction.md": instruction.encode(),
        "tests/test.sh": tests.encode(),
        **files,
    }
    return Task.from_files(files)


async def submitted(scene: Scene, task: Task, name: str) -> int:
    new = NewGroup(
        submission=name,
        task_sha=bytes.fromhex(task.content_hash),
        task_name=task.name,
        domain="general",
        settings=task.settings.model_dump(mode="json"),
        body=task.to_message(),
        purpose=Purpose.TRAIN,
        scaffold="shell",
        size=2,
        seed=0,
    )
    await scene.do(lambda c: accept(c, scene.run.run_id, new))
    query = select(groups.c.group_id).where(groups.c.submission == name)
    scene.ids[name] = await scene.do(lambda c: c.scalar(query))
    return scene.ids[name]


async def test_mended_tests_renew_the_blobs_that_the_pool_has_already(scene: Scene) -> None:
    was, now = (edition(tests, data=bytes(MAX_MESSAGE_BYTES)) for tests in ("exit 1", "exit 0"))
    await submitted(scene, was, "large")
    old = text("SELECT count(*) FROM blobs WHERE at < now() - interval '1 day'")
    await scene.do(lambda c: blobs.store(c, {sha: part.read() for sha, part in now.packed.parts.items()}))
    await scene.do(lambda c: c.execute(text("UPDATE blobs SET at = at - interval '2 days'")))
    assert await scene.do(lambda c: c.scalar(old)) == len(now.packed.parts) > 0
    await scene.rescore(corrected={"hello": now})
    assert await scene.do(lambda c: c.scalar(old)) == 0


async def test_mended_tests_judge_what_is_open_and_what_begins_later(scene: Scene) -> None:
    was, now = edition("echo 0 > /logs/verifier/reward.txt"), edition()
    done, waiting = await submitted(scene, was, "done"), await submitted(scene, was, "waiting")
    await builders.dispatch(scene.engine, scene.run)
    await builders.finish(scene.engine, scene.run, done, AUTHOR, performances=(1.0, 0.0))
    later = await submitted(scene, was, "later")
    with pytest.raises(
        ConfigurationError, match=r"instruction\.md of task 'hello' is not what the policy was given"
    ):
        await scene.rescore(corrected={"hello": edition(instruction="write ho")})
    with pytest.raises(ConfigurationError, match="no training group has a task named 'other'"):
        await scene.rescore(corrected={"other": now})
    nameless = Task.from_files({"task.toml": b"", "instruction.md": b"write hi", "tests/test.sh": b"exit 1"})
    with pytest.raises(ConfigurationError, match=rf"^task '{nameless.name}' has no \[metadata\]\.name"):
        await scene.rescore(corrected={"hello": now, nameless.name: nameless})
    assert await scene.rescore(corrected={"hello": now}) == Rescored(1, 2, {})
    bodies = text("SELECT body FROM groups JOIN tasks USING (task_id) WHERE group_id = any(:ids)")
    rows = await scene.do(lambda c: c.execute(bodies, {"ids": [done, waiting, later]}))
    assert [row.body for row in rows] == [now.to_message()] * 3
    [first, _] = await scene.do(lambda c: rollouts_of(c, done))
    epoch = (await rollout_row(scene.engine, first)).lease_epoch
    lease = await scene.do(
        lambda c: leases.lease(
            c, scene.run.run_id, first, epoch, "verifier", 60.0, before=RolloutState.FINISHED
        )
    )
    assert lease.body == now.to_message()
    assigned = [
        body for subject, body in await owed(scene.engine, scene.run) if subject.startswith("work.verify.")
    ]
    assert (assigned[-2]["rollout"], assigned[-2]["epoch"]) == (first, epoch)


async def test_tasks_of_a_folder_that_have_no_open_group_are_passed_over_unless_each_must_have_one(
    scene: Scene,
) -> None:
    was, now = edition("exit 1"), edition()
    await submitted(scene, was, "open")
    unchanged = Task.from_files({"task.toml": b"", "instruction.md": b"write hi", "tests/test.sh": b"exit 1"})
    gone = await submitted(scene, unchanged, "gone")
    await scene.do(
        lambda c: c.execute(
            text("UPDATE groups SET state = 'dead', reason = 'test' WHERE group_id = :g"), {"g": gone}
        )
    )
    folder = {"hello": now, unchanged.name: unchanged}
    assert (await scene.rescore(corrected=folder)).left_alone == {"dead": 1}
    with pytest.raises(ConfigurationError, match=f"no open group has a task named '{unchanged.name}'"):
        await scene.do(
            lambda c: rescore(c, scene.run, Chosen(), "ada: corrected", folder, of_every_task=True)
        )


async def test_the_command_prints_what_is_judged_again_and_what_is_left_alone(
    scene: Scene, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")  # it publishes nothing there itself
    home = write_template(tmp_path / "home", scene.run.name, "").parent

    async def command(*arguments: str) -> Any:
        call = lambda: CliRunner().invoke(app, ["rescore", "-c", str(home), *arguments])
        return await anyio.to_thread.run_sync(call)

    done = await command("--domain", "agent", "--reason", "the image lacked numpy")
    assert done.stdout == "2 rollouts of 1 groups are judged again; left alone: none\n"
    done = await command("--task", "a", "--task", "c")
    assert done.stdout == "2 rollouts of 1 groups are judged again; left alone: 1 trained\n"
    history = text(
        "SELECT reason FROM transitions WHERE kind = 'rollout' AND from_state = 'verified' ORDER BY transition_id"
    )
    rows = (await scene.do(lambda c: c.execute(history))).all()
    assert len(rows) == 4 and rows[0].reason.endswith(": the image lacked numpy")
