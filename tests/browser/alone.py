"""A dashboard over rows that a test wrote, without a stack behind them: for states that no short run of the loop would show."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.async_api import Browser

from tests.browser.visitor import Visitor, visiting
from tests.integration.web.rig import configured, dashboard


@dataclass(frozen=True, slots=True)
class Alone:
    """The address of the dashboard."""

    url: str
    address: str


@asynccontextmanager
async def looking(run: str, database_url: str, browser: Browser, directory: Path) -> AsyncIterator[Visitor]:
    """A visitor with access to `run`'s dashboard. Any complaint of the browser fails the test."""
    async with dashboard(configured(run, database_url), directory) as web:
        async with visiting(Alone(f"{web.address}/?token={web.token}", web.address), browser) as visitor:
            await visitor.enter()
            yield visitor
            assert visitor.complaints == [], visitor.complaints
