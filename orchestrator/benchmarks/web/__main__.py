"""How fast the dashboard is: `ops/bench web [--small] [--no-paint] [--json]`.

| measured | how |
|---|---|
| pages | what each page asks the real `penstock web` for, one question after the other, at random places of a run of 100,000 rollouts |
| the long trajectory | a headless Chromium opens a rollout whose last state holds 200,000 tokens: until its first step can be read |

`--small` is a tenth of the run. PostgreSQL of its own, embedded, with the product's settings. The run's rows are generated (filling.py).
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

from orchestrator.benchmarks.bars import Bar, Report, at_most, quantile, show
from orchestrator.benchmarks.pool.rig import open_rig
from orchestrator.benchmarks.web.filling import RUN, fill
from orchestrator.benchmarks.web.paint import first_paint
from orchestrator.home import Home
from orchestrator.log import configure

GROUPS, SMALL_GROUPS = 50_000, 5_000
ASKED = 40
ZOOMED = 100  # train steps
PAGE_MS, PAINT_MS = 300.0, 1000.0
START_S = 60.0
# A page's questions; {group}, {rollout}, {batch} (and {until}), {words} are drawn anew each time.
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
    """`penstock web` on a database; its URL with the token."""
    (directory / "penstock.toml").write_text(
        f'[run]\nname = "{RUN}"\n[policy]\nmodel = "{model}"\n', encoding="utf-8"
    )
    home, log = Home.at(directory), directory / "web.log"
    with log.open("wb") as out:
        process = await anyio.open_process(
            [sys.executable, "-m", "orchestrator.cli", "web", "-c", str(directory)],
            env={**os.environ, "DATABASE_URL": database_url},
            stdout=out,
            stderr=out,
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


async def pages(url: str, known: Mapping[str, int], table: Report) -> list[Bar]:
    """Ask for every page `ASKED` times, in an order that is mixed."""
    address, _, token = url.partition("/?token=")
    dice = random.Random(0)
    took: dict[str, list[float]] = {name: [] for name in PAGES}
    biggest: dict[str, int] = dict.fromkeys(PAGES, 0)
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as http:
        for name in dice.sample(list(PAGES) * (ASKED + 1), len(PAGES) * (ASKED + 1)):
            batch = dice.randrange(known["trained"] // known["batch"])
            drawn = {
                "group": dice.randint(1, known["groups"]), "rollout": dice.randint(1, known["trained"]),
                "batch": batch, "until": batch + ZOOMED, "long": known["long"], "words": f"lake-{dice.randint(1, 10**5)}.txt",
            }  # fmt: skip
            size, began = 0, time.perf_counter()
            for question in PAGES[name]:
                async with http.get(address + question.format(**drawn)) as answer:
                    body = await answer.read()
                    size += len(body)
                    if answer.status != 200:
                        raise RuntimeError(f"{question.format(**drawn)}: {answer.status} {body[:300]!r}")
            took[name].append(1000 * (time.perf_counter() - began))
            biggest[name] = max(biggest[name], size)
    for name, values in took.items():
        table.add_row(
            name,
            f"p50 {quantile(values[1:], 0.5):.1f} ms, p95 {quantile(values[1:], 0.95):.1f} ms, first {values[0]:.0f} ms",
            f"{len(PAGES[name])} questions, {biggest[name] / 1024:,.0f} KiB at most",
        )
    slowest = max(took, key=lambda name: quantile(took[name][1:], 0.95))
    return [at_most("slowest_page_p95", quantile(took[slowest][1:], 0.95), "ms", PAGE_MS)]


async def measure(groups: int, paint: bool, table: Report) -> list[Bar]:
    """Every bar; fills `table`."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-web-") as place:
        directory = Path(place)
        model = directory / "model"
        # A random policy, for its tokenizer: made by a process of its own, because torch is no business of ours.
        made = [sys.executable, "-m", "trainer.policy", "--out", str(model)]
        await anyio.to_thread.run_sync(lambda: subprocess.run(made, check=True, stdout=subprocess.DEVNULL))
        async with open_rig(None, small=True) as rig:
            known = await fill(rig, groups, str(model), table)
            async with dashboard(directory, rig.url, model) as url:
                bars = await pages(url, known, table)
                if paint:
                    seen = await first_paint(url, f"/rollouts/{known['long']}")
                    table.add_row(
                        "the trajectory of 200,000 tokens",
                        f"first step readable after p50 {quantile(seen.readable_ms, 0.5):.0f} ms, first paint {quantile(seen.paint_ms, 0.5):.0f} ms",
                        f"{len(seen.readable_ms)} cold starts of the page in Chromium",
                    )
                    bars.append(
                        at_most("long_trajectory_first_step", quantile(seen.readable_ms, 0.5), "ms", PAINT_MS)
                    )
                return bars


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="ops/bench web", description=__doc__.partition("\n")[0] if __doc__ else None
    )
    parser.add_argument("--small", action="store_true", help="10,000 rollouts instead of 100,000")
    parser.add_argument("--no-paint", action="store_true", help="without Chromium")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object with the bars")
    given = parser.parse_args(argv)
    configure("bench", level="error")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # processes of ours end with us
    table = Report()
    bars = anyio.run(measure, SMALL_GROUPS if given.small else GROUPS, not given.no_paint, table)
    show(bars, table, as_json=given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
