"""The server of the page, or its database, dies: the page shows that, and continues by itself."""

import os
import signal

import pytest
from playwright.async_api import expect

from tests.browser.visitor import Visitor
from tests.browser.world import World, a_task

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(300), pytest.mark.tier("browser")]

# All texts of the banner and the light from now on, however short.
LISTEN = """() => {
  const banner = document.querySelector(".banner"), light = document.querySelector(".light");
  window.shown = [];
  new MutationObserver(() => window.shown.push(banner.hidden ? "" : banner.textContent)).observe(banner, { attributes: true, childList: true });
  new MutationObserver(() => window.shown.push(light.textContent)).observe(light, { attributes: true, childList: true });
}"""
AWAY = ("Failed to load resource", "net::ERR_")


async def until_well(visitor: Visitor) -> str:
    """Wait until the page follows the run again; returns all texts of the banner and the light until then."""
    await expect(visitor.light).to_have_attribute("data-state", "live")
    await expect(visitor.banner).to_be_hidden()
    return "\n".join(await visitor.page.evaluate("window.shown"))


async def new_work_is_shown(world: World, visitor: Visitor) -> None:
    cells = await visitor.main.locator(".strip-cell").count()
    await world.submit(a_task("Say it after all."))
    await expect(visitor.main.locator(".strip-cell")).to_have_count(cells + 1)


async def test_a_killed_dashboard_comes_back_at_the_same_address_and_the_open_page_goes_on(
    world: World, visitor: Visitor
) -> None:
    visitor.expected = AWAY
    address = world.address
    await visitor.open("/queue")
    await expect(visitor.light).to_have_attribute("data-state", "live")
    await visitor.page.evaluate(LISTEN)
    killed = world.stack.kill("web")
    await expect(visitor.light).to_have_attribute("data-state", "away")
    await world.stack.back("web", killed)
    assert world.address == address
    assert "away" in await until_well(visitor)
    await new_work_is_shown(world, visitor)


async def test_while_postgres_is_away_the_page_says_so_and_goes_on_when_it_is_back(
    world: World, visitor: Visitor
) -> None:
    visitor.expected = AWAY
    await world.until_at_rest()
    await visitor.open("/queue")
    await expect(visitor.light).to_have_attribute("data-state", "live")
    await expect(visitor.main.locator(".figure dd").first).to_be_attached()
    before = await visitor.texts(".figure dd")
    await visitor.page.evaluate(LISTEN)
    supervisor = world.stack.status().supervisor.pid
    os.kill(supervisor, signal.SIGSTOP)  # else Postgres may be back before the outage is noticed
    try:
        killed = world.stack.kill("postgres")
        await expect(visitor.banner).to_contain_text("PostgreSQL")
        await expect(visitor.light).to_have_attribute("data-state", "away")
        assert await visitor.texts(".figure dd") == before, "what it knew stays"
    finally:
        os.kill(supervisor, signal.SIGCONT)
    await world.stack.back("postgres", killed)
    assert "PostgreSQL" in await until_well(visitor)
    await new_work_is_shown(world, visitor)
    await visitor.open("/run")
    await expect(visitor.main.locator(".chart canvas").first).to_be_attached()
