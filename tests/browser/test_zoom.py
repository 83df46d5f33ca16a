"""A run of thousands of train steps is drawn from a sample; a zoomed view shows the train steps themselves."""

import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, Request, expect
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from tests import builders
from tests.integration.pool.rig import small
from tests.integration.queries.evaluations_rig import evaluated
from tests.integration.web.rig import configured, dashboard

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("browser")]

STEPS = 2_000
ROWS = f"""
INSERT INTO batches (run_id, batch_no, state, size, digest, version, opened, closed, committed, groups_so_far)
SELECT :run, n, 'committed', 1, '\\x00', n + 1, at, at, at, n + 1
  FROM (SELECT n, now() + make_interval(secs => n - {STEPS}) AS at FROM generate_series(0, {STEPS} - 1) n) b
--;
INSERT INTO train_steps (run_id, train_step, batch_id, part, metrics, at)
SELECT run_id, batch_no + 1, batch_id, 0, jsonb_build_object('loss', 1.0 + batch_no % 2, 'action_tokens', 10), committed
  FROM batches WHERE run_id = :run"""
CHART = "figure.chart:has(h2:text-is('Loss and gradient norm'))"


async def test_zooming_a_long_run_shows_the_train_steps_themselves(
    engine: AsyncEngine, database_url: str, browser: Browser, tmp_path: Path
) -> None:
    run = await builders.make_run(engine, small())
    async with engine.begin() as connection:
        for statement in ROWS.split("--;"):
            await connection.execute(text(statement), {"run": run.run_id})
    requested: list[str] = []
    async with dashboard(configured("run", database_url), tmp_path) as web:
        context = await browser.new_context(viewport={"width": 1280, "height": 900})
        page = await context.new_page()

        def on_request(request: Request) -> None:
            if "/api/curves" in request.url:
                requested.append(request.url.partition("/api/")[2])

        page.on("request", on_request)
        await page.goto(f"{web.address}/?token={web.token}")
        chart = page.locator(CHART)
        await expect(chart.locator(".legend-item")).to_have_count(1)
        assert await points(page) < 400 and not requested
        # Bins of the whole run are means of neighbouring train steps; a train step alone is 1 or 2.
        await chart.locator(".chart-picture").hover(position={"x": 300, "y": 100})
        before = await at(page)
        await chart.locator(".chart-picture").focus()
        for _ in range(4):
            await page.keyboard.press("+")
        await expect(chart.locator(".legend-item")).to_have_attribute(
            "data-points", re.compile(r"^1[0-6]\d$")
        )
        found = re.fullmatch(r"curves\?first=(\d+)&last=(\d+)", requested[-1])
        assert found is not None
        first, last = map(int, found.groups())
        assert first < before < last and await points(page) == last - first + 1 == pytest.approx(
            STEPS / 16, abs=6
        )
        seen = [await at(page)]
        for _ in range(3):
            await page.keyboard.press("ArrowRight")
            seen.append(await at(page))
        assert seen == list(range(seen[0], seen[0] + 4))
        assert {await loss(page)} <= {"1", "2"}
        # The window is twice as wide: not at its own end, which is the run's end.
        await page.keyboard.press("-")
        await expect(chart.locator(".legend-item")).to_have_attribute("data-points", re.compile(r"^2\d\d$"))
        await page.keyboard.press("0")
        await expect(chart.locator("button:text-is('reset zoom')")).to_be_hidden()
        assert await points(page) < 400
        await context.close()


async def test_evaluations_that_the_first_look_did_not_count_are_drawn_soon_after(
    engine: AsyncEngine, database_url: str, browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await builders.make_run(engine, small())
    for version in range(4):
        await evaluated(engine, run, "held", version, {"coding": (1.0, 0.0)})
    monkeypatch.setattr("orchestrator.web.evaluation_cache.ROLLOUTS", 1)
    async with dashboard(configured("run", database_url), tmp_path) as web:
        context = await browser.new_context()
        page = await context.new_page()
        # Without events the page asks for nothing again by itself.
        await page.route("**/api/events", lambda route: None)
        await page.goto(f"{web.address}/?token={web.token}")
        held = page.locator("figure.chart:has(h2:text-is('Held-out success')) .legend-item:not(.thin)")
        await expect(held).to_have_attribute("data-points", "4", timeout=60_000)
        await context.close()


async def points(page: Page) -> int:
    """The number of points on the line of the loss."""
    return int(str(await page.locator(f"{CHART} .legend-item").get_attribute("data-points")))


async def at(page: Page) -> int:
    """The train step under the cursor."""
    legend = await page.locator(f"{CHART} .legend > span").inner_text()
    found = re.fullmatch(r"train step ([\d,\u202f\u2009 ]+)", legend)
    assert found is not None, legend
    return int(re.sub(r"\D", "", found[1]))


async def loss(page: Page) -> str:
    return await page.locator(f"{CHART} .legend b").first.inner_text()
