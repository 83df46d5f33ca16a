"""`penstock eval`: held-out tasks on one version, next to a training queue that it does not affect, and never twice."""

import json
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine
from typer.testing import CliRunner

from orchestrator.bus import subjects
from orchestrator.cli.main import app
from orchestrator.contracts.errors import ConfigurationError, PenstockError
from orchestrator.contracts.events import TaskSubmitted
from orchestrator.contracts.states import Purpose, SubmissionStatus
from orchestrator.contracts.vetting import Level, Vetting
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.deploy.home import Home
from orchestrator.evaluation import EvaluationClient, EvaluationRequest
from orchestrator.pool.dead_letters import dead_groups, next_retry
from orchestrator.pool.engine import Role, open_engine
from orchestrator.pool.policy_versions import check_pinned
from orchestrator.pool.tables import groups, policy_versions, queue, rollout_servers, tasks
from orchestrator.pool.transitions import lock_run
from orchestrator.publish import publish_tasks
from orchestrator.queries.evaluations import Unscored
from orchestrator.retry import submit_again
from orchestrator.roles.intake import Intake
from orchestrator.settings.config import Config
from orchestrator.tasks.bundle import BundleLimits
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.sources import admissible, each
from tests import builders
from tests.integration.cli.test_export import process
from tests.integration.pool.rig import small
from tests.integration.queries.evaluations_rig import evaluated
from tests.integration.roles.rig import TASK, Runners, Stage, playing, staged, until

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("look")]


def suite(*names: str, domain: str = "coding") -> list[Task]:
    return [
        Task.from_message(
            {
                "files": {
                    "task.toml": f'[metadata]\nname = "{name}"\ndomain = "{domain}"\n',
                    "instruction.md": f"Say {name}.",
                    "tests/test.sh": "exit 0\n",
                }
            }
        )
        for name in names
    ]


@pytest.fixture
async def stage(engine: AsyncEngine, nats_server: EmbeddedNats) -> AsyncIterator[Stage]:
    """Versions 0 to 3 are published; a server serves the newest."""
    async with staged(engine, nats_server.url) as stage:
        await stage.serves(0, 1, 2, 3)
        async with engine.begin() as connection:
            await connection.execute(
                rollout_servers.insert().values(
                    run_id=stage.run.run_id, url="http://127.0.0.1:1", state="ready", version=3
                )
            )
        yield stage


def bench(stage: Stage, reserved: int = 0) -> EvaluationClient:
    return EvaluationClient(
        run=stage.run.name,
        run_id=stage.run.run_id,
        bus=stage.bus,
        engine=stage.context.engine,
        reserved=reserved,
    )


def workers(stage: Stage, version: int) -> Runners:
    return Runners(stage, pool=subjects.POOL_EVAL, author=builders.Author(turns=1, version=version))


async def test_a_suite_is_scored_on_the_newest_version_without_disturbing_the_queue(
    stage: Stage,
) -> None:
    await stage.submit("training")
    seen: list[tuple[int, int]] = []
    async with playing([*stage.core(), *workers(stage, 3).roles()]):
        await stage.reaches(1, "groups", state="dispatched", purpose="train")
        found = await bench(stage).evaluate(
            [*suite("a", "b", "c"), *suite("d", domain="general")],
            EvaluationRequest(suite="held", rollouts=2),
            lambda *progress: seen.append(progress),
        )
    assert (found.suite, found.version, found.groups, found.scored, found.unscored, found.open) == (
        "held",
        3,
        4,
        4,
        0,
        0,
    )
    assert [(point.domain, point.n, point.successes) for point in found.points] == [
        ("coding", 6, 3),
        ("general", 2, 1),
        ("all", 8, 4),
    ]
    assert seen[-1] == (4, 4)
    async with stage.context.engine.connect() as connection:
        assert (
            await connection.scalar(select(queue.c.next_seq).where(queue.c.run_id == stage.run.run_id)) == 1
        )
        evaluated = (await connection.execute(select(groups).where(groups.c.purpose == "eval"))).all()
    assert {(row.seq, row.label, row.pinned_version) for row in evaluated} == {(None, "held", 3)}


