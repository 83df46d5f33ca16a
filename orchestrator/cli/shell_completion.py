"""Shell completion of names: it reads the run's directory and never queries a service."""

from pathlib import Path

import typer

from orchestrator.cli.options import HERE
from orchestrator.contracts.errors import PenstockError
from orchestrator.deploy.home import Home


def _home(context: typer.Context) -> Home | None:
    given = context.params.get("config")
    try:
        return Home.at(Path(given) if given else HERE)
    except (PenstockError, ValueError, OSError):
        return None


def processes(context: typer.Context, incomplete: str) -> list[str]:
    """Processes that have a log here."""
    home = _home(context)
    found = [] if home is None else sorted(path.stem for path in home.layout.logs.glob("*.log"))
    return [name for name in found if name.startswith(incomplete)]


def scaffolds(incomplete: str) -> list[str]:
    """Registered scaffolds."""
    from scaffolds.find import known

    return [name for name in known() if name.startswith(incomplete)]


def domains(incomplete: str) -> list[str]:
    """Domains of the built-in suite."""
    from orchestrator.tasks.settings import DOMAINS

    return [name for name in DOMAINS if name.startswith(incomplete)]
