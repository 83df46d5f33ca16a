"""A page in a real browser: when its first step can be read."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass

STARTS = 5
READABLE = "article.step:not(.pending) .step-body"  # a step whose text is loaded


@dataclass(frozen=True, slots=True)
class PaintTimes:
    """Milliseconds since the start of the navigation, one value per load of the page."""

    paint_ms: Sequence[float]
    readable_ms: Sequence[float]


async def first_paint(url: str, path: str) -> PaintTimes:
    """Open `path` in a new browser context each time, so nothing is cached. Raises RuntimeError if Chromium is not on the PATH."""
    from playwright.async_api import async_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        raise RuntimeError(
            "chromium is not on the PATH: install it with ops/setup_browser, or leave the picture out with --no-paint"
        )
    paint, readable = [], []
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(STARTS):
            context = await browser.new_context(viewport={"width": 1280, "height": 900})
            page = await context.new_page()
            await page.goto(url)
            await page.goto(url.partition("/?")[0] + path, wait_until="commit")
            await page.locator(READABLE).first.wait_for(state="visible", timeout=30_000)
            readable.append(float(await page.evaluate("performance.now()")))
            paint.append(
                float(
                    await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
                )
            )
            await context.close()
        await browser.close()
    return PaintTimes(paint, readable)
