"""The cost that the gateway adds to a call: `ops/bench gateway [--seconds 10] [--quick] [--json]`.

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
| re-rendering | the same conversation encoded from scratch, at the lengths of those blocks: the work that the gateway avoids |
| a large neighbour | while one session sends the largest admitted requests in a loop: another session's calls, and how late the event loop answers |
| memory | resident memory of the gateway per open session |
"""

import argparse
import io
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

from ops.lab.benchmarks.rig import (
    CONTEXT,
    Rig,
    cpu_s,
    make_model,
    open_rig,
    running_proxy,
)
from ops.lab.benchmarks.targets import (
    BenchmarkTarget,
    Report,
    at_least,
    at_most,
    quantile,
    show,
)
from orchestrator.contracts.choices import LogLevel
from orchestrator.contracts.numbers import option, real
from orchestrator.gateway_client import OpenSession
from orchestrator.runtime.log import configure

DELAY_MS = 250.0
TOKENS_IN, TOKENS_OUT = 100, 50
TURNS = 8  # per conversation in the latency and throughput loads; then a new session starts
WORDS = ("count", "the", "lines", "of", "every", "file", "below", "this", "folder", "and", "print", "them")

Message = dict[str, Any]
Ask = Callable[[list[Message]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class MeasuredLoad:
    """The measurements of a load: seconds of every call, wall seconds in all, CPU seconds of the gateway."""

    took: list[float]
    wall_s: float
    cpu_s: float


class Talk:
    """A harness that only makes calls. Like real ones, it sends the whole history with every call."""

    def __init__(self, http: aiohttp.ClientSession, session: OpenSession, delta: str) -> None:
        self._http = http
        self._url = f"http://gateway{session.path}/chat/completions"
        self._delta = delta
        self.messages: list[Message] = []
        self.prompt_tokens = 0

    async def turn(self) -> float:
        """Make one call; returns its seconds."""
        self.messages.append({"role": "user", "content": f"{len(self.messages)} {self._delta}"})
        body = msgspec.json.encode({"model": "policy", "messages": self.messages})
        started = time.perf_counter()
        async with self._http.post(
            self._url, data=body, headers={"Content-Type": "application/json"}
        ) as answer:
            raw = await answer.read()
            seconds = time.perf_counter() - started
        if answer.status != 200:
            raise RuntimeError(f"the gateway answered {answer.status}: {raw[:300].decode()}")
        reply = msgspec.json.decode(raw)
        self.messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
        self.prompt_tokens = reply["usage"]["prompt_tokens"]
        return seconds


def delta_text(tokenizer: Tokenizer) -> str:
    """A user message that adds about TOKENS_IN tokens."""
    rng, text = random.Random(0), ""
    # Eight tokens are its markers and the prompt's.
    while len(tokenizer.encode(text, add_special_tokens=False).ids) < TOKENS_IN - 8:
        text += rng.choice(WORDS) + " "
    return text.strip()


def unlimited(connector: aiohttp.BaseConnector) -> aiohttp.ClientSession:
    """A client without limits: over a Unix socket like a harness in a sandbox, or over TCP as to a rollout server."""
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))


def through_socket(rig: Rig) -> aiohttp.ClientSession:
    """A client on the path that harnesses in sandboxes use."""
    return unlimited(aiohttp.UnixConnector(rig.socket, limit=0))


async def through_gateway(
    rig: Rig, clients: int, seconds: float, calls: float, *, spread_s: float = 0.0
) -> MeasuredLoad:
    """A closed loop. Each client starts a new conversation after TURNS calls. Sessions for `calls` calls are opened before the clock starts;
    if none is left, a client opens its own."""
    durations: list[float] = []
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
                durations.append(await talk.turn())

        started, cpu = time.perf_counter(), rig.cpu_s()
        until = started + seconds
        async with anyio.create_task_group() as tasks:
            for number in range(clients):
                tasks.start_soon(client, number)
        return MeasuredLoad(durations, time.perf_counter() - started, rig.cpu_s() - cpu)