async def test_the_levels_next_to_the_tasks_travel_with_an_evaluation(
    engine: AsyncEngine, nats_server: EmbeddedNats
) -> None:
    tasks = suite("a", "b")
    levels = {
        task.content_hash: Vetting(
            sha256=task.content_hash, level=Level.VETTED, times=3, provider="bubblewrap"
        )
        for task in tasks
    }
    async with staged(engine, nats_server.url, tasks={"require": "vetted"}) as stage:
        await stage.serves(0)
        async with stage.context.engine.begin() as connection:
            await connection.execute(
                rollout_servers.insert().values(
                    run_id=stage.run.run_id, url="http://127.0.0.1:1", state="ready", version=0
                )
            )
        async with playing([*stage.core(), *workers(stage, 0).roles()]):
            with pytest.raises(
                PenstockError, match="was rejected: task 'a' has not been vetted as it is now"
            ):
                await bench(stage).evaluate(tasks, EvaluationRequest(suite="without"))
            found = await bench(stage).evaluate(tasks, EvaluationRequest(suite="held"), levels=levels)
    assert (found.groups, found.scored) == (2, 2)


async def test_the_same_again_goes_on_and_once_it_is_done_is_a_no_op(stage: Stage) -> None:
    request = EvaluationRequest(suite="held", version=3)
    async with playing(stage.core()):
        async with anyio.create_task_group() as interrupted:
            interrupted.start_soon(bench(stage).evaluate, suite("a", "b"), request)
            await stage.reaches(2, "groups")  # no runner works
            interrupted.cancel_scope.cancel()
    async with playing([*stage.core(), *workers(stage, 3).roles()]):
        first = await bench(stage).evaluate(suite("a", "b"), request)
    # Neither orchestrator nor runners exist now, and none is needed.
    assert await bench(stage).evaluate(suite("a", "b"), request) == first
    assert await stage.count("groups") == 2


async def test_other_tasks_or_options_under_the_same_name_are_refused(stage: Stage) -> None:
    async with playing([*stage.core(), *workers(stage, 3).roles()]):
        await bench(stage).evaluate(suite("a", "b"), EvaluationRequest(suite="held", version=3))
        for others, request in (
            (suite("a", "x"), EvaluationRequest(suite="held", version=3)),
            (suite("a", "b"), EvaluationRequest(suite="held", version=3, greedy=True)),
            (suite("a", "b"), EvaluationRequest(suite="held", version=3, rollouts=2)),
        ):
            with pytest.raises(
                ConfigurationError,
                match=r"^suite 'held' was evaluated on version 3 with other tasks or options .*another name$",
            ):
                await bench(stage).evaluate(others, request)
        more = await bench(stage).evaluate(suite("a", "b", "c"), EvaluationRequest(suite="held", version=3))
    assert more.scored == 3, "a suite that grew is gone on with"
    await stage.serves(4)
    for request in (
        EvaluationRequest(suite="held", version=4, scaffold="oracle"),
        EvaluationRequest(suite="held", version=4, rollouts=2),
    ):
        with pytest.raises(
            ConfigurationError, match="was evaluated on version 3 with other tasks or options"
        ):
            await bench(stage).evaluate(suite("a", "b", "c"), request)


