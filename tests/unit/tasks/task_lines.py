"""Files of tasks in message form, one a line, as tests read them."""

from collections.abc import Iterator
from pathlib import Path

from orchestrator.tasks.harbor import Task, each_jsonl


def iter_jsonl(path: Path) -> Iterator[Task]:
    """The tasks of a file. ValueError names the first invalid line."""
    for _, found in each_jsonl(path):
        if isinstance(found, str):
            raise ValueError(found)
        yield found
