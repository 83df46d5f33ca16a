"""One gateway before several real rollout servers: which server gets a call, and the fate of a call when a server dies, stops or pauses."""

import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from orchestrator.cli.status import read_run
from orchestrator.contracts.processes import PauseMode
from orchestrator.deploy.cluster.doctor import processes
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.gateway.servers import canary
from orchestrator.gateway.servers.client import RolloutServerClient
from orchestrator.gateway.servers.pool import preferred
from orchestrator.gateway.servers.server import RolloutServer
from orchestrator.gateway_client import NativeLlm, OpenSession
from orchestrator.settings.config import Config
from tests.integration.gateway.killable_server import KillableServer, killable
from tests.integration.gateway.rig import Policies, Proxy, Rig, open_rig, until_row
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("processes")]
POLICY_VERSIONS = 2

OpenRig = Callable[..., AbstractAsyncContextManager[Rig]]


@pytest.fixture(scope="module")
def lives(policies: Policies) -> Iterator[list[KillableServer]]:
    """Two servers that run two calls at once."""
    with killable(policies.model, "--max-running-requests", "2") as one:
        with killable(policies.model, "--max-running-requests", "2") as other:
            yield [one, other]


@pytest.fixture
async def open_pair(
    database_url: str,
    nats_server: EmbeddedNats,
    lives: list[KillableServer],
    policies: Policies,
    tmp_path: Path,
) -> OpenRig:
    """Opens a rig before both servers at version 0; other keywords are `servers.*`. Calls take a while: the likeliest tokens never end."""
    for server in lives:
        await anyio.to_thread.run_sync(server.start)

    @asynccontextmanager
    async def opened(*, max_new_tokens: int = 400, **servers: Any) -> AsyncIterator[Rig]:
        sampling: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": 0.0}
        urls = [server.url for server in lives]
        async with open_rig(
            database_url, nats_server.url, urls, policies, tmp_path, sections={"servers": servers}, **sampling
        ) as rig:
            await rig.publish(0)
            await until(lambda: all(server.ready for server in rig.gateway.pool.servers))
            yield rig

    return opened


async def until(condition: Callable[[], Any]) -> None:
    await eventually(condition)


NEVER_SILENT: dict[str, Any] = {"silence_s": 3600.0}
"""Settings under which a server is lost only when it refuses or breaks a connection."""


@asynccontextmanager
async def a_call_at(
    rig: Rig, stopped: KillableServer, proxy: Proxy, session: OpenSession
) -> AsyncIterator[None]:
    """A call that is at a server, which is stopped before it can answer. Leaves when the call is over."""
    arrives = proxy.held["/generate"] = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, rig, session)
        await until(lambda: "/generate" in proxy.seen)
        stopped.signal(signal.SIGSTOP)
        arrives.set()
        await until(lambda: proxy.busy)
        yield


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def session_at(rig: Rig, server: RolloutServer) -> tuple[int, OpenSession]:
    """A session that belongs to `server`."""
    while True:
        rollout = await rig.new_rollout()
        if preferred(rig.gateway.pool.servers, f"{rollout}:1") is server:
            return await rig.open(rollout)


async def ask(rig: Rig, session: OpenSession, text: str = "oak", **options: Any) -> None:
    async with NativeLlm(rig.gateway.url, session.token) as llm:
        await llm.complete([user(text)], **options)


async def test_a_session_stays_with_its_server_and_finds_its_prefix_there(open_pair: OpenRig) -> None:
    async with open_pair() as rig:
        for server, proxy in zip(rig.gateway.pool.servers, rig.proxies, strict=True):
            _, session = await session_at(rig, server)
            async with NativeLlm(rig.gateway.url, session.token) as llm:
                history = [user("oak " * 20)]
                for _ in range(3):
                    reply = await llm.complete(history, max_tokens=8)
                    history += [reply.message(), user("go on")]
            assert len(proxy.answers) == 3
            cached = [answer["meta_info"]["cached_tokens"] for answer in proxy.answers[1:]]
            assert all(found >= 20 for found in cached), cached


async def test_calls_of_a_killed_server_finish_elsewhere_with_the_same_ids_under_a_fresh_request_id(
    open_pair: OpenRig, lives: list[KillableServer]
) -> None:
    async with open_pair(**NEVER_SILENT) as rig:
        rig.start_ingest()
        (mine, other), (dying, safe) = rig.gateway.pool.servers, rig.proxies
        rollout, session = await session_at(rig, mine)
        async with a_call_at(rig, lives[0], dying, session):
            lives[0].kill()
            await until(lambda: not mine.ready)
        assert len(dying.requests) == len(safe.requests) == len(safe.sent) == 1 and not dying.sent
        lost, again = dying.requests[0], safe.requests[0]
        assert again["input_ids"] == lost["input_ids"] and again["rid"] != lost["rid"]
        (step,) = await rig.stored(rollout, 1)
        assert safe.sent == [(step.full[: step.state_len].tolist(), step.action.tolist())]
        assert len(step.action) == 400 and (await rig.seal(rollout)).marks == ()
        assert other.ready