async def straight(
    rig: Rig, clients: int, seconds: float, *, spread_s: float = 0.0, proxy: str = ""
) -> list[float]:
    """The same load against the stub itself, or through a `proxy` on a Unix socket."""
    durations: list[float] = []
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
                started = time.perf_counter()
                async with http.post(f"{rig.stub}/generate", data=msgspec.json.encode(body)) as answer:
                    await answer.read()
                durations.append(time.perf_counter() - started)

        until = time.perf_counter() + seconds
        async with anyio.create_task_group() as tasks:
            for number in range(clients):
                tasks.start_soon(client, number)
    return durations


async def latency(rig: Rig, seconds: float, sessions: Sequence[int], table: Report) -> list[BenchmarkTarget]:
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
    """The same load through the bare proxy: the cost of a gateway that only records."""
    with running_proxy(rig.stub) as (proxy, pid):
        spread_s = DELAY_MS / 1000
        await straight(rig, clients, 1.0, spread_s=spread_s, proxy=proxy)  # warm
        before = cpu_s(pid)
        durations = await straight(rig, clients, seconds, spread_s=spread_s, proxy=proxy)
        spent_ms = 1000 * (cpu_s(pid) - before) / len(durations)
    overhead_ms = [1000 * (quantile(durations, q) - quantile(bound, q)) for q in (0.5, 0.99)]
    table.add_row(
        f"a bare proxy adds, {clients} sessions",
        f"p50 {overhead_ms[0]:.1f} ms, p99 {overhead_ms[1]:.1f} ms",
        f"{spent_ms:.2f} CPU-ms each; the gateway adds {added[0] / overhead_ms[0]:.1f} times its p50",
    )


async def throughput(rig: Rig, seconds: float, table: Report) -> list[BenchmarkTarget]:
    """Completions per CPU-second of the gateway, and whether Postgres kept up."""
    await through_gateway(rig, 16, 1.0, 0)  # until the first version is served
    warm = await through_gateway(rig, 16, 2.0, 2000)
    stored = await rig.stored()
    load = await through_gateway(rig, 16, seconds, 1.5 * seconds * len(warm.took) / warm.wall_s)
    calls = len(load.took)
    started = time.perf_counter()
    while await rig.stored() < stored + calls:
        if time.perf_counter() - started > 60:
            raise RuntimeError("the steps did not arrive in Postgres within 60 s")
        await anyio.sleep(0.05)
    behind = time.perf_counter() - started
    table.add_row(
        "throughput, 16 clients",
        f"{calls / load.cpu_s:.0f} completions/CPU-s",
        f"{calls / load.wall_s:.0f}/s wall, {1000 * load.cpu_s / calls:.2f} CPU-ms each, Postgres behind by {behind:.1f} s",
    )
    return [at_least("completions_per_cpu_s", calls / load.cpu_s, "1/CPU-s", 500.0)]


async def history(rig: Rig, tokens: int, table: Report) -> list[BenchmarkTarget]:
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
            # The median: the gateway's other work (publishing, monitoring servers) may fall into any call.
            costs[mark] = median([await cost(talk) for talk in calls])
            length = talking[0].prompt_tokens if mark > 1 else TOKENS_IN
            text = "\n".join(message["content"] for message in talking[0].messages)
            started = time.process_time()
            if text:
                rig.tokenizer.encode(text, add_special_tokens=False)
            encoding_s = time.process_time() - started
            table.add_row(
                f"turn {mark}, {length:,} tokens",
                f"{1000 * costs[mark]:.2f} CPU-ms/call ({costs[mark] / costs[1]:.2f}x turn 1)",
                f"encoding the whole history alone: {1000 * encoding_s:.2f} CPU-ms" if text else "",
            )
    return [at_most("turn_100_over_turn_1", costs[100] / costs[1], "x CPU time", 1.5)]


async def opening(rig: Rig, sessions: int, table: Report) -> None:
    """CPU time of the gateway to open a session, which the throughput leaves out."""
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


