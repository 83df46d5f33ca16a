"""What an audit says: violations that name rows, checks with what they looked at, the report of all."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NAMED = 100  # violations of one check that are spelled out; the others are counted


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken invariant: `what` is a clear sentence, `rows` the keys (and values) that show it."""

    invariant: str
    what: str
    rows: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Checked:
    """One check. `found` counts every violation, `violations` spells out the first 100; `skipped` says why nothing was looked at."""

    invariant: str
    name: str
    examined: int
    found: int
    violations: Sequence[Violation]
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """Every check of one run. `state` is the run's: active, ending or ended."""

    run: str
    state: str
    checks: Sequence[Checked]
    seconds: float

    @property
    def violations(self) -> int:
        """How many were found in all checks together."""
        return sum(check.found for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """JSON values alone: bytes as hex, floats that JSON has no word for as text."""
        return {
            "run": self.run,
            "state": self.state,
            "checks": [
                {
                    "invariant": check.invariant,
                    "name": check.name,
                    "examined": check.examined,
                    "found": check.found,
                    "violations": [{"what": v.what, "rows": plain(v.rows)} for v in check.violations],
                    **({"skipped": check.skipped} if check.skipped else {}),
                }
                for check in self.checks
            ],
            "violations": self.violations,
            "seconds": round(self.seconds, 3),
        }


@dataclass(slots=True)
class Findings:
    """Gathers the violations of one check that is not a statement alone."""

    invariant: str
    name: str
    examined: int = 0
    found: int = 0
    named: list[Violation] = field(default_factory=list)

    def add(self, what: str, **rows: Any) -> None:
        """Count a violation, and keep it while there are few."""
        self.found += 1
        if len(self.named) < NAMED:
            self.named.append(Violation(self.invariant, what, rows))

    def checked(self) -> Checked:
        return Checked(self.invariant, self.name, self.examined, self.found, tuple(self.named))


def plain(value: Any) -> Any:
    """`value` as JSON can hold it."""
    match value:
        case bytes():
            return value.hex()
        case float() if not math.isfinite(value):
            return str(value)
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)
