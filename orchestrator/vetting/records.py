"""Reports in a file of JSON lines next to the tasks: the levels travel with the folder, and a second call of `penstock tasks vet` continues."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Protocol

from orchestrator.contracts.vetting import VETTING, Vetting
from orchestrator.tasks.bundle import BundleLimits
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.sources import each
from orchestrator.tasks.vetting.report import TaskReport

FILE: Final = "vetting.jsonl"


class Records(Protocol):
    """Where reports are kept, by content hash."""

    async def find(self, sha256: str) -> TaskReport | None:
        """The newest report of these bytes by the controls of this version."""
        ...

    async def add(self, report: TaskReport) -> None:
        """Keep a report, in place of an older one of the same bytes."""
        ...


class FileRecords:
    """Reports in one file, the newest of the same bytes last. A line that cannot be read (cut by a crash, or older controls) is passed over."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reports = {report.sha256: report for report in _read(path)}

    async def find(self, sha256: str) -> TaskReport | None:
        return self._reports.get(sha256)

    async def add(self, report: TaskReport) -> None:
        self._reports[report.sha256] = report
        lead = "\n" if _is_cut(self.path) else ""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{lead}{json.dumps(report.to_json())}\n")

    def vettings(self) -> dict[str, Vetting]:
        """The levels by content hash."""
        return {sha256: report.vetting for sha256, report in self._reports.items()}


def next_to(source: Path) -> Path:
    """The file of a source of tasks: in a folder of tasks, else next to the task or the JSONL file."""
    alone = source.is_file() or (source / "task.toml").exists() or (source / "instruction.md").exists()
    return (source.parent if alone else source) / FILE


def sources_of(
    sources: Iterable[Path], limits: BundleLimits | None = None
) -> Iterator[tuple[Path, str, Task | str]]:
    """`orchestrator.tasks.sources.each`, with the source of each task."""
    for source in sources:
        for place, found in each([source], limits):
            yield source, place, found


def vettings_of(sources: Iterable[Path]) -> dict[str, Vetting]:
    """The levels in the files next to the sources, by content hash."""
    found: dict[str, Vetting] = {}
    for path in dict.fromkeys(map(next_to, sources)):
        found |= FileRecords(path).vettings()
    return found


def _read(path: Path) -> Iterator[TaskReport]:
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            stored = json.loads(line)
            report = TaskReport.from_json(stored)
        except (ValueError, RecursionError):
            continue
        if stored["version"] == VETTING:
            yield report


def _is_cut(path: Path) -> bool:
    """Whether the file does not end with a line feed."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"
