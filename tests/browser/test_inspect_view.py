"""Exported logs in Inspect View itself: its own server, its own page."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from playwright.async_api import Browser, expect

from orchestrator.embedded.ports import free_port
from orchestrator.export.inspect_log import Inspect
from tests.integration.export_rig import Told, told

__all__ = ["told"]
pytestmark = [pytest.mark.anyio, pytest.mark.services]


@asynccontextmanager
async def inspect_view(logs: Path, home: Path) -> AsyncIterator[str]:
    """Its address, while it runs."""
    port = free_port()
    command = [
        Path(sys.executable).with_name("inspect").as_posix(),
        "view",
        "start",
        "--log-dir",
        logs.as_posix(),
        "--port",
        str(port),
    ]
    environment = {"HOME": home.as_posix(), "PATH": "/usr/bin:/bin"}
    async with await anyio.open_process(command, env=environment, cwd=home) as process:
        try:
            with anyio.fail_after(60):
                while True:
                    try:
                        await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
                        break
                    except OSError:
                        assert process.returncode is None, "it ended"
                        await anyio.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


async def test_a_log_opens_with_its_samples_scores_and_conversation(
    told: Told, browser: Browser, tmp_path: Path
) -> None:
    await told.export(Inspect(), tmp_path / "logs")
    async with inspect_view(tmp_path / "logs", tmp_path) as address:
        context = await browser.new_context(viewport={"width": 1280, "height": 900})
        page = await context.new_page()
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        await page.goto(address)
        body = page.locator("body")
        await expect(body).to_contain_text("train-general", timeout=30_000)
        await page.get_by_text("train-coding").first.click()
        for said in ("penstock/told", "performance", "0.25", "8 Samples"):
            await expect(body).to_contain_text(said)
        await page.get_by_text("first g1").first.click()
        for said in ("be brief", "count the files", "look", "bash", "a b", "agent helper", "rewrite main"):
            await expect(body).to_contain_text(said)
        assert wrong == []
        await context.close()
