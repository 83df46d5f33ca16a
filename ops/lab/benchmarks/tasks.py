"""The cost of large tasks: `ops/bench tasks [--quick] [--json]`.

| measured | how |
|---|---|
| stored bytes | 300 tasks that share a repository of 20 MB, published as `penstock tasks publish` does, to an orchestrator process |
| publishing | from the first look at the directories to the last answer |
| memory | the highest growth of the orchestrator's and of this process's resident memory over that |
| start of an attempt | the task is read through a warm cache and its sandbox started, against the same sandbox with the task in memory |

`--quick` is the size for continuous integration: 20 tasks. It starts its own embedded servers, with the product's settings (fsync on).
"""

import argparse
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import anyio
from sqlalchemy import select

from ops.lab.benchmarks.pool.rig import Rig, open_rig
from ops.lab.benchmarks.rig import own_process
from ops.lab.benchmarks.targets import BenchmarkTarget, Report, at_most, show
from orchestrator.blobs.cache import BlobCache
from orchestrator.blobs.task_files import TaskFiles
from orchestrator.bus.nats import NatsBus
from orchestrator.contracts.choices import LogLevel
from orchestrator.contracts.states import SubmissionStatus
from orchestrator.pool import tables
from orchestrator.publish import PublishOptions, blobs_of, publish_tasks
from orchestrator.runtime.log import configure
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.sources import admissible, each
from sandboxes.base import Limits
from sandboxes.bubblewrap import BubblewrapProvider

FILES = 800
FILE_BYTES = 26_000  # on average
GROWTH_MB = 400
PUBLISHER_MB = 600
POLL_INTERVAL_S = 0.2
ANSWER_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The numbers of tasks, and of starts of each kind."""

    tasks: int
    starts: int


FULL = Size(tasks=300, starts=40)
QUICK = Size(tasks=20, starts=10)


def write_tasks(directory: Path, count: int) -> int:
    """Tasks that share a repository; returns their unique bytes. The files are hard links: a disk need not hold them 300 times."""
    source = random.Random(1)
    repository = directory / "repository"
    unique = 0
    for number in range(FILES):
        file = repository / f"package{number % 40}" / f"module{number}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        body = (
            source.randbytes(source.randrange(FILE_BYTES // 4, 2 * FILE_BYTES - FILE_BYTES // 4))
            .hex()
            .encode()
        )
        file.write_bytes(body[: len(body) // 2])
        unique += len(body) // 2
    for number in range(count):
        task = directory / "tasks" / f"task{number:03d}"
        own = {
            "task.toml": f'[metadata]\nname = "task{number}"\ndomain = "coding"\n',
            "instruction.md": f"Repair module{number}.py, which does not do what its name says.\n",
            "tests/test.sh": "echo 0 > /logs/verifier/reward.txt\n",
            "tests/hidden.py": f"expected = {number}\n" * 60,
            "environment/files/NOTES": f"This is task {number}.\n" * 20,
        }
        for path, text in own.items():
            (task / path).parent.mkdir(parents=True, exist_ok=True)
            (task / path).write_text(text)
            unique += len(text)
        for file in repository.rglob("*.py"):
            target = task / "environment/files/repository" / file.relative_to(repository)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, target)
    return unique


class Growth:
    """The highest resident memory of a process above that at the start, in MB."""

    def __init__(self, pid: int) -> None:
        self._file = Path(f"/proc/{pid}/statm")
        self._first = self._most = self._resident()

    def _resident(self) -> int:
        return int(self._file.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            self._most = max(self._most, self._resident())
            await anyio.sleep(POLL_INTERVAL_S)

    @property
    def megabytes(self) -> float:
        return (self._most - self._first) / 1e6


@asynccontextmanager
async def orchestrator(rig: Rig, directory: Path) -> AsyncIterator[int]:
    """An orchestrator process of the run `bench`; yields its process id."""
    (directory / "penstock.toml").write_text('[run]\nname = "bench"\n\n[policy]\nmodel = "none"\n')
    os.environ |= {"DATABASE_URL": rig.url, "NATS_URL": rig.nats.url}
    argv = [sys.executable, "-m", "orchestrator.cli", "orchestrator", "-c", str(directory)]
    log = directory / "orchestrator.log"
    with own_process(argv, log) as process:
        while not await rig.value("SELECT count(*) FROM runs"):
            if process.poll() is not None:
                raise RuntimeError(f"the orchestrator ended: {log.read_text()[-2000:]}")
            await anyio.sleep(POLL_INTERVAL_S)
        yield process.pid


async def publish(rig: Rig, directory: Path) -> tuple[list[Task], float, float]:
    """Publish; returns the tasks, the seconds to read them, and the seconds to publish what was read."""
    began = time.perf_counter()
    tasks, problems = admissible(each([directory / "tasks"]), SandboxSection())
    assert not problems, problems[0]
    events = [PublishOptions().event(task) for task in tasks]
    read = time.perf_counter()
    async with NatsBus.connect(rig.nats.url, name="penstock-bench") as bus:
        answers = await publish_tasks(bus, "bench", events, ANSWER_S, blobs=blobs_of(tasks))
    assert [status for status, _ in answers.values()] == [SubmissionStatus.ACCEPTED] * len(tasks), answers
    return tasks, read - began, time.perf_counter() - read


async def start(provider: BubblewrapProvider, task: Task) -> None:
    """A sandbox of the task's environment, and the end of its first program."""
    environment = task.environment(None)
    async with provider.open(environment.spec(environment.files, Limits())) as sandbox:
        result = await sandbox.exec(["true"])
        assert result.ok, result