@pytest.mark.parametrize("name", ["held", "h" * 85])
async def test_a_dead_group_that_was_tried_again_counts_as_its_newest_try_and_the_same_command_goes_on(
    stage: Stage, name: str
) -> None:
    request = EvaluationRequest(suite=name, version=3)
    async with playing([*stage.core(), *workers(stage, 3).roles()]):
        first = await bench(stage).evaluate(suite("a", "b"), request)
        async with stage.context.engine.begin() as connection:  # as an outage would have left it
            await connection.execute(
                update(groups)
                .where(groups.c.task_id.in_(select(tasks.c.task_id).where(tasks.c.name == "a")))
                .values(state="dead", reason="its attempts are used up")
            )
            (group,) = await dead_groups(connection, stage.run.run_id)
            retry = await next_retry(connection, stage.run.run_id, group.submission)
        gone = await bench(stage).evaluate(suite("a", "b"), request)
        assert (gone.groups, gone.scored, gone.unscored) == (2, 1, 1)
        await submit_again(stage.bus, stage.run.name, group, retry, timeout_s=30)
        # Waits for the open try, and counts no submission twice.
        again = await bench(stage).evaluate(suite("a", "b"), request)
        with pytest.raises(ConfigurationError, match="with other tasks or options"):
            await bench(stage).evaluate(suite("b"), request)
    assert retry.endswith(":retry-1") and await stage.count("groups") == 3
    assert (again.groups, again.scored, again.unscored, again.open) == (first.groups, 2, 0, 0)
    assert next(point.n for point in again.points if point.domain == "all") == 2


async def test_a_pin_on_a_version_that_never_was_was_undone_or_is_not_kept_is_rejected_of_a_dead_group_too(
    stage: Stage, tmp_path: Path
) -> None:
    await stage.serves(4, 5, 6)
    pins = {
        1: "are not kept any more (version-1)",
        2: "",
        3: "",
        4: "was undone by a rewind: version 6",
        9: "never published",
    }
    async with stage.context.engine.begin() as connection:
        await connection.execute(text("UPDATE policy_versions SET path = '/nowhere/version-' || version"))
        await connection.execute(text("UPDATE policy_versions SET superseded_by = 6 WHERE version = 4"))
        # A version that the trainer has not pruned yet.
        there = text("UPDATE policy_versions SET path = :path WHERE version = 2")
        await connection.execute(there, {"path": str(tmp_path)})
    async with playing([Intake(stage.context, ["shell"]).run]):
        events = [
            TaskSubmitted(task=TASK, submission=f"on-{version}", purpose=Purpose.EVAL, version=version)
            for version in pins
        ]
        answers = await publish_tasks(stage.bus, stage.run.name, [("coding", each) for each in events], 30.0)
        for version, reason in pins.items():
            status, sentence = answers[f"on-{version}"]
            assert (
                status is (SubmissionStatus.REJECTED if reason else SubmissionStatus.ACCEPTED)
                and reason in (sentence or "")
                and "\n" not in (sentence or "")
            )
        async with stage.context.engine.begin() as connection:
            await connection.execute(
                update(groups).where(groups.c.pinned_version == 3).values(state="dead", reason="poison")
            )
            await connection.execute(text("UPDATE policy_versions SET superseded_by = 6 WHERE version = 3"))
            (group,) = await dead_groups(connection, stage.run.run_id)
        with pytest.raises(ValueError, match="was rejected: policy version 3 was undone by a rewind"):
            await submit_again(stage.bus, stage.run.name, group, "on-3:retry-1", timeout_s=30)
    assert await stage.count("groups") == 2, "what was dead stays so"


async def test_a_run_without_a_version_accepts_only_the_first_as_a_pin(
    engine: AsyncEngine,
) -> None:
    run = await builders.make_run(engine, Config())
    async with engine.begin() as connection:
        await check_pinned(connection, run.run_id, 0, 1)
        with pytest.raises(
            ConfigurationError, match="version 1 was never published in this run: it has none yet"
        ):
            await check_pinned(connection, run.run_id, 1, 1)


async def test_no_prune_or_rewind_comes_between_the_check_of_a_pin_and_its_group(stage: Stage) -> None:
    engine, run_id = stage.context.engine, stage.run.run_id
    async with engine.begin() as intake, engine.connect() as other:
        for each in (intake, other):
            await each.execute(text("SET LOCAL lock_timeout = '200ms'"))
        await check_pinned(intake, run_id, 3, 1)
        await check_pinned(other, run_id, 3, 1)  # another orchestrator's intake need not wait
        await other.rollback()
        await other.execute(text("SET LOCAL lock_timeout = '200ms'"))
        with pytest.raises(DBAPIError, match="lock timeout"):
            await lock_run(other, run_id)


