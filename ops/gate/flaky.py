"""`ops/flaky.toml`: tests that failed and passed again without a fault of the product, and wait for their repair."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

FILE = "ops/flaky.toml"
DAYS = 7
MAX_ENTRIES = 5


@dataclass(frozen=True, slots=True)
class Flaky:
    """One entry. `test`: as pytest names it; `since`: the day of its first failure; `cause`: what is suspected."""

    test: str
    since: date
    cause: str

    def expired(self, today: date) -> bool:
        return today > self.since + timedelta(days=DAYS)


def read(root: Path) -> list[Flaky]:
    """The entries. Raises ValueError with one sentence: a wrong key, a test that does not exist, no cause, too many entries."""
    file = root / FILE
    if not file.exists():
        return []
    try:
        found = [Flaky(**entry) for entry in tomllib.loads(file.read_text(encoding="utf-8")).get("flaky", [])]
    except (tomllib.TOMLDecodeError, TypeError) as problem:
        raise ValueError(f"{FILE}: {problem}; an entry has test, since and cause") from None
    if len(found) > MAX_ENTRIES:
        raise ValueError(
            f"{FILE} has {len(found)} entries, {MAX_ENTRIES} at most: mend one before you add one"
        )
    for entry in found:
        path, _, name = entry.test.partition("::")
        function = name.rpartition("::")[2].partition("[")[0]
        if not (root / path).is_file() or f"def {function}(" not in (root / path).read_text(encoding="utf-8"):
            raise ValueError(f"{FILE}: {entry.test} does not exist: take the entry out")
        if not isinstance(entry.since, date) or len(str(entry.cause).split()) < 3:
            raise ValueError(
                f"{FILE}: {entry.test} needs a day (since = 2026-01-31) and a cause of at least three words"
            )
    return found


def complaints(root: Path, today: date) -> Sequence[str]:
    """Why the list is red, as sentences; empty if it is fine."""
    try:
        entries = read(root)
    except ValueError as problem:
        return [str(problem)]
    return [
        f"{FILE}: {entry.test} waits since {entry.since}, longer than {DAYS} days ({entry.cause}): mend the test, or delete it"
        for entry in entries
        if entry.expired(today)
    ] + [
        f"{FILE}: {entry.test} waits since {entry.since}, which is still to come: write the day of its first failure"
        for entry in entries
        if entry.since > today
    ]


def overdue(first: Mapping[str, date], today: date) -> Sequence[str]:
    """Why tests that are not on the list flake for too long, as sentences. `first`: the day of the first time of each."""
    return [
        f"{test} flakes since {since}, longer than {DAYS} days, and is not on the list: mend the test, or delete it"
        for test, since in first.items()
        if today > since + timedelta(days=DAYS)
    ]
