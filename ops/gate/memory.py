"""What the machine remembers from one run of the gate to the next: a file outside the clone, or nothing where no file can be kept."""

import fcntl
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

KEPT = 50  # passed commits


@dataclass(frozen=True, slots=True)
class Content:
    """`runs`: how many commits passed; `passed`: the newest of them, the last one last."""

    runs: int
    passed: list[str]


def place() -> Path:
    """`PENSTOCK_GATE_MEMORY`, else below the user's directory for state (XDG)."""
    named = os.environ.get("PENSTOCK_GATE_MEMORY")
    if named:
        return Path(named)
    state = (
        os.environ.get("XDG_STATE_HOME") or Path(os.environ.get("HOME") or "/nonexistent") / ".local/state"
    )
    return Path(state) / "penstock" / "gate.json"


def turn() -> int | None:
    """How many commits passed here, which is the turn of the rotation: a slice that failed runs again. None if the machine keeps no file."""
    content = _update(lambda content: content)
    return None if content is None else content.runs


def passed(commit: str) -> None:
    """Remember that a commit passed."""
    _update(lambda content: Content(content.runs + 1, [*content.passed, commit][-KEPT:]))


def base(root: Path) -> str | None:
    """The newest ancestor of HEAD, HEAD itself apart, that passed here; None if there is none."""
    content = _update(lambda content: content)
    distances = []
    for commit in set(content.passed if content else ()):
        words = ["git", "-C", str(root), "rev-list", "--count", f"{commit}..HEAD"]
        ancestor = subprocess.run(
            [*words[:3], "merge-base", "--is-ancestor", commit, "HEAD"], capture_output=True
        )
        if ancestor.returncode == 0:
            distance = int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
            if distance:
                distances.append((distance, commit))
    return min(distances)[1] if distances else None


def _update(change: Callable[[Content], Content]) -> Content | None:
    """Change the content under a lock; None if the file cannot be kept. Content that is not ours is replaced."""
    file = place()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a+", encoding="utf-8") as kept:
            fcntl.flock(kept, fcntl.LOCK_EX)
            kept.seek(0)
            try:
                read = json.loads(kept.read())
                content = Content(int(read["runs"]), [str(commit) for commit in read["passed"]])
            except (ValueError, KeyError, TypeError):
                content = Content(0, [])
            content = change(content)
            kept.seek(0)
            kept.truncate()
            json.dump({"runs": content.runs, "passed": content.passed}, kept)
            return content
    except OSError:
        return None
