"""The root of the command line: sub-commands by subject, errors as one sentence."""

import contextlib
import sys

import typer

from orchestrator.bus.base import BusError
from orchestrator.cli import (
    audit,
    cluster,
    dead,
    drain,
    evaluate,
    export,
    logs,
    metrics,
    pool,
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
    status,
    tail,
    tasks,
    top,
    trainer,
)
from orchestrator.cli.examples import attach
from orchestrator.cli.terminal import plain
from orchestrator.collector import collect_seldom
from orchestrator.contracts.errors import PenstockError
from orchestrator.log import configure

app = typer.Typer(
    name="penstock",
    help="Event-driven asynchronous orchestrator for agent reinforcement learning.",
    epilog="\b\nExit status: 0 done, 1 not done (one sentence on standard error), 2 wrong usage, 130 interrupted;\n"
    "of `penstock status` also 3 nothing is running, 4 something is stuck.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
processes.register(app)
runs.register(app)
status.register(app)
pool.register(app)
logs.register(app)
tail.register(app)
top.register(app)
audit.register(app)
drain.register(app)
scale.register(app)
size.register(app)
rewind.register(app)
rescore.register(app)
prune.register(app)
app.add_typer(show.app, name="show", help="One rollout, group or batch, whole.")
app.add_typer(tasks.app, name="tasks", help="Publish, check and generate tasks.")
app.add_typer(scaffold.app, name="scaffold", help="Agents: write one, try it, install its program.")
app.add_typer(
    dead.app, name="dead", help="What could not be used: messages, and groups without attempts left."
)
app.add_typer(metrics.app, name="metrics")
app.add_typer(evaluate.app, name="eval")
app.add_typer(export.app, name="export", help="What a run recorded, in the formats of other tools.")
app.add_typer(cluster.app, name="cluster", help="A run on more than one machine, from one topology.")
app.add_typer(trainer.app, name="trainer")
app.add_typer(sft.app, name="sft", help="Record demonstrations, export trajectories, train on them.")
attach(app)


def _ended(error: BaseException) -> SystemExit:
    with contextlib.suppress(OSError):  # a full disk
        print(plain(f"penstock: {error}"), file=sys.stderr)
    return SystemExit(1)


def main() -> None:
    """Run the command line; what people must know is one line on stderr and exit status 1."""
    collect_seldom()
    configure("penstock", level="error")
    try:
        app()
    except (PenstockError, BusError, ValueError) as error:
        raise _ended(error) from None
    except ExceptionGroup as errors:  # of the tasks of a process: the first reason is enough
        known, others = errors.split((PenstockError, BusError, ValueError))
        if known is None or others is not None:
            raise
        first: BaseException = known
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise _ended(first) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
