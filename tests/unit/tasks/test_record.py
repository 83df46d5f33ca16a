"""Demonstrations of the suite: which skills are drawn, which trajectories are shown, and their wording."""

import json
from typing import Any

import pytest

from orchestrator.tasks.settings import DOMAINS
from orchestrator.tasks.suite import FAMILIES, PHRASINGS, Trajectory, Turn
from orchestrator.tasks.suite.record import SCRIPT_FILE, demonstrations, shell_script, skills


def script(files: Any) -> Any:
    return json.loads(files[SCRIPT_FILE])


def test_the_same_arguments_draw_the_same_demonstrations_and_another_seed_others() -> None:
    first = demonstrations(40, 3, {"shell": 1.0})
    assert demonstrations(40, 3, {"shell": 1.0}) == first
    assert demonstrations(40, 4, {"shell": 1.0}) != first


def test_a_longer_list_begins_with_the_shorter_one() -> None:
    assert demonstrations(60, 0, {"shell": 1.0})[:20] == demonstrations(20, 0, {"shell": 1.0})


def test_a_skill_is_drawn_once_for_every_phrasing_of_every_family() -> None:
    drawn = skills(0)
    assert set(drawn) == {(family, phrasing) for family in FAMILIES for phrasing in range(PHRASINGS)}
    assert all(0.1 <= skill <= 0.6 for skill in drawn.values())
    assert len(set(drawn.values())) == len(drawn)
    assert 0.3 < sum(drawn.values()) / len(drawn) < 0.4
    assert skills(0) == drawn != skills(1)


def test_trajectories_that_pass_are_as_frequent_as_the_skills_say() -> None:
    drawn, skill = demonstrations(800, 0, {"shell": 1.0}), skills(0)
    expected = sum(skill[each.family, each.phrasing] for each in drawn)
    assert abs(sum(each.good for each in drawn) - expected) < 3 * (len(drawn) * 0.22) ** 0.5
    assert {domain: 200 for domain in DOMAINS} == {
        domain: sum(each.task.settings.metadata.domain == domain for each in drawn) for domain in DOMAINS
    }


def test_the_demonstration_of_a_task_is_its_solution_exactly_when_it_is_good() -> None:
    for each in demonstrations(80, 0, {"shell": 1.0}):
        solution = each.task.solution
        assert solution is not None
        commands = [
            call["arguments"]["command"]
            for reply in script({path: file.data for path, file in each.task.files.items()})
            for call in reply.get("tool_calls", [])
        ]
        if not each.good:
            assert solution != f"#!/bin/bash\n# {each.task.name}\nset -e\n" + "\n".join(commands)
        if each.good and len(commands) == 1 and each.family != "copy_dir":
            assert commands[0] in solution.splitlines()


def test_the_shell_scaffold_receives_one_command_a_turn_and_then_the_answer() -> None:
    looked = Trajectory((Turn("read file", "cat oak.txt"), Turn("count lines", "wc -l < oak.txt")), None)
    calls = [
        {"name": "bash", "arguments": {"command": command}} for command in ("cat oak.txt", "wc -l < oak.txt")
    ]
    assert shell_script(looked) == [
        {"reasoning": "read file", "content": "", "tool_calls": calls[:1]},
        {"reasoning": "count lines", "content": "", "tool_calls": calls[1:]},
        {"content": None, "copy_observation": True},
    ]
    assert shell_script(Trajectory((), "done")) == [{"content": "done"}]


@pytest.mark.parametrize("shares", [{}, {"shell": 0.0}, {"shell": -1.0}, {"unheard-of": 1.0}])
def test_impossible_shares_of_scaffolds_are_refused(shares: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="shares of scaffolds must be positive numbers for shell"):
        demonstrations(1, 0, shares)
