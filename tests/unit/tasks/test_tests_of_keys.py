"""Each honoured key of a `task.toml` has a test in which it changes what runs: a new key without one fails here."""

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import pytest

from orchestrator.tasks.keys import KEYS, Treatment

TESTS: Final = Path(__file__).resolve().parents[2]
ENVIRONMENT: Final = "integration/runner/test_task_environment.py"
STEPS: Final = "integration/runner/test_multi_step.py"
EGRESS: Final = "integration/egress/test_keys.py"
SIZES: Final = "unit/tasks/test_keys.py::test_a_task_is_given_what_it_asks_for_up_to_the_runs_maximum"
TAKEN: Final = "unit/tasks/test_keys.py::test_a_task_that_asks_for_nothing_else_is_taken"
IN: Final[dict[str, tuple[str, ...]]] = {
    "schema_version": ("unit/tasks/test_keys.py::test_a_key_that_would_not_hold_is_refused_by_its_name",),
    "task.name": ("unit/tasks/test_settings.py",),
    "agent.timeout_sec": ("integration/runner/test_runners.py",),
    "agent.stall_s": ("integration/runner/test_runners.py",),
    "agent.max_turns": ("integration/gateway/test_budgets.py",),
    "agent.reference_sec": ("integration/runner/test_reward_sources.py",),
    "agent.user verifier.user": (
        "integration/runner/test_users.py::test_agent_and_tests_of_a_task_run_as_the_users_that_it_names",
    ),
    "steps.agent.user steps.verifier.user": (
        "integration/runner/test_users.py::test_the_solutions_and_the_tests_of_steps_run_as_their_users",
    ),
    "*.network_mode *.allowed_hosts *.allow_internet": (EGRESS,),
    "environment.healthcheck environment.healthcheck.command": (
        f"{ENVIRONMENT}::test_the_agent_starts_once_the_health_check_has_passed_and_sees_what_it_left",
    ),
    "*healthcheck.retries *healthcheck.interval_sec": (
        f"{ENVIRONMENT}::test_an_unhealthy_sandbox_gives_no_verdict_but_a_failure_with_its_words",
    ),
    "*healthcheck.start_*": (f"{ENVIRONMENT}::test_failures_of_the_start_period_do_not_count",),
    "*healthcheck.timeout_sec *collect.timeout_sec": (
        "unit/runner/test_times_of_commands.py::test_a_health_check_and_a_collected_command_end_after_their_seconds",
    ),
    "steps.healthcheck steps.healthcheck.command": (
        f"{STEPS}::test_files_and_setup_of_a_step_are_there_for_agent_and_tests_after_its_health_check",
    ),
    "environment.env environment.workdir": (
        "unit/tasks/test_keys.py::test_variables_and_the_work_directory_of_the_settings_hold_above_those_of_the_dockerfile",
    ),
    "environment.memory_mb environment.memory": (
        f"{ENVIRONMENT}::test_the_memory_that_a_task_asks_for_bounds_its_programs",
        SIZES,
    ),
    "environment.storage_mb environment.storage": (
        f"{ENVIRONMENT}::test_a_sandbox_has_the_disk_that_its_task_asks_for",
        SIZES,
        TAKEN,
    ),
    "*.cpus *.build_timeout_sec": (
        "unit/tasks/test_keys.py::test_an_image_stands_for_the_dockerfile_and_its_work_directory_and_cores_are_the_tasks",
        "unit/sandboxes/test_cgroups.py::test_a_group_limits_the_cores_of_all_its_programs",
        "integration/images/test_builds.py::test_a_task_has_its_own_time_for_its_build",
    ),
    "environment.docker_image": (
        f"{ENVIRONMENT}::test_an_image_that_the_own_system_stands_for_takes_the_place_of_the_dockerfile",
    ),
    "environment.mcp_servers* environment.skills_dir": (
        f"{ENVIRONMENT}::test_mcp_servers_and_skills_of_a_task_reach_the_program_and_run_in_its_sandbox",
    ),
    "artifacts artifacts.source *artifacts.exclude verifier.collect verifier.collect.command": (
        f"{ENVIRONMENT}::test_collect_hooks_run_after_the_agent_and_artifacts_reach_the_tests_at_their_own_paths",
    ),
    "*verifier.environment_mode": (f"{ENVIRONMENT}::test_separate_tests_get_the_declared_artifacts_alone",),
    "*verifier.environment *verifier.environment.env *verifier.environment.workdir *verifier.environment.docker_image": (
        f"{ENVIRONMENT}::test_the_tests_have_an_environment_of_their_own",
        "unit/tasks/test_multi_step.py::test_what_a_step_states_replaces_or_extends_what_the_task_states",
    ),
    "*verifier.environment.memory*": (SIZES, TAKEN),
    "*verifier.environment.storage*": (
        f"{ENVIRONMENT}::test_the_sandbox_of_the_tests_has_the_disk_that_its_own_environment_asks_for",
    ),
    "verifier.timeout_sec": ("integration/runner/test_runners.py",),
    "verifier.env": (
        f"{ENVIRONMENT}::test_the_tests_have_the_variables_of_the_verifier_and_the_agent_has_not",
    ),
    "verifier.performance": (
        "integration/runner/test_reward_sources.py::test_the_named_numbers_of_a_task_are_kept_and_a_setting_names_the_one_that_is_its_performance",
    ),
    "solution.env": ("integration/runner/test_controls.py",),
    "*artifacts.service": (
        TAKEN,
        "unit/tasks/test_keys.py::test_a_key_that_would_not_hold_is_refused_by_its_name",
    ),
    "steps steps.name": (
        f"{STEPS}::test_the_steps_share_a_sandbox_and_each_is_graded_over_what_was_left_after_it",
    ),
    "steps.agent* steps.verifier steps.verifier.timeout_sec steps.verifier.env steps.verifier.collect* steps.artifacts steps.artifacts.source": (
        f"{STEPS}::test_each_step_has_its_time_and_its_tests_their_variables_and_their_artifacts",
        "unit/tasks/test_multi_step.py::test_what_a_step_states_replaces_or_extends_what_the_task_states",
    ),
    "steps.min_reward": (
        f"{STEPS}::test_a_step_below_its_least_reward_ends_the_task_and_later_steps_do_not_run",
    ),
    "multi_step_reward_strategy": (f"{STEPS}::test_the_strategy_makes_the_reward_of_what_the_steps_earn",),
}
"""Keys, as patterns → the tests that give them: a function, or a file whose functions do."""


def found_for(key: str) -> list[str]:
    return [
        test
        for patterns, tests in IN.items()
        if any(fnmatchcase(key, each) for each in patterns.split())
        for test in tests
    ]


@pytest.mark.parametrize("key", [name for name, key in KEYS.items() if key.treatment is Treatment.HONOURED])
def test_an_honoured_key_has_a_test_that_gives_it(key: str) -> None:
    found = found_for(key)
    assert found, f"{key}: write a test in which it changes what runs, and name it in {Path(__file__).name}"
    texts = []
    for each in found:
        path, _, name = each.partition("::")
        texts.append(text := (TESTS / path).read_text())
        assert f"def {name}(" in text or not name, f"{key}: {path} has no {name}"
    word = re.compile(rf"(?:\b|\\n){key.rpartition('.')[2]}\b")
    assert any(word.search(text) for text in texts), f"{key} occurs in none of {found}"


def test_a_key_without_a_test_would_be_noticed() -> None:
    assert not found_for("environment.invented") and not found_for("invented")
    known = [name for name, key in KEYS.items() if key.treatment is Treatment.HONOURED]
    idle = [
        each
        for patterns in IN
        for each in patterns.split()
        if not any(fnmatchcase(key, each) for key in known)
    ]
    assert idle == []
