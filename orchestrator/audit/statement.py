"""A check that is one SQL statement: every row that it returns breaks an invariant."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.audit.findings import NAMED, Checked, Findings, Violation
from orchestrator.audit.snapshot import Snapshot


def always(snapshot: Snapshot) -> str | None:
    """No reason to skip a check."""
    return None


def with_trajectories(snapshot: Snapshot) -> str | None:
    """Skip after pruning: only digests are left."""
    return snapshot.pruned


NOT_YET = "what is under way is fine"


def at_the_end(snapshot: Snapshot) -> str | None:
    """Skip until the run has ended: unfinished work proves nothing yet."""
    return None if snapshot.ended else f"the run is {snapshot.state}: {NOT_YET}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """`broken` selects the rows that break the invariant; its columns identify them, and fill the sentence `says`.

    `examined` follows `select count(*) from`: the rows that the check is about. `skip` returns the reason to skip it, or None.
    """

    invariant: str
    name: str
    examined: str
    broken: str
    says: str
    skip: Callable[[Snapshot], str | None] = always

    async def check(self, snapshot: Snapshot, **more: Any) -> Checked:
        """Run it; `more` are additional parameters."""
        if reason := self.skip(snapshot):
            return Findings(invariant=self.invariant, name=self.name).skipped(reason)
        [(examined,)] = await snapshot.rows(f"select count(*) from {self.examined}", **more)
        found = await snapshot.rows(
            f"select broken.*, count(*) over () as of_all from ({self.broken}) broken limit {NAMED}", **more
        )
        named: list[Violation] = []
        for row in found:
            rows = dict(row._mapping)
            del rows["of_all"]
            named.append(Violation(self.invariant, self.says.format(**rows), rows))
        return Checked(
            invariant=self.invariant,
            name=self.name,
            examined=examined,
            found=found[0].of_all if found else 0,
            violations=named,
        )


async def all_of(snapshot: Snapshot, statements: Sequence[Statement]) -> list[Checked]:
    """Run them one after the other: they share a connection."""
    return [await statement.check(snapshot) for statement in statements]
