"""Somebody at a browser: opens pages, presses keys, and writes down whatever the browser complains of."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from playwright.async_api import Browser, ConsoleMessage, Locator, Page, Request, expect

WIDE, NARROW = (1280, 900), (360, 740)
PATIENCE_MS = 30_000
CHORDS, CHORD_MS = 3, 5_000
OVERFLOW = """() => {
  const width = document.documentElement.clientWidth;
  const inside = (one) => {
    for (let up = one.parentElement; up; up = up.parentElement) if (getComputedStyle(up).overflowX !== "visible") return true;
    return false;
  };
  const wide = [...document.querySelectorAll("body *")].filter((one) => one.getBoundingClientRect().right > width + 1 && !inside(one));
  return { by: document.documentElement.scrollWidth - width, who: wide.slice(0, 5).map((one) => one.outerHTML.slice(0, 160)) };
}"""
FOCUS = """() => {
  const one = document.activeElement, style = getComputedStyle(one);
  return one !== document.body && style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
}"""

expect.set_options(timeout=PATIENCE_MS)


class Shown(Protocol):
    """What has a dashboard."""

    @property
    def url(self) -> str:
        """The dashboard's, with its token."""
        ...

    @property
    def address(self) -> str:
        """The dashboard's, without a slash at its end."""
        ...


@dataclass  # playwright keeps a mark on whoever listens
class Visitor:
    """One window. `complaints`: errors and warnings of the console, of scripts, of the policy, requests to anybody else."""

    page: Page
    world: Shown
    complaints: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()
    """Parts of what the console may say: whoever asks for what is refused or away sees it there."""

    @property
    def main(self) -> Locator:
        return self.page.locator("main")

    @property
    def heading(self) -> Locator:
        return self.main.locator("h1").first

    @property
    def banner(self) -> Locator:
        """What is away."""
        return self.page.locator(".banner")

    @property
    def light(self) -> Locator:
        """Whether the page follows the run."""
        return self.page.locator(".light")

    async def enter(self) -> None:
        """Be let in by the URL that `penstock up` printed."""
        assert (await self.page.context.request.get(self.world.url)).ok

    async def open(self, path: str) -> None:
        """Open a page by its address."""
        await self.page.goto(self.world.address + path)
        await self.settled()

    async def settled(self) -> None:
        """Wait until the page has a heading and waits for nothing more."""
        await expect(self.main.locator(".loading, [aria-busy]")).to_have_count(0)
        await expect(self.heading).to_have_text(re.compile(r"\S"))

    async def at(self, path: str) -> None:
        """Wait until the address is this one, whatever its parameters, and its page is there."""
        await expect(self.page).to_have_url(self._address(path))
        await self.settled()

    def _address(self, path: str) -> re.Pattern[str]:
        return re.compile(re.escape(self.world.address + path) + r"(\?.*)?$")

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.page.keyboard.press(key)

    async def chord(self, letter: str, path: str) -> None:
        """Press g and a letter, and be at the page that they go to. A machine that is busy may press the letter after the page forgot the g."""
        for _ in range(CHORDS - 1):
            await self.press("g", letter)
            try:
                await expect(self.page).to_have_url(self._address(path), timeout=CHORD_MS)
            except AssertionError:
                continue
            return await self.settled()
        await self.press("g", letter)
        await self.at(path)

    async def resized(self, size: tuple[int, int], theme: str) -> None:
        await self.page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        await self.page.set_viewport_size({"width": size[0], "height": size[1]})

    async def overflow(self) -> list[str]:
        """What is wider than the screen, if the document is."""
        found = await self.page.evaluate(OVERFLOW)
        return found["who"] or ["something"] if found["by"] > 0 else []

    async def picture(self, directory: Path | None, name: str) -> None:
        """All of the page, as high as it is: what is out of sight is not laid out."""
        size = self.page.viewport_size
        if directory is None or size is None:
            return
        high = await self.page.evaluate("document.documentElement.scrollHeight")
        await self.page.set_viewport_size(
            {"width": size["width"], "height": max(size["height"], min(high, 6000))}
        )
        await self.settled()
        await self.page.screenshot(path=directory / f"{name}.png")
        await self.page.set_viewport_size(size)

    async def texts(self, selector: str) -> list[str]:
        """The texts of all elements of the page that fit now: whoever asks has waited for the first."""
        return [text.strip() for text in await self.main.locator(selector).all_inner_texts()]

    async def figures(self) -> dict[str, str]:
        """The page's numbers by their names, once they are there: a page may draw its heading first."""
        await expect(self.main.locator(".figure dd").first).to_be_attached()
        names, values = await self.texts(".figure dt"), await self.texts(".figure dd")
        return dict(zip(names, values, strict=True))

    async def row(self, key: object) -> list[str]:
        """The cells of one row of a table, once it is there."""
        row = self.main.locator(f'tr[data-key="{key}"]').first
        await expect(row).to_be_attached()
        return [text.strip() for text in await row.locator("td").all_inner_texts()]

    async def visible_focus(self) -> bool:
        """Whether the element that has the focus shows it."""
        return bool(await self.page.evaluate(FOCUS))

    def _console(self, said: ConsoleMessage) -> None:
        if said.type in ("error", "warning") and not any(part in said.text for part in self.expected):
            self.complaints.append(f"console {said.type}: {said.text} ({said.location.get('url')})")

    def _asked(self, request: Request) -> None:
        if not request.url.startswith((self.world.address + "/", "data:")):
            self.complaints.append(f"request to {request.url}")


@asynccontextmanager
async def visiting(world: Shown, browser: Browser, theme: str = "light") -> AsyncIterator[Visitor]:
    """A window with nothing kept from others: no cookie yet."""
    width, height = WIDE
    context = await browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if theme == "dark" else "light",
        reduced_motion="reduce",
    )
    context.set_default_timeout(PATIENCE_MS)
    page = await context.new_page()
    visitor = Visitor(page, world)
    page.on("console", visitor._console)
    page.on("pageerror", lambda error: visitor.complaints.append(f"script: {error}"))
    page.on("request", visitor._asked)
    try:
        yield visitor
    finally:
        await context.close()


def shown(text: str) -> float:
    """A number as the dashboard writes it."""
    found = re.search(r"[−+-]?[\d,.]+(e−?\d+)?[kM]?", text)
    assert found, f"no number in {text!r}"
    plain = found[0].replace("−", "-").replace(",", "")
    unit = {"k": 1e3, "M": 1e6}.get(plain[-1])
    return float(plain[:-1]) * unit if unit else float(plain)
