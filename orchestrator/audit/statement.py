"""A check that is one SQL statement: whatever it returns breaks an invariant."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.audit.findings import NAMED, Checked, Violation
from orchestrator.audit.snapshot import Snapshot


def always(snapshot: Snapshot) -> str:
    """No reason to skip a check."""
    return ""


def with_trajectories(snapshot: Snapshot) -> str:
    """Of a pruned run only digests are left."""
    return snapshot.pruned


NOT_YET = "what is under way is fine"


def at_the_end(snapshot: Snapshot) -> str:
    """What may still be under way says nothing yet."""
    return "" if snapshot.ended else f"the run is {snapshot.state}: {NOT_YET}"


@dataclass(frozen=True, slots=True)
class Statement:
    """`broken` selects the rows that can never be right; its columns are the named rows, and fill the sentence `says`.

    `examined` is what stands behind `select count(*) from`: the rows that the check is about. `skip` gives the reason to leave it out.
    """

    invariant: str
    name: str
    examined: str
    broken: str
    says: str
    skip: Callable[[Snapshot], str] = always

    async def check(self, snapshot: Snapshot, **more: Any) -> Checked:
        """Run it; `more` are parameters of its own."""
        if reason := self.skip(snapshot):
            return Checked(self.invariant, self.name, 0, 0, (), reason)
        [(examined,)] = await snapshot.rows(f"select count(*) from {self.examined}", **more)
        found = await snapshot.rows(
            f"select broken.*, count(*) over () as of_all from ({self.broken}) broken limit {NAMED}", **more
        )
        named: list[Violation] = []
        for row in found:
            rows = dict(row._mapping)
            del rows["of_all"]
            named.append(Violation(self.invariant, self.says.format(**rows), rows))
        return Checked(self.invariant, self.name, examined, found[0].of_all if found else 0, named)


async def all_of(snapshot: Snapshot, statements: Sequence[Statement]) -> list[Checked]:
    """One after the other: they share a connection."""
    return [await statement.check(snapshot) for statement in statements]
