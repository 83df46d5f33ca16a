"""The tasks of the demo, from the built-in suite."""

from dataclasses import dataclass

from orchestrator.tasks.harbor import Task
from orchestrator.tasks.suite import generate

TRAIN_TASKS = 600
HELDOUT_TASKS = 100
EVAL_ROLLOUTS = 2  # per held-out task: n = 200


@dataclass(frozen=True, slots=True)
class Suite:
    """The tasks of one demo. Held-out ones share no instruction and no file content with the others."""

    train: list[Task]
    heldout: list[Task]


def draw_suite(seed: int) -> Suite:
    """The demo's tasks: the same held-out ones for every seed's before and after."""
    return Suite(
        [item.task for item in generate("train", TRAIN_TASKS, seed)],
        [item.task for item in generate("heldout", HELDOUT_TASKS, seed)],
    )
