"""On the screen of a phone every page shows all its content: rows are cards, and nothing lies outside the screen. Rows of every table."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.browser.alone import looking
from tests.browser.visitor import LARGE, PHONE
from tests.integration.pool.rig import a_row_in_every_table

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("browser")]

# One word without a break point, wherever a user or a program writes text.
LONG = "endless" * 30
LENGTHENED = (
    f"UPDATE dead_letters SET reason = '{LONG}', subject = 'tasks.{LONG}'",
    f"UPDATE groups SET reason = '{LONG}'",
    f"UPDATE rollouts SET reason = '{LONG}'",
    f"INSERT INTO actions (run_id, who, what, target, reason) SELECT run_id, who, what, '{LONG}', '{LONG}' FROM actions LIMIT 1",
    f"UPDATE rollout_servers SET detail = '{LONG}'",
)
LISTS = ("/run", "/queue", "/groups?purpose=any", "/rollouts?purpose=any", "/batches", "/system")


async def paths(engine: AsyncEngine) -> list[str]:
    """The paths of all pages."""
    async with engine.connect() as connection:
        group, rollout, batch = (
            await connection.execute(
                text(
                    "SELECT min(r.group_id), min(r.rollout_id), (SELECT min(batch_no) FROM batches) FROM rollouts r"
                )
            )
        ).one()
    views = [f"/rollouts/{rollout}{view}" for view in ("", "?view=timings", "?view=verdict", "?view=files")]
    return [*LISTS, f"/groups/{group}", *views, f"/batches/{batch}"]


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_on_a_phone_no_value_reason_or_button_lies_outside_the_screen(
    engine: AsyncEngine,
    database_url: str,
    browser: Browser,
    tmp_path: Path,
    theme: str,
    pictures: Path | None,
) -> None:
    await a_row_in_every_table(engine)
    async with engine.begin() as connection:
        for statement in LENGTHENED:
            await connection.execute(text(statement))
    async with looking("full", database_url, browser, tmp_path) as visitor:
        for number, path in enumerate(await paths(engine)):
            await visitor.resized(PHONE, theme)
            await visitor.open(path)
            await expect(visitor.main.locator(".figure dd, tbody tr").first).to_be_visible()
            assert await visitor.main.locator(".message").count() == 0, await visitor.main.inner_text()
            await visitor.picture(pictures, f"card-{number}-{theme}")
            assert await visitor.outside() == [], f"{path} has content outside {PHONE[0]} px"
            assert await visitor.page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
            assert await visitor.cramped() == [], f"{path} has texts without room at {PHONE[0]} px"
            assert await visitor.faint() == [], f"{path} has texts that are hard to read, {theme}"
            await visitor.resized(LARGE, theme)
            assert await visitor.orphans() == [], f"{path} has a tile alone in its row"
            assert await visitor.colourless() == [], f"{path} has invisible swatches"


async def test_a_card_names_each_of_its_values_and_sorts_as_the_table_does(
    engine: AsyncEngine, database_url: str, browser: Browser, tmp_path: Path
) -> None:
    await a_row_in_every_table(engine)
    async with looking("full", database_url, browser, tmp_path) as visitor:
        await visitor.resized(PHONE, "light")
        await visitor.open("/batches")
        row = visitor.main.get_by_role("row").nth(1)
        await expect(row.get_by_role("cell").first).to_be_visible()
        named = await row.get_by_role("cell").evaluate_all(
            "cells => cells.map((one) => getComputedStyle(one, '::before').content)"
        )
        assert named[:3] == ['"batch"', '"state"', '"groups"']
        await visitor.main.get_by_role("button", name="state", exact=True).click()
        await expect(visitor.main.locator("th[aria-sort]")).to_have_text("state")


FORMATTED = """async () => {
  const { compact, number, outOf, percent, seconds, shareOf, signed } = await import("/static/format.js");
  const { tone } = await import("/static/tone.js");
  return {
    zero: [number(-0), number(-0, 2), compact(-0), percent(-0), percent(-0.001), percent(0, 2), signed(-0)],
    signs: [number(-5), number(-0.25), compact(-1234567), signed(0.5), signed(-0.5), signed(0), seconds(-2)],
    of: [outOf(0, 0), outOf(2, 0), outOf(2, 1), outOf(0, 4), outOf(3, 4), outOf(null, null), outOf(1200, 4000)],
    shares: [shareOf({ share: 10 / 13, n: 13, low: .497, high: .918 }), shareOf({ share: 0, n: 0, low: 0, high: 1 }), shareOf({ share: .5, n: 4 })],
    whole: [percent(1), percent(499 / 500), percent(0.99996), percent(1 - 1e-9), percent(0.9999, 2), percent(-1)],
    tones: [1, 8, 9, 17, 0].map(tone),
  };
}"""


async def test_numbers_have_no_sign_before_zero_no_whole_of_nothing_and_shares_say_of_how_many(
    engine: AsyncEngine, database_url: str, browser: Browser, tmp_path: Path
) -> None:
    await a_row_in_every_table(engine)
    async with looking("full", database_url, browser, tmp_path) as visitor:
        await visitor.open("/run")
        formatted = await visitor.page.evaluate(FORMATTED)
    assert formatted["zero"] == ["0", "0", "0", "0%", "0%", "0%", "0"]
    assert formatted["signs"] == ["−5", "−0.25", "−1.23M", "+0.5", "−0.5", "0", "−2.0 s"]
    assert formatted["of"] == ["–", "2", "2", "0 of 4", "3 of 4", "–", "1,200 of 4,000"]
    assert formatted["shares"] == ["77% of 13, 95 %: 50% to 92%", "–", "50% of 4"]
    assert formatted["whole"] == ["100%", "99.8%", "99.996%", ">99.99%", "99.99%", "−100%"], (
        "only all is 100%"
    )
    assert formatted["tones"] == ["c1", "c8", "c1", "c1", "c8"]
