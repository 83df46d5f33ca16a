"""The part of the Kubernetes API that sandboxes need, over HTTPS.

Every transient failure is retried: throttling (429 with Retry-After), a busy or absent server, a lost connection. So a request that created
an object may be sent twice, and the second answer is 409. The caller decides whether the existing object is its own.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp

from sandboxes.base import SandboxError, SandboxLost
from sandboxes.kubernetes.settings import KubernetesSettings

AGAIN = frozenset({429, 500, 502, 503, 504})
_FIRST_S, _MAX_S = 0.1, 5.0
_ANSWER_S = 30.0
_AT_ONCE = 32

Object = dict[str, Any]


class ApiError(SandboxError):
    """Signals that the API server refused. `status`: of HTTP; `reason`: the server's reason, such as AlreadyExists."""

    def __init__(self, what: str, status: int, body: Object) -> None:
        super().__init__(
            f"the Kubernetes API refuses to {what}: {status} {body.get('reason', '')}: {body.get('message', '')}"
        )
        self.status = status
        self.reason: str = body.get("reason", "")


class Api:
    """One API server and one namespace. It stays open while at least one user is `using` it."""

    def __init__(self, settings: KubernetesSettings) -> None:
        self.settings = settings
        self.server_time_s = 0.0
        """Time of the last answer, by the server's own clock; seconds since 1970."""
        self._session: aiohttp.ClientSession | None = None
        self._users = 0
        self._ssl: ssl.SSLContext | None = None

    @asynccontextmanager
    async def using(self) -> AsyncIterator[None]:
        if self._users == 0:
            if self._ssl is None:
                try:
                    self._ssl = ssl.create_default_context(cafile=self.settings.authority)
                except OSError as error:
                    raise ValueError(f"ca_file: {self.settings.authority} cannot be read: {error}") from error
            connector = aiohttp.TCPConnector(limit=0, ssl=self._ssl)
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_ANSWER_S)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
            self._slots = asyncio.Semaphore(_AT_ONCE)
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self._users == 0 and self._session is not None:
                session, self._session = self._session, None
                await session.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        assert self._session is not None
        return self._session

    def url(self, path: str, group: str = "api/v1") -> str:
        return f"{self.settings.server}/{group}/namespaces/{self.settings.space}/{path}"

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.settings.token()}", "Accept": "application/json"}

    async def request(
        self,
        method: str,
        path: str,
        what: str,
        *,
        body: Object | None = None,
        query: dict[str, str] | None = None,
        patience_s: float | None = None,
    ) -> Object:
        """Send a request and return the answer. `ApiError` for a refusal, `SandboxError` without an answer for `patience_s` (default: `start_s`)."""
        deadline = time.monotonic() + (self.settings.start_s if patience_s is None else patience_s)
        pause = _FIRST_S
        while True:
            wait_s = pause * random.uniform(0.5, 1.5)
            try:
                async with self._slots:
                    async with self.session.request(
                        method,
                        self.url(path),
                        json=body,
                        params=query,
                        headers=self.headers(),
                        timeout=aiohttp.ClientTimeout(total=_ANSWER_S),
                    ) as answer:
                        content = await _object(answer)
                        self._clock(answer)
                if answer.status < 400:
                    return content
                error: Exception = ApiError(what, answer.status, content)
                if answer.status not in AGAIN:
                    raise error
                retry_after = answer.headers.get("Retry-After", "")
                wait_s = (
                    max(wait_s, float(retry_after))
                    if retry_after.isascii() and retry_after.isdigit()
                    else wait_s
                )
            except (aiohttp.ClientError, TimeoutError, OSError) as failure:
                error = failure
            if time.monotonic() + wait_s > deadline:
                detail = str(error) or type(error).__name__
                raise (
                    error
                    if isinstance(error, ApiError)
                    else SandboxLost(f"the Kubernetes API does not answer: {detail}")
                )
            await asyncio.sleep(wait_s)
            pause = min(2 * pause, _MAX_S)

    @asynccontextmanager
    async def watch(self, path: str, query: dict[str, str]) -> AsyncIterator[AsyncIterator[Object]]:
        """Events as they arrive. Ends when the server ends it, or when the connection is lost."""
        timeout = aiohttp.ClientTimeout(total=None, sock_read=_ANSWER_S)
        params = {
            **query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(_ANSWER_S) - 5),
        }
        async with self.session.get(
            self.url(path), params=params, headers=self.headers(), timeout=timeout
        ) as answer:
            if answer.status >= 400:
                raise ApiError("watch", answer.status, await _object(answer))
            yield _lines(answer)

    def _clock(self, answer: aiohttp.ClientResponse) -> None:
        if (date := answer.headers.get("Date")) is not None:
            self.server_time_s = parsedate_to_datetime(date).timestamp()


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[Object]:
    rest = b""
    async for chunk in answer.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield json.loads(line)


async def _object(answer: aiohttp.ClientResponse) -> Object:
    try:
        content = json.loads(await answer.read())
    except ValueError:
        content = None
    return content if isinstance(content, dict) else {"message": f"no JSON object, status {answer.status}"}
