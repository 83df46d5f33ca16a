"""Exported logs in Inspect View itself: its own server, its own page."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from playwright.async_api import Browser, expect

from orchestrator.deploy.embedded.ports import free_port
from orchestrator.export.inspect_log import Inspect
from tests.integration.export.rig import ExportedRun, exported_run
from tests.waiting import eventually

__all__ = ["exported_run"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("browser")]


@asynccontextmanager
async def inspect_view(logs: Path, home: Path) -> AsyncIterator[str]:
    """The server's address, while it runs."""
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

            async def listens() -> bool:
                try:
                    await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
                except OSError:
                    assert process.returncode is None, "it ended"
                    return False
                return True

            await eventually(listens, within_s=60, every_s=0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


async def test_a_log_opens_with_its_samples_scores_and_conversation(
    exported_run: ExportedRun, browser: Browser, tmp_path: Path
) -> None:
    await exported_run.export(Inspect(), tmp_path / "logs")
    async with inspect_view(tmp_path / "logs", tmp_path) as address:
        context = await browser.new_context(viewport={"width": 1280, "height": 900})
        page = await context.new_page()
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        await page.goto(address)
        body = page.locator("body")
        await expect(body).to_contain_text("train-general", timeout=30_000)
        await page.get_by_text("train-coding").first.click()
        for shown in ("penstock/exported", "performance", "0.25", "8 Samples"):
            await expect(body).to_contain_text(shown)
        await page.get_by_text("first g1").first.click()
        for shown in ("be brief", "count the files", "look", "bash", "a b", "agent helper", "rewrite main"):
            await expect(body).to_contain_text(shown)
        assert wrong == []
        await context.close()
