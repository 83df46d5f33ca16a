"""The supervisor of a sandbox in a pod: process 1 of its container, root without the dangerous capabilities. `python3 -IS FILE supervisor`.

    owner ══ websocket of pods/exec ══ pipe.py ── socket ── supervisor ── program.py ── the program, a user without rights
    harness ── /run/penstock/gateway.sock ── supervisor ── TCP, or the websocket ── gateway

The owner may lose the connection and reconnect. A program that was started is not started twice, and its output and result are kept until they are
fetched. The owner may also die. When it has not been connected for `grace_s` seconds (`first_s` before the first connection), the
supervisor ends every program and exits. The pod ends with it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from sandboxes import artifacts, tree
from sandboxes.base import HOME, PLACED, WORK, WRITABLE, ArtifactLimits, File, PathRefused
from sandboxes.inside.frames import FrameTooLarge, Reader, frame, max_body
from sandboxes.inside.pipe import SOCKET

SESSION = "/etc/penstock/session.json"
GATEWAY = "/run/penstock/gateway.sock"
GRACE_S = 1.0
"""Seconds between SIGTERM and SIGKILL for processes that still run when the work directory is read."""
_CHUNK = 1 << 16
_POLL_INTERVAL_S = 0.1
_KEPT = 64


def _readable(mode: int) -> int:
    """The bits of what is root's here, so that no program changes it: what the owner may read, all may."""
    return mode | (mode >> 6 & 0o5) * 0o11


