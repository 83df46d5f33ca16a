"""The reports of pytest's sessions, in the directory of a part: `N.jsonl` of pytest-reportlog, one JSON object per line, `N.status`, the status
of that process, and `alone`, the tests that the first session left to another one (ops/gate/company.py)."""

import json
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NO_SECOND_CHANCE = "violations.Violation"
"""Part of the name of the exception for a broken invariant (tests/violations.py), as pytest prints it."""


@dataclass(slots=True, kw_only=True)
class Result:
    """One test. `seconds`: with its fixtures; `cause`: the message of its failure, else ""; `violation`: it found a broken invariant; `called`: its
    own function passed."""

    test: str
    seconds: float = 0.0
    cause: str = ""
    violation: bool = False
    called: bool = False

    @property
    def failed(self) -> bool:
        return bool(self.cause)

    @property
    def passed(self) -> bool:
        return self.called and not self.failed

    @property
    def skipped(self) -> bool:
        """It neither passed nor failed."""
        return not (self.called or self.failed)

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]


def read(directory: Path) -> dict[str, Result]:
    """The results of all reports in a directory, by test; a file that could not be collected counts as a failed test.

    The last line of a pytest that was killed may be incomplete: it is passed over.
    """
    found: dict[str, Result] = {}
    for file in _sessions(directory):
        for line in _lines(file):
            kind = line.get("$report_type")
            if kind not in ("TestReport", "CollectReport") or (
                kind == "CollectReport" and line["outcome"] != "failed"
            ):
                continue
            result = found.setdefault(line["nodeid"], Result(test=line["nodeid"]))
            result.seconds += line.get("duration", 0.0)
            # A failure that is expected is reported as skipped.
            result.called |= line.get("when") == "call" and (
                line["outcome"] == "passed" or "wasxfail" in line
            )
            if line["outcome"] == "failed":
                result.cause = result.cause or _cause(line.get("longrepr"))
                result.violation |= NO_SECOND_CHANCE in json.dumps(line.get("longrepr"))
    return found


def incomplete(directory: Path, tests: Mapping[str, Result]) -> list[str]:
    """Signs that not every test ran, as sentences: a session that did not end as one does, tests that ran in no session."""
    found = [sentence for file in _sessions(directory) if (sentence := _broken(file))]
    missing = [test for test in _alone(directory) if test not in tests]
    if missing:
        found.append(f"{len(missing)} tests with the mark `alone` ran in no pytest, such as {missing[0]}")
    return found


def _broken(file: Path) -> str:
    """How a session ended if not as sessions end; "" if it did: its last word is its status, and that is the one of its process."""
    reported = [
        line.get("exitstatus") for line in _lines(file) if line.get("$report_type") == "SessionFinish"
    ]
    written = file.with_suffix(".status")
    code = int(written.read_text() or -1) if written.exists() else None
    name = f"pytest {file.stem} of its sessions"
    if code is not None and code > 128 and code - 128 in {*signal.Signals}:
        return f"{name} was killed by {signal.Signals(code - 128).name}"
    if not reported:
        how = "and left no status" if code is None else f"with status {code}"
        return f"{name} ended before its last test, {how}"
    if reported[-1] not in (0, 1, 5) or reported[-1] != code:
        return f"{name} reported status {reported[-1]} and ended with status {code}"
    return ""


def _alone(directory: Path) -> list[str]:
    file = directory / "alone"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def _sessions(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.jsonl"))


def _lines(file: Path) -> Iterator[Mapping[str, Any]]:
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