async def neighbour(rig: Rig, seconds: float, table: Report) -> list[BenchmarkTarget]:
    """Another session's calls, and the event loop's lag, while one session sends the largest requests that are admitted."""
    quiet, busy = await rig.open_sessions(2)
    delta = delta_text(rig.tokenizer)
    body = largest(rig.tokenizer)
    lags: list[float] = []
    sent = 0
    async with through_socket(rig) as http, through_socket(rig) as busy_http:

        async def calls() -> list[float]:
            talk, durations = Talk(http, quiet, delta), []
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                if len(talk.messages) >= 2 * TURNS:
                    talk = Talk(http, (await rig.open_sessions(1))[0], delta)
                durations.append(await talk.turn())
            return durations

        async def flood() -> None:
            nonlocal sent
            while True:
                url = f"http://gateway{busy.path}/messages/count_tokens"
                async with busy_http.post(url, data=io.BytesIO(body)) as answer:
                    raw = await answer.read()
                    if answer.status != 200:
                        raise RuntimeError(f"the gateway answered {answer.status}: {raw[:300].decode()}")
                sent += 1

        async def measure_lag() -> None:
            while True:
                started = time.perf_counter()
                async with http.get("http://gateway/health") as answer:
                    await answer.read()
                lags.append(time.perf_counter() - started)
                await anyio.sleep(0.01)

        alone = await calls()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(flood)
            tasks.start_soon(measure_lag)
            disturbed = await calls()
            while not sent:
                await anyio.sleep(0.05)
            tasks.cancel_scope.cancel()
    before, during = median(alone), median(disturbed)
    lag = 1000 * quantile(lags, 0.99)
    table.add_row(
        "next to a session with large requests",
        f"p50 {1000 * during:.0f} ms a call, {1000 * before:.0f} undisturbed; lag p99 {lag:.0f} ms",
        f"{sent} requests of {len(body) / 2**20:.1f} MiB; p99 {1000 * quantile(disturbed, 0.99):.0f} ms,"
        f" {1000 * quantile(alone, 0.99):.0f} undisturbed",
    )
    return [
        at_most("next_to_large_over_alone", during / before, "x", 2.0),
        at_most("loop_lag_p99_next_to_large", lag, "ms", 100.0),
    ]


def largest(tokenizer: Tokenizer) -> bytes:
    """A body whose text has as many tokens as the context holds. Its words are distinct, so no cache helps."""
    rng, words = random.Random(1), [f"{word}{n}" for word in WORDS for n in range(200)]
    sample = " ".join(rng.choice(words) for _ in range(10_000))
    tokens_per_word = len(tokenizer.encode(sample, add_special_tokens=False).ids) / 10_000
    text = " ".join(rng.choice(words) for _ in range(int(0.95 * (CONTEXT - 1024) / tokens_per_word)))
    padding = "x" * 3_000_000  # pads the body, not the prompt
    return msgspec.json.encode({"messages": [{"role": "user", "content": text}], "metadata": padding})


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayExtent:
    """The size of the measurement."""

    seconds: float  # per load
    history: int  # tokens
    sessions: tuple[int, ...]  # concurrent, in the latency loads
    opened: int  # in the measurements of opening and memory


FULL = GatewayExtent(seconds=10.0, history=128 * 1024, sessions=(1, 32, 256), opened=200)
QUICK = GatewayExtent(seconds=3.0, history=32 * 1024, sessions=(1, 32), opened=80)


async def measure(extent: GatewayExtent, table: Report) -> list[BenchmarkTarget]:
    """Every bar; fills `table`."""
    bars: list[BenchmarkTarget] = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        Path(folder).chmod(0o711)  # PostgreSQL runs as its own user if we are root
        model = make_model(Path(folder) / "model")
        async with open_rig(Path(folder) / "fast", model, 0.0) as rig:
            bars += await throughput(rig, extent.seconds, table)
            await opening(rig, extent.opened, table)
            bars += await history(rig, extent.history, table)
            await memory(rig, extent.opened, table)
        async with open_rig(Path(folder) / "slow", model, DELAY_MS) as rig:
            bars += await latency(rig, extent.seconds, extent.sessions, table)
            bars += await neighbour(rig, 2 * extent.seconds, table)
    return bars


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="ops/bench gateway", description=__doc__.partition("\n")[0] if __doc__ else None
    )
    parser.add_argument(
        "--seconds", type=option(real, least=1, most=3600), default=FULL.seconds, help="per load"
    )
    parser.add_argument(
        "--quick", action="store_true", help="3 s per load, histories up to 32k tokens, not 256 sessions"
    )
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object with the bars")
    arguments = parser.parse_args(argv)
    configure("bench", level=LogLevel.ERROR)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # child processes end with us
    table = Report()
    extent = QUICK if arguments.quick else replace(FULL, seconds=arguments.seconds)
    bars = anyio.run(measure, extent, table, backend_options={"use_uvloop": True})
    show(bars, table, as_json=arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
