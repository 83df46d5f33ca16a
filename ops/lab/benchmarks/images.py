"""Sandboxes on an image, against those on this machine's own system in the same run: `ops/bench images`.

It makes a root file system of about 800 MB and 20,000 files from this machine's programs and filler, imports it, and opens sandboxes on it: one after
the other by every kind of layer that this machine offers, then many at once that read the same files. Only overlayfs has bars.
"""

import argparse
import os
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

import anyio

from ops.lab.benchmarks.targets import BenchmarkTarget, Report, at_most, quantile, show
from ops.lab.root_filesystem import make_root
from sandboxes.base import Limits, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.images.mounted import Layering
from sandboxes.images.settings import ImageSettings
from sandboxes.images.store import ImageStore
from sandboxes.tree import walk

OVERLAYS: Final = (Layering.IDMAPPED, Layering.USER)
_FILE: Final = 40_000  # bytes of a file of filler


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much is measured: `files` of filler, an eighth of them in the work directory; `starts` of each kind; `at_once` sandboxes."""

    files: int = 19_000
    starts: int = 40
    at_once: int = 32


SMALL: Final = Extent(files=1_900, starts=15, at_once=8)


def make_image(directory: Path, extent: Extent) -> ImageStore:
    """A store with the image `bench`."""
    root = make_root(directory / "root", python=False)
    source = random.Random(1)
    for number in range(extent.files):
        file = root / ("app" if number % 8 == 0 else "opt") / f"d{number % 97}" / f"f{number}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(source.randbytes(_FILE))
    store = ImageStore(directory / "store")
    store.add(root, name="bench")
    shutil.rmtree(root)
    return store


async def started(provider: BubblewrapProvider, image: str) -> float:
    """Milliseconds from opening a sandbox to the end of its first program."""
    began = time.perf_counter()
    async with provider.open(SandboxSpec(image=image)) as sandbox:
        result = await sandbox.exec(["true"])
        took = 1000 * (time.perf_counter() - began)
    assert result.ok, result
    return took


async def starts(settings: ImageSettings, extent: Extent, table: Report) -> list[BenchmarkTarget]:
    """Starts of each kind, in turns, so that other load on the machine meets all of them."""
    own = os.geteuid() == 0
    providers = {
        kind: BubblewrapProvider(images=settings, layering=kind) for kind in Layering.candidates(own_user=own)
    }
    plain = BubblewrapProvider()
    took: dict[str, list[float]] = {"own system": [], **{kind: [] for kind in providers}}
    for turn in range(extent.starts + 1):
        rounds = [("own system", partial(started, plain, ""))]
        rounds += [
            (kind, partial(started, each, "bench"))
            for kind, each in providers.items()
            if kind is not Layering.COPY or turn < 6
        ]
        for name, start in rounds:
            milliseconds = await start()
            took[name] += [milliseconds] if turn else []  # the first start prepares
    for name, values in took.items():
        table.add_row(
            f"start, {name}",
            f"p50 {median(values):.1f} ms, p90 {quantile(values, 0.9):.1f} ms",
            f"{len(values)} starts",
        )
    bars: list[BenchmarkTarget] = []
    for kind in (each for each in OVERLAYS if each in took):
        bars.append(at_most("start on an image, p50", median(took[kind]), "ms", 60))
        bars.append(
            at_most(
                "start on an image / on the own system",
                median(took[kind]) / median(took["own system"]),
                "x",
                2,
            )
        )
    return bars


def cached() -> int:
    """Bytes of this machine's page cache."""
    found = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(found["Cached"].split()[0]) << 10


def forget(root: Path) -> int:
    """Drop the files below `root` from the page cache. Returns their bytes."""
    size = 0
    for entry in walk(root):
        if entry.stat.st_nlink and entry.stat.st_size and (root / entry.path).is_file():
            with (root / entry.path).open("rb") as file:
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            size += entry.stat.st_size
    return size


async def read_by(provider: BubblewrapProvider, count: int, image: Path) -> int:
    """How much the page cache grows when `count` sandboxes, open at once, read all files of the image's work directory and some below /opt."""
    forget(image / "app")
    forget(image / "opt")
    before = cached()
    # A sandbox pays for the pages that it reads first.
    spec = SandboxSpec(image="bench", limits=Limits(memory_mb=2048))
    async with anyio.create_task_group() as group:

        async def read() -> None:
            async with provider.open(spec) as sandbox:
                result = await sandbox.exec(
                    ["sh", "-c", "cat /app/*/* /opt/d[1-3]*/* >/dev/null"], timeout_s=600
                )
                assert result.ok, result

        for _ in range(count):
            group.start_soon(read)
    return cached() - before


async def at_once(
    settings: ImageSettings, store: ImageStore, extent: Extent, table: Report
) -> list[BenchmarkTarget]:
    """The page cache after many sandboxes against after one."""
    provider = BubblewrapProvider(images=settings)
    image = store.find("bench").root
    rounds = [
        (await read_by(provider, 1, image), await read_by(provider, extent.at_once, image)) for _ in range(3)
    ]
    one, many = (round(median(values)) for values in zip(*rounds, strict=True))
    if provider.layering not in OVERLAYS:
        return []
    table.add_row(
        "page cache",
        f"grows by {one >> 20} MB for one sandbox, {many >> 20} MB for {extent.at_once}",
        "reading the same files",
    )
    return [at_most(f"page cache of {extent.at_once} sandboxes / of one", many / max(1, one), "x", 1.1)]


async def measure(extent: Extent, table: Report) -> list[BenchmarkTarget]:
    """Every bar of images."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-images-") as name:
        directory = Path(name)
        directory.chmod(0o711)
        began = time.perf_counter()
        store = make_image(directory, extent)
        found = store.find("bench")
        table.add_row(
            "image",
            f"{found.bytes >> 20} MB, {found.files:,} files",
            f"made and imported in {time.perf_counter() - began:.0f} s",
        )
        settings = ImageSettings(directory=str(store.directory))
        return [*await starts(settings, extent, table), *await at_once(settings, store, extent, table)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="ops/bench images", description="Starts of sandboxes on an image of 800 MB, and its page cache."
    )
    parser.add_argument("--small", action="store_true", help="a tenth of it")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object with the bars")
    options = parser.parse_args(arguments)
    table = Report()
    show(anyio.run(measure, SMALL if options.small else Extent(), table), table, as_json=options.json)


if __name__ == "__main__":
    main()
