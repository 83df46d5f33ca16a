"""A visitor at a browser: opens pages, presses keys and records every complaint of the browser."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from playwright.async_api import Browser, ConsoleMessage, Locator, Page, Request, expect

WIDE, NARROW = (1280, 900), (360, 740)
LARGE, PHONE = (1440, 900), (390, 844)
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
# Content that a person would have to scroll sideways to see. A line cut with dots has its full text as its title.
OUTSIDE = """() => {
  const width = document.documentElement.clientWidth;
  const cut = (one) => {
    if (one.closest(".unseen, .skip") || one.parentElement.closest("svg")) return true;
    for (let up = one.parentElement; up !== document.body; up = up.parentElement) if (getComputedStyle(up).textOverflow === "ellipsis") return true;
    return false;
  };
  return [...document.querySelectorAll("body *")].filter((one) => {
    const box = one.parentElement && one.getBoundingClientRect();
    return box.width > 0 && box.height > 0 && (box.right > width + 1 || box.left < -1) && !cut(one);
  }).slice(0, 5).map((one) => one.outerHTML.slice(0, 160));
}"""
# Tiles of one grid by rows: finds a last row of one tile below a row of several.
ORPHANS = """() => [...document.querySelectorAll("main .figures, main .grid")].filter((grid) => {
  const tops = [...grid.children].filter((one) => one.offsetWidth).map((one) => one.getBoundingClientRect().top);
  return tops.length > 1 && tops.filter((top) => top === tops.at(-1)).length === 1 && tops.filter((top) => top === tops[0]).length > 1;
}).map((grid) => grid.textContent.slice(0, 160))"""
# Swatches without a colour: they have neither ground, line nor shadow.
COLOURLESS = """() => {
  const clear = (colour) => /^rgba\\(.*, 0\\)$|^transparent$|\\/ 0\\)$/.test(colour);
  const none = (style) => style.backgroundImage === "none" && clear(style.backgroundColor) && style.boxShadow === "none" &&
    parseFloat(style.borderBottomWidth) < 1;
  const before = [...document.querySelectorAll(".chip, .legend-item")].filter((one) => none(getComputedStyle(one, "::before")));
  const scales = [...document.querySelectorAll(".scale i")].filter((one) => none(getComputedStyle(one)));
  return [...before, ...scales].map((one) => one.outerHTML.slice(0, 160));
}"""
# Texts whose contrast with their ground is below 4.5 to 1 (WCAG 2.2, AA), the worst of each kind. Disabled and dimmed
# tokens are exempt on purpose: their ground is the heat of their probability.
FAINT = """() => {
  const parse = (colour) => {
    const n = colour.match(/[\\d.]+/g).map(Number), unit = colour.startsWith("color(") ? 255 : 1;
    return [n[0] * unit, n[1] * unit, n[2] * unit, n[3] ?? 1];
  };
  const light = (rgb) => rgb.slice(0, 3).map((one) => one / 255).map((one) => one <= .03928 ? one / 12.92 : ((one + .055) / 1.055) ** 2.4)
    .reduce((sum, one, i) => sum + one * [.2126, .7152, .0722][i], 0);
  const over = (above, below) => [0, 1, 2].map((i) => above[i] * above[3] + below[i] * (1 - above[3]));
  const ground = (one) => {
    const all = [];
    for (let up = one; up; up = up.parentElement) all.unshift(parse(getComputedStyle(up).backgroundColor));
    return all.reduce((below, above) => over(above, below), [255, 255, 255]);
  };
  const found = {};
  for (const one of document.querySelectorAll("body *")) {
    const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !one.offsetWidth || one.closest("svg, :disabled, .unseen, .skip, .k")) continue;
    const below = ground(one), both = [light(below), light(over(parse(getComputedStyle(one).color), below))].sort((a, b) => a - b);
    const ratio = (both[1] + .05) / (both[0] + .05), name = `${one.tagName}.${one.className}`;
    if (ratio < 4.5 && !(found[name]?.ratio <= ratio)) found[name] = { ratio, text: one.textContent.slice(0, 40) };
  }
  return Object.entries(found).map(([name, one]) => `${name} ${one.ratio.toFixed(2)}: ${one.text}`);
}"""
# Content that lies beyond its panel, or has no room for a word (one letter a line).
CRAMPED = """() => [...document.querySelectorAll("main .panel *")].filter((one) => {
  const own = [...one.childNodes].filter((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own.length || !one.offsetWidth || one.closest("svg, .unseen")) return false;
  const edge = one.closest(".panel").getBoundingClientRect().right + 1, style = getComputedStyle(one), least = parseFloat(style.fontSize) * 2;
  const range = document.createRange();
  return own.some((node) => {
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect(), cut = one.closest(".table") && getComputedStyle(one.closest(".table")).overflowX === "auto";
    return (box.right > edge && !cut && style.textOverflow !== "ellipsis" && style.overflowX === "visible") ||
      (node.textContent.trim().length > 2 && box.width < least / 2 && box.height > 2.5 * parseFloat(style.fontSize));
  });
}).slice(0, 5).map((one) => one.outerHTML.slice(0, 160))"""
# Pixels of a canvas in the colour of each of its chart's lines. Thin lines are left out: their colour mixes with the pixels below.
INK = """(figure) => {
  const canvas = figure.querySelector("canvas"), drawn = {};
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  for (const line of figure.querySelectorAll(".legend-item:not(.thin)")) {
    const hex = getComputedStyle(line).getPropertyValue("--c").trim();
    const rgb = hex.match(/[0-9a-f]{2}/gi).map((part) => parseInt(part, 16));
    let n = 0;
    for (let at = 0; at < data.length; at += 4)
      if (data[at + 3] > 100 && rgb.every((part, i) => Math.abs(part - data[at + i]) < 6)) n += 1;
    drawn[line.firstChild.textContent] = n;
  }
  return drawn;
}"""
FOCUS = """() => {
  const one = document.activeElement, style = getComputedStyle(one);
  return one !== document.body && style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
}"""

expect.set_options(timeout=PATIENCE_MS)


class Shown(Protocol):
    """The dashboard of one run."""

    @property
    def url(self) -> str:
        """The dashboard's URL, with its token."""
        ...

    @property
    def address(self) -> str:
        """The dashboard's URL, without a slash at its end."""
        ...


@dataclass(kw_only=True)  # playwright marks each listening object
class Visitor:
    """One window. `complaints`: errors and warnings of the console, of scripts and of the policy, and requests to other hosts."""

    page: Page
    world: Shown
    complaints: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()
    """Expected parts of console messages: the console reports each request that is refused or that finds its server away."""

    @property
    def main(self) -> Locator:
        return self.page.locator("main")

    @property
    def heading(self) -> Locator:
        return self.main.locator("h1").first

    @property
    def banner(self) -> Locator:
        """The banner about services that are away."""
        return self.page.locator(".banner")

    @property
    def light(self) -> Locator:
        """Whether the page follows the run."""
        return self.page.locator(".light")

    async def enter(self) -> None:
        """Enter by the URL that `penstock up` printed."""
        assert (await self.page.context.request.get(self.world.url)).ok

    async def open(self, path: str) -> None:
        """Open a page by its address."""
        await self.page.goto(self.world.address + path)
        await self.settled()

    async def settled(self) -> None:
        """Wait until the page has a heading and no pending request."""
        await expect(self.main.locator(".loading, [aria-busy]")).to_have_count(0)
        await expect(self.heading).to_have_text(re.compile(r"\S"))

    async def at(self, path: str) -> None:
        """Wait until the address is this one, with any parameters, and its page is there."""
        await expect(self.page).to_have_url(self._address(path))
        await self.settled()

    def _address(self, path: str) -> re.Pattern[str]:
        return re.compile(re.escape(self.world.address + path) + r"(\?.*)?$")

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.page.keyboard.press(key)

    async def chord(self, letter: str, path: str) -> None:
        """Press g and a letter, and wait for the page that they open. A busy machine may press the letter after the page forgot the g."""
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
        """Elements wider than the screen, if the document is wider."""
        found = await self.page.evaluate(OVERFLOW)
        return found["who"] or ["something"] if found["by"] > 0 else []

    async def outside(self) -> list[str]:
        """Content outside the screen, also where it can be scrolled to."""
        return list(await self.page.evaluate(OUTSIDE))

    async def orphans(self) -> list[str]:
        """Grids whose last row has one tile alone."""
        return list(await self.page.evaluate(ORPHANS))

    async def colourless(self) -> list[str]:
        """Swatches of legends that are invisible."""
        return list(await self.page.evaluate(COLOURLESS))

    async def ink(self, chart: Locator) -> dict[str, int]:
        """The lines of a chart with how many pixels are of their colour."""
        return dict(await chart.evaluate(INK))

    async def faint(self) -> list[str]:
        """Texts that are hard to read on their ground."""
        return list(await self.page.evaluate(FAINT))

    async def cramped(self) -> list[str]:
        """Texts beyond the edge of their panel, or written a letter a line."""
        return list(await self.page.evaluate(CRAMPED))

    async def picture(self, directory: Path | None, name: str) -> None:
        """The whole page, at its full height: browsers do not lay out content that is out of sight."""
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
        """The texts of all elements of the page that match now. The caller has waited for the first."""
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

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not any(part in message.text for part in self.expected):
            self.complaints.append(f"console {message.type}: {message.text} ({message.location.get('url')})")

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.world.address + "/", "data:")):
            self.complaints.append(f"request to {request.url}")


@asynccontextmanager
async def visiting(world: Shown, browser: Browser, theme: str = "light") -> AsyncIterator[Visitor]:
    """A window that shares nothing with others: no cookie yet."""
    width, height = WIDE
    context = await browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if theme == "dark" else "light",
        reduced_motion="reduce",
    )
    context.set_default_timeout(PATIENCE_MS)
    page = await context.new_page()
    visitor = Visitor(page=page, world=world)
    page.on("console", visitor._console)
    page.on("pageerror", lambda error: visitor.complaints.append(f"script: {error}"))
    page.on("request", visitor._request)
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
