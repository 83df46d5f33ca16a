"""The orchestrator's roles on a real bus and a real database: repeats, nonsense, wipes and full streams change nothing."""

import hashlib
from functools import partial
from typing import Any

import anyio
import msgspec
import pytest
from sqlalchemy import select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.bus import subjects
from orchestrator.bus.base import BusError, Delivery, Outgoing
from orchestrator.contracts.events import (
    SubmissionAnswered,
    TaskSubmitted,
    VerdictReached,
    encode,
)
from orchestrator.contracts.states import (
    FailureClass,
    FilterReason,
    GroupState,
    RolloutState,
    SubmissionStatus,
)
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.pool import leases
from orchestrator.pool.runs import begin_end, close_intake, intake_open
from orchestrator.pool.tables import groups, rollouts
from orchestrator.publish import publish_tasks
from orchestrator.roles.dispatcher import dispatcher
from orchestrator.roles.ingest import ingest_steps, ingest_verdicts
from orchestrator.roles.intake import Intake
from orchestrator.roles.reaper import reaper
from orchestrator.roles.run_end import run_end
from tests import builders
from tests.contract.bus_rig import letters_of
from tests.integration.pool.rig import OWNER, Tree, counter, owed, rollout_row, running, take
from tests.integration.roles.rig import (
    TASK,
    Stage,
    dispatched,
    playing,
    staged,
    until,
)

pytestmark = [pytest.mark.anyio, pytest.mark.services]


def intake(stage: Stage) -> Intake:
    return Intake(stage.context, ["shell", "mini", "oracle", "nop", "mini-swe-agent"])


# --- intake ---------------------------------------------------------------------------------------------------


async def test_a_submission_is_accepted_once_and_answered_each_time(stage: Stage) -> None:
    run = stage.run.name
    async with stage.bus.listen(subjects.every_answer(run)) as notices, playing([intake(stage).run]):
        await stage.submit("one", "one")
        await stage.reaches(1, "groups")
        with anyio.fail_after(60):
            answers = [
                msgspec.json.decode((await anext(notices)).body, type=SubmissionAnswered) for _ in "12"
            ]
    assert {(h.submission, h.status) for h in answers} == {("one", "accepted")}
    assert await stage.count("rollouts", state="waiting") == 2
    assert await stage.count("tasks") == await stage.count("submissions") == 1
    assert await stage.count("transitions", from_state=None) == 4  # run, group, two rollouts


async def test_a_plain_client_needs_no_headers_and_no_id(stage: Stage) -> None:
    body = msgspec.json.encode({"task": TASK})
    async with playing([intake(stage).run]):
        for msg_id in ("x", "y"):
            await stage.bus.publish(
                Outgoing(
                    subject=subjects.tasks(stage.run.name, "coding"), msg_id=msg_id, schema="", body=body
                )
            )
        await stage.reaches(1, "groups", submission=hashlib.sha256(body).hexdigest())


async def test_an_unusable_message_becomes_a_dead_letter_with_its_reason(stage: Stage) -> None:
    good = encode(TaskSubmitted(task=TASK, submission="good"))
    async with playing([intake(stage).run]):
        for n, (subject, schema, body) in enumerate(
            (
                ("tasks.unknown.coding", "", good),
                (f"tasks.{stage.run.name}", "", good),
                (subjects.tasks(stage.run.name, "coding"), "", b"{not json"),
                (subjects.tasks(stage.run.name, "coding"), "Hovercraft/1", good),
                (subjects.tasks(stage.run.name, "coding"), "StepRecorded/1", good),
                (
                    subjects.tasks(stage.run.name, "coding"),
                    "",
                    b'{"later": %s}' % (b"[" * 9000 + b"]" * 9000),
                ),
            )
        ):
            await stage.bus.publish(Outgoing(subject=subject, msg_id=f"m{n}", schema=schema, body=body))
        await until(lambda: _has(stage, 6))
        await stage.submit("good")
        await stage.reaches(1, "groups")
    reasons = sorted(await stage.reasons())
    for reason, part in zip(
        reasons,
        (
            "TaskSubmitted: JSON is malformed",
            "its content is nested too deeply",
            "run 'unknown' does not exist",
            "schema 'StepRecorded/1' is not expected here",
            "the subject 'tasks.",
            "unknown schema 'Hovercraft/1'",
        ),
        strict=True,
    ):
        assert part in reason
    letters: list[Delivery] = []
    async with stage.bus.subscribe(letters_of("TASKS")) as arriving:
        with anyio.fail_after(60):
            while len(letters) < 6:
                letters += await arriving.take(6)
    assert {letter.headers[subjects.HEADER_DEAD_REASON] for letter in letters} == set(reasons)


