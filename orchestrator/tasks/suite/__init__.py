"""Generated tasks with real tests: 17 families in four domains, four phrasings each.

`generate(split, n, seed)` draws tasks together with trajectories that pass and that fail, the source of demonstrations;
`python -m orchestrator.tasks.suite DIR` writes them to disk. Held-out tasks share no instruction and no file content with the rest.

    words ← dice, checks ← family ← reasoning | coding | agent | general ← draw
"""

from orchestrator.tasks.suite.family import PHRASINGS, Family, Trajectory, Turn
from orchestrator.tasks.suite.generator import (
    FAMILIES,
    Split,
    SuiteTask,
    generate,
)
from orchestrator.tasks.suite.words import COMMAND_WORDS, DONE, EXTENSIONS, WORDS

__all__ = [
    "COMMAND_WORDS",
    "DONE",
    "EXTENSIONS",
    "FAMILIES",
    "PHRASINGS",
    "WORDS",
    "Family",
    "Split",
    "SuiteTask",
    "Trajectory",
    "Turn",
    "generate",
]
