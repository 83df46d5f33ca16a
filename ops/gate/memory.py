"""The machine's memory from one run of the gate to the next: a file outside the clone, or nothing where no file can be kept."""

import fcntl
import json
import os
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date, timedelta
from pathlib import Path

KEPT = 50  # passed commits
FORGOTTEN = timedelta(days=28)  # this long after its last flake a test has a new first day


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """`runs`: how many commits passed; `passed`: the newest of them, the last one last; `owed`: parts that their changes touched and that have not
    run since, the oldest first; `flakes`: tests that flaked and are not on the list, with the days of the first and the last time."""

    runs: int = 0
    passed: list[str] = field(default_factory=list)
    owed: list[str] = field(default_factory=list)
    flakes: dict[str, tuple[str, str]] = field(default_factory=dict)


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


def owed() -> Sequence[str]:
    """The parts that earlier changes touched and for which no time was left."""
    content = _update(lambda content: content)
    return content.owed if content else ()


def passed(commit: str, *, ran: Collection[str] = (), owed: Sequence[str] = ()) -> None:
    """Remember that a commit passed, which parts ran, and which ones it touches but had no time for."""

    def change(content: Content) -> Content:
        waiting = [part for part in content.owed if part not in ran]
        waiting += [part for part in owed if part not in waiting]
        commits = [*content.passed, commit][-KEPT:]
        return replace(content, runs=content.runs + 1, passed=commits, owed=waiting)

    _update(change)


def flaked(tests: Collection[str], today: date) -> Mapping[str, date]:
    """Remember that these tests flaked; returns the day of the first time of each one."""

    def change(content: Content) -> Content:
        recent = {
            test: days
            for test, days in content.flakes.items()
            if today - date.fromisoformat(days[1]) <= FORGOTTEN
        }
        now = {test: (recent.get(test, (str(today),))[0], str(today)) for test in tests}
        return replace(content, flakes=recent | now)

    content = _update(change)
    return {test: date.fromisoformat(content.flakes[test][0]) for test in tests} if content else {}


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
            before = kept.read()
            content = change(_read(before))
            after = json.dumps(asdict(content))
            if after != before:
                kept.seek(0)
                kept.truncate()
                kept.write(after)
            return content
    except OSError:
        return None


def _read(text: str) -> Content:
    try:
        read = json.loads(text)
        flakes = {
            str(test): (str(first), str(last)) for test, (first, last) in read.get("flakes", {}).items()
        }
        for days in flakes.values():
            _ = [date.fromisoformat(day) for day in days]
        return Content(
            runs=int(read["runs"]),
            passed=[str(commit) for commit in read["passed"]],
            owed=[str(part) for part in read.get("owed", [])],
            flakes=flakes,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return Content()
