"""A session that has ended is freed at once: the gateway collects its garbage rarely, and a session holds every message of its attempt."""

import gc
import io
import json
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from orchestrator.gateway.sessions.session import Session
from orchestrator.gateway_client import OpenSession, SessionBudget
from tests.integration.gateway.rig import OpenRig, Rig
from tests.integration.gateway.test_retries import body
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("gateway")]


@pytest.fixture
async def rig(open_here: OpenRig) -> AsyncIterator[Rig]:
    async with open_here() as rig:
        await rig.publish(0)
        await eventually(lambda: rig.gateway.pool.servers[0].ready)
        yield rig


@pytest.fixture
def without_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def sessions() -> list[Session]:
    return [each for each in gc.get_objects() if type(each) is Session]


async def post(rig: Rig, session: OpenSession, request: dict[str, Any] | bytes) -> tuple[int, str]:
    url = f"{rig.gateway.url}{session.path}/chat/completions"
    data = io.BytesIO(request if isinstance(request, bytes) else json.dumps(request).encode())
    async with aiohttp.ClientSession() as http, http.post(url, data=data) as answer:
        return answer.status, await answer.text()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_sealed_session_with_replies_refusals_and_failed_calls_is_freed_without_a_garbage_collection(
    rig: Rig, without_collections: None, stream: bool
) -> None:
    before = sessions()
    rollout, session = await rig.open(budget=SessionBudget(max_turns=2, max_context=2048))
    held = [weakref.ref(each) for each in sessions() if each not in before]
    assert len(held) == 1
    assert (await post(rig, session, {"messages": 7, "stream": stream}))[0] == 400
    for unreadable in (b"{", b'{"\\u'):
        assert (await post(rig, session, unreadable))[0] == 400
    assert (await post(rig, session, body("x" * 3_000_000, stream)))[0] == 400
    rig.proxy.odd["/generate"] = 400, b'{"error":{"message":"no"}}'
    assert "no" in (await post(rig, session, body("elm", stream)))[1]
    del rig.proxy.odd["/generate"]
    for text in ("oak", "ash"):
        assert (await post(rig, session, body(text, stream)))[0] == 200
    assert (await post(rig, session, body("fir", stream)))[0] == 400
    assert (await rig.seal(rollout)).steps == 2
    assert (await post(rig, session, body("yew", stream)))[0] == 409
    await eventually(lambda: held[0]() is None)
