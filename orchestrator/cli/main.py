"""The root of the command line: sub-commands by subject, errors as one sentence."""

import sys

import typer

from orchestrator.bus.base import BusError
from orchestrator.cli import pool, processes, runs, tasks
from orchestrator.contracts.errors import PenstockError
from orchestrator.log import configure

app = typer.Typer(
    name="penstock",
    help="Event-driven asynchronous orchestrator for agent reinforcement learning.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
processes.register(app)
runs.register(app)
pool.register(app)
app.add_typer(tasks.app, name="tasks", help="Publish, check and generate tasks.")


def main() -> None:
    """Run the command line; what people must know is one line on stderr and exit status 1."""
    configure("penstock", level="error")
    try:
        app()
    except (PenstockError, BusError, ValueError) as error:
        print(f"penstock: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
