"""Demonstrations: which trajectory is played for which task, and how a scaffold's policy would have said it.

Most demonstrations fail, on purpose: a policy that imitates them succeeds about as often as they do, and learning by reward has something
to find. Every (family, phrasing) has a *skill* p ~ U(0.1, 0.6), drawn once; with p the task is shown a trajectory that passes, else one
of those that fail, uniformly.
"""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from scaffolds.mini_swe import submission

from orchestrator.tasks.harbor import Task
from orchestrator.tasks.suite.draw import FAMILIES, SuiteTask, generate
from orchestrator.tasks.suite.family import PHRASINGS, Trajectory

SCRIPT_FILE: Final = "record/script.json"
SKILL: Final = (0.1, 0.6)

Reply = dict[str, Any]
"""What a scripted session answers: {reasoning, content, tool_calls: [{name, arguments}]}. With `copy_observation` the last observation is
the content, or where there are tool calls, what `{observation}` in their arguments stands for."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A task with the script of its demonstration inside, for one scaffold. `good`: the trajectory is one of those that pass."""

    task: Task
    scaffold: str
    family: str
    phrasing: int
    good: bool


def skills(seed: int) -> dict[tuple[str, int], float]:
    """The probability of a good trajectory by (family, phrasing)."""
    draw = random.Random(f"skill {seed}")
    return {(family, phrasing): draw.uniform(*SKILL) for family in FAMILIES for phrasing in range(PHRASINGS)}


def demonstrations(count: int, seed: int, shares: Mapping[str, float]) -> list[Demonstration]:
    """`count` demonstrations, balanced over domains, families and phrasings; the same arguments give the same ones.

    `shares` are the scaffolds' parts, each demonstration drawn by itself. Demonstration i of a longer list is demonstration i of a
    shorter one. ValueError for a scaffold that cannot be scripted.
    """
    unknown = sorted(set(shares) - set(SCRIPTS))
    if unknown or not shares or min(shares.values()) < 0 or sum(shares.values()) <= 0:
        raise ValueError(
            f"shares of scaffolds must be positive numbers for {', '.join(SCRIPTS)}, not {dict(shares)!r}"
        )
    skill = skills(seed)
    return [
        _demonstration(item, skill, random.Random(f"demonstration {seed} {index}"), shares)
        for index, item in enumerate(generate("demo", count, seed))
    ]


def _demonstration(
    item: SuiteTask,
    skill: Mapping[tuple[str, int], float],
    draw: random.Random,
    shares: Mapping[str, float],
) -> Demonstration:
    good = draw.random() < skill[item.family.name, item.phrasing]
    trajectory = draw.choice(item.good if good else item.bad)
    scaffold = draw.choices(list(shares), list(shares.values()))[0]
    script = json.dumps(SCRIPTS[scaffold](trajectory))
    task = Task.from_files({**item.task.files, SCRIPT_FILE: script.encode()})
    return Demonstration(task, scaffold, item.family.name, item.phrasing, good)


def shell_script(trajectory: Trajectory) -> list[Reply]:
    """The white box `shell`: one `bash` call a turn, then the answer as plain text."""
    turns: list[Reply] = [_bash(turn.think, turn.command) for turn in trajectory.turns]
    if trajectory.answer is None:
        return [*turns, {"content": None, "copy_observation": True}]
    return [*turns, {"content": trajectory.answer}]


def mini_script(trajectory: Trajectory) -> list[Reply]:
    """The black box `mini-swe-agent`: the same turns, but the answer is a command, too."""
    turns: list[Reply] = [_bash(turn.think, turn.command) for turn in trajectory.turns]
    if trajectory.answer is None:
        return [*turns, {**_bash(None, submission("{observation}")), "copy_observation": True}]
    return [*turns, _bash(None, submission(trajectory.answer))]


def _bash(think: str | None, command: str) -> Reply:
    call = {"name": "bash", "arguments": {"command": command}}
    return {"reasoning": think, "content": "", "tool_calls": [call]}


SCRIPTS: Final[dict[str, Callable[[Trajectory], list[Reply]]]] = {
    "shell": shell_script,
    "mini-swe-agent": mini_script,
}
"""By scaffold: a trajectory as the replies of a policy under it."""
