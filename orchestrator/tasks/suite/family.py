"""A family of tasks: four phrasings, arguments, contents, checks, and trajectories that pass and that fail."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from orchestrator.tasks.settings import SuiteDomain
from orchestrator.tasks.suite.checks import OutputCheck
from orchestrator.tasks.suite.split_rng import Dice
from orchestrator.tasks.suite.words import DONE

PHRASINGS: Final = 4
"""Per family: 0 and 1 are plain, 2 is indirect, 3 is elliptical."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One tool call: a thought of two or three words, then one shell command without double quotes and backslashes."""

    think: str
    command: str


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Turns, then a final message: `answer`, or with None a copy of the last observation."""

    turns: tuple[Turn, ...]
    answer: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One task before it is packed. `files` are the initial files of the work directory."""

    checks: tuple[OutputCheck, ...]
    good: tuple[Trajectory, ...]
    bad: tuple[Trajectory, ...]
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A template. `draw` picks the arguments, which the instruction shows completely: they determine the split.

    `calls` is the number of tool calls of its shortest demonstration; with 2, the second command's text depends on the output of
    the first one. `level` is 1 or 2; an indirect or elliptical phrasing makes a task one level harder.
    """

    name: str
    domain: SuiteDomain
    level: int
    phrasings: tuple[str, str, str, str]
    draw: Callable[[Dice], dict[str, str]]
    build: Callable[[Dice, Mapping[str, str]], Scene]
    calls: int = 1

    def difficulty(self, phrasing: int) -> str:
        """`easy`, `medium` or `hard`."""
        return ("easy", "medium", "hard")[self.level - 1 + (phrasing >= 2)]


def answers(think: str, *commands: str) -> tuple[Trajectory, ...]:
    """One trajectory per command: run it and answer with its output."""
    return tuple(Trajectory((Turn(think, command),), None) for command in commands)


def changes(think: str, *commands: str) -> tuple[Trajectory, ...]:
    """One trajectory per command: run it and report that it is done."""
    return tuple(Trajectory((Turn(think, command),), DONE) for command in commands)


def chain(*turns: tuple[str, str]) -> Trajectory:
    """(think, command) pairs in order, then `done`."""
    return Trajectory(tuple(Turn(think, command) for think, command in turns), DONE)
