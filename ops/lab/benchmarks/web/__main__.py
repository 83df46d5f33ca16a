"""How fast the dashboard is: `ops/bench web [--small] [--no-paint] [--json]`.

| measured | how |
|---|---|
| pages | the requests of each page to the real `penstock web`, one after the other, at random places of a run of 100,000 rollouts |
| the long trajectory | a headless Chromium opens a rollout whose last state holds 200,000 tokens: until its first step can be read |

`--small` is a tenth of the run. It starts its own embedded PostgreSQL, with the product's settings. The run's rows are generated (filling.py).
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio
import anyio.to_thread

from ops.lab.benchmarks.pool.rig import open_rig
from ops.lab.benchmarks.targets import (
    BenchmarkTarget,
    Report,
    at_most,
    quantile,
    show,
)
from ops.lab.benchmarks.web.filling import RUN, fill
from ops.lab.benchmarks.web.paint import first_paint
from orchestrator.contracts.choices import LogLevel
from orchestrator.deploy.home import Home
from orchestrator.runtime.log import configure

GROUPS, SMALL_GROUPS = 50_000, 5_000
SAMPLES = 40
ZOOMED = 100  # train steps
PAGE_MS, PAINT_MS = 300.0, 1000.0
START_S = 60.0
# The requests of each page; {group}, {rollout}, {batch} (and {until}), {words} are drawn at random for each request.
PAGES: Mapping[str, Sequence[str]] = {
    "run": ("/api/run", "/api/series"),
    "run, zoomed": ("/api/curves?first={batch}&last={until}",),
    "queue": ("/api/queue",),
    "system": ("/api/system",),
    "groups": ("/api/groups",),
    "group": ("/api/groups/{group}",),
    "rollouts": ("/api/rollouts",),
    "rollouts, filtered": ("/api/rollouts?domain=coding&reward_min=0.5&scaffold=shell",),
    "rollouts, by tool": ("/api/rollouts?tool=edit&reward_max=0.5",),
    "rollouts, by text": ("/api/rollouts?text={words}",),
    "rollout": ("/api/rollouts/{rollout}", "/api/rollouts/{rollout}/steps?attempt=1"),
    "rollout of 200,000 tokens": ("/api/rollouts/{long}", "/api/rollouts/{long}/steps?attempt=1"),
    "its tokens": ("/api/rollouts/{long}/tokens?attempt=1&step=99&start=100000",),
    "batches": ("/api/batches",),
    "batch": ("/api/batches/{batch}", "/api/batches/{batch}/tree"),
}


@asynccontextmanager
async def dashboard(directory: Path, database_url: str, model: Path) -> AsyncIterator[str]:
    """Run `penstock web` on a database; yields its URL with the token."""
    (directory / "penstock.toml").write_text(
        f'[run]\nname = "{RUN}"\n[policy]\nmodel = "{model}"\n', encoding="utf-8"
    )
    home, log = Home.at(directory), directory / "web.log"
    with log.open("wb") as stream:
        process = await anyio.open_process(
            [sys.executable, "-m", "orchestrator.cli", "web", "-c", str(directory)],
            env={**os.environ, "DATABASE_URL": database_url},
            stdout=stream,
            stderr=stream,
        )
    try:
        with anyio.fail_after(START_S):
            while not (home.web_url_file.exists() and home.web_url_file.read_text().endswith("\n")):
                if process.returncode is not None:
                    raise RuntimeError(f"penstock web ended: {log.read_text(errors='replace')[-500:]}")
                await anyio.sleep(0.05)
        yield home.web_url_file.read_text().strip()
    finally:
        process.terminate()
        await process.wait()


async def pages(url: str, known: Mapping[str, int], table: Report) -> list[BenchmarkTarget]:
    """Request every page several times, in random order."""
    address, _, token = url.partition("/?token=")
    rng = random.Random(0)
    durations: dict[str, list[float]] = {name: [] for name in PAGES}
    largest: dict[str, int] = dict.fromkeys(PAGES, 0)
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as http:
        for name in rng.sample(list(PAGES) * (SAMPLES + 1), len(PAGES) * (SAMPLES + 1)):
            batch = rng.randrange(known["trained"] // known["batch"])
            drawn = {
                "group": rng.randint(1, known["groups"]),
                "rollout": rng.randint(1, known["trained"]),
                "batch": batch,
                "until": batch + ZOOMED,
                "long": known["long"],
                "words": f"lake-{rng.randint(1, 10**5)}.txt",
            }
            size, started = 0, time.perf_counter()
            for question in PAGES[name]:
                async with http.get(address + question.format(**drawn)) as answer:
                    body = await answer.read()
                    size += len(body)
                    if answer.status != 200:
                        raise RuntimeError(f"{question.format(**drawn)}: {answer.status} {body[:300]!r}")
            durations[name].append(1000 * (time.perf_counter() - started))
            largest[name] = max(largest[name], size)
    for name, values in durations.items():
        table.add_row(
            name,
            f"p50 {quantile(values[1:], 0.5):.1f} ms, p95 {quantile(values[1:], 0.95):.1f} ms, first {values[0]:.0f} ms",
            f"{len(PAGES[name])} questions, {largest[name] / 1024:,.0f} KiB at most",
        )
    slowest = max(durations, key=lambda name: quantile(durations[name][1:], 0.95))
    return [at_most("slowest_page_p95", quantile(durations[slowest][1:], 0.95), "ms", PAGE_MS)]


async def measure(groups: int, paint: bool, table: Report) -> list[BenchmarkTarget]:
    """Every bar; fills `table`."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-web-") as temporary:
        directory = Path(temporary)
        model = directory / "model"
        # A random policy, for its tokenizer. A separate process makes it, so that this one does not load torch.
        command = [sys.executable, "-m", "trainer.policy", "--out", str(model)]
        await anyio.to_thread.run_sync(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
        async with open_rig(None, small=True) as rig:
            known = await fill(rig, groups, str(model), table)
            async with dashboard(directory, rig.url, model) as url:
                bars = await pages(url, known, table)
                if paint:
                    load = await first_paint(url, f"/rollouts/{known['long']}")
                    table.add_row(
                        "the trajectory of 200,000 tokens",
                        f"first step readable after p50 {quantile(load.readable_ms, 0.5):.0f} ms, first paint {quantile(load.paint_ms, 0.5):.0f} ms",
                        f"{len(load.readable_ms)} cold starts of the page in Chromium",
                    )
                    bars.append(
                        at_most("long_trajectory_first_step", quantile(load.readable_ms, 0.5), "ms", PAINT_MS)
                    )
                return bars


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="ops/bench web", description=__doc__.partition("\n")[0] if __doc__ else None
    )
    parser.add_argument("--small", action="store_true", help="10,000 rollouts instead of 100,000")
    parser.add_argument("--no-paint", action="store_true", help="without Chromium")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object with the bars")
    arguments = parser.parse_args(argv)
    configure("bench", level=LogLevel.ERROR)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # child processes end with us
    table = Report()
    bars = anyio.run(measure, SMALL_GROUPS if arguments.small else GROUPS, not arguments.no_paint, table)
    show(bars, table, as_json=arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
