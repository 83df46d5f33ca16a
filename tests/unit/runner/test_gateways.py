"""Several gateways of one runner: which one an attempt has, and the attempt's fate when that gateway dies."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import anyio.lowlevel
import pytest
from aiohttp import web

from orchestrator.contracts.errors import ServiceError
from orchestrator.deploy.embedded.ports import free_port
from orchestrator.gateway_client import GatewayAway
from orchestrator.runner.gateways import Gateways, reached
from orchestrator.settings.timeouts import Timeouts, use
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.tier("gateway")]

QUICK = Timeouts(gateway_silent_s=0.4, gateway_connect_s=0.2, gateway_patience_s=0.5, gateway_retry_s=0.05)
# For a gateway that is there: a pause of the machine is not a death.
PATIENT = QUICK.model_copy(
    update={"gateway_silent_s": 5.0, "gateway_connect_s": 5.0, "gateway_patience_s": 60.0}
)


@asynccontextmanager
async def a_gateway(port: int, *, status: int = 200, sandbox_port: int = 1) -> AsyncIterator[str]:
    """The part of a gateway that reports whether it is there."""

    async def activity(request: web.Request) -> web.Response:
        load = {"in_flight": 0, "calls": 0, "queued_s": 0.0, "instance": "i", "sandbox_port": sandbox_port}
        return web.json_response(
            load if status == 200 else {"error": {"code": "x", "message": "no"}}, status=status
        )

    app = web.Application()
    app.add_routes([web.post("/admin/sessions/activity", activity)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def held_until_cancelled(gateways: Gateways, lost: list[str]) -> None:
    gateway = gateways.choose()
    with gateway.serving() as scope:
        await anyio.sleep_forever()
    if scope.cancelled_caught:
        lost.append(gateway.url)


async def test_attempts_go_to_both_those_of_a_dead_gateway_end_and_the_next_go_to_the_living_one() -> None:
    ports, lost = (free_port(), free_port()), []  # type: tuple[int, int], list[str]
    async with AsyncExitStack() as living, AsyncExitStack() as dying:
        urls = (
            await living.enter_async_context(a_gateway(ports[0])),
            await dying.enter_async_context(a_gateway(ports[1])),
        )
        with use(PATIENT):
            async with reached(urls, "secret", None, "test") as gateways, anyio.create_task_group() as tasks:
                with anyio.fail_after(60):
                    await gateways.until_one_answers()
                    await eventually(lambda: all(gateway.answers for gateway in gateways.all))
                    for _ in range(4):
                        tasks.start_soon(held_until_cancelled, gateways, lost)
                    await eventually(lambda: [len(gateway.held) for gateway in gateways.all] == [2, 2])
                    await dying.aclose()
                    await eventually(lambda: len(lost) >= 2)
                    assert lost == [urls[1]] * 2 and {gateways.choose().url for _ in range(3)} == {urls[0]}
                    await dying.enter_async_context(a_gateway(ports[1]))
                    await eventually(lambda: gateways.choose().url == urls[1])
                tasks.cancel_scope.cancel()


async def test_one_gateway_that_is_away_loses_nothing_while_no_other_answers() -> None:
    port, lost = free_port(), []  # type: int, list[str]
    with use(QUICK):
        async with reached(
            (f"http://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}"), "secret", None, "test"
        ) as gateways:
            with pytest.raises(GatewayAway):
                await gateways.until_one_answers()
            with anyio.move_on_after(0.6):
                await held_until_cancelled(gateways, lost)
    assert lost == []


async def test_a_wrong_secret_and_a_gateway_without_a_port_for_sandboxes_are_one_sentence() -> None:
    with use(PATIENT):
        for status, sandbox_port, sentence in (
            (401, 1, "refuses this runner's admin secret"),
            (200, 0, "set gateway.sandbox_port"),
        ):
            async with (
                a_gateway(free_port(), status=status, sandbox_port=sandbox_port) as url,
                reached((url,), "secret", None, "test") as gateways,
            ):
                with pytest.raises(ServiceError, match=sentence):
                    await gateways.until_one_answers()
