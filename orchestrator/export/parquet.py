"""Parquet for HF `datasets`: a row per step and a row per attempt, in parts; row groups are written as they fill, so memory is bounded.

data/steps/part-00000.parquet, data/trajectories/part-00000.parquet, README.md (the dataset card: configurations and features)
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.export.card import card
from orchestrator.export.drive import ExportSummary
from orchestrator.export.packages import need
from orchestrator.export.rows import STEPS, TRAJECTORIES, step_rows, trajectory_row
from orchestrator.pool.runs import StoredRun
from orchestrator.queries.attempts import RecordedAttempt

PART = 5_000  # attempts
GROUP_BYTES = 32 * 2**20  # of tokens and text pending for a row group
GROUP_ROWS = 10_000


class Parquet:
    """Both tables, part by part. `full`: each step also has its whole context, as ids and as messages (quadratic in the turns)."""

    name = "parquet"

    def __init__(self, full: bool = False, part: int = PART) -> None:
        self._arrow = need("pyarrow", "pyarrow", self.name)
        self._writers = need("pyarrow.parquet", "pyarrow", self.name)
        self._full = full
        self.part = part
        self._tables: list[_Table] = []

    def options(self) -> Mapping[str, Any]:
        return {"full": self._full, "part": self.part}

    def split(self) -> Sequence[str]:
        return ()

    def begin(self, directory: Path, number: int, section: Mapping[str, Any], run: StoredRun) -> None:
        self._tables = [
            _Table(
                arrow=self._arrow,
                parquet=self._writers,
                directory=directory,
                name=f"data/{name}/part-{number:05d}.parquet",
                columns=columns,
            )
            for name, columns in (("steps", STEPS), ("trajectories", TRAJECTORIES))
        ]

    def add(self, attempt: RecordedAttempt) -> bool:
        steps, trajectories = self._tables
        for row in step_rows(attempt, full=self._full):
            steps.add(row)
        trajectories.add(trajectory_row(attempt))
        return False

    def end(self) -> Sequence[str]:
        return [table.end() for table in self._tables]

    def close(self, directory: Path, done: ExportSummary) -> Sequence[str]:
        (directory / "README.md").write_text(
            card(done, {"steps": STEPS, "trajectories": TRAJECTORIES}), encoding="utf-8"
        )
        return ["README.md"]


class _Table:
    """One file: rows are buffered until they fill a row group."""

    def __init__(
        self, *, arrow: Any, parquet: Any, directory: Path, name: str, columns: Mapping[str, tuple[str, str]]
    ) -> None:
        self._arrow, self._name = arrow, name
        self._schema = arrow.schema(
            [
                arrow.field(column, _type(arrow, kind), metadata={"description": description})
                for column, (kind, description) in columns.items()
            ]
        )
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        self._writer = parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._columns: dict[str, list[Any]] = {column: [] for column in columns}
        self._rows = self._bytes = 0

    def add(self, row: Mapping[str, Any]) -> None:
        for column, values in self._columns.items():
            value = row[column]
            values.append(value)
            if isinstance(value, np.ndarray):
                self._bytes += value.nbytes
            elif isinstance(value, str):
                self._bytes += len(value)
        self._rows += 1
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._flush()

    def end(self) -> str:
        if self._rows:
            self._flush()
        self._writer.close()
        return self._name

    def _flush(self) -> None:
        arrays = [self._arrow.array(self._columns[field.name], type=field.type) for field in self._schema]
        self._writer.write_table(
            self._arrow.Table.from_arrays(arrays, schema=self._schema), row_group_size=self._rows
        )
        for values in self._columns.values():
            values.clear()
        self._rows = self._bytes = 0


def _type(arrow: Any, kind: str) -> Any:
    if kind.startswith("list<"):
        return arrow.list_(_type(arrow, kind[5:-1]))
    if kind.startswith("timestamp"):
        return arrow.timestamp("us", tz="UTC")
    return getattr(arrow, {"bool": "bool_"}.get(kind, kind))()
