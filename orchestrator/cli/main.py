"""The root of the command line: sub-commands by subject, errors as one sentence."""

import sys

import typer

from orchestrator.bus.base import BusError
from orchestrator.cli import (
    audit,
    cluster,
    compare,
    dead,
    drain,
    evaluate,
    export,
    images,
    import_tasks,
    logs,
    metrics,
    processes,
    prune,
    rescore,
    rewind,
    runs,
    scaffold,
    scale,
    sft,
    show,
    size,
    sql,
    status,
    tail,
    tasks,
    top,
    trainer,
    version,
    vet,
)
from orchestrator.cli.arguments import checked
from orchestrator.cli.driver_errors import as_sentences
from orchestrator.cli.examples import attach
from orchestrator.cli.hints import carried
from orchestrator.cli.option_names import with_option
from orchestrator.cli.terminal import plain
from orchestrator.contracts.choices import LogLevel
from orchestrator.contracts.errors import ArgumentError, PenstockError
from orchestrator.contracts.quote import quoted, readable
from orchestrator.runtime.exception_groups import first_error
from orchestrator.runtime.gc_tuning import collect_infrequently
from orchestrator.runtime.log import configure
from orchestrator.runtime.streams import ReaderGone, guard

KNOWN = (PenstockError, BusError, ValueError, OSError, ReaderGone)
"""Errors with a sentence for a person."""
LOOP = "Symlink loop"
"""Start of the RuntimeError that older versions of pathlib raise for a link to itself."""
READER_GONE = 141
"""Exit status of a print-only command whose reader has gone: as after SIGPIPE."""

app = typer.Typer(
    name="penstock",
    help="Event-driven asynchronous orchestrator for agent reinforcement learning.",
    epilog="\b\nExit status: 0 done, 1 not done (one sentence on standard error), 2 wrong usage, 130 interrupted,\n"
    "141 a command that only prints has lost its reader (| head);\n"
    "of `penstock status` also 3 nothing is running, 4 something is stuck.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
version.register(app)
processes.register(app)
runs.register(app)
status.register(app)
sql.register(app)
logs.register(app)
tail.register(app)
top.register(app)
compare.register(app)
audit.register(app)
drain.register(app)
scale.register(app)
size.register(app)
rewind.register(app)
rescore.register(app)
prune.register(app)
app.add_typer(show.app, name="show", help="Show one rollout, group or batch in full.")
vet.register(tasks.app)
tasks.app.add_typer(import_tasks.app, name="import")
app.add_typer(tasks.app, name="tasks", help="Publish, check, vet, import and generate tasks.")
app.add_typer(
    images.app, name="images", help="Make, import and remove the images of sandboxes, without a daemon."
)
app.add_typer(scaffold.app, name="scaffold", help="Write and check scaffolds, and install their programs.")
app.add_typer(
    dead.app, name="dead", help="Messages that could not be used, and groups without attempts left."
)
app.add_typer(metrics.app, name="metrics")
app.add_typer(evaluate.app, name="eval")
app.add_typer(export.app, name="export", help="Export a run's records in the formats of other tools.")
app.add_typer(cluster.app, name="cluster", help="Run on several machines, from one topology.")
app.add_typer(trainer.app, name="trainer")
app.add_typer(sft.app, name="sft", help="Record demonstrations, export trajectories, train on them.")
attach(app)
checked(app)


def _sentence(error: BaseException) -> str:
    """The text of an error for a person: for an argument with the name of its option; for one of the operating system its reason and its
    file, without the number."""
    if isinstance(error, ArgumentError):
        return with_option(error)
    if isinstance(error, OSError) and error.strerror:
        named = f"{error.filename}: " if error.filename is not None else ""
        return f"{named}{error.strerror}"
    if isinstance(error, UnicodeEncodeError):
        return f"{quoted(error.object)} is not text that {error.encoding} can write (character {error.start + 1}): use other characters"
    return str(error)


def _ended(error: BaseException) -> SystemExit:
    if isinstance(error, ReaderGone):
        return SystemExit(READER_GONE)
    print(plain(f"penstock: {carried(readable(_sentence(error)))}"), file=sys.stderr)
    return SystemExit(1)


def _run() -> None:
    # A full disk would become known only when the interpreter ends, as a traceback. An error of the command itself comes first.
    try:
        app()
    except SystemExit:
        sys.stdout.flush()
        raise
    sys.stdout.flush()


def main() -> None:
    """Run the command line; an error is one line on stderr and exit status 1."""
    guard()
    collect_infrequently()
    try:
        configure("penstock", level=LogLevel.ERROR)
        with as_sentences():
            _run()
    except KNOWN as error:
        raise _ended(error) from None
    except ExceptionGroup as errors:  # of the tasks of a process: the first error is enough
        known, unknown = errors.split(KNOWN)
        if known is None or unknown is not None:
            raise
        raise _ended(first_error(known)) from None
    except RuntimeError as error:
        if not str(error).startswith(LOOP):
            raise
        raise _ended(error) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
