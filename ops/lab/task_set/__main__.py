"""Writes the tasks as directories: `python -m ops.lab.task_set DIR [--images]`."""

from pathlib import Path
from typing import Annotated

import typer

from ops.lab.task_set import ALL, PLAIN, made
from orchestrator.tasks.harbor import Task


def main(
    directory: Annotated[Path, typer.Argument(help="Where to write a directory for each task.")],
    images: Annotated[bool, typer.Option(help="Also the tasks that need an image.")] = False,
) -> None:
    """Write the well-made tasks."""
    if directory.exists() and any(directory.iterdir()):
        raise typer.BadParameter(f"{directory} is not empty: remove it, or choose another directory")
    chosen = ALL if images else PLAIN
    for name in chosen:
        Task.from_files(made(name)).write(directory / name)
    typer.echo(f"{len(chosen)} tasks are in {directory}")


if __name__ == "__main__":
    typer.run(main)
