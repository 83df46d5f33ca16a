"""The queue while work is in flight: the window over the positions, the head, and the process that it waits for."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from tests import builders
from tests.browser.alone import looking
from tests.integration.pool.rig import small

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("browser")]


async def test_the_window_begins_at_the_head_whose_stall_cause_is_named(
    engine: AsyncEngine, database_url: str, browser: Browser, tmp_path: Path
) -> None:
    run = await builders.make_run(engine, small("waits", capacity=6, window_fraction=0.5))
    made = await builders.accepted(engine, run, list("abcdef"))
    await builders.dispatch(engine, run)
    await builders.finish(engine, run, made[1], builders.Author())
    async with engine.begin() as connection:
        await connection.execute(
            text(
                "UPDATE rollouts SET created = created - interval '1 h', changed = changed - interval '1 h' WHERE state = 'queued'"
            )
        )
        await connection.execute(text("UPDATE groups SET dispatched = dispatched - interval '1 h'"))
    async with looking("waits", database_url, browser, tmp_path) as visitor:
        await visitor.open("/queue")
        await expect(visitor.main.locator(".strip-cell")).to_have_count(6)
        cells = await visitor.main.locator(".strip-cell").evaluate_all(
            "all => all.map((one) => [one.getAttribute('class').split(' ')[1], one.x.baseVal.value])"
        )
        assert [state for state, _ in cells] == ["running", "ready", *["running"] * 4]
        window = await visitor.main.locator(".strip-window").evaluate_all(
            "all => all.map((one) => one.x.baseVal.value)"
        )
        assert len(window) == 3 and all(
            0 < cell - edge < 3 for edge, (_, cell) in zip(window, cells, strict=False)
        )
        await expect(visitor.main.locator(".strip-detail")).to_contain_text(
            "group 1 at 0, 0 of 4 rollouts over, 0 under way, 4 waiting, dispatched 1 h 0 min ago. Held up: no runner is running"
        )
        await expect(visitor.main.locator(".lead")).to_contain_text("no runner is running")
        assert (await visitor.figures())["head"].startswith("0")
