"""Lines of the logs of a run's processes: read, filtered, merged by their time, followed as they grow.

A file that grew too long was cut: its earlier lines lie in `NAME.log.1` (`deploy.embedded.spawn`) and are read first.

Our processes write JSON lines, NATS and PostgreSQL text in their own formats; a line in none of these (a traceback) belongs to the line before it.
"""

import contextlib
import heapq
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from orchestrator.contracts.choices import LogLevel
from orchestrator.contracts.quote import quoted

LEVELS = tuple(LogLevel)
_BLOCK = 1 << 16
_MAX_LINE_BYTES = 1 << 20  # bytes of one line that are kept
_POSTGRES = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+) UTC \[\d+\] (?:\S+@\S+ )?(\w+):")
_NATS = re.compile(r"\[\d+\] (\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d+) \[(\w+)\]")
_NAMES = {
    "log": "info", "statement": "info", "detail": "info", "hint": "info", "context": "info", "notice": "info",
    "fatal": "critical", "panic": "critical", "inf": "info", "wrn": "warning", "err": "error", "ftl": "critical",
    "dbg": "debug", "trc": "debug",
}  # fmt: skip


_IN_ORDER = re.compile(
    r"FATAL:\s+(the database system is (starting up|shutting down)|terminating connection due to administrator command)"
)
"""Messages about a connection that PostgreSQL logs as fatal at every start or stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line. `at`: seconds since 1970; `fields`: all fields of a JSON line; for another line, its text as `event`."""

    at: float
    process: str
    level: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Filter of lines. Empty: all lines."""

    processes: frozenset[str] = frozenset()
    level: str = LEVELS[0]
    rollout: int | None = None
    group: int | None = None
    since: float = 0.0
    text: str = ""

    @property
    def all(self) -> bool:
        """Whether every line of a process matches, so that the ends of its files are enough."""
        return self == Wanted(processes=self.processes)

    def __call__(self, line: Line) -> bool:
        return (
            LEVELS.index(line.level) >= LEVELS.index(self.level)
            and line.at >= self.since
            and (self.rollout is None or about(line.fields, "rollout", self.rollout))
            and (self.group is None or about(line.fields, "group", self.group))
            and (not self.text or self.text in json.dumps(line.fields, default=str, ensure_ascii=False))
        )


def about(fields: Mapping[str, Any], kind: str, number: int) -> bool:
    """Whether a line is about this `rollout` or `group`: by itself, or among others.

    >>> about({"rollouts": [7, 8]}, "rollout", 8), about({"group": 8}, "rollout", 8)
    (True, False)
    """
    several = fields.get(f"{kind}s")
    return fields.get(kind) == number or (isinstance(several, list) and number in several)


def read(process: str, raw: bytes, before: Line | None = None) -> Line:
    """Parse one line of the log of `process`; a line without a time gets the time of `before`.

    >>> read("nats", b"[7] 2026/01/02 03:04:05.600000 [ERR] no space").level
    'error'
    """
    text = raw.rstrip(b"\n")[:_MAX_LINE_BYTES].decode("utf-8", "backslashreplace")
    try:
        fields = json.loads(text) if text.startswith("{") else None
        if isinstance(fields, dict):
            level = str(fields.get("level", "info"))
            at = datetime.fromisoformat(str(fields["timestamp"])).timestamp()
            return Line(at=at, process=process, level=level if level in LEVELS else "info", fields=fields)
    except (ValueError, KeyError, RecursionError):
        pass
    for form, pattern in (("%Y-%m-%d %H:%M:%S.%f", _POSTGRES), ("%Y/%m/%d %H:%M:%S.%f", _NATS)):
        if found := pattern.match(text):
            timestamp = datetime.strptime(found[1], form).replace(tzinfo=UTC).timestamp()
            name = "log" if _IN_ORDER.search(text) else found[2].lower()
            return Line(
                at=timestamp,
                process=process,
                level=name if name in LEVELS else _NAMES.get(name, "info"),
                fields={"event": text},
            )
    # A line of our own that is not JSON was not meant to be written, a traceback for example.
    return Line(
        at=before.at if before else 0.0,
        process=process,
        level=before.level if before and before.fields.keys() == {"event"} else "error",
        fields={"event": text},
    )


def files(directory: Path, wanted: Wanted) -> dict[str, Path]:
    """The log files by process. Raises ValueError for a process without one."""
    found = {path.stem: path for path in sorted(directory.glob("*.log"))}
    if unknown := wanted.processes - found.keys():
        known = ", ".join(found) or "none: nothing was started here yet"
        raise ValueError(f"{directory} has no log of {quoted(sorted(unknown)[0])}; known: {known}")
    return {name: path for name, path in found.items() if not wanted.processes or name in wanted.processes}


def newest(paths: dict[str, Path], wanted: Wanted, lines: int) -> list[Line]:
    """The newest `lines` that match (0: all), of all files, oldest first."""
    read_all = lines == 0 or not wanted.all
    merged = heapq.merge(
        *(
            _lines(name, _all(path, wanted.since) if read_all else _end(path, lines))
            for name, path in paths.items()
        ),
        key=lambda line: line.at,
    )
    return list(deque((line for line in merged if wanted(line)), maxlen=lines or None))


def _lines(process: str, raws: Iterable[bytes]) -> Iterator[Line]:
    """In file order: a line whose time is out of order (written late by a thread) gets the time of the line before it."""
    before: Line | None = None
    for raw in raws:
        line = read(process, raw, before)
        if before is not None and line.at < before.at:
            line = Line(at=before.at, process=process, level=line.level, fields=line.fields)
        before = line
        yield line


def _all(path: Path, since: float = 0.0) -> Iterator[bytes]:
    """The lines of a log, those before its last cut first; without these if all of them were written before `since`."""
    for part in [*_before_cut(path, since), path]:
        with part.open("rb") as file:
            yield from file


def _end(path: Path, lines: int) -> list[bytes]:
    """The last `lines` of a log."""
    found = _end_of_file(path, lines)
    for earlier in _before_cut(path):
        if missing := lines - len(found):
            found = _end_of_file(earlier, missing) + found
    return found


def _cut_to(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def _before_cut(path: Path, since: float = 0.0) -> list[Path]:
    """The file with the lines before the last cut of `path`. Empty without one, or if it was last written before `since`."""
    earlier = _cut_to(path)
    try:
        written = earlier.stat()
        if written.st_mtime < since:
            return []
        with earlier.open("rb") as before, path.open("rb") as now:
            beginning = before.read(_BLOCK)
            # A copy that goes on, or that a full disk ended: the log still has these lines.
            copied = written.st_size <= path.stat().st_size and now.read(len(beginning)) == beginning
    except FileNotFoundError:
        return []
    return [] if copied else [earlier]


def _end_of_file(path: Path, lines: int) -> list[bytes]:
    """The last `lines` of a file, read from its end."""
    with path.open("rb") as file:
        left = file.seek(0, 2)
        read_back = b""
        while left and read_back.count(b"\n") <= lines:
            step = min(_BLOCK, left)
            left -= step
            file.seek(left)
            read_back = file.read(step) + read_back
    return read_back.splitlines(keepends=True)[-lines:]


@dataclass(slots=True, kw_only=True)
class _Grown:
    """One followed file."""

    path: Path
    at: int
    torn: bytes = b""
    before: Line | None = None

    def more(self, process: str) -> list[Line]:
        """The complete lines written since the last call: if the file was cut, the rest of what it held, then the file from its start."""
        raws: list[bytes] = []
        try:
            with self.path.open("rb") as file:
                if file.seek(0, 2) < self.at:
                    with contextlib.suppress(FileNotFoundError), _cut_to(self.path).open("rb") as earlier:
                        raws = self._complete(earlier)
                    self.at, self.torn = 0, b""
                raws += self._complete(file)
        except FileNotFoundError:
            return []
        found = list(_lines(process, raws))
        self.before = found[-1] if found else self.before
        return found

    def _complete(self, file: BinaryIO) -> list[bytes]:
        file.seek(self.at)
        written = self.torn + file.read()
        self.at = file.tell()
        complete, newline, self.torn = written.rpartition(b"\n")
        return (complete + newline).splitlines(keepends=True)


@dataclass(slots=True)
class Following:
    """New lines in the logs from now on, including those of processes that start later."""

    directory: Path
    wanted: Wanted
    _grown: dict[str, _Grown] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, path in files(self.directory, self.wanted).items():
            self._grown[name] = _Grown(path=path, at=path.stat().st_size)

    def more(self) -> list[Line]:
        """The lines since the last call, by time."""
        for name, path in files(self.directory, Wanted()).items():
            if not self.wanted.processes or name in self.wanted.processes:
                self._grown.setdefault(name, _Grown(path=path, at=0))
        found = [
            line for name, grown in self._grown.items() for line in grown.more(name) if self.wanted(line)
        ]
        return sorted(found, key=lambda line: line.at)


def since(given: str, now: float) -> float:
    """`90s`, `15m`, `2h`, `1d` before `now`, or an ISO 8601 time (UTC by default), in seconds since 1970.

    >>> since("2m", 1000.0), since("1970-01-01T00:10", 0.0)
    (880.0, 600.0)
    """
    if found := re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", given):
        return now - float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[found[2]]
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        raise ValueError(
            f"{quoted(given)} is not a time: give 90s, 15m, 2h, 1d, or a time such as 2026-01-31T08:30"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def formatted(
    line: Line, hidden: Iterable[str] = ("event", "level", "timestamp", "process", "component", "run")
) -> str:
    """The event, then its other fields, in readable form."""
    rest = (
        (key, value) for key, value in line.fields.items() if key not in set(hidden) and key != "exception"
    )
    pairs = " ".join(f"{key}={_value(value)}" for key, value in islice(rest, 40))
    text = f"{line.fields.get('event', '')} {pairs}".rstrip()
    exception = line.fields.get("exception")
    return text if exception is None else f"{text}\n{exception}"


def _value(value: Any) -> str:
    if isinstance(value, str):
        return value if value and not re.search(r"[\s\"=]", value) else json.dumps(value, ensure_ascii=False)
    return json.dumps(value, default=str, ensure_ascii=False)
