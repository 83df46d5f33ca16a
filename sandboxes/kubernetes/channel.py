"""The line to a pod's supervisor: one exec of the pod, over a websocket (v5.channel.k8s.io, or v4), reconnected whenever it is lost.

Each request is answered once, even if the line was lost in between: requests without an answer are sent again. Programs keep running (supervisor.py).

| waits for | unblocked by |
|---|---|
| an answer | the supervisor; `settings.ttl_s / 2` without a line; `_FRUITLESS` lines that brought no answer |
| a line | the greeting; `settings.ttl_s / 6` |
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from sandboxes.base import SandboxError, SandboxLost
from sandboxes.inside.frames import FrameTooLarge, Reader, frame
from sandboxes.kubernetes.api import Api, ApiError
from sandboxes.kubernetes.objects import BUNDLE, CONTAINER

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, STATUS = 0, 1, 2, 3
_PIECE = 1 << 16
_BEAT_S = 15.0
_AGAIN_S = 0.1
_FRUITLESS = 20
"""Consecutive lines that may end before any waiting request has its answer: the request itself may be the cause."""

Answer = tuple[dict[str, Any], bytes]


class Channel:
    """`pushed` receives the supervisor's unsolicited messages. `joined` is called on every new line, after the supervisor's greeting and before
    anything else is sent. `parted` is called when that line is lost."""

    def __init__(
        self,
        api: Api,
        pod: str,
        *,
        pushed: Callable[[dict[str, Any], bytes], Awaitable[None]],
        joined: Callable[[], Awaitable[None]],
        parted: Callable[[], Awaitable[None]],
    ) -> None:
        self._api, self._pod, self._pushed, self._joined, self._parted = api, pod, pushed, joined, parted
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[bytes, asyncio.Future[Answer]]] = {}
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._lock = asyncio.Lock()
        self._failed: SandboxError | None = None
        self._greeted = asyncio.Event()
        self.lines = 0
        """Number of lines so far. A line counts once the supervisor has sent its greeting."""
        self._answers = 0

    async def run(self, why_lost: Callable[[], Awaitable[SandboxError | None]]) -> None:
        """Keep the line until cancelled or abandoned. `why_lost` returns an error if the pod is gone for good, else None."""
        settings = self._api.settings
        since, fruitless = time.monotonic(), 0
        while True:
            lines, answers = self.lines, self._answers
            try:
                await self._line()
                since = time.monotonic()
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                line_error: SandboxError | None = SandboxLost(
                    f"the line to the pod {self._pod} is lost: {error or type(error).__name__}"
                )
            else:
                line_error = SandboxLost(f"the line to the pod {self._pod} is lost")
            await self._parted()
            if self.lines > lines:  # the line was up until now
                since = time.monotonic()
                fruitless = fruitless + 1 if self._waiting and self._answers == answers else 0
            cause = await why_lost()
            if cause is None and fruitless >= _FRUITLESS:
                cause = SandboxLost(
                    f"{line_error}: {fruitless} lines ended before the pod answered a request"
                )
            if cause is not None or time.monotonic() - since > settings.ttl_s / 2:
                self.give_up(cause or line_error or SandboxLost("lost"))
                return
            await asyncio.sleep(_AGAIN_S)

    def give_up(self, error: SandboxError) -> None:
        """Fail every waiting request, and every later one, with `error`."""
        self._failed = error
        for _, future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # mark it as retrieved: its waiter may be gone

    @property
    def failed(self) -> SandboxError | None:
        return self._failed

    async def _line(self) -> None:
        """Run one line, from connect to close."""
        query = [("command", word) for word in ("python3", "-IS", BUNDLE, "pipe")]
        query += [("container", CONTAINER), ("stdin", "1"), ("stdout", "1"), ("stderr", "1")]
        url = self._api.url(f"pods/{self._pod}/exec")
        patience_s = self._api.settings.ttl_s / 6  # so that one that is silent is tried again
        try:
            async with asyncio.timeout(patience_s):
                socket = await self._api.session.ws_connect(
                    url,
                    params=query,
                    protocols=PROTOCOLS,
                    headers=self._api.headers(),
                    max_msg_size=0,
                    heartbeat=_BEAT_S,
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.status == 403:
                raise SandboxError(
                    f"the Kubernetes API refuses pods/exec of {self._pod}: give its account create and get"
                ) from error
            raise
        except TimeoutError as error:
            raise TimeoutError(f"the Kubernetes API does not open it within {patience_s:g} s") from error
        try:
            if socket.protocol not in PROTOCOLS:
                raise SandboxError(
                    "the API server speaks no websocket protocol of pods/exec that is known here: it needs Kubernetes 1.30"
                )
            self._greeted = asyncio.Event()
            receiving = asyncio.create_task(self._receive(socket))
            try:
                greeting = asyncio.create_task(self._greeted.wait())
                try:  # wait until the supervisor answers, not only an exec that waits for it
                    await asyncio.wait(
                        (greeting, receiving), timeout=patience_s, return_when=asyncio.FIRST_COMPLETED
                    )
                finally:
                    greeting.cancel()
                if not self._greeted.is_set():
                    if not receiving.done():
                        raise TimeoutError(f"its supervisor does not answer within {patience_s:g} s")
                    await receiving  # raises the error that ended the line
                    return
                self._socket = socket
                self.lines += 1
                await self._joined()
                for data, future in list(self._waiting.values()):
                    if not future.done():
                        await self._send(data)
                await receiving
            finally:
                receiving.cancel()
        finally:
            self._socket = None
            await socket.close()

    async def _receive(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        frames, complaints = Reader(), b""
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            kind, data = message.data[0], message.data[1:]
            if kind == STDOUT:
                for header, body in frames.feed(data):
                    await self._take(header, body)
            elif kind == STDERR:
                complaints = (complaints + data)[-2000:]
            elif kind == STATUS:
                status = json.loads(data)
                if status.get("status") != "Success":
                    raise OSError(
                        f"{status.get('message', '')} {complaints.decode(errors='replace').strip()[-300:]}".strip()
                    )
                return

    async def _take(self, message: dict[str, Any], body: bytes) -> None:
        if "hello" in message:
            self._greeted.set()
        elif "id" in message:
            self._answers += 1
            known = self._waiting.pop(message["id"], None)
            if known is not None and not known[1].done():
                known[1].set_result((message, body))
        else:
            await self._pushed(message, body)

    async def _send(self, data: bytes) -> None:
        async with self._lock:  # frames must not mix
            socket = self._socket
            if socket is None:
                raise ConnectionResetError
            for at in range(0, len(data), _PIECE):
                await socket.send_bytes(b"\0" + data[at : at + _PIECE])

    async def tell(self, message: dict[str, Any], body: bytes = b"") -> None:
        """Send a message that has no answer. It is lost with the line."""
        try:
            await self._send(frame(message, body))
        except (OSError, aiohttp.ClientError):
            return

    async def ask(self, message: dict[str, Any], body: bytes = b"") -> Answer:
        """Send a request and return its answer. `SandboxError` if the line is lost for good, or the request too large."""
        if self._failed is not None:
            raise self._failed
        number = next(self._numbers)
        try:
            data = frame({**message, "id": number}, body)
        except FrameTooLarge as error:
            raise SandboxError(f"{error}: send fewer or smaller files") from error
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (data, future)
        try:
            await self.tell_raw(data)
            return await future
        finally:
            self._waiting.pop(number, None)

    async def tell_raw(self, data: bytes) -> None:
        try:
            await self._send(data)
        except (OSError, aiohttp.ClientError):
            return  # the next line sends it again


__all__ = ["ApiError", "Channel"]
