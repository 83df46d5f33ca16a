"""Commands that a sentence recommends mean the run of the command that prints it: they carry its `-c`.

Rooms below the command line recommend commands, but do not know how a person named the run. The command line adds that to their sentences.
"""

import os
import re
from pathlib import Path
from typing import Any, Final

from orchestrator.runtime.run_option import FILE, run_option

_HINT: Final = re.compile(r"`penstock (?P<words>[^`\n]+)`")
_OPTION: Final = re.compile(r" (?:-c|--config)[ =]\S+")
_PLACE: Final = " -c RUN"
"""The text in place of the option in rooms that do not know the run."""
_running: list[Any] = []
"""The context of the command that runs now, if any did."""


def remember(context: Any) -> None:
    """Keep the context of the command that runs now."""
    _running[:] = [context]


def carried(sentence: str) -> str:
    """`sentence`, in which the commands in backquotes that take `-c` have that of the command that runs now; none where its run is here."""
    if "`penstock " not in sentence:
        return sentence
    if not (option := _option()):
        is_here = bool(_running) and "config" in _running[0].params
        return _HINT.sub(lambda found: found[0].replace(_PLACE, ""), sentence) if is_here else sentence
    known = _of_a_run()

    def extended(found: re.Match[str]) -> str:
        words = found["words"].replace(_PLACE, option)
        names = words.split()
        if _OPTION.search(f" {words}") or not any(" ".join(names[:n]) in known for n in (1, 2, 3)):
            return f"`penstock {words}`"
        return f"`penstock {words}{option}`"

    return _HINT.sub(extended, sentence)


def _option() -> str:
    config = _running[0].params.get("config") if _running else None
    if not isinstance(config, Path):
        return ""
    place = os.path.realpath(config)  # unlike `resolve`, it takes a link to itself
    return run_option(Path(place, FILE) if os.path.isdir(place) else Path(place))


def _of_a_run() -> frozenset[str]:
    """The names of the commands that take `-c`."""
    found: set[str] = set()

    def collect(command: Any, name: str) -> None:
        if any(param.name == "config" for param in command.params):
            found.add(name)
        for each, inner in getattr(command, "commands", {}).items():
            collect(inner, f"{name} {each}".strip())

    collect(_running[0].find_root().command, "")
    return frozenset(found)
