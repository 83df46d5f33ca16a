"""The first step of a trajectory is asked for at once: nobody waits for one answer after the other."""

from pathlib import Path

import anyio
import pytest
from playwright.async_api import Browser, Request, Route, expect
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.benchmarks.web.paint import READABLE
from tests import builders
from tests.integration.pool_rig import engine, rollouts_of, small
from tests.integration.web_rig import configured, dashboard

__all__ = ["engine"]
pytestmark = [pytest.mark.anyio, pytest.mark.services]


@pytest.mark.parametrize("query", ["", "?step=1", "?attempt=1"])
async def test_the_first_steps_are_asked_for_before_the_rollout_is_known_and_once(
    engine: AsyncEngine, database_url: str, browser: Browser, tmp_path: Path, query: str
) -> None:
    run = await builders.make_run(engine, small())
    (group,) = await builders.ready_groups(engine, run, ["a"], builders.Author())
    async with engine.connect() as connection:
        rollout = (await rollouts_of(connection, group))[0]
    steps: list[str] = []
    came = anyio.Event()

    def heard(request: Request) -> None:
        if f"/api/rollouts/{rollout}/steps" in request.url:
            steps.append(request.url)
            came.set()

    async def held(route: Route) -> None:
        with anyio.fail_after(20):
            await came.wait()
        await route.continue_()

    async with dashboard(configured("run", database_url), tmp_path) as web:
        context = await browser.new_context()
        page = await context.new_page()
        page.on("request", heard)
        await page.route(lambda url: url.partition("?")[0].endswith(f"/api/rollouts/{rollout}"), held)
        await page.goto(f"{web.address}/?token={web.token}")
        await page.goto(f"{web.address}/rollouts/{rollout}{query}")
        await expect(page.locator(READABLE).first).to_be_visible()
        assert len(steps) == len(set(steps)) and len(steps) <= 2, (
            steps
        )  # what is above the step that was gone to comes after it
        await context.close()
