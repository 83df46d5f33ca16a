"""A dashboard on a real database, as a browser finds it: an address, a token, a session that keeps cookies."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import anyio

from orchestrator.settings.config import Config
from orchestrator.web.server import WebSettings, serve
from tests.waiting import eventually


@dataclass(slots=True, kw_only=True)
class Dashboard:
    """`address` has no slash at its end; `token` lets in. `session` keeps cookies, and follows no redirect by itself."""

    address: str
    token: str
    session: aiohttp.ClientSession
    directory: Path

    @property
    def bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    async def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """(status, JSON) for a client with the token."""
        headers = self.bearer if headers is None else headers
        async with self.session.get(self.address + path, headers=headers, allow_redirects=False) as response:
            return response.status, await response.json(content_type=None)

    async def post(
        self, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """(status, JSON) for a client with the token."""
        headers = self.bearer if headers is None else headers
        async with self.session.post(
            self.address + path, json={} if body is None else body, headers=headers
        ) as response:
            return response.status, await response.json(content_type=None)

    async def until(self, path: str, status: int) -> Any:
        """The answer, as soon as it has this status."""
        read = partial(self.get, path)
        _, body = await eventually(read, lambda found: found[0] == status, every_s=0.1)
        return body


def configured(run: str, database_url: str, nats_url: str = "", **sections: Any) -> Config:
    """A configuration with these services."""
    services = {"database_url": database_url, "nats_url": nats_url}
    return Config.model_validate({"run": {"name": run}, "services": services, **sections})


@asynccontextmanager
async def dashboard(config: Config, directory: Path, **settings: Any) -> AsyncIterator[Dashboard]:
    """A dashboard that serves while the context is open; its files lie in `directory`."""
    given = WebSettings(
        config=config, token_file=directory / "web.token", url_file=directory / "web.url", **settings
    )
    jar = aiohttp.CookieJar(unsafe=True)  # cookies of an IP address
    async with anyio.create_task_group() as tasks, aiohttp.ClientSession(cookie_jar=jar) as session:
        tasks.start_soon(serve, given)
        # the file may be that of an earlier one
        await eventually(lambda: _answers(given.url_file, session))
        address, _, token = given.url_file.read_text().strip().partition("/?token=")
        yield Dashboard(address=address, token=token, session=session, directory=directory)
        tasks.cancel_scope.cancel()


async def _answers(file: Path, session: aiohttp.ClientSession) -> bool:
    try:
        async with session.get(file.read_text().partition("/?")[0] + "/healthz") as response:
            return response.status == 200
    except (OSError, aiohttp.ClientError, ValueError):
        return False
