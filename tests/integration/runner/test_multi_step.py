"""Tasks with several steps on real sandboxes: one sandbox, several instructions, each step graded over what was left after it."""

from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator.contracts.states import Purpose
from orchestrator.queries.instructions import instruction_of
from orchestrator.tasks.harbor import Task
from sandboxes.base import PathRefused, RefusedReason, SandboxError
from tests.integration.runner.rig import Opens, Rig, a_task, runs, says

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("roles")]

ONE, TWO = '[[steps]]\nname = "one"\n', '[[steps]]\nname = "two"\n'


def judges(check: str) -> bytes:
    return f"mkdir -p /logs/verifier; if {check}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n".encode()


def a_multi_step_task(
    settings: str = ONE + TWO,
    files: Mapping[str, bytes | None] | None = None,
    script: tuple[Mapping[str, Any], ...] = (),
) -> Task:
    """Two steps: each adds its word to the file out, and its tests want exactly the words so far."""
    given: dict[str, bytes | None] = {
        "steps/one/instruction.md": b"Write one into the file out.",
        "steps/two/instruction.md": b"Add two to the file out.",
        "steps/one/solution/solve.sh": b"echo one >> out; echo wrote one\n",
        "steps/two/solution/solve.sh": b"echo two >> out; echo wrote two\n",
        "steps/one/tests/test.sh": judges('[ "$(tr "\\n" " " < out)" = "one " ]'),
        "steps/two/tests/test.sh": judges('[ "$(tr "\\n" " " < out)" = "one two " ]'),
        **(files or {}),
    }
    written = a_task(*script, settings=settings).files
    begin = {path: written[path] for path in ("task.toml", "record/script.json")}
    return Task.from_files({**begin, **{path: body for path, body in given.items() if body is not None}})


async def graded(rig: Rig, task: Task, scaffold: str = "oracle", purpose: Purpose = Purpose.EVAL) -> Any:
    """The verdict of one rollout, with its attempt's outcome, answer and times."""
    rollout = await rig.submit(task, scaffold=scaffold, purpose=purpose)
    await rig.state(rollout, "verified", "lost", "dead")
    query = """SELECT v.reward, v.components, v.tests, v.log, a.failure_class, a.reason, a.answer, a.agent_s, a.ungradable,
                      (SELECT array_agg(DISTINCT step) FROM artifacts f WHERE f.rollout_id = a.rollout_id) AS steps, a.rollout_id
                 FROM attempts a LEFT JOIN verdicts v USING (rollout_id) WHERE a.rollout_id = :id ORDER BY a.attempt DESC LIMIT 1"""
    return (await rig.rows(query, id=rollout))[0]


async def test_the_steps_share_a_sandbox_and_each_is_graded_over_what_was_left_after_it(
    opens_at_work: Opens,
) -> None:
    task = a_multi_step_task()
    async with opens_at_work() as rig:
        found = await graded(rig, task)
        assert (found.reward, found.failure_class, found.answer) == (1.0, "completed", "wrote two\n"), found
        assert found.components == {"reward": 1.0, "one/reward": 1.0, "two/reward": 1.0}
        assert found.steps == [0, 1]
        (row,) = await rig.rows(f"SELECT {instruction_of('t')} AS instruction FROM tasks t")
        assert row.instruction == task.instruction and "\n\n" in row.instruction
        nothing = await graded(rig, task, "nop")
        assert (nothing.reward, nothing.failure_class) == (0.0, "completed")
        assert nothing.components == {"reward": 0.0, "one/reward": 0.0, "two/reward": 0.0}


async def test_what_the_tests_of_every_step_say_of_the_process_is_in_the_verdict(
    opens_at_work: Opens,
) -> None:
    def says_of_the_process(values: str) -> bytes:
        return judges("true") + f"echo '{values}' > /logs/verifier/process.json\n".encode()

    files = {
        "steps/one/tests/test.sh": says_of_the_process('{"style": 1, "plan": [1, 0], "odd": 1}'),
        "steps/two/tests/test.sh": says_of_the_process('{"style": 0, "plan": [-1], "odd": [1]}'),
    }
    async with opens_at_work() as rig:
        found = await graded(rig, a_multi_step_task(files=files))
        (verdict,) = await rig.rows(
            "SELECT process, log FROM verdicts WHERE rollout_id = :id", id=found.rollout_id
        )
    assert verdict.process == {"style": 0.5, "plan": [1, 0, -1]}
    note = "note: /logs/verifier/process.json: odd is a number in one step and a list in another: left out\n"
    assert verdict.log.startswith(note)


