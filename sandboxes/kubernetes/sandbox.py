"""An open sandbox in a pod; implements `base.Sandbox`."""

from __future__ import annotations

import base64
import itertools
import os
import stat
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from sandboxes.base import (
    AnyFile,
    ArtifactLimits,
    Artifacts,
    ExecResult,
    File,
    KilledBy,
    Lost,
    PathRefused,
    Process,
    RefusedReason,
    SandboxError,
    SandboxSpec,
)
from sandboxes.directory import locate
from sandboxes.execution import to_its_end
from sandboxes.inside.frames import max_body
from sandboxes.kubernetes.channel import Answer, Channel
from sandboxes.kubernetes.process import PodProcess
from sandboxes.unstartable import Unstartable, unstartable

_REQUEST_BYTES = 16 << 20
_PLACES = {
    "app": "/app",
    "tmp": "/tmp",
    "logs": "/logs",
    "home": "/home/agent",
    "tests": "/tests",
    "solution": "/solution",
}


class PodSandbox:
    """One sandbox. `id` is the pod's name."""

    def __init__(self, name: str, spec: SandboxSpec, *, gateway: Path | None, system: str) -> None:
        self.id = name
        self.system = system
        self.spec = spec
        self.limits = spec.limits
        self.channel: Channel | None = None
        self.out_of: KilledBy | None = None
        self._gateway = gateway
        self._numbers = itertools.count(1)
        self._programs: dict[str, PodProcess] = {}
        self._streams: dict[int, anyio.abc.ByteStream] = {}
        self._tasks: anyio.abc.TaskGroup | None = None

    @property
    def line(self) -> Channel:
        if self._tasks is None or self.channel is None:
            raise ValueError(f"sandbox {self.id} is closed")
        return self.channel

    def path(self, inside: str) -> str:
        return inside

    def opened(self, tasks: anyio.abc.TaskGroup) -> None:
        """Call when the line is up: programs can now run, and connections be forwarded to the gateway, in `tasks`."""
        self._tasks = tasks

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
    ) -> ExecResult:
        return await to_its_end(await self.start(argv, timeout_s=timeout_s, env=env, cwd=cwd, stdin=stdin))

    async def start(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
    ) -> Process:
        cwd = self.spec.cwd if cwd is None else cwd
        if not argv or not cwd.startswith("/"):
            raise ValueError(
                f"a program needs arguments and an absolute directory, not {argv!r:.80} in {cwd!r:.80}"
            )
        line = self.line
        if (reason := unstartable(argv)) is not None:
            return Unstartable(reason)
        if len(stdin or b"") > max_body():
            return Unstartable(f"its input has more than {max_body():,} bytes")
        # JSON has no infinity, and the pod does not live this long.
        wall_s = min(self.limits.wall_s if timeout_s is None else timeout_s, 1e9)
        task = {
            "argv": list(argv),
            "env": dict(env or {}),
            "cwd": cwd,
            "timeout_s": wall_s,
            "limits": asdict(self.limits),
            "background": self.spec.background,
        }
        process = PodProcess(line, f"{next(self._numbers)}", task=task, stdin=stdin or b"")
        if self.out_of is not None:
            process.killed(self.out_of)
        elif line.failed is not None:
            raise line.failed
        else:
            self._programs[process.name] = process
            await line.tell(_start(process), process.stdin)
        return process

    async def joined(self) -> None:
        """On a new line: repeat the messages that may have been lost with the last one, and request the messages that were missed."""
        assert self.channel is not None
        for process in list(self._programs.values()):
            await self.channel.tell(_start(process), process.stdin)
            await self.channel.tell(_resume(process))

    async def parted(self) -> None:
        """The line is lost: close the streams that were forwarded over it."""
        for stream in list(self._streams.values()):
            await stream.aclose()
        self._streams.clear()

    async def on_message(self, message: dict[str, Any], body: bytes) -> None:
        assert self.channel is not None
        if "stream" in message:
            await self._lead(message, body)
            return
        process = self._programs.get(message["program"])
        if process is None:
            return
        if process.lacks(message):
            await self.channel.tell(_resume(process))
            return
        process.handle(message, body)
        if process.over:
            del self._programs[process.name]
            await self.channel.tell({"op": "forget", "program": process.name})

    def lost(self, error: SandboxError) -> None:
        """The pod is gone, or cannot be reached any more."""
        for process in self._programs.values():
            if self.out_of is not None:
                process.killed(self.out_of)
            else:
                process.fail(error)
        self._programs.clear()

    async def _lead(self, message: dict[str, Any], body: bytes) -> None:
        """Forward a program's connection to the gateway, over the line."""
        number = message["stream"]
        stream = self._streams.get(number)
        if message.get("open") and self._tasks is not None:
            assert self._gateway is not None and self.channel is not None
            try:
                stream = self._streams[number] = await anyio.connect_unix(self._gateway)
            except OSError:
                await self.channel.tell({"op": "close", "stream": number})
                return
            self._tasks.start_soon(self._answer, number, stream)
        elif message.get("close"):
            if stream is not None and isinstance(stream, anyio.abc.SocketStream | anyio.abc.UNIXSocketStream):
                await stream.send_eof()
        elif stream is not None:
            try:
                await stream.send(body)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return

    async def _answer(self, number: int, stream: anyio.abc.ByteStream) -> None:
        assert self.channel is not None
        try:
            async for data in stream:
                await self.channel.tell({"op": "data", "stream": number}, data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        finally:
            self._streams.pop(number, None)
            with anyio.CancelScope(shield=True), anyio.move_on_after(1):
                await stream.aclose()
                await self.channel.tell({"op": "close", "stream": number})

    async def put(
        self,
        files: Mapping[str, AnyFile],
        *,
        links: Mapping[str, str] | None = None,
        modes: Mapping[str, int] | None = None,
    ) -> None:
        await self.place(files, modes=modes, work_links=links)

    async def place(
        self,
        files: Mapping[str, AnyFile],
        directories: Sequence[str] = (),
        binds: Mapping[Path, str] | None = None,
        *,
        modes: Mapping[str, int] | None = None,
        work_links: Mapping[str, str] | None = None,
    ) -> None:
        """Send the spec's files, directories and links, and copies of bound files; files in requests of about `_REQUEST_BYTES`.
        `PathRefused` for a file that is too large for one request."""
        links: list[list[Any]] = []
        batch = _Batch(self._request, bound=list((binds or {}).values()))
        for inside, file in files.items():
            base, parts = _locate(inside)
            await batch.add(base, parts, file)
        for outside, inside in (binds or {}).items():
            for parts, found in await anyio.to_thread.run_sync(partial(_all_below, outside)):
                if isinstance(found, File):
                    await batch.add(inside, parts, found)
                else:
                    links.append([inside, parts, found])
        message = {
            "links": links,
            "directories": [_locate(inside) for inside in directories],
            "modes": [[*_locate(inside), mode] for inside, mode in (modes or {}).items()],
            "work_links": [[*_locate(inside), target] for inside, target in (work_links or {}).items()],
        }
        await batch.send(message)

    async def get(self, path: str, *, max_bytes: int = 8 << 20) -> bytes:
        base, parts = _locate(path)
        return (await self._request({"op": "get", "base": base, "parts": parts, "most": max_bytes}))[1]

    async def changed(self, limits: ArtifactLimits | None = None) -> Artifacts:
        fields = asdict(replace(limits or ArtifactLimits(), memory_bytes=None))
        reply, body = await self._request(
            {"op": "changed", "limits": {**fields, "skip": sorted(fields["skip"])}}
        )
        found: dict[str, dict[str, AnyFile]] = {"added": {}, "modified": {}}
        at = 0
        for kind, path, mode, size in reply["files"]:
            found[kind][path] = File(body[at : at + size], mode)
            at += size
        refused = tuple((_path(path), RefusedReason[reason]) for path, reason in reply["left"])
        counts = {RefusedReason[reason]: count for reason, count in reply["counts"].items()}
        return Artifacts(
            added=found["added"],
            modified=found["modified"],
            deleted=tuple(reply["deleted"]),
            refused=refused,
            complete=reply["complete"],
            counts=counts,
            links=reply.get("links", {}),
            directories=reply.get("directories", {}),
            lost=tuple((_path(path), Lost[lost]) for path, lost in reply.get("lost", ())),
            lost_counts={Lost[lost]: count for lost, count in reply.get("lost_counts", {}).items()},
        )

    async def _request(self, message: dict[str, Any], body: bytes = b"") -> Answer:
        reply, data = await self.line.ask(message, body)
        if "refused" in reply:
            path, reason = reply["refused"]
            raise PathRefused(path, RefusedReason[reason])
        if "absent" in reply:
            raise FileNotFoundError(reply["absent"])
        if "failed" in reply:
            raise SandboxError(f"the pod {self.id} failed: {reply['failed']}")
        return reply, data

    async def close(self) -> None:
        """End every program. The pod is deleted when the provider's context ends. Idempotent."""
        if self._tasks is None or self.channel is None:
            return
        self._tasks = None
        if self.channel.failed is None:
            with anyio.move_on_after(10):
                for process in list(self._programs.values()):
                    await process.kill()
        self.lost(SandboxError(f"sandbox {self.id} is closed"))
        for stream in list(self._streams.values()):
            await stream.aclose()


class _Batch:
    """Files on their way into a pod. `bound`: directories that the first request makes."""

    def __init__(
        self, request: Callable[[dict[str, Any], bytes], Awaitable[Answer]], bound: list[str]
    ) -> None:
        self._request, self._bound = request, bound
        self._entries: list[list[Any]] = []
        self._data: list[bytes] = []
        self._pending = 0

    async def add(self, base: str, parts: list[str], file: AnyFile) -> None:
        """Add one file, after a request if it would make the batch too large. `PathRefused` if it is too large alone."""
        if file.size > max_body():
            raise PathRefused("/".join((base, *parts)), RefusedReason.TOO_LARGE)
        if self._entries and self._pending + file.size > min(_REQUEST_BYTES, max_body()):
            await self.send({"links": []})
        body = await anyio.to_thread.run_sync(_content, file)
        self._entries.append([base, parts, file.mode, len(body)])
        self._data.append(body)
        self._pending += len(body)

    async def send(self, more: dict[str, Any]) -> None:
        """Send the files that are left, and the rest of the request."""
        message = {"op": "put", "files": self._entries, "bound": self._bound, **more}
        data = b"".join(self._data)
        self._entries, self._data, self._bound, self._pending = [], [], [], 0
        await self._request(message, data)


def _start(process: PodProcess) -> dict[str, Any]:
    return {"op": "start", "program": process.name, "task": process.task}


def _resume(process: PodProcess) -> dict[str, Any]:
    out, err = map(len, process.kept)
    return {"op": "resume", "program": process.name, "out": out, "err": err}


def _locate(inside: str) -> tuple[str, list[str]]:
    name, parts = locate(inside)
    return _PLACES[name], parts


def _path(encoded: str) -> str:
    return os.fsdecode(base64.b64decode(encoded))


def _content(file: AnyFile) -> bytes:
    return file.data


def _below(outside: Path) -> Iterator[tuple[list[str], File | str]]:
    """Regular files and links below a directory of this machine, unchanged."""
    real = outside.resolve()
    if real.is_file():
        raise ValueError(f"cannot copy the single file {outside} into a pod: bind its directory")
    for directory, names, files in os.walk(real):
        for name in (*names, *files):
            path = Path(directory, name)
            parts = list(path.relative_to(real).parts)
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                yield parts, os.readlink(path)
            elif stat.S_ISREG(status.st_mode):
                yield parts, File(path.read_bytes(), stat.S_IMODE(status.st_mode) & 0o777)


def _all_below(outside: Path) -> list[tuple[list[str], File | str]]:
    return list(_below(outside))