async def test_an_equal_body_under_another_schema_is_refused_in_the_same_batch(stage: Stage) -> None:
    good = encode(TaskSubmitted(task=TASK, submission="good"))
    for n, schema in enumerate(("", "Hovercraft/1", "TaskSubmitted/1", "StepRecorded/1")):
        subject = subjects.tasks(stage.run.name, "coding")
        await stage.bus.publish(Outgoing(subject=subject, msg_id=f"m{n}", schema=schema, body=good))
    async with playing([intake(stage).run]):
        await stage.emptied("TASKS")
    unknown, unexpected = await stage.reasons()
    assert "unknown schema 'Hovercraft/1'" in unknown
    assert "schema 'StepRecorded/1' is not expected here" in unexpected
    assert await stage.count("groups") == await stage.count("submissions") == 1


async def _has(stage: Stage, n: int) -> bool:
    return len(await stage.reasons()) == n


REJECTED: list[tuple[dict[str, Any], str]] = [
    ({"task": {"files": {"task.toml": "", "instruction.md": "x"}}}, "tests/test.sh is missing"),
    ({"task": {"files": {**TASK["files"], "task.toml": "[agent]\ntimeout_sec = -1"}}}, "task.toml"),
    (
        {"task": {"files": {**TASK["files"], "environment/Dockerfile": "FROM debian:12\nRUN make"}}},
        "environment/Dockerfile line 2: RUN is not one of FROM, WORKDIR, COPY and ENV: only a sandbox provider",
    ),
    (
        {"task": {"files": {**TASK["files"], "environment/Dockerfile": "FROM ubuntu"}}},
        "environment/Dockerfile line 1: FROM ubuntu: the sandbox's own system stands for debian:12,",
    ),
    (
        {"purpose": "eval", "sampling": {"temperature": -1.0}},
        "sampling.temperature must be a number from 0 to 100, got -1.0",
    ),
    (
        {"purpose": "eval", "sampling": {"top_p": 7.0}},
        "sampling.top_p must be a number above 0, at most 1, got 7.0",
    ),
    (
        {"purpose": "eval", "sampling": {"top_p": 0.0}},
        "sampling.top_p must be a number above 0, at most 1, got 0.0",
    ),
    (
        {"purpose": "eval", "sampling": {"top_k": 0.0}},
        "sampling.top_k must be -1, for all tokens, or a whole number from 1 on, got 0.0",
    ),
    (
        {"purpose": "record", "sampling": {"max_new_tokens": 0.5}},
        "sampling.max_new_tokens must be a whole number from 1 on, got 0.5",
    ),
    (
        {"purpose": "eval", "sampling": {"seed": 1e30}},
        "sampling.seed must be a whole number from 0 on, got 1e+30",
    ),
    ({"label": "x" * 300}, "label has 300 characters, at most 256 fit"),
    ({"scaffold": "oracle"}, "rollouts of the scaffold oracle are only evaluated, never trained or recorded"),
    ({"scaffold": "nop", "purpose": "record"}, "rollouts of the scaffold nop are only evaluated"),
    ({"scaffold": "oracle", "purpose": "eval"}, "has no solution/solve.sh, which the scaffold oracle runs"),
    (
        {
            "task": {
                "files": TASK["files"]
                | {
                    "task.toml": '[environment]\nskills_dir = "x"',
                    "environment/files/x/count/SKILL.md": "count",
                }
            }
        },
        "[environment].skills_dir is not honoured by the scaffold shell, whose program is given no skills",
    ),
    (
        {
            "scaffold": "mini-swe-agent",
            "task": {"files": TASK["files"] | {"task.toml": '[environment]\nenv = {PYTHONPATH = "/app"}'}},
        },
        "[environment].env: PYTHONPATH is not honoured by the scaffold mini-swe-agent, which sets it itself",
    ),
    ({"scaffold": "none"}, "unknown scaffold 'none'; known: shell, mini"),
    ({"group_size": 1}, "at least 2 rollouts"),
    ({"group_size": 100}, "would never start"),
    ({"version": 3}, "only eval and record groups pin"),
    ({"purpose": "eval", "version": 2**40}, "only eval and record groups pin"),
    ({"sampling": {"temperature": 0.5}}, "only eval and record groups have sampling"),
    (
        {"purpose": "eval", "sampling": {"heat": 0.5}},
        "unknown sampling key 'heat'; known: max_new_tokens, seed",
    ),
]