@pytest.mark.parametrize(
    ("settings", "reward", "steps"),
    [
        (ONE + TWO, 0.5, [0, 1]),
        (f'multi_step_reward_strategy = "final"\n{ONE}{TWO}', 0.0, [0, 1]),
        (f'multi_step_reward_strategy = "mean"\n{ONE}min_reward = 1.0\n{TWO}', 0.5, [0, 1]),
    ],
)
async def test_the_strategy_makes_the_reward_of_what_the_steps_earn(
    opens_at_work: Opens, settings: str, reward: float, steps: list[int]
) -> None:
    task = a_multi_step_task(settings, {"steps/two/solution/solve.sh": b"echo wrong >> out"})
    async with opens_at_work() as rig:
        found = await graded(rig, task)
        assert (found.reward, found.steps) == (reward, steps), found


@pytest.mark.parametrize(
    "least", ["min_reward = 0.5", "min_reward = { reward = 0.5 }", "min_reward = { other = 0 }"]
)
async def test_a_step_below_its_least_reward_ends_the_task_and_later_steps_do_not_run(
    opens_at_work: Opens, least: str
) -> None:
    files = {
        "steps/one/solution/solve.sh": b"true",
        "steps/two/solution/solve.sh": b"printf 'one\\ntwo\\n' > out",
    }
    async with opens_at_work() as rig:
        goes_on = await graded(rig, a_multi_step_task(files=files))
        assert (goes_on.reward, goes_on.steps) == (0.5, [0, 1])
        found = await graded(rig, a_multi_step_task(f"{ONE}{least}\n{TWO}", files))
        assert (found.reward, found.steps, found.failure_class) == (0.0, [0], "completed"), found
        assert found.components == {"reward": 0.0, "one/reward": 0.0}


