"""Demonstrations: the choice of a trajectory for each task, and its form as replies of a scaffold's policy.

Most demonstrations fail, on purpose: a policy that imitates them succeeds about as often as they do, so learning by reward can improve it.
Every (family, phrasing) has a *skill* p ~ U(0.1, 0.6), drawn once. With probability p the task gets a trajectory that passes, else one
of those that fail, uniformly.
"""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from scaffolds.mini_swe import submission

from orchestrator.contracts.quote import quoted
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.suite.family import PHRASINGS, Trajectory
from orchestrator.tasks.suite.generator import FAMILIES, SuiteTask, generate

SCRIPT_FILE: Final = "record/script.json"
SKILL: Final = (0.1, 0.6)

Reply = dict[str, Any]
"""A reply of a scripted session: {reasoning, content, tool_calls: [{name, arguments}]}. With `copy_observation`, the last observation becomes
the content, or, with tool calls, replaces `{observation}` in their arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """`count` demonstrations, balanced over domains, families and phrasings; the same arguments give the same demonstrations.

    `shares` are the scaffolds' shares; each demonstration draws its scaffold independently. Demonstration i of a longer list equals demonstration i
    of a shorter one. ValueError for a scaffold that cannot be scripted.
    """
    unknown = sorted(set(shares) - set(SCRIPTS))
    if unknown or not shares or min(shares.values()) < 0 or sum(shares.values()) <= 0:
        raise ValueError(
            f"shares of scaffolds must be positive numbers for {', '.join(SCRIPTS)}, not {quoted(dict(shares))}"
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
    task = item.task.with_file(SCRIPT_FILE, script.encode())
    return Demonstration(
        task=task, scaffold=scaffold, family=item.family.name, phrasing=item.phrasing, good=good
    )


def shell_script(trajectory: Trajectory) -> list[Reply]:
    """The white box `shell`: one `bash` call per turn, then the answer as plain text."""
    turns: list[Reply] = [_bash(turn.think, turn.command) for turn in trajectory.turns]
    if trajectory.answer is None:
        return [*turns, {"content": None, "copy_observation": True}]
    return [*turns, {"content": trajectory.answer}]


def mini_script(trajectory: Trajectory) -> list[Reply]:
    """The black box `mini-swe-agent`: the same turns, but the answer is also a command."""
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