async def test_a_bad_task_is_rejected_with_one_sentence_and_stays_so(stage: Stage) -> None:
    async with playing([intake(stage).run]):
        for n, (changes, _) in enumerate(REJECTED * 2):
            await stage.submit(f"bad{n % len(REJECTED)}", **changes)
        await stage.reaches(len(REJECTED), "submissions", status="rejected")
        await stage.submit("good")
        await stage.reaches(1, "groups")
    query = text("SELECT submission, reason FROM submissions WHERE status = 'rejected' ORDER BY submission")
    async with stage.context.engine.connect() as connection:
        reasons = {row.submission: row.reason for row in await connection.execute(query)}
    for n, (_, part) in enumerate(REJECTED):
        assert part in reasons[f"bad{n}"] and "\n" not in reasons[f"bad{n}"]
    assert await stage.count("dead_letters") == len(REJECTED), "the repeat is answered, not buried again"


async def test_the_scaffolds_of_a_tasks_own_run_are_known_to_the_intake_of_every_run(stage: Stage) -> None:
    config = stage.context.config
    ours = "/srv/other/mine.py"
    rollout = config.rollout.model_copy(update={"scaffolds": {ours: 1.0}})
    name = f"{stage.run.name}x"
    other = config.model_copy(
        update={"run": config.run.model_copy(update={"name": name}), "rollout": rollout}
    )
    theirs = await builders.make_run(stage.context.engine, other)
    async with playing([intake(stage).run]), stage.bus.listen(subjects.every_answer(name)) as notices:
        await stage.submit("foreign", scaffold=ours)  # a share of the other run only
        await stage.reaches(1, "submissions", status="rejected")
        shared, named = TaskSubmitted(task=TASK, submission="s"), TaskSubmitted(task=TASK, submission="n")
        for event in (shared, msgspec.structs.replace(named, scaffold=ours)):
            await stage.send(subjects.tasks(name, "coding"), event)
        with anyio.fail_after(60):
            answers = [
                msgspec.json.decode((await anext(notices)).body, type=SubmissionAnswered) for _ in "12"
            ]
    assert [(each.status, each.reason) for each in answers] == [(SubmissionStatus.ACCEPTED, None)] * 2
    async with stage.context.engine.connect() as connection:
        query = select(groups.c.scaffold).where(groups.c.run_id == theirs.run_id)
        assert set(await connection.scalars(query)) == {ours}


async def test_a_domain_without_a_share_is_named(engine: AsyncEngine, nats_server: EmbeddedNats) -> None:
    async with staged(engine, nats_server.url, stage={"domains": {"coding": 1.0}}) as stage:
        async with (
            stage.bus.listen(subjects.every_answer(stage.run.name)) as notices,
            playing([intake(stage).run]),
        ):
            await stage.submit("x", domain="cooking")
            with anyio.fail_after(60):
                answer = msgspec.json.decode((await anext(notices)).body, type=SubmissionAnswered)
    assert (
        answer.status is SubmissionStatus.REJECTED
        and "'cooking' has no share in stage 'main'; known: coding" in (answer.reason or "")
    )


