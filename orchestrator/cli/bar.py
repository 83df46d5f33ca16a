"""Progress display for long work: on standard error, removed at the end; none without a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Tick = Callable[[int, int], None]
"""(done, total)."""


@contextmanager
def progress(what: str) -> Iterator[Tick]:
    """A bar for work of known size."""
    err = Console(stderr=True)
    if not err.is_terminal:
        yield lambda *_: None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@dataclass(frozen=True, slots=True)
class PublishBars:
    """`tasks` takes answered tasks and all of them, `sent` the bytes sent and to send."""

    tasks: Tick
    sent: Tick


@contextmanager
def publishing(what: str) -> Iterator[PublishBars]:
    """Two bars: the files of large tasks, if any are to be sent, and the tasks."""
    err = Console(stderr=True)
    if not err.is_terminal:
        yield PublishBars(lambda *_: None, lambda *_: None)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[shown]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        files = bar.add_task("send files", total=None, visible=False, shown="")
        tasks = bar.add_task(what, total=None, shown="")
        yield PublishBars(
            lambda done, total: bar.update(tasks, completed=done, total=total, shown=f"{done}/{total}"),
            lambda done, total: bar.update(
                files,
                completed=done,
                total=total,
                visible=total > 0,
                shown=f"{done / 1e6:.1f}/{total / 1e6:.1f} MB",
            ),
        )


@contextmanager
def busy(what: str) -> Iterator[None]:
    """A spinner with the elapsed time, for work that is one statement or one program."""
    err = Console(stderr=True)
    if not err.is_terminal:
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        bar.add_task(what, total=None)
        yield
