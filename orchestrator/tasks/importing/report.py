"""The outcome of each task of an imported set."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any


class ImportOutcome(StrEnum):
    """`unchanged`: the directory was there with the same content."""

    IMPORTED = "imported"
    UNCHANGED = "unchanged"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A task of a set. `source`: where it was found; `write`: writes its files into an empty directory, and returns a sentence on what its tests
    leave possible or what it changed, empty or None without any. ValueError, one sentence, or OSError refuses it."""

    name: str
    source: str
    write: Callable[[Path], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The result of one task. `reason`: why it is refused; `run`: why a run with these sandboxes would refuse it; `note`: what its tests leave
    possible, or what the import changed."""

    name: str
    source: str
    outcome: ImportOutcome
    reason: str | None = None
    run: str | None = None
    note: str | None = None

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)