async def test_closed_intake_takes_evaluations_only(stage: Stage) -> None:
    async with stage.context.engine.begin() as connection:
        await close_intake(connection, stage.run.run_id)
    async with playing([intake(stage).run]):
        await stage.submit("t")
        await stage.submit("e", purpose="eval")
        await stage.reaches(1, "submissions", status="rejected")
        await stage.reaches(1, "groups", purpose="eval", size=1)


async def test_a_run_cannot_end_between_the_look_at_its_intake_and_the_acceptance(stage: Stage) -> None:
    engine, run_id = stage.context.engine, stage.run.run_id
    ended = anyio.Event()

    async def end() -> None:
        async with engine.begin() as connection:
            await begin_end(connection, run_id, "test")
        ended.set()

    async with anyio.create_task_group() as tasks:
        async with engine.begin() as connection:
            assert await intake_open(connection, run_id)
            tasks.start_soon(end)
            await until(lambda: _is_waiting(engine))
            assert not ended.is_set()
        with anyio.fail_after(60):
            await ended.wait()


async def _is_waiting(engine: AsyncEngine) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    async with engine.connect() as connection:
        return bool(await connection.scalar(text(query)))


async def test_publishing_waits_until_every_task_is_answered(stage: Stage) -> None:
    good = [("coding", TaskSubmitted(task=TASK, submission=f"s{n}")) for n in range(3)]
    bad = [("coding", TaskSubmitted(task={}, submission="bad")), ("coding", TaskSubmitted(task=TASK))]
    async with stage.connect() as client, playing([intake(stage).run]):
        answers = await publish_tasks(client, stage.run.name, good + bad, 30.0)
        assert [answers[f"s{n}"] for n in range(3)] == [(SubmissionStatus.ACCEPTED, None)] * 3
        assert answers["bad"][0] is SubmissionStatus.REJECTED
        assert "task.toml is missing" in (answers["bad"][1] or "")
        assert len(answers) == 5
        assert await publish_tasks(client, stage.run.name, good, 30.0) == {
            f"s{n}": (SubmissionStatus.ACCEPTED, None) for n in range(3)
        }
    assert await stage.count("groups") == 4
    async with stage.connect() as client:
        assert await publish_tasks(client, stage.run.name, good, 0.3) == {}, "no orchestrator answers"
        assert await publish_tasks(client, stage.run.name, [], 0.3) == {}
        huge = TaskSubmitted(task={"files": {"x": "x" * (9 << 20)}}, submission="huge")
        with pytest.raises(BusError):
            await publish_tasks(client, stage.run.name, [("coding", huge)], 30.0)


# --- dispatcher -----------------------------------------------------------------------------------------------


async def test_admission_stops_at_n_at_the_staleness_bound_and_at_the_slots(
    engine: AsyncEngine, nats_server: EmbeddedNats
) -> None:
    for sections, fits in (
        ({"queue": {"capacity": 3}, "rollout": {"slots": 20}}, 3),
        ({"queue": {"capacity": 20}, "rollout": {"slots": 20}}, 4),  # (S+1)·P
        ({"queue": {"capacity": 20, "max_staleness": 9}, "rollout": {"slots": 5}}, 3),  # 5 slots + G − 1
    ):
        async with staged(engine, nats_server.url, **sections) as stage:  # type: ignore[arg-type]
            await builders.accepted(engine, stage.run, [f"t{n}" for n in range(12)], size=2)
            assert await dispatched(stage) == fits
            assert await dispatched(stage) == fits
            async with engine.begin() as connection:
                await connection.execute(text("UPDATE queue SET admission_open = false"))
                await connection.execute(
                    text("UPDATE groups SET state = 'filtered', reason = 'x' WHERE seq = 0")
                )
            assert await dispatched(stage) == fits - 1
            async with engine.begin() as connection:
                await connection.execute(text("UPDATE queue SET admission_open = true"))


