"""What pytest reported: the files of pytest-reportlog, one JSON object per line."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NO_SECOND_CHANCE = "violations.Violation"
"""Part of the name of the exception for a broken invariant (tests/violations.py), as pytest prints it."""


@dataclass(slots=True, kw_only=True)
class Result:
    """One test. `seconds`: with its fixtures; `cause`: the message of its failure, else ""; `violation`: it found a broken invariant."""

    test: str
    seconds: float = 0.0
    cause: str = ""
    violation: bool = False

    @property
    def failed(self) -> bool:
        return bool(self.cause)

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]


def read(directory: Path) -> dict[str, Result]:
    """The results of all reports in a directory, by test; a file that could not be collected counts as a failed test.

    The last line of a pytest that was killed may be incomplete: it is passed over.
    """
    found: dict[str, Result] = {}
    for line in _lines(directory):
        kind = line.get("$report_type")
        if kind not in ("TestReport", "CollectReport") or (
            kind == "CollectReport" and line["outcome"] != "failed"
        ):
            continue
        result = found.setdefault(line["nodeid"], Result(test=line["nodeid"]))
        result.seconds += line.get("duration", 0.0)
        if line["outcome"] == "failed":
            result.cause = result.cause or _cause(line.get("longrepr"))
            result.violation |= NO_SECOND_CHANCE in json.dumps(line.get("longrepr"))
    return found


def _lines(directory: Path) -> Iterator[Mapping[str, Any]]:
    for file in sorted(directory.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue


def _cause(shown: Any) -> str:
    """The first line of a failure's message."""
    if isinstance(shown, Mapping):
        shown = (shown.get("reprcrash") or {}).get("message") or ""
    return (str(shown).strip() or "no message").splitlines()[0][:300]