async def starts(
    rig: Rig, directory: Path, tasks: Sequence[Task], size: Size, table: Report
) -> BenchmarkTarget:
    """Starts of both kinds in turns, so that other load meets both."""
    provider = BubblewrapProvider()
    files = TaskFiles(rig.engine, BlobCache(directory / "cache", 1 << 30))
    async with rig.engine.connect() as connection:
        bodies = list(await connection.scalars(select(tables.tasks.c.body).limit(size.starts + 1)))
    took: dict[str, list[float]] = {"files": [], "cache": []}
    for turn, body in enumerate(bodies):
        began = time.perf_counter()
        await start(provider, tasks[turn % len(tasks)])
        between = time.perf_counter()
        await start(provider, await files.task(body))
        ended = time.perf_counter()
        if turn:  # the first one fills the cache
            took["files"].append(1000 * (between - began))
            took["cache"].append(1000 * (ended - between))
    before, after = median(took["files"]), median(took["cache"])
    table.add_row(
        "start of an attempt",
        f"p50 {before:.0f} ms with its files, {after:.0f} ms through the warm cache",
        f"{len(bodies) - 1} starts",
    )
    return at_most("start through the warm cache - with its files", after - before, "ms", 100)


async def measure(size: Size, where: Path | None, table: Report) -> list[BenchmarkTarget]:
    """Every bar."""
    async with open_rig(where, small=True) as rig:
        directory = rig.nats_dir.parent
        began = time.perf_counter()
        unique = write_tasks(directory, size.tasks)
        made = time.perf_counter() - began
        table.add_row(
            "tasks",
            f"{size.tasks} with {unique / 1e6:.1f} unique MB",
            f"{FILES} files each, made in {made:.0f} s",
        )
        async with orchestrator(rig, directory) as pid:
            growth, own = Growth(pid), Growth(os.getpid())
            async with anyio.create_task_group() as group:
                group.start_soon(growth.watch)
                group.start_soon(own.watch)
                tasks, reading, publishing = await publish(rig, directory)
                group.cancel_scope.cancel()
        blobs = await rig.value("SELECT coalesce(sum(octet_length(body)), 0) FROM blobs")
        bodies = await rig.value("SELECT sum(octet_length(body::text)) FROM tasks")
        table.add_row(
            "stored", f"{blobs / 1e6:.1f} MB in blobs, {bodies / 1e6:.2f} MB in tasks", f"{size.tasks} tasks"
        )
        table.add_row(
            "publishing",
            f"{reading:.1f} s to read, check and pack, {publishing:.1f} s to send and accept",
            "",
        )
        table.add_row(
            "memory",
            f"orchestrator + {growth.megabytes:.0f} MB, publisher + {own.megabytes:.0f} MB",
            "resident, at most",
        )
        attempt = await starts(rig, directory, tasks, size, table)
    return [
        at_most("stored / unique bytes", (blobs + bodies) / unique, "x", 1.1),
        at_most("publishing", reading + publishing, "s", 60),
        at_most("memory of the orchestrator, growth", growth.megabytes, "MB", GROWTH_MB),
        at_most("memory of the publisher, growth", own.megabytes, "MB", PUBLISHER_MB),
        attempt,
    ]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="ops/bench tasks", description="What 300 tasks over one repository cost."
    )
    parser.add_argument("--quick", action="store_true", help="20 tasks: for continuous integration")
    parser.add_argument("--directory", type=Path, help="where servers and tasks keep their data")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object with the bars")
    arguments = parser.parse_args(argv)
    configure("bench", level=LogLevel.ERROR)
    table = Report()
    bars = anyio.run(
        measure,
        QUICK if arguments.quick else FULL,
        arguments.directory,
        table,
        backend_options={"use_uvloop": True},
    )
    show(bars, table, as_json=arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
