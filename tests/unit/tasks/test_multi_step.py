"""Tasks with several steps: what each step sees, what its numbers make together, and what is refused."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import combinations

import pytest

from orchestrator.contracts.events import ArtifactFile
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.admit import check_admissible
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.multi_step import as_step, joined, missed, of_step, steps_of, together
from orchestrator.tasks.verdict import MAX_SIGNALS, MAX_STEPS, Process
from sandboxes.base import File

TEST = b"echo 1 > /logs/verifier/reward.txt"
TWO = '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'
FILES = {"steps/one/instruction.md": b"first", "steps/two/instruction.md": b"second", "tests/test.sh": TEST}


def task(toml: str = TWO, files: Mapping[str, bytes] | None = None, without: tuple[str, ...] = ()) -> Task:
    found = {**FILES, **(files or {}), "task.toml": toml.encode()}
    return Task.from_files({path: body for path, body in found.items() if path not in without})


def test_each_step_has_its_instruction_and_tests_and_solution_of_its_own_or_the_tasks() -> None:
    files = {
        "tests/shared.py": b"shared",
        "tests/data": b"of the task",
        "solution/solve.sh": b"echo shared",
        "solution/lib": b"1",
        "steps/two/tests/test.sh": b"echo two",
        "steps/two/tests/data": b"of the step",
        "steps/two/solution/solve.sh": b"echo two",
        "steps/one/workdir/setup.sh": b"true",
        "steps/two/workdir/sub/a": b"2",
    }
    one, two = steps_of(task(files=files))
    assert (one.task.instruction, two.task.instruction) == ("first", "second")
    assert {path: file.data for path, file in one.task.tests_files().items()} == {
        "test.sh": TEST,
        "shared.py": b"shared",
        "data": b"of the task",
    }
    assert {path: file.data for path, file in two.task.tests_files().items()} == {
        "test.sh": b"echo two",
        "shared.py": b"shared",
        "data": b"of the step",
    }
    assert (one.task.solution, two.task.solution) == ("echo shared", "echo two")
    assert "solution/lib" in one.task.files and "solution/lib" not in two.task.files
    assert one.has_setup and not two.has_setup
    assert set(two.over(two.task.environment(None)).files) == {"/app/setup.sh", "/app/sub/a"}
    assert not task().is_solved and task(files={"solution/solve.sh": b"true"}).is_solved
    assert not task(files={"solution/solve.sh": b"true", "steps/two/solution/x": b""}).is_solved


def test_what_a_step_states_replaces_or_extends_what_the_task_states() -> None:
    toml = """
