"""Times of rows come from the servers' clocks: a browser whose own clock is wrong shows right ages."""

import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from tests import builders
from tests.browser.alone import looking
from tests.integration.pool.rig import rollouts_of, small, take

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("browser")]

SHIFT = "const right = Date.now; Date.now = () => right() + {minutes} * 60_000;"


@pytest.mark.parametrize("minutes", [0, 30, -30])
async def test_ages_and_lease_ends_are_right_in_a_browser_whose_clock_is_wrong(
    minutes: int, engine: AsyncEngine, database_url: str, browser: Browser, tmp_path: Path
) -> None:
    run = await builders.make_run(engine, small())
    [group] = await builders.accepted(engine, run, ["task"])
    await builders.dispatch(engine, run)
    async with engine.begin() as connection:
        leased, lapsed = (await rollouts_of(connection, group))[:2]
        assert await take(connection, leased, 900.0) and await take(connection, lapsed, 900.0)
        late = "UPDATE rollouts SET lease_until = now() - interval '10 min' WHERE rollout_id = :id"
        await connection.execute(text(late), {"id": lapsed})
        await connection.execute(text("UPDATE runs SET created = now() - interval '10 min'"))
    async with looking("run", database_url, browser, tmp_path) as visitor:
        await visitor.page.add_init_script(SHIFT.format(minutes=minutes))
        await visitor.open("/system")
        row = visitor.main.locator(f'tr[data-key="{leased}"]')
        await expect(row.locator("td[data-name='lease ends']")).to_have_text(re.compile(r"^in 1[45] min"))
        await expect(row.locator("td[data-name='since']")).to_have_text(re.compile(r"^[\d.]+ m?s ago$"))
        ended = visitor.main.locator(f'tr[data-key="{lapsed}"] .behind')
        await expect(ended).to_have_text(re.compile(r"^1[01] min.* ago$"))
        await visitor.open("/run")
        assert re.match(r"1[01] min", (await visitor.figures())["running for"])
