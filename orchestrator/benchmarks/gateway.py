"""What the gateway adds to a call: `ops/bench gateway [--seconds 10] [--quick] [--json]`.

    load (this process) ──▶ gateway (journal, STEPS, Postgres: all recording on) ───▶ stub rollout server
    load (this process) ──▶ a bare proxy (forwards, and makes the answer durable) ──▶ stub rollout server   the least that there can be
    load (this process) ──────────────────────────────────────────────────────────▶ stub rollout server   the bound

| measured | how |
|---|---|
| added latency | p50 and p99 over a stub that answers after 250 ms, less those of calling the stub itself from as many clients |
| a bare proxy | the same at 32 sessions, through a proxy that only forwards and makes answers durable: the least that a recording gateway can add |
| throughput | stub at 0 ms, closed loop of 16 clients, about 100 tokens in and 50 out per call: completions per CPU-second of the gateway |
| opening | CPU seconds of the gateway per session, which the throughput leaves out |
| cost of history | one conversation with equal deltas up to 128k tokens: CPU seconds of the gateway per call, by blocks of calls |
| re-rendering | the same conversation encoded anew and whole, at the lengths of those blocks: what the gateway does not do |
| memory | resident memory of the gateway per open session |
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import anyio
import msgspec
from tokenizers import Tokenizer

from orchestrator.benchmarks.bars import Bar, Report, at_least, at_most, quantile, show
from orchestrator.benchmarks.rig import Rig, cpu_s, make_model, open_rig, running_proxy
from orchestrator.gateway_client import OpenSession
from orchestrator.log import configure

DELAY_MS = 250.0
TOKENS_IN, TOKENS_OUT = 100, 50
TURNS = 8  # of a conversation in the latency and throughput loads; then a new session
WORDS = ("count", "the", "lines", "of", "every", "file", "below", "this", "folder", "and", "print", "them")

Message = dict[str, Any]
Ask = Callable[[list[Message]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Load:
    """What a load found: seconds of every call, wall seconds in all, CPU seconds of the gateway."""

    took: list[float]
    wall_s: float
    cpu_s: float


class Talk:
    """A harness with nothing to do but talk: the whole history goes with every call, as real ones send it."""

    def __init__(self, http: aiohttp.ClientSession, session: OpenSession, delta: str) -> None:
        self._http = http
        self._url = f"http://gateway{session.path}/chat/completions"
        self._delta = delta
        self.messages: list[Message] = []
        self.prompt_tokens = 0

    async def turn(self) -> float:
        """One call; its seconds."""
        self.messages.append({"role": "user", "content": f"{len(self.messages)} {self._delta}"})
        body = msgspec.json.encode({"model": "policy", "messages": self.messages})
        began = time.perf_counter()
        async with self._http.post(
            self._url, data=body, headers={"Content-Type": "application/json"}
        ) as answer:
            raw = await answer.read()
            seconds = time.perf_counter() - began
        if answer.status != 200:
            raise RuntimeError(f"the gateway answered {answer.status}: {raw[:300].decode()}")
        reply = msgspec.json.decode(raw)
        self.messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
        self.prompt_tokens = reply["usage"]["prompt_tokens"]
        return seconds


def delta_text(tokenizer: Tokenizer) -> str:
    """A user message that adds about TOKENS_IN tokens."""
    rng, text = random.Random(0), ""
    while (
        len(tokenizer.encode(text, add_special_tokens=False).ids) < TOKENS_IN - 8
    ):  # its markers and the prompt's
        text += rng.choice(WORDS) + " "
    return text.strip()


def unlimited(connector: aiohttp.BaseConnector) -> aiohttp.ClientSession:
    """A client without limits of its own: over a Unix socket as harnesses in sandboxes, or over TCP as to a rollout server."""
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))


def through_socket(rig: Rig) -> aiohttp.ClientSession:
    """The way that harnesses in sandboxes take."""
    return unlimited(aiohttp.UnixConnector(rig.socket, limit=0))


async def through_gateway(
    rig: Rig, clients: int, seconds: float, calls: float, *, spread_s: float = 0.0
) -> Load:
    """A closed loop. Each client begins a new conversation after TURNS calls; sessions for `calls` calls are opened before the clock runs,
    and a client that finds none left opens its own."""
    took: list[float] = []
    delta = delta_text(rig.tokenizer)
    spare = await rig.open_sessions(clients + int(calls / TURNS))
    async with through_socket(rig) as http:

        async def client(number: int) -> None:
            await anyio.sleep(spread_s * number / clients)
            talk = Talk(http, spare.pop(), delta)
            while time.perf_counter() < until:
                if len(talk.messages) >= 2 * TURNS:
                    session = spare.pop() if spare else (await rig.open_sessions(1))[0]
                    talk = Talk(http, session, delta)
                took.append(await talk.turn())

        began, cpu = time.perf_counter(), rig.cpu_s()
        until = began + seconds
        async with anyio.create_task_group() as tasks:
            for number in range(clients):
                tasks.start_soon(client, number)
        return Load(took, time.perf_counter() - began, rig.cpu_s() - cpu)


async def straight(
    rig: Rig, clients: int, seconds: float, *, spread_s: float = 0.0, proxy: str = ""
) -> list[float]:
    """The same load against the stub itself, or through a `proxy` on a Unix socket."""
    took: list[float] = []
    ids = list(range(260, 260 + TOKENS_IN * TURNS))
    connector = aiohttp.UnixConnector(proxy, limit=0) if proxy else aiohttp.TCPConnector(limit=0)
    async with unlimited(connector) as http:

        async def client(number: int) -> None:
            await anyio.sleep(spread_s * number / clients)
            turn = 0
            while time.perf_counter() < until:
                turn = turn % TURNS + 1
                sampling = {"max_new_tokens": TOKENS_OUT, "temperature": 1.0}
                body = {
                    "input_ids": ids[: TOKENS_IN * turn],
                    "sampling_params": sampling,
                    "return_logprob": True,
                }
                began = time.perf_counter()
                async with http.post(f"{rig.stub}/generate", data=msgspec.json.encode(body)) as answer:
                    await answer.read()
                took.append(time.perf_counter() - began)

        until = time.perf_counter() + seconds
        async with anyio.create_task_group() as tasks:
            for number in range(clients):
                tasks.start_soon(client, number)
    return took


async def latency(rig: Rig, seconds: float, sessions: Sequence[int], table: Report) -> list[Bar]:
    """Added latency at each number of concurrent `sessions`."""
    bars = []
    await through_gateway(rig, 4, 1.0, 16)  # warm
    for clients in sessions:
        bound = await straight(rig, clients, seconds, spread_s=DELAY_MS / 1000)
        expected = clients * seconds / (DELAY_MS / 1000)
        load = await through_gateway(rig, clients, seconds, expected, spread_s=DELAY_MS / 1000)
        added = [1000 * (quantile(load.took, q) - quantile(bound, q)) for q in (0.5, 0.99)]
        table.add_row(
            f"added latency, {clients} sessions",
            f"p50 {added[0]:.1f} ms, p99 {added[1]:.1f} ms",
            f"{1000 * quantile(bound, 0.5):.1f} / {1000 * quantile(bound, 0.99):.1f} ms straight, {len(load.took)} calls in {load.wall_s:.0f} s",
        )
        if clients == 32:
            await bare(rig, seconds, clients, bound, added, table)
            bars += [
                at_most("added_p50_32", added[0], "ms", 3.0),
                at_most("added_p99_32", added[1], "ms", 15.0),
            ]
    return bars


async def bare(
    rig: Rig, seconds: float, clients: int, bound: list[float], added: list[float], table: Report
) -> None:
    """The same load through the bare proxy: what remains for a recording gateway that does nothing else."""
    with running_proxy(rig.stub) as (proxy, pid):
        spread_s = DELAY_MS / 1000
        await straight(rig, clients, 1.0, spread_s=spread_s, proxy=proxy)  # warm
        before = cpu_s(pid)
        took = await straight(rig, clients, seconds, spread_s=spread_s, proxy=proxy)
        spent_ms = 1000 * (cpu_s(pid) - before) / len(took)
    least = [1000 * (quantile(took, q) - quantile(bound, q)) for q in (0.5, 0.99)]
    table.add_row(
        f"a bare proxy adds, {clients} sessions",
        f"p50 {least[0]:.1f} ms, p99 {least[1]:.1f} ms",
        f"{spent_ms:.2f} CPU-ms each; the gateway adds {added[0] / least[0]:.1f} times its p50",
    )


async def throughput(rig: Rig, seconds: float, table: Report) -> list[Bar]:
    """Completions per CPU-second of the gateway, and whether Postgres kept up."""
    await through_gateway(rig, 16, 1.0, 0)  # until the first version is served
    warm = await through_gateway(rig, 16, 2.0, 2000)
    stored = await rig.stored()
    load = await through_gateway(rig, 16, seconds, 1.5 * seconds * len(warm.took) / warm.wall_s)
    calls = len(load.took)
    began = time.perf_counter()
    while await rig.stored() < stored + calls:
        if time.perf_counter() - began > 60:
            raise RuntimeError("the steps did not arrive in Postgres within 60 s")
        await anyio.sleep(0.05)
    behind = time.perf_counter() - began
    table.add_row(
        "throughput, 16 clients",
        f"{calls / load.cpu_s:.0f} completions/CPU-s",
        f"{calls / load.wall_s:.0f}/s wall, {1000 * load.cpu_s / calls:.2f} CPU-ms each, Postgres behind by {behind:.1f} s",
    )
    return [at_least("completions_per_cpu_s", calls / load.cpu_s, "1/CPU-s", 500.0)]


async def history(rig: Rig, tokens: int, table: Report) -> list[Bar]:
    """Cost per call as one conversation grows, in blocks of calls around turns 1, 100, … of several conversations."""
    delta, marks = delta_text(rig.tokenizer), [1, 100]
    while marks[-1] * 2 * (TOKENS_IN + TOKENS_OUT) < tokens:
        marks.append(marks[-1] * 2)
    block, talks = 10, 4
    costs: dict[int, float] = {}

    async def cost(talk: Talk) -> float:
        before = rig.cpu_s()
        await talk.turn()
        return rig.cpu_s() - before

    async with through_socket(rig) as http:
        talking = [Talk(http, session, delta) for session in await rig.open_sessions(talks)]
        turn = 0
        for mark in marks:
            while turn < mark - 1:
                for talk in talking:
                    await talk.turn()
                turn += 1
            if mark == 1:  # many conversations: first turns are over at once
                calls = [Talk(http, session, delta) for session in await rig.open_sessions(talks * block)]
            else:
                calls = talking * block
                turn += block
            # The median: what the gateway does beside calls (publishing, looking after servers) falls into any of them.
            costs[mark] = median([await cost(talk) for talk in calls])
            length = talking[0].prompt_tokens if mark > 1 else TOKENS_IN
            text = "\n".join(message["content"] for message in talking[0].messages)
            began = time.process_time()
            if text:
                rig.tokenizer.encode(text, add_special_tokens=False)
            whole = time.process_time() - began
            table.add_row(
                f"turn {mark}, {length:,} tokens",
                f"{1000 * costs[mark]:.2f} CPU-ms/call ({costs[mark] / costs[1]:.2f}x turn 1)",
                f"encoding the whole history alone: {1000 * whole:.2f} CPU-ms" if text else "",
            )
    return [at_most("turn_100_over_turn_1", costs[100] / costs[1], "x CPU time", 1.5)]


async def opening(rig: Rig, sessions: int, table: Report) -> None:
    """CPU time of the gateway to open a session: what the throughput leaves out."""
    before = rig.cpu_s()
    await rig.open_sessions(sessions)
    table.add_row(
        "opening a session", f"{1000 * (rig.cpu_s() - before) / sessions:.1f} CPU-ms", f"{sessions} sessions"
    )


async def memory(rig: Rig, sessions: int, table: Report) -> None:
    """Resident bytes per open session of TURNS turns."""
    delta = delta_text(rig.tokenizer)
    before = rig.resident()
    async with through_socket(rig) as http:
        for session in await rig.open_sessions(sessions):
            talk = Talk(http, session, delta)
            for _ in range(TURNS):
                await talk.turn()
    table.add_row(
        "memory per session",
        f"{(rig.resident() - before) / sessions / 1024:.0f} KiB",
        f"{sessions} sessions of {TURNS} turns; the gateway holds {rig.resident() / 2**20:.0f} MiB",
    )


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured."""

    seconds: float  # per load
    history: int  # tokens
    sessions: tuple[int, ...]  # at once, where latency is measured
    opened: int  # where the opening and the memory of a session are


