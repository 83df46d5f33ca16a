"""The token of a session in other hands: it reaches that one session while it is open, and nothing else ever."""

from typing import Any

import aiohttp
import pytest
from sqlalchemy import text

from tests.integration.gateway.rig import Rig
from tests.integration.gateway.wires_rig import PATHS, ask, bodies, message_of

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("gateway")]


@pytest.mark.parametrize("path", PATHS)
async def test_the_token_of_an_earlier_lease_reaches_neither_its_own_session_nor_the_new_one(
    rig: Rig, path: str
) -> None:
    rollout, old = await rig.open()
    async with rig.engine.begin() as connection:
        await connection.execute(text("UPDATE rollouts SET lease_epoch = 2"))
    _, new = await rig.open(rollout, epoch=2)
    status, reply, _ = await ask(rig, old.path + path, bodies("oak")[path])
    assert status == 409 and message_of(path, reply)
    status, reply, _ = await ask(
        rig, old.path + path, bodies("oak")[path], Authorization=f"Bearer {new.token}"
    )
    assert status == 401, reply
    status, reply, _ = await ask(rig, new.path + path, bodies("oak")[path])
    assert status == 200, reply
    assert (await rig.seal(rollout, epoch=2)).steps == 1, "the one call with the new token"


@pytest.mark.parametrize("path", PATHS)
async def test_two_tokens_in_one_call_are_refused_and_a_call_counts_for_the_session_of_its_token(
    rig: Rig, path: str
) -> None:
    (mine, own), (theirs, other) = await rig.open(), await rig.open()
    status, reply, _ = await ask(rig, own.path + path, bodies("oak")[path], **{"x-api-key": other.token})
    assert status == 401 and message_of(path, reply)
    status, reply, _ = await ask(rig, own.path + path, bodies("oak")[path])
    assert status == 200, reply
    assert ((await rig.seal(mine)).steps, (await rig.seal(theirs)).steps) == (1, 0)
    for session in (own, other):
        status, _, _ = await ask(rig, session.path + path, bodies("oak")[path])
        assert status == 409, "both have ended"


async def test_a_token_opens_no_admin_route(rig: Rig) -> None:
    rollout, session = await rig.open()
    lease: dict[str, Any] = {"rollout": rollout, "attempt": 1, "epoch": 1}
    opened: dict[str, Any] = {**lease, "run": rig.run, "budget": {"max_turns": 1000, "max_context": 2048}}
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {session.token}"}) as http:
        for route, body in (("", opened), ("/seal", lease), ("/abort", lease), ("/activity", lease)):
            async with http.post(f"{rig.gateway.url}/admin/sessions{route}", json=body) as answer:
                assert answer.status == 401, route
        async with http.get(f"{rig.gateway.url}/admin/servers") as answer:
            assert answer.status == 401
    status, reply, _ = await ask(rig, f"{session.path}/chat/completions", bodies("oak")["/chat/completions"])
    assert status == 200, reply


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("ttl_s", 1e14),
        ("ttl_s", -1),
        ("rollout", 2**63),
        ("attempt", 2**15),
        ("epoch", 2**31),
        ("version", 2**40),
        ("budget.max_turns", 2**31),
        ("budget.max_total_tokens", -5),
    ],
)
async def test_a_session_with_a_number_out_of_bounds_is_refused_and_the_number_named(
    rig: Rig, where: str, value: float
) -> None:
    budget: dict[str, Any] = {"max_turns": 1000, "max_context": 2048}
    body: dict[str, Any] = {"run": rig.run, "rollout": 1, "attempt": 1, "epoch": 1, "budget": budget}
    (budget if "." in where else body)[where.rpartition(".")[2]] = value
    secret = {"Authorization": f"Bearer {rig.gateway.admin_secret}"}
    async with (
        aiohttp.ClientSession(headers=secret) as http,
        http.post(f"{rig.gateway.url}/admin/sessions", json=body) as answer,
    ):
        assert answer.status == 400 and f"`$.{where}`" in await answer.text()