async def test_a_large_group_is_not_overtaken_by_small_ones(
    engine: AsyncEngine, nats_server: EmbeddedNats
) -> None:
    async with staged(engine, nats_server.url, rollout={"slots": 5}) as stage:
        for name, size in (("a", 2), ("b", 5), ("c", 2)):
            await builders.accepted(engine, stage.run, [name], size=size)
        assert await dispatched(stage) == 1, "5 more rollouts do not fit next to 2"


async def test_domains_are_served_by_their_shares(engine: AsyncEngine, nats_server: EmbeddedNats) -> None:
    shares: dict[str, object] = {"domains": {"coding": 0.75, "general": 0.25}}
    async with staged(engine, nats_server.url, stage=shares) as stage:
        for domain in ("general", "coding"):
            await builders.accepted(
                engine, stage.run, [f"{domain}{n}" for n in range(6)], domain=domain, size=2
            )
        assert await dispatched(stage, domain="coding") == 3
        assert await dispatched(stage, domain="general") == 1
        subjects_of = {subject for subject, _ in await owed(engine, stage.run)}
        assert subjects_of == {subjects.work_rollout(stage.run.name)}


# --- ingest ---------------------------------------------------------------------------------------------------


async def test_one_impossible_message_does_not_cost_the_others_of_its_batch(stage: Stage) -> None:
    engine, run = stage.context.engine, stage.run.name
    await stage.serves(3, 4)
    held, _ = await running(engine, stage.run, 2)
    good = [step.event for step in Tree(1).grow(run, held, 6)]
    subject = subjects.steps(run, str(held.rollout_id))
    bad = [
        (msgspec.structs.replace(good[0], rollout=2**70), f"rollout {2**70} does not exist"),
        (msgspec.structs.replace(good[0], run="other"), "names run 'other' but came on the subject of"),
        (msgspec.structs.replace(good[1], row_sha="00" * 32), "row_sha is not the digest of the row"),
    ]
    for n, event in enumerate([*good[:3], *(event for event, _ in bad), *good[3:]]):
        await stage.send(subject, event, f"m{n}")
    await stage.bus.publish(
        Outgoing(subject=subject, msg_id="junk", schema="StepRecorded/1", body=b"\xff\xfe")
    )
    async with playing([partial(ingest_steps, stage.context)]):
        await stage.reaches(6, "steps")
        await stage.reaches(4, "dead_letters")
    reasons = await stage.reasons()
    for _, part in bad:
        assert any(part in reason for reason in reasons), part


async def test_a_reward_outside_0_to_1_and_a_foreign_failure_class_are_refused(stage: Stage) -> None:
    held, _ = await running(stage.context.engine, stage.run, 2)
    verdict = VerdictReached(
        run=stage.run.name,
        rollout=held.rollout_id,
        attempt=1,
        epoch=1,
        failure_class=FailureClass.COMPLETED,
        reward=None,
    )
    subject = subjects.results_verdict(stage.run.name)
    for changes in (
        {},
        {"reward": 1.5},
        {"failure_class": "poison", "reward": 1.0},
        {"failure_class": "bad luck"},
    ):
        await stage.send(subject, msgspec.structs.replace(verdict, **changes))
    await stage.send(subject, msgspec.structs.replace(verdict, reward=1.0))  # without a verification: stale
    async with playing([partial(ingest_verdicts, stage.context)]):
        await stage.reaches(4, "dead_letters")
        await until(lambda: _counted(stage, "verdicts_stale"))
    assert await stage.count("verdicts") == 0


