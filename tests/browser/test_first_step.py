"""The first step of a trajectory is requested at once: no request waits for the answer of another."""

from pathlib import Path

import anyio
import pytest
from playwright.async_api import Browser, Request, Route, expect
from sqlalchemy.ext.asyncio import AsyncEngine

from ops.lab.benchmarks.web.paint import READABLE
from tests import builders
from tests.integration.pool.rig import rollouts_of, small
from tests.integration.web.rig import configured, dashboard

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("browser")]


@pytest.mark.parametrize("query", ["", "?step=1", "?attempt=1"])
async def test_the_first_steps_are_requested_once_and_before_the_rollout_is_known(
    engine: AsyncEngine, database_url: str, browser: Browser, tmp_path: Path, query: str
) -> None:
    run = await builders.make_run(engine, small())
    (group,) = await builders.ready_groups(engine, run, ["a"], builders.Author())
    async with engine.connect() as connection:
        rollout = (await rollouts_of(connection, group))[0]
    steps: list[str] = []
    came = anyio.Event()

    def on_request(request: Request) -> None:
        if f"/api/rollouts/{rollout}/steps" in request.url:
            steps.append(request.url)
            came.set()

    async def held(route: Route) -> None:
        with anyio.fail_after(60):
            await came.wait()
        await route.continue_()

    async with dashboard(configured("run", database_url), tmp_path) as web:
        context = await browser.new_context()
        page = await context.new_page()
        page.on("request", on_request)
        await page.route(lambda url: url.partition("?")[0].endswith(f"/api/rollouts/{rollout}"), held)
        await page.goto(f"{web.address}/?token={web.token}")
        await page.goto(f"{web.address}/rollouts/{rollout}{query}")
        await expect(page.locator(READABLE).first).to_be_visible()
        # The steps above the visited one come after it.
        assert len(steps) == len(set(steps)) and len(steps) <= 2, steps
        await context.close()