@pytest.mark.parametrize(
    "error",
    [KeyError("ours"), ExceptionGroup("", [SandboxError("broke"), PathRefused("x", RefusedReason.LINK)])],
)
async def test_an_attempt_goes_on_after_a_step_whose_tests_cannot_run(
    opens_at_work: Opens, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("orchestrator.runner.attempt_work.grade_step", fails)
    async with opens_at_work() as rig:
        found = await graded(rig, a_multi_step_task(f"{ONE}min_reward = 1.0\n{TWO}"))
        (attempts,) = await rig.rows(
            "SELECT count(*) AS n FROM attempts WHERE rollout_id = :id", id=found.rollout_id
        )
    assert (found.reward, found.failure_class, found.steps, attempts.n) == (1.0, "completed", [0, 1], 1), (
        found
    )


async def test_files_and_setup_of_a_step_are_there_for_agent_and_tests_after_its_health_check(
    opens_at_work: Opens,
) -> None:
    settings = f'{ONE}{TWO}[steps.healthcheck]\ncommand = "touch /tmp/checked; [ -f made ]"\n'
    files = {
        "steps/two/workdir/word": b"placed\n",
        "steps/two/workdir/setup.sh": b"cat word out > made\n",
        "steps/two/solution/solve.sh": b"ls /tmp/checked && cp made out",
        "steps/two/tests/test.sh": judges(
            '[ "$(tr "\\n" " " < out)" = "placed one " ] && [ "$(cat word)" = placed ] && [ "$(cat $PENSTOCK_ANSWER)" = /tmp/checked ]'
        ),
        "steps/one/tests/test.sh": judges(
            '[ "$(cat out)" = one ] && [ ! -e word ] && [ "$(cat $PENSTOCK_ANSWER)" = "wrote one" ]'
        ),
    }
    async with opens_at_work() as rig:
        found = await graded(rig, a_multi_step_task(settings, files))
        assert (found.reward, found.failure_class) == (1.0, "completed"), found


async def test_a_step_that_cannot_begin_after_what_the_agent_did_counts_as_0(opens_at_work: Opens) -> None:
    files = {"steps/two/workdir/setup.sh": b"[ ! -e out ] || { echo spoilt >&2; exit 3; }"}
    async with opens_at_work() as rig:
        found = await graded(rig, a_multi_step_task(files=files))
        assert (found.reward, found.failure_class, found.steps) == (0.5, "policy_failure", [0]), found
        assert found.reason == "step two: it cannot begin: task: its setup.sh ended with exit code 3: spoilt"
        assert found.components == {"reward": 0.5, "one/reward": 1.0}
        files = {"steps/one/workdir/setup.sh": b"exit 4"}
        broken = await graded(rig, a_multi_step_task(files=files))
        assert (broken.reward, broken.failure_class) == (None, "infra_failure")
        assert broken.reason == "task: its setup.sh ended with exit code 4: "


async def test_each_step_has_its_time_and_its_tests_their_variables_and_their_artifacts(
    opens_at_work: Opens,
) -> None:
    settings = f"""artifacts = ["/tmp/both"]
{ONE}
[steps.agent]
timeout_sec = 1.0
[steps.verifier]
env = {{ WANTED = "one" }}
[[steps.verifier.collect]]
command = "echo hook > /tmp/hooked"
{TWO}
artifacts = ["/tmp/hooked"]
[steps.verifier]
env = {{ WANTED = "two" }}
"""
    files = {
        "steps/one/tests/test.sh": judges('[ "$WANTED" = one ] && [ -f /tmp/both ] && [ ! -e /tmp/hooked ]'),
        "steps/two/tests/test.sh": judges(
            '[ "$WANTED" = two ] && [ "$(cat /tmp/both /tmp/hooked | tr -d "\\n")" = bhook ] && [ "$(tail -n1 out)" = two ]'
        ),
    }
    script = (
        runs("echo one > out; echo b > /tmp/both; sleep 60"),
        runs("echo two >> out"),
        says("done"),
    )
    async with opens_at_work() as rig:
        found = await graded(rig, a_multi_step_task(settings, files, script), "shell", Purpose.RECORD)
        assert (found.reward, found.failure_class, found.answer) == (1.0, "timeout", "done"), found
        assert found.reason == "step one: wall clock: the limit of 1 s" and found.steps == [0, 1]


async def test_the_limits_of_a_step_with_its_own_time_are_those_of_that_time(opens_at_work: Opens) -> None:
    settings = f"{ONE}{TWO}[steps.agent]\ntimeout_sec = 30\n[agent]\ntimeout_sec = 2\n"
    silent = {"steps/two/solution/solve.sh": b"sleep 5; echo two >> out\n"}
    bounded = "tests.integration.runner.scaffolds_at_work:Bounded"
    async with opens_at_work() as rig:
        task = a_multi_step_task(settings, silent)
        found = await graded(rig, task)
        assert (found.reward, found.failure_class) == (1.0, "completed"), found
        task = a_multi_step_task(settings, script=(says(""), says("")))
        found = await graded(rig, task, bounded, Purpose.RECORD)
        assert found.answer.split()[2:] == ["35", "30"], found


async def test_steps_that_together_leave_too_much_count_as_0(opens_at_work: Opens) -> None:
    big = b"head -c 600000 /dev/urandom > $RANDOM"
    files = {"steps/one/solution/solve.sh": big, "steps/two/solution/solve.sh": b"true"}
    async with opens_at_work(sandbox={"artifact_mb": 1}) as rig:
        found = await graded(rig, a_multi_step_task(files=files))
        assert (found.reward, found.failure_class) == (0.0, "policy_failure")
        assert found.ungradable == (
            "artifacts: 1,200,000 bytes after all steps together, more than 1,048,576 (sandbox.artifact_mb)"
        )


async def test_a_white_box_has_a_conversation_for_each_step_in_one_trajectory(opens_at_work: Opens) -> None:
    script = (runs("echo one >> out"), says("first"), runs("echo two >> out"), says("second"))
    async with opens_at_work() as rig:
        found = await graded(rig, a_multi_step_task(script=script), "shell", Purpose.RECORD)
        assert (found.reward, found.answer) == (1.0, "second"), found
        steps = await rig.rows(
            "SELECT idx, parent_idx FROM steps WHERE rollout_id = :id ORDER BY idx", id=found.rollout_id
        )
        assert [(row.idx, row.parent_idx) for row in steps] == [(0, None), (1, 0), (2, None), (3, 2)]
        calls = await rig.rows("SELECT idx FROM tool_calls WHERE rollout_id = :id", id=found.rollout_id)
        assert sorted(row.idx for row in calls) == [0, 2]


async def test_a_black_box_runs_once_for_each_step_and_its_later_conversations_train(
    opens_at_work: Opens,
) -> None:
    script = (runs("echo one >> out"), says("first"), runs("echo two >> out"), says("second"))
    async with opens_at_work() as rig:
        scaffold = "scaffolds.examples.black_box:Agent"
        found = await graded(rig, a_multi_step_task(script=script), scaffold, Purpose.RECORD)
        assert (found.reward, found.failure_class) == (1.0, "completed"), found
        marks = await rig.rows("SELECT * FROM step_marks WHERE rollout_id = :id", id=found.rollout_id)
        assert marks == []
        steps = await rig.rows(
            "SELECT parent_idx FROM steps WHERE rollout_id = :id ORDER BY idx", id=found.rollout_id
        )
        assert [row.parent_idx for row in steps].count(None) == 2
