"""A program in a pod, as its owner sees it."""

from __future__ import annotations

import time
from typing import Any

import anyio

from sandboxes.base import ExecResult, KilledBy, SandboxError
from sandboxes.kubernetes.channel import Channel


class PodProcess:
    """Implements `base.Process`. `task` and `stdin` are kept until the keeper is known to have them."""

    def __init__(self, channel: Channel, name: str, task: dict[str, Any], stdin: bytes) -> None:
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

    def hear(self, told: dict[str, Any], body: bytes) -> None:
        """What the keeper says of it."""
        if self.over:
            return
        if "cpu" in told:
            self._cpu_s = told["cpu"]
        for which, key in enumerate(("out", "err")):
            if key in told and told["at"] <= len(self.kept[which]):  # else something was lost: it comes again
                self.kept[which].extend(body[len(self.kept[which]) - told["at"] :])
                self.last_output = time.monotonic()
                self._wake()
        if "result" in told:
            self._end(told["result"])

    def lacks(self, told: dict[str, Any]) -> bool:
        """Whether this is the result, and output before it was lost with a line."""
        sizes = told.get("result", {}).get("sizes")
        return sizes is not None and any(
            len(kept) < size for kept, size in zip(self.kept, sizes, strict=True)
        )

    def _end(self, result: dict[str, Any]) -> None:
        if "failed" in result:
            self.fail(SandboxError(result["failed"]))
            return
        out, err = map(bytes, self.kept)
        reason = KilledBy(result["killed_by"])
        self._result = ExecResult(
            result["code"], out, err, result["truncated"], reason, result["wall_s"], result["cpu_s"]
        )
        self._finish()

    def fail(self, error: SandboxError) -> None:
        """The platform lost it."""
        if not self.over:
            self._error = error
            self._finish()

    def killed(self, reason: KilledBy) -> None:
        """Its whole pod was ended for what programs used."""
        if not self.over:
            out, err = map(bytes, self.kept)
            wall_s = time.monotonic() - self._began
            self._result = ExecResult(137, out, err, False, reason, wall_s, self._cpu_s)
            self._finish()

    def _finish(self) -> None:
        self._done.set()
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def read(self) -> tuple[bytes, bytes]:
        while True:
            out, err = (bytes(kept[at:]) for kept, at in zip(self.kept, self._read, strict=True))
            self._read = [len(kept) for kept in self.kept]
            if out or err or self.over:
                return out, err
            await self._news.wait()

    async def wait(self) -> ExecResult:
        await self._done.wait()
        if self._error is not None:
            raise SandboxError(str(self._error)) from self._error
        assert self._result is not None
        return self._result

    async def kill(self, reason: KilledBy = KilledBy.CALLER) -> ExecResult:
        lines = -1
        while not self.over:
            if self._channel.lines != lines:  # an order goes down with its line
                lines = self._channel.lines
                await self._channel.tell({"op": "kill", "program": self.name, "reason": reason.value})
            with anyio.move_on_after(0.5):
                await self._done.wait()
        return await self.wait()