async def test_a_killed_server_that_is_idle_is_noticed_by_the_next_check_and_used_again_at_the_current_version_only(
    open_pair: OpenRig, lives: list[KillableServer]
) -> None:
    async with open_pair(**NEVER_SILENT) as rig:
        mine, proxy = rig.gateway.pool.servers[0], rig.proxies[0]
        await rig.publish(1)
        await until(lambda: all(server.version == 1 for server in rig.gateway.pool.servers))
        _, session = await session_at(rig, mine)
        lives[0].kill()
        await until(lambda: not mine.answers)
        await until_row(rig, f"SELECT 1 FROM rollout_servers WHERE url = '{mine.url}' AND state = 'failed'")
        del proxy.seen[:]
        await anyio.to_thread.run_sync(lives[0].start)  # with the weights of version 0
        for _ in range(12):
            if not mine.ready:  # requests go elsewhere until then
                await ask(rig, session, max_tokens=2)
        await until(lambda: mine.ready)
        await ask(rig, session, "elm", max_tokens=2)
        assert "/generate" in proxy.seen
        updated = proxy.seen.index("/update_weights_from_disk")
        assert updated < proxy.seen.index("canary") < proxy.seen.index("/generate")
        assert proxy.answers[-1]["meta_info"]["weight_version"] == "1"


async def test_a_stopped_server_is_noticed_by_its_silence_its_calls_finish_elsewhere_and_it_comes_back(
    open_pair: OpenRig, lives: list[KillableServer]
) -> None:
    async with open_pair() as rig:
        mine, (stopped, safe) = rig.gateway.pool.servers[0], rig.proxies
        rollout, session = await session_at(rig, mine)
        try:
            async with a_call_at(rig, lives[0], stopped, session):
                await until(lambda: not mine.ready)
        finally:
            lives[0].signal(signal.SIGCONT)
        assert safe.requests[0]["input_ids"] == stopped.requests[0]["input_ids"]
        assert safe.requests[0]["rid"] != stopped.requests[0]["rid"]
        assert (await rig.seal(rollout)).steps == 1
        await until(lambda: mine.ready)
        _, session = await session_at(rig, mine)
        await ask(rig, session, max_tokens=2)
        assert len(stopped.requests) == 2


async def test_a_server_that_hangs_is_named_with_what_to_do_by_status_and_doctor(
    open_pair: OpenRig, lives: list[KillableServer]
) -> None:
    async with open_pair(urls=[server.url for server in lives]) as rig:
        mine = rig.gateway.pool.servers[0]
        lives[0].signal(signal.SIGSTOP)
        try:
            await until_row(
                rig, f"SELECT 1 FROM rollout_servers WHERE url = '{mine.url}' AND detail LIKE 'it hangs%'"
            )
            config = _connected(rig)
            (sentence,) = (await read_run(config)).servers
            async with rig.engine.connect() as connection:
                checks = await processes.checks(connection, rig.run_id, config)
        finally:
            lives[0].signal(signal.SIGCONT)
        assert sentence == (
            f"the rollout server {mine.url} serves nothing: it hangs (it takes connections and does not answer); "
            "restart it where it was started; its calls use other servers, or wait for it"
        )
        (check,) = [check for check in checks if not check.ok and mine.url in check.name]
        assert "it hangs" in check.detail and check.fix.startswith("end it and start it")
        await until(lambda: mine.ready)
        assert (await read_run(config)).servers == []


async def test_a_server_that_answers_its_checks_and_generates_nothing_loses_its_calls_and_is_named(
    open_pair: OpenRig, lives: list[KillableServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary, "QUICK_S", 1.0)
    urls = [server.url for server in lives]
    async with open_pair(urls=urls, probe_s=0.05, still_s=1.0, canary_interval_s=3600.0) as rig:
        mine, (silent, other) = rig.gateway.pool.servers[0], rig.proxies
        rollout, session = await session_at(rig, mine)
        answers = silent.held["/generate"] = anyio.Event()
        await ask(rig, session)
        assert len(other.answers) == 1 and not silent.answers and mine.answers
        await until_row(
            rig, f"SELECT 1 FROM rollout_servers WHERE url = '{mine.url}' AND detail LIKE '%to the canary%'"
        )
        fails = rig.gateway.metrics.weights_refused.labels(mine.url)
        before = fails._value.get()
        await until(
            lambda: fails._value.get() > before + 1
        )  # it is tried again, and its row goes on to say so
        (sentence,) = (await read_run(_connected(rig))).servers
        assert sentence.startswith(f"the rollout server {mine.url} serves nothing: ")
        assert sentence.endswith(
            "no answer within 1.0 s to the canary, although it answers its checks; restart it where it was started"
        )
        del silent.held["/generate"]
        answers.set()
        await until(lambda: mine.ready)
        assert (await read_run(_connected(rig))).servers == []
        assert (await rig.seal(rollout)).queued_s > 1.0  # the agent did not wait for itself


async def test_a_server_that_answers_canaries_with_errors_and_stands_still_loses_its_calls(
    open_pair: OpenRig,
) -> None:
    async with open_pair(probe_s=0.05, still_s=1.0) as rig:
        mine, (silent, other) = rig.gateway.pool.servers[0], rig.proxies
        _, session = await session_at(rig, mine)
        arrives = silent.held["/generate"] = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, rig, session)
            await until(lambda: "/generate" in silent.seen)
            silent.swallowed.add("/generate")  # from now on; the first one hangs
        assert len(other.answers) == 1 and not silent.answers
        silent.swallowed.clear()
        arrives.set()
        await until(lambda: mine.ready)


