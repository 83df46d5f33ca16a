"""Drawing tasks: balanced over domains, families and phrasings, deterministic, disjoint between the sides of the split.

Task i belongs to domain i mod 4, then to that domain's families and their phrasings in turn, so any 80 tasks in a row hold
every family in every phrasing, and two domains out of four give an eighth of all tasks that need a second, dependent call.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Final, Literal

from orchestrator.tasks.harbor import ENVIRONMENT, SOLUTION, TEST_SCRIPT, Task
from orchestrator.tasks.settings import DOMAINS
from orchestrator.tasks.suite import agent, coding, general, reasoning
from orchestrator.tasks.suite.checks import script
from orchestrator.tasks.suite.family import PHRASINGS, Family, Scene, Trajectory
from orchestrator.tasks.suite.split_rng import Dice, is_heldout

Split = Literal["train", "heldout", "demo"]

FAMILIES: Final[dict[str, Family]] = {
    family.name: family
    for family in (*reasoning.FAMILIES, *coding.FAMILIES, *agent.FAMILIES, *general.FAMILIES)
}

_NEW_INSTRUCTION_DRAWS: Final = 24
_MAX_DRAWS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteTask:
    """A packed task, and data that the pack does not hold: trajectories that pass and trajectories that fail."""

    task: Task
    family: Family
    phrasing: int
    good: tuple[Trajectory, ...]
    bad: tuple[Trajectory, ...]


def generate(split: Split, n: int, seed: int) -> list[SuiteTask]:
    """`n` different tasks of one split; the same arguments give the same tasks.

    `demo` draws from the training side, with other seeds. An instruction repeats, with other file contents, only when
    many draws gave no new one. ValueError when a family cannot give so many tasks.
    """
    seen: set[str] = set()
    return [_draw(split, seed, index, seen) for index in range(n)]


def cell(index: int) -> tuple[Family, int]:
    """Family and phrasing of task `index`."""
    turn, position = divmod(index, len(DOMAINS))
    families = [family for family in FAMILIES.values() if family.domain == DOMAINS[position]]
    turn, position = divmod(turn, len(families))
    return families[position], turn % PHRASINGS


def _draw(split: Split, seed: int, index: int, seen: set[str]) -> SuiteTask:
    family, phrasing = cell(index)
    heldout = split == "heldout"
    for attempt in range(_MAX_DRAWS):
        dice = Dice(f"{split} {seed} {index} {attempt}", heldout)
        given = dice.until(
            lambda: family.draw(dice),  # noqa: B023 - called at once
            lambda arguments: is_heldout(json.dumps([family.name, arguments])) == heldout,
        )
        instruction = family.phrasings[phrasing].format(**given)
        if instruction in seen and attempt < _NEW_INSTRUCTION_DRAWS:
            continue
        scene = family.build(dice, given)
        name = _name(family, instruction, scene)
        if name not in seen:
            seen.update((instruction, name))
            task = _pack(name, family, phrasing, instruction, scene)
            return SuiteTask(task=task, family=family, phrasing=phrasing, good=scene.good, bad=scene.bad)
    raise ValueError(
        f"family {family.name} cannot give so many different {split} tasks: ask for fewer than {index}"
    )


def _name(family: Family, instruction: str, scene: Scene) -> str:
    """Unique for each instruction with its files."""
    digest = hashlib.sha256(json.dumps([instruction, dict(scene.files)]).encode()).hexdigest()
    return f"{family.domain}-{family.name.replace('_', '-')}-{digest[:10]}"


def _pack(name: str, family: Family, phrasing: int, instruction: str, scene: Scene) -> Task:
    files = {
        "task.toml": _settings(name, family, phrasing),
        "instruction.md": instruction + "\n",
        TEST_SCRIPT: script(name, scene.checks),
        SOLUTION: _solution(name, scene.good[0]),
        **{ENVIRONMENT + path: text for path, text in scene.files.items()},
    }
    return Task.from_files({path: text.encode() for path, text in files.items()})


def _settings(name: str, family: Family, phrasing: int) -> str:
    tags = ["two-calls"] if family.calls > 1 else []
    return f"""\
version = "1.0"

[metadata]
name = "{name}"
domain = "{family.domain}"
difficulty = "{family.difficulty(phrasing)}"
family = "{family.name}"
phrasing = {phrasing}
tags = {json.dumps(tags)}

[agent]
timeout_sec = 120.0
max_turns = 4

[verifier]
timeout_sec = 30.0
"""


def _solution(name: str, good: Trajectory) -> str:
    """The good trajectory as a script. Commands before the last one only inspect, so only the last command's output is kept."""
    *before, last = [turn.command for turn in good.turns]
    lines = [f"{command} > /dev/null" for command in before] + [last]
    if good.answer is not None:
        lines.append(f"echo {good.answer}")
    return f"#!/bin/bash\n# {name}\nset -e\n" + "".join(line + "\n" for line in lines)