async def test_groups_that_another_version_answered_have_no_result(stage: Stage) -> None:
    async with playing([*stage.core(), *workers(stage, 2).roles()]):
        found = await bench(stage).evaluate(suite("a", "b"), EvaluationRequest(suite="held", version=3))
        assert (found.scored, found.unscored, found.points) == (0, 2, [])
        assert await bench(stage).unscored(found) == [Unscored("wrong_version", 2)]


async def test_training_that_continues_without_a_reserved_server_is_reported_before_anything_is_published(
    stage: Stage,
) -> None:
    warnings: list[str] = []
    async with playing([*stage.core(), *workers(stage, 3).roles()]):
        await bench(stage).evaluate(
            suite("a"), EvaluationRequest(suite="quiet", version=3), waits=warnings.append
        )
        assert warnings == []  # nothing trains
        await stage.submit("training")
        await stage.reaches(1, "groups", purpose="train")
        await bench(stage, reserved=1).evaluate(
            suite("a"), EvaluationRequest(suite="reserved", version=3), waits=warnings.append
        )
        assert warnings == []
        await bench(stage).evaluate(
            suite("a"), EvaluationRequest(suite="unreserved", version=3), waits=warnings.append
        )
    assert (
        len(warnings) == 1
        and "servers.evaluation = 1" in warnings[0]
        and "takes the servers from version 3" in warnings[0]
    )


async def test_an_inexact_evaluation_is_refused_before_anything_is_published(
    stage: Stage, tmp_path: Path
) -> None:
    async def refused(request: EvaluationRequest, reserved: int = 0) -> str:
        with pytest.raises(ConfigurationError) as caught:
            await bench(stage, reserved).evaluate(suite("a"), request)
        return str(caught.value)

    assert "never published policy version 9; its newest is 3" in await refused(
        EvaluationRequest(suite="held", version=9)
    )
    assert "the weights of policy version 1 are not kept any more" in await refused(
        EvaluationRequest(suite="held", version=1)
    )
    async with stage.context.engine.begin() as connection:
        await connection.execute(update(policy_versions).values(path=str(tmp_path)))
        await connection.execute(
            update(policy_versions).where(policy_versions.c.version == 2).values(superseded_by=3)
        )
    assert "was undone by a rewind, version 3 came in its place" in await refused(
        EvaluationRequest(suite="held", version=2)
    )
    refusal = await refused(EvaluationRequest(suite="held", version=1))
    assert (
        "every rollout server serves the newest version, which is 3; reserve one with servers.evaluation = 1"
        in refusal
    )
    with pytest.raises(ConfigurationError, match=r"^suite 'held' has no task"):
        await bench(stage).evaluate([], EvaluationRequest(suite="held"))
    assert await stage.count("groups") == 0


async def test_an_older_version_is_evaluated_where_a_server_is_reserved(stage: Stage, tmp_path: Path) -> None:
    async with stage.context.engine.begin() as connection:
        await connection.execute(update(policy_versions).values(path=str(tmp_path)))
    async with playing([*stage.core(), *workers(stage, 1).roles()]):
        found = await bench(stage, reserved=1).evaluate(
            suite("a"), EvaluationRequest(suite="held", version=1)
        )
    assert (found.version, found.scored) == (1, 1)


async def test_before_the_first_version_it_says_so_and_waits_for_it(
    engine: AsyncEngine, nats_server: EmbeddedNats
) -> None:
    async with staged(engine, nats_server.url) as stage, anyio.create_task_group() as tasks:
        warnings: list[str] = []
        waited = anyio.Event()

        def waits(sentence: str) -> None:
            warnings.append(sentence)
            waited.set()

        async def publishes() -> None:
            await waited.wait()
            async with engine.begin() as connection:
                row = {
                    "run_id": stage.run.run_id,
                    "url": "http://127.0.0.1:1",
                    "state": "ready",
                    "version": 0,
                }
                await connection.execute(rollout_servers.insert().values(**row))
            await stage.serves(0)

        tasks.start_soon(publishes)
        async with playing([*stage.core(), *workers(stage, 0).roles()]):
            found = await bench(stage).evaluate(suite("a"), EvaluationRequest(suite="held"), waits=waits)
    assert (found.version, found.scored) == (0, 1)
    assert warnings == [
        f"run {stage.run.name!r} has no policy version yet: waiting up to 120 s for its trainer, which publishes the first"
    ]


