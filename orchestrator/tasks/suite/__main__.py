"""`python -m orchestrator.tasks.suite DIR`: write the suite as task directories or as two JSONL files."""

import argparse
import json
import sys
from pathlib import Path

from orchestrator.contracts.numbers import INT4, INT8, option, whole
from orchestrator.tasks.suite.generator import Split, generate


def write_suite(directory: Path, split: Split, count: int, seed: int, jsonl: bool) -> Path:
    """Write one split below `directory`; returns the folder or file made, which must not exist. ValueError if it does."""
    target = directory / (f"{split}.jsonl" if jsonl else split)
    if target.exists():
        raise ValueError(f"{target} exists already: choose another directory or remove it")
    tasks = [suite_task.task for suite_task in generate(split, count, seed)]
    directory.mkdir(parents=True, exist_ok=True)
    if jsonl:
        target.write_text("".join(json.dumps(task.to_message()) + "\n" for task in tasks), encoding="utf-8")
    for task in () if jsonl else tasks:
        task.write(target / task.name)
    return target


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.tasks.suite", description=__doc__)
    parser.add_argument("directory", type=Path, help="where to write; made if it does not exist")
    parser.add_argument(
        "--train", type=option(whole, least=0, most=INT4), default=400, help="number of training tasks (400)"
    )
    parser.add_argument(
        "--heldout",
        type=option(whole, least=0, most=INT4),
        default=100,
        help="number of held-out tasks (100)",
    )
    parser.add_argument(
        "--seed",
        type=option(whole, least=-INT8, most=INT8),
        default=0,
        help="other seeds give other tasks, never across the split",
    )
    parser.add_argument(
        "--jsonl", action="store_true", help="write train.jsonl and heldout.jsonl, not directories"
    )
    given = parser.parse_args(arguments)
    if not given.train and not given.heldout:
        parser.error("--train 0 --heldout 0 makes no tasks: give one of them a number from 1")
    counts: tuple[tuple[Split, int], ...] = (("train", given.train), ("heldout", given.heldout))
    try:
        for split, count in counts:
            print(f"{count} tasks in {write_suite(given.directory, split, count, given.seed, given.jsonl)}")
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
