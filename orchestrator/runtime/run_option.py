"""How a command line names a run: the end of each command that a sentence recommends."""

import shlex
from pathlib import Path

FILE = "penstock.toml"


def run_option(file: Path) -> str:
    """` -c RUN`, quoted for a shell, for the run of a configuration file: its directory, relative to the working directory if it lies below that.
    Empty where a command finds it without an option.

    >>> run_option(Path("/srv/my runs/first/penstock.toml"))
    " -c '/srv/my runs/first'"
    """
    place = file.parent if file.name == FILE else file
    try:
        here = Path.cwd()
    except FileNotFoundError:  # it was removed
        here = Path("/")
    if place == here:
        return ""
    below = here != Path("/") and place.is_relative_to(here)
    return f" -c {shlex.quote(str(place.relative_to(here) if below else place))}"