async def test_the_command_prints_the_version_that_it_took_and_the_command_that_goes_on(
    stage: Stage, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for task in suite("a", "b"):
        task.write(tmp_path / "heldout" / task.name)
    services = f'[services]\ndatabase_url = "{database_url}"\nnats_url = "{stage.url}"\n'
    (tmp_path / "penstock.toml").write_text(f'[run]\nname = "{stage.run.name}"\n{services}')

    @asynccontextmanager
    # The streams of a test have names of their own.
    async def own_streams(
        home: Home,
    ) -> AsyncIterator[EvaluationClient]:
        async with open_engine(database_url, Role.READER) as engine, stage.connect() as bus:
            yield EvaluationClient(
                run=stage.run.name, run_id=stage.run.run_id, bus=bus, engine=engine, reserved=0
            )

    monkeypatch.setattr("orchestrator.evaluation.connected", own_streams)
    given = ["eval", "--suite", str(tmp_path / "heldout"), "--greedy", "-c", str(tmp_path)]
    async with playing([*stage.core(), *workers(stage, 3).roles()]):
        first = await anyio.to_thread.run_sync(CliRunner().invoke, app, given)
    assert first.exit_code == 0 and "version 3" in first.stdout, first.output
    sentence, _, command = first.stderr.strip().partition("; if this is interrupted, it goes on with: ")
    assert sentence == "the newest policy version is 3"
    assert shlex.split(command) == ["penstock", *given[:3], "--policy", "3", *given[3:]]
    # No runner works any more: the printed command finds all of it done, and prints no version.
    again = await anyio.to_thread.run_sync(CliRunner().invoke, app, [*shlex.split(command)[1:], "--json"])
    found = json.loads(again.stdout)
    assert (found["suite"], found["version"], found["scored"], again.stderr) == ("heldout", 3, 2, "")
    assert await stage.count("groups") == 2


async def test_an_evaluation_with_rollouts_that_got_no_verdict_says_which_are_missing_and_fails(
    stage: Stage, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (task,) = suite("a")
    task.write(tmp_path / "held" / "a")
    services = f'[services]\ndatabase_url = "{database_url}"\nnats_url = "{stage.url}"\n'
    (tmp_path / "penstock.toml").write_text(f'[run]\nname = "{stage.run.name}"\n{services}')

    @asynccontextmanager
    async def own_streams(home: Home) -> AsyncIterator[EvaluationClient]:
        async with open_engine(database_url, Role.READER) as engine, stage.connect() as bus:
            yield EvaluationClient(
                run=stage.run.name, run_id=stage.run.run_id, bus=bus, engine=engine, reserved=0
            )

    monkeypatch.setattr("orchestrator.evaluation.connected", own_streams)
    request = EvaluationRequest(suite="held", version=3, rollouts=4)
    (read,) = admissible(list(each([tmp_path / "held"], BundleLimits())), Config().sandbox)[0]
    await evaluated(
        stage.context.engine,
        stage.run,
        "held",
        3,
        {"coding": (1.0, 0.0, None, None)},
        size=4,
        submissions=[request.submission(3, read)],
    )
    given = [
        "eval",
        "--suite",
        str(tmp_path / "held"),
        "--policy",
        "3",
        "--rollouts",
        "4",
        "-c",
        str(tmp_path),
    ]
    done = await anyio.to_thread.run_sync(CliRunner().invoke, app, given)
    assert done.exit_code == 1, done.output
    assert "2 of 4" in done.stdout and "1/2 = 50.0 %" in done.stdout
    assert (
        "2 of 4 rollouts have no verdict: 2 verifier_failure. The shares and intervals are of the 2 judged ones"
        in done.stdout
    )
    again = await anyio.to_thread.run_sync(CliRunner().invoke, app, [*given, "--json"])
    found = json.loads(again.stdout)
    assert again.exit_code == 1 and found["without_verdict"] == {"verifier_failure": 2}
    assert (found["complete"], found["judged"], found["rollouts"]) == (False, 2, 4)


async def test_results_are_listed_and_shown_over_versions(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    run = await builders.make_run(engine, small("shown"))
    for version in (1, 3):
        await evaluated(engine, run, "held", version, {"coding": (1.0, 1.0)})
    await evaluated(engine, run, "partial", 1, {"coding": (1.0, 1.0, None)}, size=3)
    await evaluated(engine, run, "partial", 3, {"coding": (None, None)}, size=2)
    (tmp_path / "penstock.toml").write_text(f'[run]\nname = "{run.name}"\n')
    listed = await process(database_url, "eval", "list", "-c", str(tmp_path), "--json")
    assert [(each["suite"], each["version"], each["scored"]) for each in json.loads(listed.stdout)] == [
        ("held", 1, 2),
        ("held", 3, 2),
        ("partial", 1, 1),
        ("partial", 3, 0),
    ]
    table = await process(database_url, "eval", "list", "-c", str(tmp_path))
    assert b"2 of 3" in table.stdout and b"0 of 2" in table.stdout
    incomplete = await process(database_url, "eval", "show", "partial", "-c", str(tmp_path))
    partial = incomplete.stdout.decode()
    assert incomplete.returncode == 1, "as `penstock eval`"
    as_json = await process(database_url, "eval", "show", "partial", "-c", str(tmp_path), "--json")
    assert (as_json.returncode, len(json.loads(as_json.stdout))) == (1, 2)
    assert "not every rollout was judged on version 1 (2 of 3), 3 (0 of 2)" in partial
    assert "2 of 2 rollouts have no verdict: 2 verifier_failure" in partial
    shown = await process(database_url, "eval", "show", "held", "-c", str(tmp_path))
    assert shown.returncode == 0
    assert (
        "2/2 = 100.0 % [34.2, 100.0]" in shown.stdout.decode()
        and "success over versions 1 to 3" in shown.stdout.decode()
    )
    one = await process(database_url, "eval", "show", "held", "--policy", "3", "-c", str(tmp_path), "--json")
    (found,) = json.loads(one.stdout)
    assert found["points"][-1] == found["points"][-1] | {"domain": "all", "n": 2, "successes": 2}
    none = await process(database_url, "eval", "show", "other", "-c", str(tmp_path))
    assert none.returncode == 1 and b"no evaluation 'other'" in none.stderr
    wrong = await process(
        database_url, "eval", "--suite", str(tmp_path), "--policy", "best", "-c", str(tmp_path)
    )
    assert wrong.returncode == 1 and b"--policy 'best' is not a policy version" in wrong.stderr


async def test_an_evaluation_is_not_given_up_before_its_attempts_may_have_ended(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.queries.silence.STUCK_S", 0.0)
    ticks: list[tuple[int, int]] = []

    async def advanced(seconds_ago: float) -> None:
        changed = text("UPDATE rollouts SET changed = now() - make_interval(secs => :ago)")
        async with stage.context.engine.begin() as connection:
            await connection.execute(changed, {"ago": seconds_ago})

    async def goes_silent() -> None:
        await stage.reaches(1, "rollouts", state="queued")
        await advanced(700.0)
        seen = len(ticks)

        async def went_on() -> bool:
            return len(ticks) > seen + 2

        await until(went_on)
        await advanced(1000.0)

    request = EvaluationRequest(suite="held", version=3)
    async with playing([*stage.core(), goes_silent]):
        with pytest.raises(
            PenstockError,
            match=r"^only 0 of 1 groups ended, and no rollout advanced in the last 100\d s; .* to continue$",
        ):
            await bench(stage).evaluate(suite("a"), request, lambda *progress: ticks.append(progress))
