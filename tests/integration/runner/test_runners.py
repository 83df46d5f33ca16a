"""Runners and verifier runners on real Postgres, NATS and bubblewrap, started as in production."""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from orchestrator.bus import subjects
from orchestrator.bus.base import Outgoing
from orchestrator.contracts.events import RolloutAssigned, encode
from orchestrator.contracts.states import SlotPhase
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.gateway.render import load_renderer
from orchestrator.gateway.servers.client import CONTEXT_KEPT
from orchestrator.runner import verify_runner
from orchestrator.runner.step_grades import grade_step as grade_step_of
from orchestrator.settings.config import Config
from sandboxes import procfs
from sandboxes.owner import records
from sandboxes.reap import default_root
from sandboxes.system import of_this_machine
from tests.integration.runner.rig import PATIENCE_S, Opens, a_task, open_rig, runs, says
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("roles")]


PASSES = a_task(runs("echo done > out"), says("done"))


def monitors() -> list[int]:
    """The bubblewrap monitors that this process has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == os.getpid() and (entry / "comm").read_text().strip() == "bwrap":
                    found.append(int(entry.name))
            except (OSError, ValueError):
                continue
    return found


def sleeps(monitors: Sequence[int]) -> bool:
    """Whether a command `sleep` runs in one of these sandboxes."""
    inside = set()
    for pid in (child for monitor in monitors for child in procfs.tree(monitor)[1:]):
        with suppress(OSError):
            inside.add(os.readlink(f"/proc/{pid}/ns/pid"))
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                asleep = (entry / "cmdline").read_bytes().startswith(b"sleep\0")
                if asleep and os.readlink(entry / "ns" / "pid") in inside:
                    return True
    return False


async def program_running() -> list[int]:
    """Wait until the command `sleep` of an attempt runs in a sandbox of ours; returns the monitors of our sandboxes."""
    found = await eventually(monitors, sleeps, within_s=PATIENCE_S)
    return found


async def no_program_running() -> None:
    await eventually(lambda: not monitors(), within_s=PATIENCE_S)


async def test_an_error_of_our_own_code_ends_only_the_verification_that_raises_it(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opens() as rig:
        bad = await rig.submit(PASSES)
        grade = grade_step_of
        of_bad = {f"the tests of rollout {bad}", "the tests over nothing"}  # else the work would be its cause

        async def grade_step(worker: Any, step: Any, work: Any, drawn: Any, what: str) -> Any:
            if what in of_bad:
                raise KeyError("a fault of ours")
            return await grade(worker, step, work, drawn, what)

        monkeypatch.setattr(verify_runner, "grade_step", grade_step)
        rig.start_runner()
        rig.start_verifier()
        row = await rig.state(bad, "verified", "lost")
        assert row.failure_class == "verifier_failure" and "KeyError: 'a fault of ours'" in row.reason
        assert await rig.verdict(await rig.submit(PASSES)) == 1.0


async def test_an_agent_that_nests_long_folders_gets_a_verdict_and_so_does_the_next_one(opens: Opens) -> None:
    """Each name and the depth are within their limits. A path longer than an index row holds crosses; one longer than Linux opens stays behind."""
    nest = "cd {0}; for i in $(seq {1}); do n=$(head -c {2} /dev/urandom | base32 -w0 | head -c {2}); mkdir $n; cd $n; done; echo leaf > leaf"
    check = "[ $(find /app/crosses -name leaf | wc -l) = 1 ] && [ $(find /app/stays -name leaf | wc -l) = 0 ]"
    nested = a_task(
        runs(f"mkdir crosses; {nest.format('crosses', 14, 250)}"),
        runs(f"mkdir stays; {nest.format('stays', 24, 250)}"),
        says("done"),
        check=check,
    )
    async with opens() as rig:
        rig.start_runner()
        rig.start_verifier()
        rollout = await rig.submit(nested)
        assert await rig.verdict(rollout) == 1.0
        assert await rig.verdict(await rig.submit(PASSES)) == 1.0
        query = (
            "SELECT octet_length(path) AS size, kind, why FROM artifacts WHERE rollout_id = :id ORDER BY path"
        )
        found = {(row.kind, row.why) for row in await rig.rows(query, id=rollout)}
        longest = max(row.size for row in await rig.rows(query, id=rollout) if row.kind == "file")
    assert longest > 2704 and ("behind", "has a path of more than 4,000 bytes") in found


async def test_a_rollout_passes_from_its_assignment_to_a_verdict_of_1_and_an_empty_one_gets_0(
    opens: Opens,
) -> None:
    async with opens() as rig:
        rig.start_runner()
        rig.start_verifier()
        passing = await rig.submit(PASSES)
        empty = await rig.submit(a_task(says("done")), pool="default")
        assert await rig.verdict(passing) == 1.0
        assert await rig.verdict(empty) == 0.0
        (attempt,) = await rig.attempts(passing)
        assert (attempt.failure_class, attempt.answer, attempt.scaffold) == ("completed", "done", "shell")
        assert attempt.system == of_this_machine()
        assert len(attempt.scaffold_sha) == 64 and attempt.agent_s > 0 and attempt.queued_s > 0
        assert set(attempt.spent) == set(SlotPhase) and all(seconds > 0 for seconds in attempt.spent.values())
        slot_s = (attempt.ended - attempt.started).total_seconds()
        assert attempt.spent["agent"] < sum(attempt.spent.values()) <= slot_s + 0.1
        (call,) = await rig.rows("SELECT * FROM tool_calls WHERE rollout_id = :id", id=passing)
        assert (call.name, call.exit_code) == ("bash", 0) and 0 < call.start_s < call.end_s
        (artifact,) = await rig.rows("SELECT * FROM artifacts WHERE rollout_id = :id", id=passing)
        assert (artifact.path, artifact.body) == ("out", b"done\n")
        (session,) = await rig.rows("SELECT * FROM sessions WHERE rollout_id = :id", id=passing)
        assert session.state == "sealed" and session.seal["steps"] == attempt.steps == 2
        assert (session.budget["max_turns"], session.budget["max_context"]) == (4, 2048)
        steps = await rig.rows(
            "SELECT kind, agent FROM steps WHERE rollout_id = :id ORDER BY idx", id=passing
        )
        assert steps == [("root", "main"), ("continues", "main")]


async def test_by_default_an_attempt_has_the_models_context_and_its_tasks_own_time(
    database_url: str, nats_server: EmbeddedNats, directory: Path, model: Path
) -> None:
    own = Config()
    rollout = own.rollout.model_dump(include={"timeout_s", "tool_timeout_s"})
    async with open_rig(database_url, nats_server.url, directory, model, stage={}, **rollout) as rig:
        rig.start_runner()
        longer = {"": 900, "[agent]\ntimeout_sec = 5000": 5000, "[agent]\ntimeout_sec = 99999": 14400}
        context = load_renderer(model).context - CONTEXT_KEPT
        for settings, seconds in longer.items():
            task = a_task(says("done"), settings=settings)
            attempted = await rig.submit(task, scaffold="tests.integration.runner.scaffolds_at_work:Bounded")
            await rig.state(attempted, "finished")
            (attempt,) = await rig.attempts(attempted)
            assert attempt.answer == f"{own.stage.max_turns} {context} 600 {seconds}"
            (session,) = await rig.rows("SELECT * FROM sessions WHERE rollout_id = :id", id=attempted)
            assert session.budget["max_context"] == 0


async def test_the_answer_and_the_changes_cross_to_the_tests_and_nothing_else_does(opens: Opens) -> None:
    check = (
        '[ "$(cat "$PENSTOCK_ANSWER")" = 42 ] && [ ! -e gone ] && [ "$(cat kept)" = new ] && [ -x made/tool ]'
        ' && [ "$(readlink link)" = kept ] && [ ! -e /tmp/left ] && [ ! -e /logs/verifier/planted ]'
    )
    files = {"environment/files/gone": b"x", "environment/files/kept": b"old"}
    does = (
        "rm gone; echo new > kept; mkdir made; echo x > made/tool; chmod +x made/tool; ln -s kept link;"
        "touch /tmp/left; mkdir /logs/verifier; touch /logs/verifier/planted; ls /tests > tests 2>&1"
    )
    async with opens() as rig:
        rig.start_runner()
        rig.start_verifier()
        rollout = await rig.submit(a_task(runs(does), says("42"), check=check, files=files))
        assert await rig.verdict(rollout) == 1.0
        rows = await rig.rows(
            "SELECT path, body FROM artifacts WHERE rollout_id = :id ORDER BY path", id=rollout
        )
        crossed = {row.path: row.body for row in rows}
        assert list(crossed) == ["gone", "kept", "link", "made/tool", "tests"] and crossed["gone"] is None
        assert crossed["tests"] == b""  # nothing is there while the agent works


async def test_an_error_of_the_policy_is_a_policy_failure_and_is_still_graded(opens: Opens) -> None:
    writes = runs("echo done > out")
    unknown_tool = {**says(""), "tool_calls": [{"name": "fly", "arguments": {}}]}
    big = runs("head -c 1100000 /dev/urandom > big")
    tasks = {
        "turns": a_task(writes, writes, settings="[agent]\nmax_turns = 2"),
        "ill_formed: the output cannot be parsed": a_task(writes, unknown_tool),
        "artifacts: big is larger than the limit for one file": a_task(
            big, says("done"), check="[ ! -e big ]"
        ),
    }
    async with opens(sandbox={"artifact_file_mb": 1}) as rig:
        rig.start_runner()
        rig.start_verifier()
        rollouts = {await rig.submit(task): reason for reason, task in tasks.items()}
        for rollout, reason in rollouts.items():
            too_much = reason.startswith("artifacts: ")  # such a result is not graded: its reward is 0
            assert await rig.verdict(rollout) == (0.0 if too_much else 1.0)
            (attempt,) = await rig.attempts(rollout)
            assert (attempt.failure_class, attempt.reason) == ("policy_failure", reason)
            assert attempt.ungradable == (reason if too_much else None)


async def test_a_dead_sandbox_is_replaced_and_the_attempt_goes_on_from_its_recorded_steps(
    opens: Opens,
) -> None:
    async with opens() as rig:
        rig.start_runner()
        rig.start_verifier()
        rollout = await rig.submit(a_task(runs("sleep 3; echo done > out"), says("done")))
        await rig.state(rollout, "running")
        for monitor in await program_running():
            os.kill(monitor, signal.SIGKILL)
        assert await rig.verdict(rollout) == 1.0
        (attempt,) = await rig.attempts(rollout)
        assert (attempt.failure_class, attempt.epoch, attempt.steps) == ("completed", 2, 2)
        (resume,) = await rig.rows("SELECT * FROM resumes WHERE rollout_id = :id", id=rollout)
        assert resume.reason.startswith("sandbox: ") and (resume.steps, resume.replay) == (1, "continued")


async def test_a_dead_sandbox_of_a_scaffold_that_cannot_be_replayed_is_an_infrastructure_failure_and_runs_again_in_the_same_group(
    opens: Opens,
) -> None:
    async with opens() as rig:
        rig.start_runner()
        rig.start_verifier()
        task = a_task(runs("sleep 3; echo done > out"), says("done"))
        rollout = await rig.submit(task, scaffold=str(Path(__file__).parent / "looper_scaffold"))
        group = (await rig.state(rollout, "running")).group_id
        for monitor in await program_running():
            os.kill(monitor, signal.SIGKILL)
        assert await rig.verdict(rollout) == 1.0
        first, second = await rig.attempts(rollout)
        assert first.failure_class == "infra_failure" and first.reason.startswith("sandbox: ")
        assert second.failure_class == "completed"
        row = await rig.state(rollout, "verified")
        assert (row.group_id, row.attempt) == (group, 2)


async def test_an_exception_in_a_scaffold_is_counted_and_never_held_against_the_policy(opens: Opens) -> None:
    async with opens() as rig:
        rig.start_runner()
        rollout = await rig.submit(PASSES, scaffold="tests.integration.runner.scaffolds_at_work:Broken")
        await rig.state(rollout, "lost")
        attempts = await rig.attempts(rollout)
        assert [a.failure_class for a in attempts] == ["infra_failure"] * 3
        assert attempts[0].log == "ZeroDivisionError: division by zero"
        await rig.counted("scaffold_errors")


async def test_a_history_that_a_scaffold_replaces_is_recorded_as_rewrites_with_its_reason(
    opens: Opens,
) -> None:
    async with opens() as rig:
        rig.start_runner()
        task = a_task(says("one"), says("two"), says("three"), says("four"))
        rollout = await rig.submit(task, scaffold="tests.integration.runner.scaffolds_at_work:Forgetful")
        await rig.state(rollout, "finished")
        query = "SELECT kind, parent_idx, branch_reason, agent FROM steps WHERE rollout_id = :id ORDER BY idx"
        root, continues, rewrites, side = await rig.rows(query, id=rollout)
        assert (root.kind, continues.kind, rewrites.kind) == ("root", "continues", "rewrites")
        assert rewrites.branch_reason == "window" and root.branch_reason is None
        assert (rewrites.agent, side.agent) == ("main", "main/helper")
        (attempt,) = await rig.attempts(rollout)
        assert (attempt.failure_class, attempt.answer, attempt.steps) == ("completed", "three", 4)


async def test_the_steps_of_sub_agents_are_rewarded_as_steps_of_their_rollout(opens: Opens) -> None:
    async with opens() as rig:
        rig.start_runner()
        rig.start_verifier()
        task = a_task(*[says("on")] * 9, check="true", settings="[agent]\nmax_turns = 9")
        rollout = await rig.submit(task, scaffold="tests.integration.runner.scaffolds_at_work:Team")
        row = await rig.until(
            "SELECT total, performance, beta, speed, alpha, per_step FROM latest_rewards WHERE rollout_id = :id",
            lambda row: True,
            id=rollout,
        )
        agents = await rig.rows("SELECT agent FROM steps WHERE rollout_id = :id ORDER BY idx", id=rollout)
        assert sorted(row.agent for row in agents) == [
            "main",
            *["main/scout"] * 3,
            *["main/scout-2"] * 3,
            *["main/scout/deep"] * 2,
        ]
        steps = row.per_step
        assert [step["idx"] for step in steps] == list(range(9)) and row.alpha == 1
        assert all(step["weight"] == 1 for step in steps)
        paid = [step["performance"] for step in steps]
        assert paid == [0.0] * 8 + [1.0], "once, at the last step that was committed, whichever agent's it is"
        assert row.total == pytest.approx(sum(step["reward"] for step in steps))


async def test_a_dockerfile_holds_for_the_agent_its_tests_and_the_verifier_alike(opens: Opens) -> None:
    dockerfile = (
        "FROM python:3.11-slim AS base\n"
        'ENV WOOD=oak \\\n    NOTE="two words"\n'
        "WORKDIR /app/project\n"
        "COPY --chmod=755 tools/say /home/agent/bin/\n"
        "ENV PATH=$HOME/bin:$PATH\n"
        'COPY ["seed files/*.txt", "data/"]\n'
    )
    files = {
        "environment/Dockerfile": dockerfile.encode(),
        "environment/tools/say": b'#!/bin/sh\necho "$WOOD, $NOTE"\n',
        "environment/seed files/a.txt": b"seed\n",
        "environment/seed files/b.md": b"not copied\n",
    }
    check = (
        '[ "$PWD" = /app/project ] && [ "$(say)" = "oak, two words" ] && [ "$(cat agent)" = "/app/project oak, two words" ]'
        ' && [ "$(cat data/a.txt)" = more ] && [ ! -e data/b.md ] && [ ! -e /app/tools ] && grep -q say "$PENSTOCK_ANSWER"'
    )
    does = 'echo "$PWD $(say)" > agent; grep -qx seed data/a.txt && echo more > data/a.txt'
    async with opens() as rig:
        rig.start_runner()
        rig.start_verifier()
        rollout = await rig.submit(a_task(runs(does), says("I say so"), check=check, files=files))
        assert await rig.verdict(rollout) == 1.0
        rows = await rig.rows("SELECT path FROM artifacts WHERE rollout_id = :id ORDER BY path", id=rollout)
        assert [row.path for row in rows] == ["project/agent", "project/data/a.txt"]
        black = await rig.submit(
            a_task(runs(does), says("I say so"), check=check, files=files),
            scaffold=str(Path(__file__).parent / "looper_scaffold"),
        )
        assert await rig.verdict(black) == 1.0


async def test_a_dockerfile_that_this_runner_cannot_stand_for_fails_without_blame_and_says_the_line(
    opens: Opens,
) -> None:
    async with opens() as rig:
        rig.start_runner()
        files = {"environment/Dockerfile": b"FROM debian:12\nRUN make\n"}
        rollout = await rig.submit(a_task(says("done"), files=files))
        await rig.state(rollout, "lost")
        attempts = await rig.attempts(rollout)
        assert [a.failure_class for a in attempts] == ["infra_failure"] * 3
        assert attempts[0].reason.startswith("task: environment/Dockerfile line 2: RUN is not one of")


async def test_a_program_declared_in_toml_reaches_the_gateway_through_the_socket_alone(opens: Opens) -> None:
    async with opens() as rig:
        rig.start_runner()
        rig.start_verifier()
        looper = str(Path(__file__).parent / "looper_scaffold")
        rollout = await rig.submit(a_task(runs("echo done > out"), says("done")), scaffold=looper)
        assert await rig.verdict(rollout) == 1.0
        (attempt,) = await rig.attempts(rollout)
        assert (attempt.failure_class, attempt.answer, attempt.scaffold_version) == ("completed", "done", "7")
        rows = await rig.rows("SELECT path FROM artifacts WHERE rollout_id = :id", id=rollout)
        assert [row.path for row in rows] == ["out"]
        kinds = await rig.rows("SELECT kind FROM steps WHERE rollout_id = :id ORDER BY idx", id=rollout)
        assert [row.kind for row in kinds] == ["root", "continues"]
        spent = await rig.submit(a_task(runs("echo done > out")), scaffold=looper)
        assert await rig.verdict(spent) == 1.0
        (attempt,) = await rig.attempts(spent)
        assert (attempt.failure_class, attempt.reason) == ("policy_failure", "turns")
        silent = await rig.submit(
            a_task(runs("sleep 60"), settings="[agent]\nstall_s = 0.6"), scaffold=looper
        )
        await rig.state(silent, "verified")
        (attempt,) = await rig.attempts(silent)
        assert attempt.failure_class == "timeout" and attempt.reason.startswith("stall: ")


async def test_a_task_that_waits_in_silence_longer_than_the_run_allows_has_the_time_that_it_states(
    opens: Opens,
) -> None:
    async with opens(stall_s=1) as rig:
        rig.start_runner()
        own = await rig.submit(a_task(runs("sleep 4"), says("done"), settings="[agent]\nstall_s = 600"))
        silent = await rig.submit(a_task(runs("sleep 60"), says("done")))
        for rollout, failure in ((own, "completed"), (silent, "timeout")):
            await rig.state(rollout, "finished")
            (attempt,) = await rig.attempts(rollout)
            assert attempt.failure_class == failure, attempt.reason


async def test_a_program_that_its_own_commands_end_is_graded_and_not_run_again(opens: Opens) -> None:
    """Else a policy could end every attempt that goes badly and get another."""
    async with opens() as rig:
        rig.start_runner()
        rig.start_verifier()
        looper = str(Path(__file__).parent / "looper_scaffold")
        killed = await rig.submit(a_task(runs("echo done > out; kill -9 $PPID"), says("")), scaffold=looper)
        assert await rig.verdict(killed) == 1.0
        (attempt,) = await rig.attempts(killed)
        assert attempt.failure_class == "policy_failure"
        assert attempt.reason.startswith("the program ended with exit code 137"), attempt


@pytest.mark.alone
async def test_a_program_whose_own_commands_take_more_memory_than_its_limit_is_graded_and_not_run_again(
    opens: Opens,
) -> None:
    async with opens() as rig:
        rig.start_runner()
        rig.start_verifier()
        looper = str(Path(__file__).parent / "looper_scaffold")
        greedy = await rig.submit(a_task(runs("head -c 2G /dev/zero | tail"), says("")), scaffold=looper)
        assert await rig.verdict(greedy) == 0.0
        (attempt,) = await rig.attempts(greedy)
        assert attempt.failure_class == "policy_failure" and attempt.reason.startswith("limit of"), attempt


async def test_a_program_that_ends_before_its_first_completion_is_an_infrastructure_failure(
    opens: Opens, directory: Path
) -> None:
    place = directory / "stillborn"
    place.mkdir()
    (place / "scaffold.toml").write_text(
        'name = "stillborn"\nversion = "1"\nwire = "chat"\nargv = ["/bin/false"]\n'
    )
    async with opens() as rig:
        rig.start_runner()
        rollout = await rig.submit(PASSES, scaffold=str(place))
        await rig.state(rollout, "lost")
        attempts = await rig.attempts(rollout)
        assert [a.failure_class for a in attempts] == ["infra_failure"] * 3
        assert {a.reason for a in attempts} == {"the program ended with exit code 1"}


async def test_a_stale_assignment_is_acked_counted_and_ignored(opens: Opens) -> None:
    async with opens() as rig:
        rig.start_runner()
        rollout = await rig.submit(a_task(runs("sleep 0.5; echo done > out"), says("done")))
        await rig.state(rollout, "running")
        stale = RolloutAssigned(run=rig.context.run, rollout=rollout, attempt=1, epoch=1)
        subject = subjects.work_rollout(rig.context.run, subjects.POOL_EVAL)
        await rig.context.bus.publish(
            Outgoing(subject=subject, msg_id="again", schema=RolloutAssigned.schema(), body=encode(stale))
        )
        await rig.counted("assignments_stale")
        row = await rig.state(rollout, "finished")
        assert row.attempt == 1 and len(await rig.attempts(rollout)) == 1


async def test_a_lost_lease_stops_the_work_and_reports_nothing(
    opens: Opens,
) -> None:
    async with opens() as rig:
        rig.start_runner()
        rollout = await rig.submit(a_task(runs("sleep 60"), says("done")))
        await rig.state(rollout, "running")
        await program_running()
        async with rig.context.engine.begin() as connection:
            await connection.execute(
                text(
                    "UPDATE rollouts SET lease_epoch = 9, lease_owner = 'another', lease_until = now() + interval '1 hour'"
                    " WHERE rollout_id = :id"
                ),
                {"id": rollout},
            )
        await rig.counted("leases_lost")
        await no_program_running()
        (session,) = await rig.rows("SELECT state FROM sessions")
        assert session.state == "closed"
        (attempt,) = await rig.attempts(rollout)
        assert attempt.ended is None and attempt.failure_class is None


async def test_a_finished_rollout_keeps_its_lease_until_its_result_is_in_the_data_pool(opens: Opens) -> None:
    async with opens(lease_ttl_s=9.0, ingest=False) as rig:
        rig.start_runner()
        rig.start_verifier()
        rollout = await rig.submit(PASSES)
        await rig.until("SELECT state FROM sessions", lambda row: row.state == "sealed")
        ((sealed,),) = await rig.rows("SELECT now()")
        renewed = "SELECT lease_until > CAST(:sealed AS timestamptz) + interval '9 seconds' AS again FROM rollouts WHERE state = 'running'"
        await rig.until(renewed, lambda row: row.again, sealed=sealed)
        rig.start_ingest()
        assert await rig.verdict(rollout) == 1.0
        assert len(await rig.attempts(rollout)) == 1


async def test_the_wall_clock_and_a_command_that_neither_prints_nor_works_end_an_attempt_as_timeouts(
    opens: Opens,
) -> None:
    async with opens(stall_s=3) as rig:
        rig.start_runner()
        busy = "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.4; echo .; done"
        rollout = await rig.submit(a_task(runs(busy), runs("sleep 60"), says("done")))
        endless = await rig.submit(a_task(runs("while :; do :; done"), settings="[agent]\ntimeout_sec = 1.0"))
        await rig.state(endless, "finished")
        (attempt,) = await rig.attempts(endless)
        assert (attempt.failure_class, attempt.reason) == ("timeout", "wall clock: the limit of 1 s")
        await rig.state(rollout, "finished")
        (attempt,) = await rig.attempts(rollout)
        assert attempt.failure_class == "timeout" and attempt.reason.startswith("stall: a command")
        first, second = await rig.rows(
            "SELECT * FROM tool_calls WHERE rollout_id = :id ORDER BY idx", id=rollout
        )
        assert first.end_s - first.start_s > 3.5 and second.end_s - second.start_s < 30


async def test_a_verifier_that_reaches_no_verdict_is_a_verifier_failure_and_never_a_reward_of_0(
    opens: Opens,
) -> None:
    tests = {
        "wrote no /logs/verifier/reward.txt": "exit 0",
        "must hold a number from 0 to 1": "mkdir /logs/verifier; echo nan > /logs/verifier/reward.txt",
        "was ended by signal 9": "mkdir /logs/verifier; echo 1 > /logs/verifier/reward.txt; kill -9 $$",
        "was ended: timeout": "mkdir /logs/verifier; echo 0 > /logs/verifier/reward.txt; sleep 60",
    }
    async with opens() as rig:
        rig.start_runner()
        rig.start_verifier()
        rollouts = {}
        for reason, test in tests.items():
            files = {"tests/test.sh": test.encode()}
            limit_s = 0.5 if reason == "was ended: timeout" else 30.0
            task = a_task(says("done"), settings=f"[verifier]\ntimeout_sec = {limit_s}", files=files)
            rollouts[await rig.submit(task)] = reason
        for rollout, reason in rollouts.items():
            row = await rig.state(rollout, "lost", "verified")
            assert (row.state, row.failure_class) == ("lost", "verifier_failure")
            assert reason in row.reason and row.reason.startswith("3 verifications failed")
        assert not await rig.rows("SELECT 1 FROM verdicts UNION ALL SELECT 1 FROM rewards")
        ended = await rig.rows("SELECT state, reason FROM groups")
        assert {row.state for row in ended} == {"dead"}, "a person must correct tests that reach no verdict"
        assert all(row.reason.startswith("verifier_failure: 3 verifications failed") for row in ended)


async def test_a_runner_that_was_killed_before_any_step_starts_again_and_its_rollout_is_done_once_more(
    opens: Opens,
) -> None:
    async with opens() as rig:
        rollout = await rig.submit(PASSES, scaffold="tests.integration.runner.scaffolds_at_work:Sleeper")
        async with rig.runner_process() as process:
            await rig.state(rollout, "running")
            (sandbox,) = await sandboxes_of(process.pid)
            assert sandbox.exists()
        await rig.lease_runs_out(rollout)
        rig.start_runner()
        rig.start_verifier()
        assert await rig.verdict(rollout) == 1.0
        first, second = await rig.attempts(rollout)
        assert (first.failure_class, second.failure_class) == ("infra_failure", "completed")
        assert first.reason == "the runner's lease ran out"
        assert not sandbox.exists()


async def sandboxes_of(pid: int) -> list[Path]:
    """Wait for the sandboxes that a process owns; returns their directories."""

    def owned() -> list[Path]:
        root = default_root()
        return [root / r.id for r in records(root) if r.owner.pid == pid] if root.is_dir() else []

    return await eventually(owned, within_s=PATIENCE_S)
