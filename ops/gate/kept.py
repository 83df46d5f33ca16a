"""How the parts of a run ended, next to their reports, so that a run of everything that was stopped goes on where it was."""

import contextlib
import json
from pathlib import Path

from ops.gate import results
from ops.gate.part import Ended

FILE = "ended.json"


def keep(directory: Path, commit: str, ended: Ended) -> None:
    """Keep how a part ended on a commit, with its reports in `directory`. Where the disk is full, it is repeated."""
    found = {
        "commit": commit,
        "seconds": ended.seconds,
        "trouble": ended.trouble,
        "left": list(ended.left),
    }
    new = directory / f"{FILE}.new"
    with contextlib.suppress(OSError):
        new.write_text(json.dumps(found), encoding="utf-8")
        new.rename(directory / FILE)


def read(directory: Path, commit: str, name: str, why: str) -> Ended | None:
    """How a part ended on this commit; None if it did not end, or on another one."""
    try:
        found = json.loads((directory / FILE).read_text(encoding="utf-8"))
        if found["commit"] != commit:
            return None
        return Ended(
            name=name,
            why=why,
            seconds=float(found["seconds"]),
            trouble=str(found["trouble"]),
            tests=results.read(directory),
            left=tuple(found["left"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
