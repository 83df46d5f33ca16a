"""A share is shown with its count and its interval: 77 % of 13 is not a result yet, and does not look like one."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.queries.training_signal import MIN_GROUPS
from tests import builders
from tests.browser.alone import looking
from tests.browser.visitor import LARGE, PHONE
from tests.integration.pool.rig import small
from tests.integration.pool.test_no_signal import scored
from tests.integration.queries.evaluations_rig import evaluated

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("browser")]

CHART = "figure.chart:has(h2:text-is('Held-out success'))"


async def test_the_run_page_shows_n_and_the_interval_of_every_evaluation_and_what_it_leaves_out(
    engine: AsyncEngine, database_url: str, browser: Browser, tmp_path: Path, pictures: Path | None
) -> None:
    run = await builders.make_run(engine, small())
    await evaluated(
        engine, run, "held", 1, {"coding": (1.0,) * 6 + (0.0,) * 2, "general": (1.0,) * 4 + (0.0,)}
    )
    await evaluated(engine, run, "held", 0, {"coding": (1.0, 0.0)})
    await evaluated(engine, run, "held", 2, {"coding": (1.0, 1.0)}, made_by=1)  # none of them counts
    await evaluated(engine, run, "partial", 1, {"coding": (1.0, 0.0, None, None)}, size=4)
    async with looking("run", database_url, browser, tmp_path) as visitor:
        await visitor.resized(LARGE, "light")
        await visitor.open("/run")
        await expect(visitor.main.locator(f"{CHART} canvas").first).to_be_attached()
        legend = visitor.main.locator(f"{CHART} .legend")
        await expect(legend).to_contain_text("77% of 13 (50%–92%)")
        await expect(legend).to_contain_text("75% of 8")
        held = visitor.main.locator(".figure", has_text="held out")
        await expect(held).to_contain_text("77% of 13")
        await expect(held).to_contain_text("version 1; 95 %: 50% to 92%; at 0 50% of 2")
        cells = await visitor.row("held 1")
        assert [cells[i] for i in (2, 3, 4, 5)] == ["77% of 13", "50% to 92%", "13 of 13", "0"]
        assert "coding 75% of 8, 95 %:" in cells[8] and "general 80% of 5" in cells[8]
        partial = await visitor.row("partial 1")
        assert partial[2] == "50% of 2" and partial[7].split() == [
            "2",
            "of",
            "4",
            "no",
            "verdict:",
            "2",
            "verifier",
            "failure",
        ]
        assert [(await visitor.row("held 2"))[i] for i in (2, 3, 4, 5)] == ["–", "–", "0 of 2", "2"]
        await visitor.resized(PHONE, "light")
        await visitor.picture(pictures, "shares")
        assert await visitor.outside() == [] and await visitor.colourless() == []


async def test_the_run_page_says_when_all_groups_scored_alike(
    engine: AsyncEngine, database_url: str, browser: Browser, tmp_path: Path
) -> None:
    run = await builders.make_run(engine, small())
    await scored(engine, run, 0, *[(0.0, 0.0)] * MIN_GROUPS)
    async with looking("run", database_url, browser, tmp_path) as visitor:
        for path in ("/run", "/queue"):
            await visitor.open(path)
            await expect(visitor.main.locator(".note.bad")).to_have_text(
                f"All {MIN_GROUPS} groups scored alike (0 %): easier tasks or a better first policy."
            )