async def test_verdicts_that_come_in_any_order_lock_rows_as_heartbeats_do(stage: Stage) -> None:
    """Else one of the two is the victim of a deadlock, and has to repeat everything."""
    engine, run = stage.context.engine, stage.run
    held = await running(engine, run, 2)
    async with engine.begin() as connection:
        await connection.execute(
            update(rollouts).values(state=RolloutState.VERIFYING, failure_class="completed")
        )
    for lease in reversed(held):
        verdict = VerdictReached(
            run=run.name,
            rollout=lease.rollout_id,
            attempt=1,
            epoch=1,
            failure_class=FailureClass.COMPLETED,
            reward=1.0,
        )
        await stage.send(subjects.results_verdict(run.name), verdict, f"{lease.rollout_id}")
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"

    async def ingest_waits() -> bool:
        async with engine.connect() as looking:
            return bool(await looking.scalar(text(waits)))

    async with engine.begin() as beating:
        await beating.execute(text("SET LOCAL deadlock_timeout = '10ms'"))  # we would be the victim
        assert await leases.heartbeat(beating, run.run_id, OWNER, {held[0].rollout_id: 1}, 60.0)
        async with playing([partial(ingest_verdicts, stage.context)]):
            await until(ingest_waits)
            epochs = {lease.rollout_id: 1 for lease in held}
            assert await leases.heartbeat(beating, run.run_id, OWNER, epochs, 60.0) == set(epochs)
            await beating.commit()
            await stage.reaches(2, "verdicts")


async def _counted(stage: Stage, name: str) -> bool:
    return await counter(stage.context.engine, stage.run, name) == 1


# --- reaper and ender -----------------------------------------------------------------------------------------


async def test_a_new_reaper_gives_every_lease_one_full_time_to_live_before_it_reaps(
    engine: AsyncEngine, nats_server: EmbeddedNats
) -> None:
    async with staged(engine, nats_server.url, rollout={"lease_ttl_s": 3600.0}) as stage:
        [group_id] = await builders.accepted(engine, stage.run, ["a"], size=2)
        await builders.dispatch(engine, stage.run)
        async with engine.begin() as connection:
            rollout_id = await connection.scalar(
                select(rollouts.c.rollout_id).where(rollouts.c.group_id == group_id)
            )
            assert rollout_id and await take(connection, rollout_id, ttl_s=-5.0)
        async with playing([partial(reaper, stage.context)]):
            await until(lambda: _lease_is_ahead(engine, rollout_id))
            async with engine.begin() as connection:
                kept = await leases.heartbeat(connection, stage.run.run_id, OWNER, {rollout_id: 1}, -1.0)
                assert kept == {rollout_id}
            await until(lambda: _reaped(engine, rollout_id))
    assert await counter(engine, stage.run, "leases_expired") == 1


async def _lease_is_ahead(engine: AsyncEngine, rollout_id: int) -> bool:
    query = "SELECT lease_until > clock_timestamp() FROM rollouts WHERE rollout_id = :r"
    async with engine.connect() as connection:
        return bool(await connection.scalar(text(query), {"r": rollout_id}))


async def _reaped(engine: AsyncEngine, rollout_id: int) -> bool:
    row = await rollout_row(engine, rollout_id)
    return (row.state, row.attempt) == (RolloutState.QUEUED, 2)


async def test_the_ender_ends_a_run_whose_condition_holds_and_filters_what_is_open(
    engine: AsyncEngine, nats_server: EmbeddedNats
) -> None:
    async with staged(engine, nats_server.url, stage={"end_seconds": 0.2}) as stage:
        await running(engine, stage.run, 2)
        await builders.accepted(engine, stage.run, ["waits"], size=2)
        async with playing([partial(run_end, stage.context)]):
            await stage.reaches(1, "runs", state="ended")
        assert await stage.count("groups", state=GroupState.FILTERED, reason=FilterReason.RUN_ENDED) == 2
        assert await stage.count("rollouts", state="lost", failure_class="cancelled") == 4
        assert await stage.count("transitions", kind="run", to_state="ending") == 1


async def test_the_ender_waits_for_open_groups_after_intake_closed(stage: Stage) -> None:
    engine = stage.context.engine
    await running(engine, stage.run, 2)
    async with engine.begin() as connection:
        await close_intake(connection, stage.run.run_id)
    async with playing([partial(run_end, stage.context), partial(dispatcher, stage.context)]):
        with anyio.move_on_after(1.2):  # two looks of the run's end
            await stage.reaches(1, "runs", state="ended")
        assert await stage.count("runs", state="active") == 1
        async with engine.begin() as connection:
            await connection.execute(text("UPDATE groups SET state = 'filtered', reason = 'too_few'"))
        await stage.reaches(1, "runs", state="ended")
