"""Rows of trajectories and steps as a pandas DataFrame. pandas is an extra, imported when the first frame is made."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.export.packages import import_extra

if TYPE_CHECKING:
    import pandas


class FrameBuilder:
    """Collects rows by column. `columns`: name → (Arrow type, description), as in `orchestrator.export.rows`."""

    def __init__(self, columns: Mapping[str, tuple[str, str]]) -> None:
        self._pandas = import_extra("pandas", "pandas", user="a data frame", extra="frame")
        self._kinds = {name: kind for name, (kind, _) in columns.items()}
        self._values: dict[str, list[Any]] = {name: [] for name in columns}

    def add(self, row: Mapping[str, Any]) -> None:
        """Append one row."""
        for name, values in self._values.items():
            values.append(row[name])

    def build(self) -> "pandas.DataFrame":
        """The frame. Integers are nullable (Int64 …), times have the zone UTC, lists are objects; a column has the same type without rows."""
        series = {
            name: self._pandas.Series(values, dtype=_dtype(self._kinds[name]))
            for name, values in self._values.items()
        }
        return self._pandas.DataFrame(series)


def _dtype(kind: str) -> str:
    """The pandas type of an Arrow type.

    >>> [_dtype(kind) for kind in ("int32", "float64", "string", "bool", "list<int32>", "timestamp[us, tz=UTC]")]
    ['Int32', 'float64', 'string', 'bool', 'object', 'datetime64[us, UTC]']
    """
    if kind.startswith("int"):
        return kind.capitalize()
    if kind.startswith("list<"):
        return "object"
    return "datetime64[us, UTC]" if kind.startswith("timestamp") else kind