FULL = Extent(10.0, 128 * 1024, (1, 32, 256), 200)
QUICK = Extent(3.0, 32 * 1024, (1, 32), 80)


async def measure(extent: Extent, table: Report) -> list[Bar]:
    """Every bar; fills `table`."""
    bars: list[Bar] = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        Path(folder).chmod(0o711)  # PostgreSQL runs as a user of its own where we are root
        model = make_model(Path(folder) / "model")
        async with open_rig(Path(folder) / "fast", model, 0.0) as rig:
            bars += await throughput(rig, extent.seconds, table)
            await opening(rig, extent.opened, table)
            bars += await history(rig, extent.history, table)
            await memory(rig, extent.opened, table)
        async with open_rig(Path(folder) / "slow", model, DELAY_MS) as rig:
            bars += await latency(rig, extent.seconds, extent.sessions, table)
    return bars


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="ops/bench gateway", description=__doc__.partition("\n")[0] if __doc__ else None
    )
    parser.add_argument("--seconds", type=float, default=FULL.seconds, help="per load")
    parser.add_argument(
        "--quick", action="store_true", help="3 s per load, histories up to 32k tokens, not 256 sessions"
    )
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object with the bars")
    given = parser.parse_args(argv)
    configure("bench", level="error")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # processes of ours end with us
    table = Report()
    extent = QUICK if given.quick else replace(FULL, seconds=given.seconds)
    bars = anyio.run(measure, extent, table, backend_options={"use_uvloop": True})
    show(bars, table, as_json=given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
