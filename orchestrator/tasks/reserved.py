"""Variables that a task cannot set, because Penstock sets them. The task's own value of any other variable wins over ours.

PYTHONHASHSEED is not among them: `runner.verification_limits` keeps the task's value, unless it asks for any value ("random").
"""

from typing import Final

PREFIX: Final = "PENSTOCK_"
START_UP: Final = "BASH_ENV"
"""Names the start-up file of bash, by which the tests repeat their draws."""
PROXIES: Final = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"})
"""In upper and lower case: they lead programs to the run's proxy."""


def reserved(name: str, *, networked: bool = False) -> str | None:
    """Why a task cannot set this variable, with the remedy; None: it can. `networked`: whether it has access to a network."""
    if name.startswith(PREFIX):
        return f"names that begin with {PREFIX} are reserved: choose another name"
    if name == START_UP:
        return f"{name} is reserved: Penstock sets it, so that $RANDOM repeats in the tests. Let the script source that file"
    if networked and name.upper() in PROXIES:
        return f"{name} is reserved in a task with a network: it leads programs to the run's proxy. Remove it, or network_mode"
    return None
