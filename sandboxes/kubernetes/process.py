"""A program in a pod, from its owner's side."""

from __future__ import annotations

import time
from typing import Any

import anyio

from sandboxes.base import ExecResult, KilledBy, SandboxError, same_kind
from sandboxes.kubernetes.channel import Channel


class PodProcess:
    """Implements `base.Process`. `task` and `stdin` are kept until the supervisor has certainly received them."""

    def __init__(self, channel: Channel, name: str, *, task: dict[str, Any], stdin: bytes) -> None:
        self._channel, self.name, self.task, self.stdin = channel, name, task, stdin
        self.kept = (bytearray(), bytearray())
        self._read = [0, 0]
        self._cpu_s = 0.0
        self._result: ExecResult | None = None
        self._error: SandboxError | None = None
        self._done, self._news = anyio.Event(), anyio.Event()
        self._began = self.last_output = time.monotonic()

    @property
    def over(self) -> bool:
        return self._done.is_set()

    def cpu_s(self) -> float:
        return self._result.cpu_s if self._result is not None else self._cpu_s

    def handle(self, message: dict[str, Any], body: bytes) -> None:
        """Take a message of the supervisor about this program."""
        if self.over:
            return
        if "cpu" in message:
            self._cpu_s = message["cpu"]
        for stream_index, key in enumerate(("out", "err")):
            # Otherwise data before it was lost, and will be sent again.
            if key in message and message["at"] <= len(self.kept[stream_index]):
                self.kept[stream_index].extend(body[len(self.kept[stream_index]) - message["at"] :])
                self.last_output = time.monotonic()
                self._wake()
        if "result" in message:
            self._end(message["result"])

    def lacks(self, message: dict[str, Any]) -> bool:
        """Whether this message is the result, but earlier output was lost with a line."""
        sizes = message.get("result", {}).get("sizes")
        return sizes is not None and any(
            len(stream) < size for stream, size in zip(self.kept, sizes, strict=True)
        )

    def _end(self, result: dict[str, Any]) -> None:
        if "failed" in result:
            self.fail(SandboxError(result["failed"]))
            return
        out, err = map(bytes, self.kept)
        reason = KilledBy(result["killed_by"])
        self._result = ExecResult(
            exit_code=result["code"],
            signal=result["signal"],
            stdout=out,
            stderr=err,
            truncated=result["truncated"],
            killed_by=reason,
            wall_s=result["wall_s"],
            cpu_s=result["cpu_s"],
        )
        self._finish()

    def fail(self, error: SandboxError) -> None:
        """End it with a failure of the platform."""
        if not self.over:
            self._error = error
            self._finish()

    def killed(self, reason: KilledBy) -> None:
        """End it because its whole pod was ended for its programs' use."""
        if not self.over:
            out, err = map(bytes, self.kept)
            wall_s = time.monotonic() - self._began
            self._result = ExecResult(
                exit_code=137,
                signal=9,
                stdout=out,
                stderr=err,
                truncated=False,
                killed_by=reason,
                wall_s=wall_s,
                cpu_s=self._cpu_s,
            )
            self._finish()

    def _finish(self) -> None:
        self._done.set()
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def read(self) -> tuple[bytes, bytes]:
        while True:
            out, err = (bytes(stream[at:]) for stream, at in zip(self.kept, self._read, strict=True))
            self._read = [len(stream) for stream in self.kept]
            if out or err or self.over:
                return out, err
            await self._news.wait()

    async def wait(self) -> ExecResult:
        await self._done.wait()
        if self._error is not None:
            raise same_kind(self._error) from self._error
        assert self._result is not None
        return self._result

    async def kill(self, reason: KilledBy = KilledBy.CALLER) -> ExecResult:
        lines = -1
        while not self.over:
            if self._channel.lines != lines:  # an order is lost with its line
                lines = self._channel.lines
                await self._channel.tell({"op": "kill", "program": self.name, "reason": reason.value})
            with anyio.move_on_after(0.5):
                await self._done.wait()
        return await self.wait()