artifacts = ["/tmp/a"]
[agent]
timeout_sec = 50
[verifier]
timeout_sec = 40
env = { A = "1", B = "1" }
[[verifier.collect]]
command = "echo task"
[[steps]]
name = "one"
min_reward = 0.5
artifacts = ["/tmp/b"]
[steps.agent]
timeout_sec = 5
[steps.verifier]
timeout_sec = 4
env = { B = "2" }
environment_mode = "separate"
[[steps.verifier.collect]]
command = "echo step"
[steps.healthcheck]
command = "true"
retries = 1
[[steps]]
name = "two"
min_reward = { reward = 0.1, speed = 7 }
"""
    whole = task(toml)
    check_admissible(whole, SandboxSection())
    one, two = steps_of(whole)
    first, second = one.task.settings, two.task.settings
    assert (first.agent.timeout_sec, second.agent.timeout_sec) == (5.0, 50.0)
    assert (first.verifier.timeout_sec, second.verifier.timeout_sec) == (4.0, 40.0)
    assert (first.verifier.env, second.verifier.env) == ({"A": "1", "B": "2"}, {"A": "1", "B": "1"})
    assert (first.verifier.is_separate, second.verifier.is_separate) == (True, False)
    assert [hook.command for hook in first.verifier.collect] == ["echo task", "echo step"]
    assert [each.source for each in first.artifacts] == ["/tmp/a", "/tmp/b"]
    assert one.healthcheck is not None and one.healthcheck.retries == 1 and two.healthcheck is None
    assert (dict(one.min_reward), dict(two.min_reward)) == ({"reward": 0.5}, {"reward": 0.1, "speed": 7})


def test_the_image_of_a_steps_tests_is_its_own_before_that_of_the_task() -> None:
    image = '[verifier.environment]\ndocker_image = "a"\n'
    own = '[[steps]]\nname = "one"\n[steps.verifier.environment]\ndocker_image = "b"\n'
    other = '[[steps]]\nname = "two"\n[steps.verifier.environment]\nmemory_mb = 100\n'
    one, two = steps_of(task(image + own + other))
    assert one.task.settings.judging == {"docker_image": "b"}
    assert two.task.settings.judging == {"docker_image": "a", "memory_mb": 100}
    _, two = steps_of(task(image + own + other, {"steps/two/tests/Dockerfile": b"FROM c"}))
    assert two.task.settings.judging == {"memory_mb": 100}
    assert two.task.verification(None, containers=True).build == {
        "Dockerfile": File(b"FROM c"),
        "test.sh": File(TEST),
    }


@pytest.mark.parametrize(
    ("strategy", "performance", "numbers", "reward"),
    [
        ("mean", "", [{"reward": 1.0}, {"reward": 0.5}], 0.75),
        ("final", "", [{"reward": 1.0}, {"reward": 0.5}], 0.5),
        ("mean", "", [{"reward": 1.0, "a": 1.0}, {"a": 1.0}], 0.5),
        ("mean", "", [{"reward": 0.8}], 0.4),  # ended by min_reward: later steps count as 0
        ("final", "", [{"reward": 0.8}], 0.0),
        ("mean", "a", [{"a": 0.8}], 0.4),
        ("mean", "", [{"reward": 1.0}, {}], 0.5),  # the agent did not reach the second step
        ("final", "", [{"reward": 1.0}, {}], 0.0),
        ("mean", "", [{}, {}], 0.0),
        ("mean", "a", [{"reward": 1.0, "a": 0.5}, {"reward": 1.0}], 0.25),
        ("mean", "", [{"a": 0.5}, {"a": 1.0}], 0.75),
        # Only the second step, which did not run, would have named the reward.
        ("mean", "", [{"a": 1.0, "b": 1.0}], 0.0),
        ("mean", "reward", [{"tests": 1.0}], 0.0),
        ("final", "accuracy", [{"reward": 1.0}, {}], 0.0),
        ("mean", "a", [{"a": 0.2 + 0.4 + 0.3 + 0.1, "b": 2.0}, {"a": 1.0 + 2e-16, "b": 2.0}], 1.0),
    ],
)
def test_rewards_of_all_steps_make_the_reward_of_the_task(
    strategy: str, performance: str, numbers: list[dict[str, float]], reward: float
) -> None:
    named = f'[verifier]\nperformance = "{performance}"\n' if performance else ""
    toml = f'multi_step_reward_strategy = "{strategy}"\n{named}{TWO}'
    assert together(task(toml), numbers).reward == reward


@pytest.mark.parametrize("strategy", ["mean", "final"])
@pytest.mark.parametrize("performance", ["", "reward", "a", "other"])
def test_where_every_step_can_be_graded_the_first_one_alone_can_be_graded_too(
    strategy: str, performance: str
) -> None:
    """A member without a verdict would leave its group: ending early would pay."""
    named = f'[verifier]\nperformance = "{performance}"\n' if performance else ""
    whole = task(f'multi_step_reward_strategy = "{strategy}"\n{named}{TWO}')
    names = ("reward", "a", "b")
    choices = [dict.fromkeys(some, 1.0) for n in range(1, 4) for some in combinations(names, n)]
    for first in choices:
        for second in choices:
            with suppress(ValueError):
                best = together(whole, [first, second]).reward
                assert together(whole, [first, {}]).reward <= best


def test_each_steps_numbers_are_components_and_the_most_important_fit_into_a_verdict() -> None:
    found = together(task(), [{"reward": 1.0, "a": 3.0}, {"reward": 0.5}]).components
    assert found == {"reward": 0.75, "one/reward": 1.0, "two/reward": 0.5, "a": 1.5, "one/a": 3.0}
    many = {f"n{number}": 0.0 for number in range(60)}
    found = together(task(), [{"reward": 1.0, **many}, {"reward": 1.0}]).components or {}
    assert len(found) == 64 and {"reward", "one/reward", "two/reward"} <= set(found)
    names = [letter * 64 for letter in "ab"]
    toml = "".join(f'[[steps]]\nname = "{name}"\n' for name in names)
    files = {f"steps/{name}/instruction.md": b"x" for name in names}
    long = task(toml, files, tuple(FILES)[:2])
    assert set(together(long, [{"reward": 1.0}] * 2).components or {}) == {
        "reward",
        "step 1/reward",
        "step 2/reward",
    }
    with pytest.raises(ValueError, match="the steps must say which of their numbers is the reward"):
        together(task(), [{"a": 1.0}, {"b": 1.0}])
    with pytest.raises(ValueError, match="a reward from 0 to 1, got 2"):
        together(task(), [{"a": 3.0}, {"a": 1.0}])


def test_a_step_misses_its_least_reward_by_a_number_that_is_less_or_missing() -> None:
    one, two = steps_of(
        task('[[steps]]\nname = "one"\nmin_reward = 0.5\n[[steps]]\nname = "two"\nmin_reward = { a = 2 }')
    )
    assert missed(one, {"reward": 0.4}) and not missed(one, {"reward": 0.5}) and missed(one, {"a": 1.0})
    assert missed(two, {"reward": 1.0}) and missed(two, {"a": 1.9}) and not missed(two, {"a": 2.0})
    assert not missed(two, {"a": 2.0 - 2e-16}), "rounding of a sum"
    named, _ = steps_of(
        task(
            '[verifier]\nperformance = "a"\n[[steps]]\nname = "one"\nmin_reward = 0.5\n[[steps]]\nname = "two"'
        )
    )
    assert not missed(named, {"a": 0.5}) and missed(named, {"a": 0.4})


def test_what_steps_leave_is_kept_apart_with_the_answer_of_each() -> None:
    files = [*as_step(0, "yes", [ArtifactFile(path="a", body="MQ==")]), *as_step(2, None, [])]
    assert of_step(files, 0) == ("yes", [ArtifactFile(path="a", body="MQ==", step=0)])
    assert of_step(files, 1) is None and of_step(files, 2) == ("", [])


def test_steps_travel_in_a_message_with_their_modes_and_change_the_content_hash() -> None:
    held = {"steps/one/workdir/run": File(b"#!/bin/sh\n", 0o755), "steps/two/workdir/note": File(b"x", 0o444)}
    whole = Task.from_files({**FILES, **held, "task.toml": TWO.encode()})
    again = Task.from_message(json.loads(json.dumps(whole.to_message())))
    assert again.files == whole.files and again.content_hash == whole.content_hash
    assert again.files["steps/two/workdir/note"].mode == 0o444
    assert task(files={"steps/two/workdir/note": b"y"}).content_hash != whole.content_hash


STEP = '[[steps]]\nname = "one"\n'


@pytest.mark.parametrize(
    ("toml", "files", "sentence"),
    [
        ('[[steps]]\nname = "../x"', {}, "[[steps]].name must be a name of 1 to 64 characters for a directory"),
        ('[[steps]]\nname = "a/b"', {}, "[[steps]].name must be a name of 1 to 64 characters for a directory"),
        ('[[steps]]\nname = ".."', {}, "[[steps]].name must be a name of 1 to 64 characters"),
        ('[[steps]]\nname = "aux.x"', {}, "[[steps]].name must be a name of 1 to 64 characters"),
        ('[[steps]]\nname = 1', {}, "[[steps]].name must be a name of 1 to 64 characters"),
        ("[[steps]]\nmin_reward = 1", {}, "[[steps]].name is missing"),
        ('steps = ["one"]', {}, "steps must be a list of tables"),
        (STEP + '[[steps]]\nname = "ONE"', {}, "steps must be steps of different names, also where upper and lower case"),
        ("".join(f'[[steps]]\nname = "{n}"\n' for n in range(33)), {}, "steps must be at most 32 steps"),
        (STEP + "min_reward = 1.5", {}, "[[steps]].min_reward must be a number from 0 to 1, or a table of numbers, got 1.5"),
        (STEP + 'min_reward = "1"', {}, "[[steps]].min_reward must be a number from 0 to 1"),
        (STEP + "min_reward = { a = nan }", {}, "[[steps]].min_reward must be a table of finite numbers"),
        (STEP + "min_reward = { reward = -1 }", {}, "[[steps]].min_reward must be a table of finite numbers"),
        (STEP + "[steps.agent]\nuser = ' '", {}, "[[steps]].agent.user must be the name of a user or its uid"),
        (STEP + "[steps.agent]\nmax_turns = 3", {}, "[[steps]].agent.max_turns is not known"),
        (STEP + "[steps.agent]\ntimeout_sec = 0", {}, "[[steps]].agent.timeout_sec must be a number of seconds above 0"),
        (STEP + "[steps.verifier]\ntimeout_sec = 1e9", {}, "[[steps]].verifier.timeout_sec must be a number of seconds"),
        (STEP + "[steps.verifier]\nenv = { A = 1 }", {}, "[[steps]].verifier.env must be a table of texts"),
        (STEP + "[steps.verifier]\nnetwork_mode = 'public'", {}, "[[steps]].verifier.network_mode = 'public' is not honoured"),
        (STEP + "[steps.verifier.environment]\ngpus = 1", {}, "[[steps]].verifier.environment.gpus = 1 is not honoured"),
        (STEP + "[steps.verifier]\nenvironment_mode = 'shared'\nenvironment = {}", {}, 'needs environment_mode = "separate"'),
        (STEP + "[steps.verifier.environment]\nmemory_mb = 9000", {}, "step one: [verifier].environment.memory_mb = 9000 is more than"),
        (STEP + "artifacts = ['/etc/x']", {}, "artifacts has '/etc/x': files can be taken from"),
        (STEP + "[steps.healthcheck]\nretries = 1", {}, "[[steps]].healthcheck.command is missing"),
        (STEP + "[[steps.verifier.collect]]\ncommand = ''", {}, "[[steps]].verifier.collect.command must be a shell command"),
        (f"multi_step_reward_strategy = 'best'\n{STEP}", {}, "multi_step_reward_strategy must be \"mean\" or \"final\", got 'best'"),
        (f"multi_step_reward_mode = 'mean'\n{STEP}", {}, "multi_step_reward_mode = 'mean' is not honoured: write multi_step_reward_strategy"),
        ("multi_step_reward_strategy = 'mean'", {"instruction.md": b"x", "steps/one/instruction.md": None}, "needs [[steps]]: add them, or"),
        (STEP, {"steps/one/instruction.md": None}, "steps/one/instruction.md is missing: it is the agent's instruction in this step"),
        (STEP, {"steps/one/instruction.md": b" \n"}, "steps/one/instruction.md is empty"),
        (STEP, {"steps/one/instruction.md": b"a\0b"}, "steps/one/instruction.md holds a NUL character (byte 1)"),
        (STEP, {"steps/one/instruction.md": b"\xff"}, "steps/one/instruction.md is not UTF-8 text"),
        (STEP, {"tests/test.sh": None}, "steps/one/tests/test.sh is missing: it decides the reward of this step; tests/test.sh may, too"),
        (STEP, {"tests/test.sh": None, "steps/one/tests/Dockerfile": b"FROM debian:12", "steps/one/tests/own/test.sh": TEST},
         "steps/one/tests/test.sh is missing: it decides the reward of this step; tests/test.sh may, too, and is the task's own file"),
        (STEP, {"steps/one/tests/test.sh": b""}, "steps/one/tests/test.sh is empty"),
        (STEP, {"steps/one/tests/test.sh": b"#!/usr/bin/python3\n"}, "steps/one/tests/test.sh begins with '#!/usr/bin/python3'"),
        (STEP, {"instruction.md": b"x"}, "instruction.md is not read in a task with [[steps]]: move its text to steps/one/instruction.md"),
        (STEP, {"instruction.md": b"x", "tests/test.sh": None, "steps/one/tests/test.sh": TEST}, "instruction.md is not read in a task with"),
        (STEP, {"instruction.md": b"x", "tests/test.sh": None}, "instruction.md is not read in a task with [[steps]]"),
        (STEP, {"steps/other/instruction.md": b"x"}, "steps/other/instruction.md belongs to no step: [[steps]] names 'one'"),
        (STEP, {"steps/readme": b"x"}, "steps/readme belongs to no step"),
        (STEP, {"steps/one/environment/a": b"x"}, "steps/one/environment/a is not honoured: all steps share environment/"),
        (STEP, {"steps/one/trajectory.json": b"{}"}, "steps/one/trajectory.json is not honoured"),
        (STEP, {"steps/one/tests/docker-compose.yaml": b""}, "steps/one/tests/docker-compose.yaml is not honoured"),
        (STEP, {"steps/one/solution/solve.sh": b"echo a long solution > out", "environment/files/a": b"# echo a long solution > out"},
         "environment/files/a holds the whole text of steps/one/solution/solve.sh"),
        (STEP, {"steps/one/tests/test.sh": b"grep a-long-secret-answer out", "steps/one/workdir/a": b"grep a-long-secret-answer out"},
         "steps/one/workdir/a holds the whole text of steps/one/tests/test.sh"),
    ],
)  # fmt: skip
def test_steps_that_would_not_mean_what_they_say_are_refused_in_one_sentence(
    toml: str, files: dict[str, bytes | None], sentence: str
) -> None:
    given: dict[str, bytes | None] = {
        "steps/one/instruction.md": b"first",
        "tests/test.sh": TEST,
        "task.toml": toml.encode(),
        **files,
    }
    with pytest.raises(ValueError, match=re.escape(sentence)) as refused:
        check_admissible(
            Task.from_files({path: body for path, body in given.items() if body is not None}),
            SandboxSection(),
        )
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("graded", "found", "notes"),
    [
        ([None, None], None, []),
        ([{"style": 1.0}, {"style": 0.0}, {"style": 0.5}], {"style": 0.5}, []),
        ([{"style": 1.0}, None], {"style": 1.0}, []),
        ([{"plan": [1.0, 0.0]}, {"plan": []}, {"plan": [-1.0]}], {"plan": [1.0, 0.0, -1.0]}, []),
        ([{"plan": [1.0]}, {"plan": [0.5]}, None], {"plan": [1.0, 0.5]}, []),
        (
            [{"plan": [1.0]}, {"style": 0.5}, {"plan": [0.5]}],
            {"style": 0.5},
            ["plan is missing in the step two, so the numbers of later steps have no place"],
        ),
        ([{"plan": [1.0]}, {"plan": 0.5}], None, ["plan is a number in one step and a list in another"]),
        (
            [{"plan": [0.0] * MAX_STEPS}, {"plan": [1.0]}],
            None,
            ["plan has numbers of 20001 steps, more than 20000"],
        ),
    ],
)
def test_the_process_values_of_the_steps_make_those_of_the_task_or_a_note_says_why_not(
    graded: list[Process | None], found: Process | None, notes: list[str]
) -> None:
    names = ("one", "two", "three")
    whole, noted = joined(list(zip(names, graded, strict=False)))
    assert whole == found
    assert noted == [f"/logs/verifier/process.json: {note}: left out" for note in notes]


def test_the_steps_together_have_no_more_process_values_than_a_verdict() -> None:
    one: Process = {f"a{number}": 1.0 for number in range(MAX_SIGNALS)}
    whole, notes = joined([("one", one), ("two", {"late": 1.0, "a0": 0.0})])
    assert whole == {**one, "a0": 0.5}
    assert notes == ["/logs/verifier/process.json: late is one name more than 64: left out"]
