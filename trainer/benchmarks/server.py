"""How fast the embedded rollout server is, through HTTP, with a policy of the demo's shape and random weights.

    python -m trainer.benchmarks.server [--seconds 5] [--json]

Closed loops of S streams: each sends its next request when the last one was answered. "long" completions are 200
tokens after a prompt of 64; "turns" are two-turn rollouts as the demo makes them (a 64-token prompt, 20 tokens, then
that prompt + completion + a 16-token observation, 20 tokens), in groups of 4 with one prompt. Rates are generated
tokens per second of wall time, and per second of the server process's CPU time: on a machine shared with other work
the second is the steadier one. With --json the last line is {"bars": [{name, value, unit, target, holds}, …]}.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from orchestrator.contracts.numbers import option, real
from trainer.benchmarks.random_model import write_random_model

VOCAB = 640


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTarget:
    name: str
    value: float
    unit: str
    target: float
    holds: bool


@dataclass(slots=True, kw_only=True)
class LoadGenerator:
    """One running load: counts the tokens in the server's replies."""

    http: aiohttp.ClientSession
    url: str
    tokens: int = 0
    prompt: int = 0
    cached: int = 0

    async def generate(self, ids: list[int], new: int) -> list[int]:
        body = {
            "input_ids": ids,
            "sampling_params": {"max_new_tokens": new, "temperature": 1.0, "ignore_eos": True},
            "return_logprob": True,
        }
        async with self.http.post(f"{self.url}/generate", json=body) as response:
            response.raise_for_status()
            reply = await response.json()
        meta = reply["meta_info"]
        self.tokens += meta["completion_tokens"]
        self.prompt += meta["prompt_tokens"]
        self.cached += meta["cached_tokens"]
        output: list[int] = reply["output_ids"]
        return output


Work = Callable[[LoadGenerator, random.Random, int], Awaitable[None]]


def _ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(3, VOCAB) for _ in range(count)]


async def _long(load: LoadGenerator, rng: random.Random, turn: int) -> None:
    await load.generate(_ids(rng, 64), 200)


async def _turns(load: LoadGenerator, rng: random.Random, turn: int) -> None:
    prompt = _ids(random.Random(turn), 64)  # streams of one group share it
    action = await load.generate(prompt, 20)
    await load.generate(prompt + action + _ids(rng, 16), 20)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _measure(url: str, pid: int, work: Work, streams: int, seconds: float) -> dict[str, float]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        load = LoadGenerator(http=http, url=url)
        until = time.monotonic() + seconds

        async def stream(index: int) -> None:
            rng, turn = random.Random(index), 0
            while time.monotonic() < until:
                await work(load, rng, (index // 4) * 100_000 + turn)
                turn += 1

        wall, cpu = time.monotonic(), _cpu_seconds(pid)
        async with asyncio.TaskGroup() as group:
            for index in range(streams):
                group.create_task(stream(index))
        wall, cpu = time.monotonic() - wall, _cpu_seconds(pid) - cpu
    return {
        "wall_s": wall,
        "cpu_s": cpu,
        "tokens": float(load.tokens),
        "per_wall": load.tokens / wall,
        "per_cpu": load.tokens / max(cpu, 1e-9),
        "cached": load.cached / max(load.prompt, 1),
    }


async def _start(model: Path) -> tuple[Process, str, float]:
    """A server on a free port, its address, and the seconds until it listened."""
    started = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "trainer.serving", "--model-path", str(model), "--port", "0", stderr=PIPE
    )
    assert process.stderr is not None
    while line := await process.stderr.readline():
        if not line.startswith(b"{"):
            raise RuntimeError(f"the server did not start: {line.decode().strip()}")
        event: Any = json.loads(line)
        if event.get("event") == "listening":
            return process, f"http://127.0.0.1:{event['port']}", time.monotonic() - started
    raise RuntimeError("the server ended before it listened")


async def measure(seconds: float) -> tuple[list[ServerTarget], list[str]]:
    """All bars, and a readable line for each load."""
    bars: list[ServerTarget] = []
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        process, url, start_s = await _start(write_random_model(Path(folder) / "model"))
        try:
            lines.append(f"start: {start_s:.1f} s wall, {_cpu_seconds(process.pid):.1f} s CPU")
            bars.append(
                ServerTarget(
                    name="server_start_cpu",
                    value=_cpu_seconds(process.pid),
                    unit="CPU-s",
                    target=4.0,
                    holds=_cpu_seconds(process.pid) < 4.0,
                )
            )
            loads: list[tuple[str, Work, int, float]] = [
                ("long", _long, 1, 0.0),  # shown, no bar: one stream measures the cost of a step
                ("long", _long, 16, 1000.0),
                ("long", _long, 64, 2500.0),
                ("turns", _turns, 16, 1000.0),
                ("turns", _turns, 64, 2500.0),
            ]
            await _measure(url, process.pid, _long, 4, 0.5)  # warm up
            for name, work, streams, target in loads:
                result = await _measure(url, process.pid, work, streams, seconds)
                lines.append(
                    f"{name:6s}{streams:3d} streams: {result['per_wall']:7.0f} tok/s wall, {result['per_cpu']:7.0f} tok/CPU-s "
                    f"({result['tokens']:.0f} tokens, {result['wall_s']:.1f} s wall, {result['cpu_s']:.1f} s CPU, "
                    f"{result['cached']:.0%} of prompt tokens cached)"
                )
                if not target:
                    continue
                key = f"server_{name}_{streams}_streams"
                bars.append(
                    ServerTarget(
                        name=key,
                        value=result["per_wall"],
                        unit="tok/s",
                        target=target,
                        holds=result["per_wall"] >= target,
                    )
                )
                bars.append(
                    ServerTarget(
                        name=f"{key}_cpu",
                        value=result["per_cpu"],
                        unit="tok/CPU-s",
                        target=target,
                        holds=result["per_cpu"] >= target,
                    )
                )
        finally:
            signalled = time.monotonic()
            process.send_signal(signal.SIGTERM)
            await process.wait()
            lines.append(f"SIGTERM to exit: {time.monotonic() - signalled:.2f} s")
    return bars, lines


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.benchmarks.server", description=__doc__)
    parser.add_argument("--seconds", type=option(real, least=1, most=3600), default=5.0, help="per load")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    bars, lines = asyncio.run(measure(arguments.seconds))
    print("\n".join(lines))
    if arguments.json:
        fields = ("name", "value", "unit", "target", "holds")
        print(json.dumps({"bars": [{key: getattr(bar, key) for key in fields} for bar in bars]}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