async def test_a_server_whose_queue_is_longer_than_a_canary_waits_serves_and_takes_new_weights(
    open_pair: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary, "QUICK_S", 0.5)
    async with open_pair(probe_s=0.05, still_s=3600.0, canary_interval_s=0.2) as rig:
        mine, full = rig.gateway.pool.servers[0], rig.proxy
        free = full.held["/generate"] = anyio.Event()
        await until(lambda: full.seen.count("canary") > 3)
        assert mine.ready
        await rig.publish(1)
        await until(lambda: "/update_weights_from_disk" in full.seen)
        del full.held["/generate"]
        free.set()
        await until(lambda: mine.ready and mine.version == 1)


def _connected(rig: Rig) -> Config:
    services = rig.settings.config.services.model_copy(update={"database_url": rig.settings.database_url})
    return rig.settings.config.model_copy(update={"services": services})


async def test_a_pause_alone_does_not_eject_a_server(open_pair: OpenRig, lives: list[KillableServer]) -> None:
    async with open_pair(probe_s=0.05, silence_s=4.0) as rig:
        mine, (paused, other) = rig.gateway.pool.servers[0], rig.proxies
        _, session = await session_at(rig, mine)
        _, second = await session_at(rig, mine)
        async with RolloutServerClient(lives[0].url) as behind_our_back, anyio.create_task_group() as tasks:
            await behind_our_back.pause(PauseMode.IN_PLACE)
            tasks.start_soon(ask, rig, session)  # held there
            tasks.start_soon(ask, rig, second, "elm")
            await until(lambda: paused.busy == 2)
            start, looks = anyio.current_time(), paused.seen.count("/model_info")
            await until(
                lambda: paused.seen.count("/model_info") > looks + 20 and anyio.current_time() > start + 5.0
            )
            assert mine.ready and mine.answers and paused.busy == 2 and not other.requests
            await behind_our_back.continue_()
        assert len(paused.sent) == 2 and not other.requests


async def test_a_long_queue_sends_a_call_to_the_shorter_one(
    open_pair: OpenRig, lives: list[KillableServer]
) -> None:
    async with open_pair(spill_s=0.01, probe_s=0.02) as rig:
        mine, (full, other) = rig.gateway.pool.servers[0], rig.proxies
        sessions = [(await session_at(rig, mine))[1] for _ in range(4)]
        await ask(rig, sessions[0], "how long does it take", max_tokens=200)
        await until(lambda: mine.delay == 0.0)
        assert not other.requests
        async with (
            RolloutServerClient(lives[0].url) as behind_our_back,
            anyio.create_task_group() as tasks,
        ):
            both_run = False
            while not both_run:  # where they end before the pause, two others begin
                before = len(full.sent)
                for session in sessions[:2]:
                    tasks.start_soon(ask, rig, session, f"oak {before}")
                both_run = await _paused_while_both_run(behind_our_back, full, before)
            count = len(full.requests)
            await until(lambda: (mine.load.running, mine.load.waiting) == (2, 0))
            tasks.start_soon(ask, rig, sessions[2], "elm")  # none waits before it, so it waits
            await until(lambda: (mine.load.running, mine.load.waiting) == (2, 1))
            assert len(full.requests) == count + 1 and not other.requests
            tasks.start_soon(ask, rig, sessions[3], "ash")  # it would wait behind the third
            await until(lambda: other.requests)
            assert len(full.requests) == count + 1
            await behind_our_back.continue_()
        assert len(other.requests) == 1


async def _paused_while_both_run(server: RolloutServerClient, proxy: Proxy, before: int) -> bool:
    """Whether two calls, which came after `before` others were answered, run and stand still now. If not, both are over."""
    await until(lambda: len(proxy.sent) + proxy.busy >= before + 2)
    while len(proxy.sent) == before:
        await server.pause(PauseMode.IN_PLACE)
        load = await server.loads()
        if load.num_running_reqs == 2:
            return True
        await server.continue_()
    await until(lambda: len(proxy.sent) == before + 2)
    return False


async def test_a_broken_connection_alone_ejects_no_server(open_pair: OpenRig) -> None:
    async with open_pair() as rig:
        mine, (proxy, other) = rig.gateway.pool.servers[0], rig.proxies
        openings = mine.openings
        _, session = await session_at(rig, mine)
        proxy.stops = [50]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, rig, session)
            await until(lambda: proxy.standing)
            proxy.drop()
        assert mine.openings == openings, "it was not synced again"
        assert len(proxy.requests) == 2 and len(proxy.sent) == 1 and not other.requests