class ProgramState:
    """The supervisor's state of a program: its output so far, and its result."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.kept = (bytearray(), bytearray())
        self.began = time.monotonic()
        self.cpu_s = 0.0
        self.result: dict[str, Any] | None = None


class Supervisor:
    """One sandbox. `root` is prefixed to all its paths (tests); `file`: this bundle."""

    def __init__(self, session: dict[str, Any], file: str, root: Path = Path("/")) -> None:
        self.session = session
        self.uid: int = session["uid"]
        self.owner = (self.uid, self.uid) if os.geteuid() == 0 else None
        self.file = file
        self.root = root
        self.placed: dict[str, artifacts.PlacedEntry] = {}
        self.programs: dict[str, ProgramState] = {}
        self.answering: set[asyncio.subprocess.Process] = set()
        """The processes that are responsible for programs, or for their background."""
        self.writer: asyncio.StreamWriter | None = None
        self.met = False
        self.alone_since = time.monotonic()
        self.over = asyncio.Event()
        self.tasks: set[asyncio.Task[None]] = set()
        self.streams: dict[int, asyncio.StreamWriter] = {}
        self.stream_count = 0

    def place(self, inside: str) -> Path:
        return self.root / inside.lstrip("/")

    def prepare(self) -> None:
        """Prepare the directories of the sandbox: empty volumes belong to root at first."""
        for inside in (*WRITABLE, *PLACED):
            path = self.place(inside)
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o755)
            if self.owner is not None:
                os.chown(path, *(self.owner if inside in WRITABLE else (0, 0)))

    async def run(self) -> None:
        """Run until the owner sends `end`, or has been away for too long."""
        self.prepare()
        control = self.place(SOCKET)
        control.parent.mkdir(parents=True, exist_ok=True)
        control.parent.chmod(0o700)
        control.parent.parent.chmod(0o755)
        servers = [await asyncio.start_unix_server(self.serve, str(control))]
        if self.session["gateway"] is not None:
            servers.append(await asyncio.start_unix_server(self.lead, str(self.place(GATEWAY))))
            self.place(GATEWAY).chmod(0o666)
        try:
            while not self.over.is_set():
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.over.wait(), _POLL_INTERVAL_S)
                patience_s = self.session["grace_s" if self.met else "first_s"]
                if self.writer is None and time.monotonic() - self.alone_since > patience_s:
                    break
            await self.end_programs()
        finally:
            for server in servers:
                server.close()
            if self.writer is not None:
                self.writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the owner's connection. The newest one replaces the others."""
        if self.writer is not None:
            self.writer.close()
            self.hang_up()
        self.writer, self.met = writer, True
        frames = Reader()
        try:
            await self.say({"hello": True})  # from now on the owner's messages are read
            while data := await reader.read(_CHUNK):
                for message, body in frames.feed(data):
                    await self.take(message, body)
        except (OSError, ValueError):
            pass
        finally:
            if self.writer is writer:
                self.writer, self.alone_since = None, time.monotonic()
                self.hang_up()
            writer.close()

    def hang_up(self) -> None:
        """Close the streams of a lost line: their other ends are gone, and programs would wait for them forever."""
        for stream in self.streams.values():
            stream.close()
        self.streams.clear()

    async def say(self, message: dict[str, Any], body: bytes = b"") -> None:
        if self.writer is not None:
            with contextlib.suppress(OSError):
                self.writer.write(frame(message, body))
                await self.writer.drain()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def take(self, message: dict[str, Any], body: bytes) -> None:
        match message["op"]:
            case "put" | "get" | "changed" | "read":
                self.spawn(self.files(message, body))
            case "start":
                await self.start(message, body)
            case "kill":
                self.order(message["program"], message["reason"])
            case "forget":
                self.programs.pop(message["program"], None)
            case "resume":
                await self.resume(message)
            case "data" | "close":
                self.tunnelled(message, body)
            case "end":
                await self.end_programs()
                await self.say({"id": message["id"]})
                self.over.set()
            case "hello":
                await self.say({"id": message["id"]})

    async def files(self, message: dict[str, Any], body: bytes) -> None:
        operations: dict[str, Callable[[dict[str, Any], bytes], tuple[dict[str, Any], bytes]]] = {
            "put": self.put,
            "get": self.get,
            "changed": self.changed,
        }
        try:
            if message["op"] == "changed":
                await self.end_programs(GRACE_S)
            reply, data = await asyncio.to_thread(operations[message["op"]], message, body)
        except PathRefused as refused:
            reply, data = {"refused": [refused.path, refused.reason.name]}, b""
        except FileNotFoundError as error:
            reply, data = {"absent": str(error)}, b""
        except OSError as error:
            reply, data = {"failed": str(error)}, b""
        try:
            await self.say({"id": message["id"], **reply}, data)
        except FrameTooLarge as error:
            await self.say({"id": message["id"], "failed": str(error)})

    def put(self, message: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        at = 0
        for location in message.get("bound", ()):  # read-only for programs: owned by root, not by them
            self.place(location).mkdir(parents=True, exist_ok=True)
        for base, parts, mode, size in message["files"]:
            file = File(body[at : at + size], mode if base in WRITABLE else _readable(mode))
            at += size
            owner = self.owner if base in WRITABLE else (0, 0) if self.owner is not None else None
            tree.write(self.place(base), parts, file, owner)
            if base == WORK:
                self.placed["/".join(parts)] = artifacts.PlacedEntry.of(file)
        modes = message.get("modes", ())
        made = [
            ([*location, 0o755], artifacts.PlacedEntry.made) for location in message.get("directories", ())
        ]
        for (base, parts, mode), placed in (
            *made,
            *((entry, artifacts.PlacedEntry.folder) for entry in modes),
        ):
            tree.make(self.place(base), parts, self.owner if base in WRITABLE else None)
            if base == WORK:
                self.placed["/".join(parts)] = placed(mode)
        for base, parts, target in message.get("work_links", ()):
            tree.link(self.place(base), parts, target, self.owner if base in WRITABLE else None)
            if base == WORK:
                self.placed["/".join(parts)] = artifacts.PlacedEntry.link(target)
        for base, parts, mode in sorted(modes, key=lambda entry: entry[1], reverse=True):
            tree.permit(self.place(base), parts, mode if base in WRITABLE else _readable(mode))
        for base, parts, target in message.get("links", ()):
            link = self.place(base).joinpath(*parts)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(target)
        return {}, b""

    def get(self, message: dict[str, Any], _: bytes) -> tuple[dict[str, Any], bytes]:
        most = min(message["most"], max_body())
        return {}, tree.read(self.place(message["base"]), message["parts"], most)

    def changed(self, message: dict[str, Any], _: bytes) -> tuple[dict[str, Any], bytes]:
        fields = message["limits"]
        total = min(fields["total_bytes"], max_body())  # the answer is one frame
        limits = ArtifactLimits(**{**fields, "total_bytes": total, "skip": frozenset(fields["skip"])})
        found = artifacts.changed(self.place(WORK), dict(self.placed), limits)
        entries, data = [], []
        for kind, files in (("added", found.added), ("modified", found.modified)):
            for path, file in files.items():
                entries.append([kind, path, file.mode, len(file.data)])
                data.append(file.data)
        refused, lost = (
            [[base64.b64encode(os.fsencode(path)).decode(), member.name] for path, member in pairs]
            for pairs in (found.refused, found.lost)
        )
        rest = {
            "deleted": found.deleted,
            "left": refused,
            "complete": found.complete,
            "counts": {reason.name: count for reason, count in found.counts.items()},
            "links": dict(found.links),
            "directories": dict(found.directories),
            "lost": lost,
            "lost_counts": {lost.name: count for lost, count in found.lost_counts.items()},
        }
        return {"files": entries, **rest}, b"".join(data)

    async def start(self, message: dict[str, Any], body: bytes) -> None:
        name = message["program"]
        if name in self.programs:
            return
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-IS", self.file, "program",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=None, env={}, limit=1 << 20,
        )  # fmt: skip
        program = self.programs[name] = ProgramState(process)
        self.answering.add(process)
        assert process.stdin is not None
        writable = [str(self.place(inside)) for inside in WRITABLE]
        fields = message["task"]
        env = {**self.session["env"], **fields["env"]}
        task = {**fields, "env": env, "uid": self.uid, "writable": writable}
        process.stdin.write(frame(task, body))
        self.spawn(self.follow(name, program))
        if len(self.programs) > _KEPT:
            finished = [each for each, known in self.programs.items() if known.result is not None]
            for each in finished[: len(self.programs) - _KEPT]:
                del self.programs[each]

    async def follow(self, name: str, program: ProgramState) -> None:
        assert program.process.stdout is not None
        frames = Reader()
        while data := await program.process.stdout.read(_CHUNK):
            for message, body in frames.feed(data):
                if program.result is not None:
                    continue
                if "cpu" in message:
                    program.cpu_s = message["cpu"]
                for stream_index, key in enumerate(("out", "err")):
                    if key in message:
                        message["at"] = len(program.kept[stream_index])
                        program.kept[stream_index].extend(body)
                if "result" in message:
                    program.result = {**message["result"], "sizes": [len(stream) for stream in program.kept]}
                    await self.say({"program": name, "result": program.result})
                else:
                    await self.say({"program": name, **message}, body)
        code = await program.process.wait()
        self.answering.discard(program.process)
        if code:
            self.sweep()
        if program.result is None:
            program.result = {"failed": f"the process that answers for a program ended with {code}"}
            # SIGKILL comes from the kernel, for lack of memory: no program inside may end it.
            if code == -signal.SIGKILL:
                program.result = {
                    "code": 137,
                    "signal": 9,
                    "killed_by": "memory",
                    "truncated": False,
                    "wall_s": time.monotonic() - program.began,
                    "cpu_s": program.cpu_s,
                    "sizes": [len(stream) for stream in program.kept],
                }
            await self.say({"program": name, "result": program.result})

    def sweep(self) -> None:
        """End processes of programs whose responsible process is gone."""
        from sandboxes.inside.program import below, processes

        by_pid = processes()
        answered = {pid for known in self.answering for pid in below(known.pid, by_pid)}
        for pid in by_pid:
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{pid}").st_uid == self.uid and pid not in answered:
                    os.kill(pid, 9)

    async def resume(self, message: dict[str, Any]) -> None:
        name = message["program"]
        program = self.programs.get(name)
        if program is None:
            await self.say({"program": name, "unknown": True})
            return
        for stream_index, key in enumerate(("out", "err")):
            if missed := bytes(program.kept[stream_index][message[key] :]):
                await self.say({"program": name, key: len(missed), "at": message[key]}, missed)
        if program.result is not None:
            await self.say({"program": name, "result": program.result})

    def order(self, name: str, reason: str) -> None:
        program = self.programs.get(name)
        if program is not None and program.result is None and program.process.stdin is not None:
            with contextlib.suppress(OSError):
                program.process.stdin.write(frame({"kill": reason}))

    async def end_programs(self, grace_s: float = 0.0) -> None:
        """End all processes, foreground and background. `grace_s`: send SIGTERM first and wait up to this long."""
        running = list(self.answering)
        for process in running:
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.write(frame({"kill": "caller", "grace_s": grace_s}))
        for process in running:
            await process.wait()

    async def lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward a program's connection to the gateway: by TCP if an address was given, else through the owner."""
        address: str = self.session["gateway"]
        if address:
            host, _, port = address.rpartition(":")
            try:
                target_reader, target_writer = await asyncio.open_connection(host.strip("[]"), int(port))
            except OSError:  # the program sees a dropped connection, as if the gateway were away
                writer.close()
                return
            probe(target_writer.get_extra_info("socket"))
            await asyncio.gather(copy(reader, target_writer), copy(target_reader, writer))
            return
        if self.writer is None:  # as if the gateway were away
            writer.close()
            return
        self.stream_count += 1
        number = self.stream_count
        self.streams[number] = writer
        await self.say({"stream": number, "open": True})
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self.say({"stream": number}, data)
        if number in self.streams:  # else its line is lost, and the next line does not know it
            await self.say({"stream": number, "close": True})

    def tunnelled(self, message: dict[str, Any], body: bytes) -> None:
        writer = self.streams.get(message["stream"])
        if writer is None:
            return
        if body:
            writer.write(body)
        if message["op"] == "close":
            del self.streams[message["stream"]]
            writer.close()


def probe(connection: Any) -> None:
    """Let an idle connection break a minute after its other end has vanished: a program waits for a completion without a timeout."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Copy until the source ends; then close the sink."""
    with contextlib.suppress(OSError):
        while data := await source.read(_CHUNK):
            sink.write(data)
            await sink.drain()
    with contextlib.suppress(OSError):
        sink.close()


def main() -> None:
    session = json.loads(Path(SESSION).read_text())
    # Programs cannot read the file that this runs from. The processes responsible for them can.
    asyncio.run(Supervisor(session, sys.argv[0]).run())
    shutil.rmtree("/run/penstock/.supervisor", ignore_errors=True)


__all__ = ["HOME", "Supervisor", "main"]
