"""The tier `browser` (./ops/test --tier browser) alone: a real run, its dashboard, and a headless Chromium that looks at it."""

import os
import shutil
from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest
from playwright.async_api import Browser, async_playwright

from tests.browser.visitor import Visitor, visiting
from tests.browser.world import World, living
from tests.e2e.conftest import model

__all__ = ["model"]

collect_ignore_glob = [] if os.environ.get("PENSTOCK_TIER") == "browser" else ["test_*.py"]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """One event loop for all: the run, the browser and its listeners live as long as the session."""
    return "asyncio"


@pytest.fixture(scope="session")
async def world(anyio_backend: str, model: Path) -> AsyncIterator[World]:
    async with living(model) as world:
        yield world


@pytest.fixture(scope="session")
async def browser(anyio_backend: str) -> AsyncIterator[Browser]:
    chromium = shutil.which("chromium")
    assert chromium, "chromium is not on the PATH: ops/setup_browser installs it"
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        await browser.close()


@pytest.fixture
async def visitor(world: World, browser: Browser) -> AsyncIterator[Visitor]:
    """A visitor who has opened the printed URL. Any complaint of the browser fails the test."""
    async with visiting(world, browser) as visitor:
        await visitor.enter()
        yield visitor
        assert visitor.complaints == []


@pytest.fixture
def pictures() -> Path | None:
    """Where pictures of every view go, for a person to look at."""
    named = os.environ.get("PENSTOCK_PICTURES")
    if named:
        Path(named).mkdir(parents=True, exist_ok=True)
    return Path(named) if named else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows the end of the dashboard's log, and of every log if the run did not come up."""
    report = yield
    world = getattr(item, "funcargs", {}).get("world")
    if report.failed and isinstance(world, World):
        log = world.stack.home.layout.log("web")
        report.sections.append((log.name, log.read_text(errors="replace")[-4000:]))
    return report
