"""Which rollout server a call goes to, and giving it up on its way there."""

import time
from dataclasses import dataclass
from typing import cast

import anyio
import numpy as np
import pytest

from orchestrator.contracts.events import StepTimings
from orchestrator.gateway.metrics import Metrics
from orchestrator.gateway.rollout_server import Load, RolloutServer
from orchestrator.gateway.servers import Flight, ServerPool, choose, preferred
from orchestrator.gateway.upstream import Generation, RolloutServerClient, SamplingParams
from orchestrator.gateway.upstream.errors import RolloutServerUnreachable
from orchestrator.gateway.upstream.generation import FinishReason, Timings, VersionSpan

pytestmark = pytest.mark.anyio


@dataclass
class Dying:
    """A server that is gone: its call has come back with nothing before it can be told to stop."""

    flight: Flight
    url: str = "http://127.0.0.1:1"
    told: str = ""

    @property
    def client(self) -> "Dying":
        return self

    async def abort(self, rid: str) -> None:
        self.told = rid
        self.flight.server = None
        raise RolloutServerUnreachable(self.url, "refused")


async def test_a_call_may_leave_its_dying_server_while_it_is_given_up() -> None:
    flight = Flight(rid="r")
    server = Dying(flight)
    flight.server = cast(RolloutServer, server)
    await ServerPool([], Metrics()).abandon(flight)
    assert flight.abandoned.is_set() and server.told == "r"


def servers(*delays: float | None) -> list[RolloutServer]:
    """Ready servers whose queue takes so long; None: not there."""
    found = []
    for port, delay in enumerate(delays, 30000):
        server = RolloutServer(RolloutServerClient(f"http://127.0.0.1:{port}"))
        if delay is not None:
            server.admit(1)
            server.load = Load(waiting=1, running=1, slots=1, service_s=delay)
        found.append(server)
    return found


async def test_a_key_keeps_its_server_when_another_one_goes_and_comes_back() -> None:
    pool = servers(0.0, 0.0, 0.0)
    homes = {f"{key}:1": choose(pool, f"{key}:1", 2.0) for key in range(60)}
    assert {home.url for home in homes.values() if home} == {server.url for server in pool}
    pool[0].lost("killed")
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
    assert choose(pool, key, 60.0) is None
    assert choose(pool, key, 0.0) is pool[1]
    pool[0].shut()  # the sync failed
    assert choose(pool, key, 60.0) is pool[1]


def test_the_estimated_wait_counts_free_slots_and_what_was_sent_since_the_last_look() -> None:
    load = Load(service_s=4.0)
    load.told({"num_waiting_reqs": 0, "num_running_reqs": 2, "max_running_requests": 4}, ours=2)
    assert [load.delay(ours) for ours in (2, 4, 5, 6)] == [0.0, 0.0, 2.0, 4.0]
    load.told({"num_waiting_reqs": 3, "num_running_reqs": 4, "max_running_requests": 4}, ours=7)
    assert load.delay(7) == 3.0 and load.delay(5) == 1.0
    assert Load(service_s=4.0).delay(9) == 0.0, "a server that does not tell its load is never left"


def reply(timings: Timings, kind: str = "stop", tokens: int = 1) -> Generation:
    """What a server at version 1 says."""
    spans = (VersionSpan("1", 0, tokens),) if tokens else ()
    finish = FinishReason(kind)  # type: ignore[arg-type]
    ids, logprobs = (7,) * tokens, (-0.5,) * tokens
    return Generation("r", ids, logprobs, spans, finish, "1", 3, tokens, 0, 0, timings, "x")


@dataclass
class Telling:
    """A server whose replies take as long as they say."""

    replies: list[Generation]

    base_url: str = "http://127.0.0.1:1"

    async def generate(self, *_args: object, **_options: object) -> Generation:
        told = self.replies.pop(0)
        await anyio.sleep(told.timings.e2e_s or 0.0)
        return told


async def timed(closed_s: float, *replies: Generation) -> tuple[StepTimings, float]:
    """The timings of a call that waits `closed_s` for admission and then gets `replies`, and how long it took."""
    server = RolloutServer(cast(RolloutServerClient, Telling(list(replies))))
    server.admit(1)
    server.hold()
    pool, begun = ServerPool([server], Metrics()), time.monotonic()
    generated = None

    async def call() -> None:
        nonlocal generated
        params = SamplingParams(max_new_tokens=8)
        generated = await pool.generate(np.arange(3, dtype="<i4"), params, "k", Flight())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await anyio.sleep(closed_s)
        server.admit(1)
    assert generated is not None
    return generated.timings, time.monotonic() - begun


async def test_the_first_token_lies_inside_the_generation_and_what_was_waited_before_in_neither() -> None:
    told, whole = await timed(0.2, reply(Timings(queue_s=0.1, first_token_s=0.15, e2e_s=0.2)))
    assert told.queue >= 0.3 and told.queue + told.generation <= whole
    assert 0.04 <= told.first_byte < told.queue, "waiting for admission and in the server is no part of it"
    assert told.first_byte < told.generation <= whole - told.queue


async def test_a_segment_that_is_lost_before_the_first_token_counts_as_time_to_it() -> None:
    lost = reply(Timings(queue_s=0.0, first_token_s=None, e2e_s=0.1), "abort", tokens=0)
    told, whole = await timed(0.1, lost, reply(Timings(queue_s=0.02, first_token_s=0.05, e2e_s=0.06)))
    assert 0.12 < told.first_byte < told.generation <= whole - told.queue
