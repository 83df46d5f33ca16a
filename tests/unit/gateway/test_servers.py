"""Which rollout server a call goes to, and the abort of a call on its way there."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import anyio
import numpy as np
import pytest

from orchestrator.contracts.events import StepTimings
from orchestrator.contracts.marks import Finish
from orchestrator.gateway.metrics import GatewayMetrics
from orchestrator.gateway.servers import in_flight as in_flight_module
from orchestrator.gateway.servers import pool as pool_module
from orchestrator.gateway.servers import server as server_module
from orchestrator.gateway.servers.client import Generation, Load, RolloutServerClient, SamplingParams
from orchestrator.gateway.servers.client.errors import RolloutServerUnreachable
from orchestrator.gateway.servers.client.generation import FinishReason, Timings, WeightSpan
from orchestrator.gateway.servers.in_flight import InFlight
from orchestrator.gateway.servers.pool import ServerPool, choose, preferred
from orchestrator.gateway.servers.server import RolloutServer, ServerLoad
from tests import virtual_time
from tests.virtual_time import passes

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend(monkeypatch: pytest.MonkeyPatch) -> tuple[str, Mapping[str, Any]]:
    virtual_time.show(monkeypatch, pool_module, server_module, in_flight_module)
    return virtual_time.BACKEND


@dataclass
class Dying:
    """A server that is gone: its call has come back with nothing before the abort."""

    in_flight: InFlight
    url: str = "http://127.0.0.1:1"
    aborted: str = ""

    @property
    def client(self) -> "Dying":
        return self

    async def abort(self, rid: str) -> None:
        self.aborted = rid
        self.in_flight.server = None
        raise RolloutServerUnreachable(self.url, "refused")


async def test_a_call_may_leave_its_dying_server_while_it_is_given_up() -> None:
    in_flight = InFlight(rid="r")
    server = Dying(in_flight)
    in_flight.server = cast(RolloutServer, server)
    await ServerPool([], GatewayMetrics()).abandon(in_flight)
    assert in_flight.abandoned.is_set() and server.aborted == "r"


def servers(*delays: float | None) -> list[RolloutServer]:
    """Ready servers with these queue times; None: not ready."""
    found = []
    for port, delay in enumerate(delays, 30000):
        server = RolloutServer(RolloutServerClient(f"http://127.0.0.1:{port}"))
        if delay is not None:
            server.admit(1)
            server.load = ServerLoad(waiting=1, running=1, slots=1, service_s=delay)
        found.append(server)
    return found


async def test_a_key_keeps_its_server_when_another_one_goes_and_comes_back() -> None:
    pool = servers(0.0, 0.0, 0.0)
    homes = {f"{key}:1": choose(pool, f"{key}:1", 2.0) for key in range(60)}
    assert {home.url for home in homes.values() if home} == {server.url for server in pool}
    pool[0].lost(RolloutServerUnreachable(pool[0].url, "killed"))
    for key, home in homes.items():
        now = choose(pool, key, 2.0)
        assert now is not pool[0] and (now is home or home is pool[0])
    pool[0].back()
    pool[0].admit(1)
    assert all(choose(pool, key, 2.0) is home for key, home in homes.items())


async def test_a_call_leaves_its_server_for_less_than_half_of_a_long_wait_only() -> None:
    pool = servers(3.0, 0.0)
    key = next(f"{n}:1" for n in range(99) if preferred(pool, f"{n}:1") is pool[0])
    assert choose(pool, key, 4.0) is pool[0]
    assert choose(pool, key, 2.0) is pool[1]
    pool[1].load.service_s = 2.0
    assert choose(pool, key, 2.0) is pool[0]


async def test_a_call_waits_for_a_short_sync_of_its_server() -> None:
    pool = servers(0.0, 0.0)
    key = next(f"{n}:1" for n in range(99) if preferred(pool, f"{n}:1") is pool[0])
    pool[0].hold()
    await passes(1.0)
    assert choose(pool, key, 1.5) is None
    assert choose(pool, key, 0.5) is pool[1]
    pool[0].shut()  # the sync failed
    assert choose(pool, key, 60.0) is pool[1]


def test_the_estimated_wait_counts_free_slots_and_what_was_sent_since_the_last_look() -> None:
    load = ServerLoad(service_s=4.0)
    load.update(Load(num_waiting_reqs=0, num_running_reqs=2, max_running_requests=4), ours=2)
    assert [load.delay(ours) for ours in (2, 4, 5, 6)] == [0.0, 0.0, 2.0, 4.0]
    load.update(Load(num_waiting_reqs=3, num_running_reqs=4, max_running_requests=4), ours=7)
    assert load.delay(7) == 3.0 and load.delay(5) == 1.0
    assert ServerLoad(service_s=4.0).delay(9) == 0.0, "a server that does not tell its load is never left"


def load_of(running: int, used: int | None) -> Load:
    """An answer of /v1/loads."""
    return Load(
        num_running_reqs=running, num_used_tokens=used, num_total_tokens=40, total_prefill_uncached_tokens=7
    )


async def test_a_server_stands_still_from_the_last_sign_that_it_generates_while_it_has_calls() -> None:
    server = servers(0.0)[0]
    server.take_in(load_of(0, 90))
    await passes(50.0)
    server.take_in(load_of(0, 90))
    assert server.still_s == 0.0, "it has nothing to do"
    server.in_flight["r"] = anyio.CancelScope()
    server.take_in(load_of(0, 90))
    await passes(20.0)
    server.take_in(load_of(0, 90))  # the call never came to its scheduler
    assert server.still_s == 20.0
    server.take_in(load_of(1, 91))
    assert server.still_s == 0.0
    await passes(5.0)
    server.stirred()
    await passes(2.0)
    assert server.still_s == 2.0
    del server.in_flight["r"]
    assert server.still_s == 2.0, "calls of other gateways count"
    server.take_in(load_of(0, 91))
    assert server.still_s == 0.0


async def test_a_server_that_does_not_tell_its_tokens_is_never_called_still() -> None:
    server = servers(0.0)[0]
    server.in_flight["r"] = anyio.CancelScope()
    for load in (Load(), Load(num_running_reqs=1), load_of(1, None)):
        server.take_in(load)
        await passes(900.0)
        assert server.still_s == 0.0


def reply(timings: Timings, kind: Finish = Finish.STOP, tokens: int = 1) -> Generation:
    """A reply of a server at version 1."""
    spans = (WeightSpan(version="1", start=0, end=tokens),) if tokens else ()
    finish = FinishReason(kind)
    ids, logprobs = (7,) * tokens, (-0.5,) * tokens
    return Generation(
        rid="r",
        output_ids=ids,
        logprobs=logprobs,
        spans=spans,
        finish=finish,
        weight_version="1",
        prompt_tokens=3,
        completion_tokens=tokens,
        cached_tokens=0,
        retractions=0,
        timings=timings,
        text="x",
    )


@dataclass
class Telling:
    """A server with replies and the seconds that each takes."""

    replies: list[tuple[float, Generation]]

    base_url: str = "http://127.0.0.1:1"

    async def generate(self, *_args: object, **_options: object) -> Generation:
        took_s, scripted = self.replies.pop(0)
        await passes(took_s)
        return scripted


async def timed(closed_s: float, *replies: tuple[float, Generation]) -> tuple[StepTimings, float]:
    """The timings of a call that waits `closed_s` for admission and then gets `replies`, and how long it took."""
    server = RolloutServer(cast(RolloutServerClient, Telling(list(replies))))
    server.admit(1)
    server.hold()
    pool, started = ServerPool([server], GatewayMetrics()), anyio.current_time()
    generated = None

    async def call() -> None:
        nonlocal generated
        params = SamplingParams(max_new_tokens=8)
        generated = await pool.generate(np.arange(3, dtype="<i4"), params, "k", InFlight())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await passes(closed_s)
        server.admit(1)
    assert generated is not None
    return generated.timings, anyio.current_time() - started


async def test_the_first_token_lies_inside_the_generation_and_what_was_waited_before_in_neither() -> None:
    timings, whole = await timed(0.2, (0.2, reply(Timings(queue_s=0.1, first_token_s=0.15))))
    assert whole == pytest.approx(0.4) and timings.queue == pytest.approx(0.3), (
        "admission, then the server's queue"
    )
    assert timings.first_byte == pytest.approx(0.05) and timings.generation == pytest.approx(0.1)


async def test_a_segment_that_is_broken_off_before_its_first_token_was_waiting_all_of_it() -> None:
    lost = reply(Timings(queue_s=0.0, first_token_s=None), Finish.ABORT, tokens=0)
    timings, whole = await timed(0.1, (0.1, lost), (0.06, reply(Timings(queue_s=0.02, first_token_s=0.05))))
    assert timings.queue == pytest.approx(
        0.1 + 0.1 + 0.02
    ) and timings.queue + timings.generation == pytest.approx(whole)
    assert timings.first_byte == pytest.approx(0.03) and timings.generation == pytest.approx(0.04)
