"""Results of an audit: violations that name rows, checks with the number of examined rows, the report of all."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.contracts.states import RunState

NAMED = 100  # violations of one check that are spelled out; the others are counted


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken invariant: `what` is a clear sentence, `rows` the keys (and values) that show it."""

    invariant: str
    what: str
    rows: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One check. `found` counts every violation, `violations` spells out the first 100; `skipped`: why nothing was examined, None if it was."""

    invariant: str
    name: str
    examined: int
    found: int
    violations: Sequence[Violation]
    skipped: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Every check of one run."""

    run: str
    state: RunState
    checks: Sequence[Checked]
    seconds: float

    @property
    def violations(self) -> int:
        """Number of violations in all checks together."""
        return sum(check.found for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """JSON values only: bytes as hex, floats that JSON cannot represent as text."""
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
                    **({"skipped": check.skipped} if check.skipped is not None else {}),
                }
                for check in self.checks
            ],
            "violations": self.violations,
            "seconds": round(self.seconds, 3),
        }


@dataclass(slots=True, kw_only=True)
class Findings:
    """Collects the violations of a check that needs more than one statement."""

    invariant: str
    name: str
    examined: int = 0
    found: int = 0
    named: list[Violation] = field(default_factory=list)

    def add(self, what: str, **rows: Any) -> None:
        """Count a violation, and keep it if fewer than NAMED are kept."""
        self.found += 1
        if len(self.named) < NAMED:
            self.named.append(Violation(self.invariant, what, rows))

    def skipped(self, reason: str) -> Checked:
        """Nothing is examined, for this reason."""
        return Checked(
            invariant=self.invariant, name=self.name, examined=0, found=0, violations=(), skipped=reason
        )

    def checked(self) -> Checked:
        return Checked(
            invariant=self.invariant,
            name=self.name,
            examined=self.examined,
            found=self.found,
            violations=tuple(self.named),
        )


def plain(value: Any) -> Any:
    """`value` as JSON can represent it."""
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
