"""The keeper of a sandbox in a pod: process 1 of its container, root without the rights that matter. `python3 -IS FILE keeper`.

    owner ══ websocket of pods/exec ══ pipe.py ── socket ── keeper ── program.py ── the program, a user without rights
    harness ── /run/penstock/gateway.sock ── keeper ── TCP, or the websocket ── gateway

The owner may lose the connection and come again: a program that was started is not started twice, and its output and result are kept until they are
fetched. It may also die: when nobody has been connected for `grace_s` seconds (`first_s` at first) the
keeper ends everything and exits, and with it the pod.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from sandboxes import artifacts, tree
from sandboxes.base import HOME, PLACED, WORK, WRITABLE, ArtifactLimits, File, PathRefused
from sandboxes.inside.frames import Reader, frame
from sandboxes.inside.pipe import SOCKET

SESSION = "/etc/penstock/session.json"
GATEWAY = "/run/penstock/gateway.sock"
_CHUNK = 1 << 16
_LOOK_S = 0.1
_KEPT = 64


class Program:
    """A program as the keeper knows it: its output so far, and its result."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.kept = (bytearray(), bytearray())
        self.began = time.monotonic()
        self.cpu_s = 0.0
        self.result: dict[str, Any] | None = None


class Keeper:
    """One sandbox. `root` is prefixed to all its places (tests); `file`: this bundle."""

    def __init__(self, session: dict[str, Any], file: str, root: Path = Path("/")) -> None:
        self.session = session
        self.uid: int = session["uid"]
        self.owner = (self.uid, self.uid) if os.geteuid() == 0 else None
        self.file = file
        self.root = root
        self.placed: dict[str, artifacts.Placed] = {}
        self.programs: dict[str, Program] = {}
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
        """Directories of the sandbox: emptied volumes belong to root at first."""
        for inside in (*WRITABLE, *PLACED):
            place = self.place(inside)
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(0o755)
            if self.owner is not None:
                os.chown(place, *(self.owner if inside in WRITABLE else (0, 0)))

    async def run(self) -> None:
        """Until it is told to end, or has been alone for too long."""
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
                    await asyncio.wait_for(self.over.wait(), _LOOK_S)
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
        """The owner's connection; the newest one counts."""
        if self.writer is not None:
            self.writer.close()
            self.hang_up()
        self.writer, self.met = writer, True
        frames = Reader()
        try:
            await self.say({"hello": True})  # now whatever the owner says is heard
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
        """End what was led over a line that is lost: its other ends are gone, and programs would wait for them for ever."""
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
        do: dict[str, Callable[[dict[str, Any], bytes], tuple[dict[str, Any], bytes]]] = {
            "put": self.put, "get": self.get, "changed": self.changed,
        }  # fmt: skip
        try:
            told, data = await asyncio.to_thread(do[message["op"]], message, body)
        except PathRefused as refused:
            told, data = {"refused": [refused.path, refused.reason.name]}, b""
        except FileNotFoundError as error:
            told, data = {"absent": str(error)}, b""
        except OSError as error:
            told, data = {"failed": str(error)}, b""
        await self.say({"id": message["id"], **told}, data)

    def put(self, message: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        at = 0
        for place in message.get("bound", ()):  # read-only for programs: the owner's, not theirs
            self.place(place).mkdir(parents=True, exist_ok=True)
        for base, parts, mode, size in message["files"]:
            file = File(body[at : at + size], mode)
            at += size
            own = self.owner if base in WRITABLE else (0, 0) if self.owner is not None else None
            tree.write(self.place(base), parts, file, own)
            if base == WORK:
                self.placed["/".join(parts)] = artifacts.Placed.of(file)
        for base, parts in message.get("directories", ()):
            tree.make(self.place(base), parts, self.owner if base in WRITABLE else None)
        for base, parts, target in message.get("links", ()):
            link = self.place(base).joinpath(*parts)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(target)
        return {}, b""

    def get(self, message: dict[str, Any], _: bytes) -> tuple[dict[str, Any], bytes]:
        return {}, tree.read(self.place(message["base"]), message["parts"], message["most"])

    def changed(self, message: dict[str, Any], _: bytes) -> tuple[dict[str, Any], bytes]:
        told = message["limits"]
        limits = ArtifactLimits(**{**told, "skip": frozenset(told["skip"])})
        found = artifacts.changed(self.place(WORK), dict(self.placed), limits)
        entries, data = [], []
        for kind, files in (("added", found.added), ("modified", found.modified)):
            for path, file in files.items():
                entries.append([kind, path, file.mode, len(file.data)])
                data.append(file.data)
        refused = [
            [base64.b64encode(os.fsencode(path)).decode(), reason.name] for path, reason in found.refused
        ]
        rest = {
            "deleted": found.deleted, "left": refused, "complete": found.complete,
            "counts": {reason.name: count for reason, count in found.counts.items()},
        }  # fmt: skip
        return {"files": entries, **rest}, b"".join(data)

    async def start(self, message: dict[str, Any], body: bytes) -> None:
        name = message["program"]
        if name in self.programs:
            return
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-IS", self.file, "program",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=None, env={}, limit=1 << 20,
        )  # fmt: skip
        program = self.programs[name] = Program(process)
        assert process.stdin is not None
        writable = [str(self.place(inside)) for inside in WRITABLE]
        told = message["task"]
        env = {**self.session["env"], **told["env"]}
        task = {**told, "env": env, "uid": self.uid, "writable": writable}
        process.stdin.write(frame(task, body))
        self.spawn(self.follow(name, program))
        if len(self.programs) > _KEPT:
            ended = [each for each, known in self.programs.items() if known.result is not None]
            for each in ended[: len(self.programs) - _KEPT]:
                del self.programs[each]

    async def follow(self, name: str, program: Program) -> None:
        assert program.process.stdout is not None
        frames = Reader()
        while data := await program.process.stdout.read(_CHUNK):
            for message, body in frames.feed(data):
                if "cpu" in message:
                    program.cpu_s = message["cpu"]
                for which, key in enumerate(("out", "err")):
                    if key in message:
                        message["at"] = len(program.kept[which])
                        program.kept[which].extend(body)
                if "result" in message:
                    program.result = {**message["result"], "sizes": [len(kept) for kept in program.kept]}
                else:
                    await self.say({"program": name, **message}, body)
        code = await program.process.wait()
        if program.result is None:
            self.sweep()
            program.result = {"failed": f"the process that answers for a program ended with {code}"}
            if code == -signal.SIGKILL:  # the kernel's doing, for want of memory: nobody inside may end it
                program.result = {
                    "code": 137, "killed_by": "memory", "truncated": False,
                    "wall_s": time.monotonic() - program.began, "cpu_s": program.cpu_s,
                    "sizes": [len(kept) for kept in program.kept],
                }  # fmt: skip
        await self.say({"program": name, "result": program.result})

    def sweep(self) -> None:
        """End processes of programs that nobody answers for any more."""
        from sandboxes.inside.program import below, processes

        everybody = processes()
        answered = {pid for known in self.programs.values() for pid in below(known.process.pid, everybody)}
        for pid in everybody:
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{pid}").st_uid == self.uid and pid not in answered:
                    os.kill(pid, 9)

    async def resume(self, message: dict[str, Any]) -> None:
        name = message["program"]
        program = self.programs.get(name)
        if program is None:
            await self.say({"program": name, "unknown": True})
            return
        for which, key in enumerate(("out", "err")):
            if missed := bytes(program.kept[which][message[key] :]):
                await self.say({"program": name, key: len(missed), "at": message[key]}, missed)
        if program.result is not None:
            await self.say({"program": name, "result": program.result})

    def order(self, name: str, reason: str) -> None:
        program = self.programs.get(name)
        if program is not None and program.result is None and program.process.stdin is not None:
            with contextlib.suppress(OSError):
                program.process.stdin.write(frame({"kill": reason}))

    async def end_programs(self) -> None:
        running = [program for program in self.programs.values() if program.result is None]
        for name, program in list(self.programs.items()):
            if program in running:
                self.order(name, "caller")
        for program in running:
            await program.process.wait()

    async def lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A program's connection to the gateway: by TCP where an address was given, else through the owner."""
        address: str = self.session["gateway"]
        if address:
            host, _, port = address.rpartition(":")
            try:
                far_reader, far_writer = await asyncio.open_connection(host.strip("[]"), int(port))
            except OSError:  # the program sees a dropped connection, as from a gateway that is away
                writer.close()
                return
            await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))
            return
        if self.writer is None:  # as from a gateway that is away
            writer.close()
            return
        self.stream_count += 1
        number = self.stream_count
        self.streams[number] = writer
        await self.say({"stream": number, "open": True})
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self.say({"stream": number}, data)
        if number in self.streams:  # else its line is lost, and the next one knows nothing of it
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


async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Until one side ends; then the other is told."""
    with contextlib.suppress(OSError):
        while data := await source.read(_CHUNK):
            sink.write(data)
            await sink.drain()
    with contextlib.suppress(OSError):
        sink.close()


def main() -> None:
    session = json.loads(Path(SESSION).read_text())
    # Programs cannot read the file that this runs from: what answers for them can.
    asyncio.run(Keeper(session, sys.argv[0]).run())
    shutil.rmtree("/run/penstock/.keeper", ignore_errors=True)


__all__ = ["HOME", "Keeper", "main"]
