"""A Kubernetes API server for tests: the real protocols over HTTPS on loopback, for pods and Secrets of one namespace.

REST with Status objects, resourceVersions, label and field selectors, pages, preconditions, garbage collection by owner; watches as lines of
JSON with bookmarks and 410 Gone; pods/exec by websocket (v5.channel.k8s.io). Its "kubelet" starts the pod's own command once its Secret is there:

    processes=True   in bubblewrap, from the pod's own spec: its volumes, its capabilities, its memory; exec enters those namespaces
    processes=False  as a supervisor in this process, over the same socket: for thousands of pods

`faults` disturb it: see `Faults`.
"""

import asyncio
import contextlib
import enum
import itertools
import json
import math
import random
import shutil
import ssl
import subprocess
import tempfile
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

from sandboxes.cgroups import detect
from sandboxes.kubernetes.settings import KubernetesSettings
from tests.unit.sandboxes.fake_runtime import Object, Runtime
from tests.waiting import eventually

_PATH = {"PATH": "/usr/bin:/bin:/usr/sbin"}
TOKEN = "a-token-of-the-account"
SPACE = "penstock-sandboxes"
VERBS = {
    ("create", "pods"),
    ("get", "pods"),
    ("list", "pods"),
    ("watch", "pods"),
    ("delete", "pods"),
    ("create", "secrets"),
    ("get", "pods/exec"),
    ("create", "pods/exec"),
}
"""The account's permissions: exactly the Role of the guide."""


class Silence(enum.Enum):
    """How an exec stays silent: its websocket is not opened, or nothing comes over it."""

    CLOSED = enum.auto()
    OPEN = enum.auto()


@dataclass(kw_only=True)
class Faults:
    """Shares of requests that are throttled (429, Retry-After), answered with 500, carried out without an answer, cut off before, or slow (they wait
    until another pod changes, for at most 0.1 s); of watches that are dropped or rejected because their version is too old. `seed` makes it
    repeatable."""

    throttled: float = 0.0
    broken: float = 0.0
    unanswered: float = 0.0
    cut: float = 0.0
    slow: float = 0.0
    watches_dropped: float = 0.0
    watches_gone: float = 0.0
    seed: int = 1
    happened: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def strikes(self, name: str) -> bool:
        if self._random.random() < getattr(self, name):
            self.happened[name] += 1
            return True
        return False


ALREADY = "already there"
"""In `Faults.happened`: a pod or secret was requested again, 409; the first answer was lost."""


class Refused(Exception):
    """A Status object with its HTTP status."""

    def __init__(self, status: int, reason: str, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        body = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "reason": reason,
            "message": message,
            "code": status,
        }
        self.response = web.json_response(body, status=status, headers=headers)


class Fake:
    """The server. `pods` and `secrets` are the current objects; `made` counts every pod that was ever created, by name."""

    def __init__(
        self, directory: Path, *, processes: bool, faults: Faults | None = None, network: bool = False
    ) -> None:
        self.directory, self.processes, self.network = directory, processes, network
        self.faults = faults or Faults()
        self.pods: dict[str, Object] = {}
        self.secrets: dict[str, Object] = {}
        self.made: Counter[str] = Counter()
        self.used: set[tuple[str, str]] = set()
        self.lines: set[web.WebSocketResponse] = set()
        self.runtimes: dict[str, Runtime] = {}
        self.events: list[tuple[int, str, Object]] = []
        self.compacted = 0
        self.news = asyncio.Event()
        self.versions = itertools.count(100)
        self.tasks: set[asyncio.Task[None]] = set()
        self.pending: Callable[[Object], Awaitable[None]] | None = None
        self.silent: Silence | None = None
        self.url = ""
        self.hierarchies = detect() if processes else None

    # objects

    def record(self, kind: str, event: str, thing: Object) -> None:
        thing["metadata"]["resourceVersion"] = str(next(self.versions))
        if kind == "pods":
            self.events.append(
                (int(thing["metadata"]["resourceVersion"]), event, json.loads(json.dumps(thing)))
            )
            if len(self.events) > 5000:
                self.compacted = self.events[1000][0]
                del self.events[:1000]
            self.news.set()
            self.news = asyncio.Event()

    def create(self, kind: str, body: Object) -> Object:
        name, there = body["metadata"]["name"], getattr(self, kind)
        if name in there:
            self.faults.happened[ALREADY] += 1
            raise Refused(409, "AlreadyExists", f'{kind} "{name}" already exists')
        assert len(name) <= 253 and all(len(value) <= 63 for value in body["metadata"]["labels"].values()), (
            body["metadata"]
        )
        body["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": stamp(), "namespace": SPACE}
        there[name] = body
        if kind == "pods":
            body["status"] = {"phase": "Pending"}
            self.made[name] += 1
            self.spawn(self.kubelet(body))
        self.record(kind, "ADDED", body)
        return body

    def delete(self, name: str, options: Object) -> Object:
        pod = self.pods.get(name)
        if pod is None:
            raise Refused(404, "NotFound", f'pods "{name}" not found')
        wanted = options.get("preconditions", {}).get("uid", pod["metadata"]["uid"])
        if wanted != pod["metadata"]["uid"]:
            raise Refused(409, "Conflict", f"the UID in the precondition ({wanted}) does not match")
        if "deletionTimestamp" not in pod["metadata"]:
            pod["metadata"]["deletionTimestamp"] = stamp()
            self.record("pods", "MODIFIED", pod)
            self.spawn(self.terminate(pod))
        return pod

    async def terminate(self, pod: Object) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        if (runtime := self.runtimes.pop(uid, None)) is not None:
            try:
                await runtime.stop()
            except asyncio.CancelledError:
                # Killed, and not waited for yet: the code that ends this server waits.
                self.runtimes[uid] = runtime
                raise
        del self.pods[name]
        self.record("pods", "DELETED", pod)
        for secret, owned in list(self.secrets.items()):  # the garbage collector
            if any(owner["uid"] == uid for owner in owned["metadata"].get("ownerReferences", ())):
                del self.secrets[secret]

    def spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def kubelet(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        if self.pending is not None:
            await self.pending(pod)
        # Until then the volume cannot be mounted.
        await eventually(lambda: name in self.secrets or self.pods.get(name) is not pod, within_s=math.inf)
        if name not in self.secrets:
            return
        if "deletionTimestamp" in pod["metadata"]:
            return
        runtime = Runtime(self, pod)
        self.runtimes[pod["metadata"]["uid"]] = runtime
        await runtime.start()
        pod["status"] = {
            "phase": "Running",
            "containerStatuses": [{"name": "work", "state": {"running": {}}}],
        }
        self.record("pods", "MODIFIED", pod)
        code = await runtime.ended()
        if self.pods.get(name) is pod and "deletionTimestamp" not in pod["metadata"]:
            reason = "OOMKilled" if runtime.out_of_memory else "Completed" if code == 0 else "Error"
            ended = {"exitCode": code, "reason": reason, "finishedAt": stamp()}
            phase = "Succeeded" if code == 0 else "Failed"
            pod["status"] = {
                "phase": phase,
                "containerStatuses": [{"name": "work", "state": {"terminated": ended}}],
            }
            self.record("pods", "MODIFIED", pod)

    # the wire

    async def handle(self, request: web.Request) -> web.StreamResponse:
        kind, name, part = (request.match_info.get(key, "") for key in ("kind", "name", "part"))
        try:
            if request.headers.get("Authorization") != f"Bearer {TOKEN}":
                raise Refused(401, "Unauthorized", "Unauthorized")
            verb = {"POST": "create", "DELETE": "delete"}.get(request.method, "get" if name else "list")
            if "watch" in request.query:
                verb = "watch"
            resource = f"{kind}/{part}" if part else kind
            self.used.add((verb, resource))
            if (verb, resource) not in VERBS:
                raise Refused(
                    403,
                    "Forbidden",
                    f'{resource} is forbidden: the account cannot {verb} resource "{resource}"',
                )
            if part:
                return await self.exec(request, name)
            if verb == "watch":
                return await self.watch(request)
            return await self.rest(request, verb, kind, name)
        except Refused as refused:
            return refused.response

    async def rest(self, request: web.Request, verb: str, kind: str, name: str) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else {}
        if self.faults.strikes("slow"):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.news.wait(), 0.1)
        if self.faults.strikes("throttled"):
            raise Refused(
                429, "TooManyRequests", "too many requests", retry_after=0 if kind == "secrets" else 1
            )
        if self.faults.strikes("broken"):
            raise Refused(500, "InternalError", "etcdserver: leader changed")
        if self.faults.strikes("cut"):
            return self.hang_up(request)
        there = getattr(self, kind)
        if verb == "create":
            answer = self.create(kind, body)
        elif verb == "delete":
            answer = self.delete(name, body)
        elif verb == "list":
            answer = self.page(request, there)
        elif name not in there:
            raise Refused(404, "NotFound", f'{kind} "{name}" not found')
        else:
            answer = there[name]
        if self.faults.strikes("unanswered"):
            return self.hang_up(request)
        return web.json_response(answer, status=201 if verb == "create" else 200)

    def hang_up(self, request: web.Request) -> web.StreamResponse:
        if request.transport is not None:  # else its client has hung up first
            request.transport.abort()
        return web.Response()

    def page(self, request: web.Request, there: dict[str, Object]) -> Object:
        selector, most = (
            request.query.get("labelSelector", ""),
            int(request.query.get("limit", "0")) or len(there),
        )
        named = sorted(
            name for name, thing in there.items() if not selector or selector in thing["metadata"]["labels"]
        )
        begin = int(request.query.get("continue", "0"))
        meta: Object = {"resourceVersion": "1"}
        if begin + most < len(named):
            meta["continue"] = str(begin + most)
        return {
            "kind": "List",
            "metadata": meta,
            "items": [there[name] for name in named[begin : begin + most]],
        }

    async def watch(self, request: web.Request) -> web.StreamResponse:
        since = int(request.query.get("resourceVersion", "0"))
        wanted = request.query.get("fieldSelector", "").removeprefix("metadata.name=")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)

        async def say(event: str, thing: Object) -> None:
            await response.write(json.dumps({"type": event, "object": thing}).encode() + b"\n")

        if since < self.compacted or self.faults.strikes("watches_gone"):
            await say(
                "ERROR",
                {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"},
            )
            return response
        drop = self.faults.strikes("watches_dropped")
        with contextlib.suppress(ConnectionError):
            while True:
                fresh = self.news
                for version, event, pod in self.events:
                    if version > since and (not wanted or pod["metadata"]["name"] == wanted):
                        if drop:
                            return self.hang_up(request)
                        await say(event, pod)
                        since = version
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(fresh.wait(), 1)
                if not fresh.is_set():
                    await say("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(since)}})
        return response

    async def exec(self, request: web.Request, name: str) -> web.StreamResponse:
        pod = self.pods.get(name)
        runtime = None if pod is None else self.runtimes.get(pod["metadata"]["uid"])
        if runtime is None or not runtime.running:
            raise Refused(404 if pod is None else 400, "BadRequest", f"container not found in pod {name}")
        if self.silent is Silence.CLOSED:
            await asyncio.get_running_loop().create_future()
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io", "v4.channel.k8s.io"), max_msg_size=0)
        await socket.prepare(request)
        if self.silent is Silence.OPEN:
            async for _ in socket:
                pass
            return socket
        self.lines.add(socket)
        reader, writer, end = await runtime.exec(request.query.getall("command"))

        async def up() -> None:
            async for message in socket:
                if message.type is WSMsgType.BINARY and message.data[:1] == b"\0":
                    writer.write(message.data[1:])
                    await writer.drain()

        async def down() -> None:
            while data := await reader.read(1 << 16):
                await socket.send_bytes(b"\1" + data)

        both = [asyncio.create_task(up()), asyncio.create_task(down())]
        try:
            with contextlib.suppress(ConnectionError):
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            with contextlib.suppress(Exception):
                writer.close()
            await end()
            self.lines.discard(socket)
        if not socket.closed:
            with contextlib.suppress(ConnectionError):
                await socket.send_bytes(b"\3" + json.dumps({"status": "Success"}).encode())
                await socket.close()
        return socket

    async def drop_lines(self) -> None:
        """Every exec loses its connection, as when an API server is replaced."""
        for socket in list(self.lines):
            if socket._req is not None and socket._req.transport is not None:
                socket._req.transport.abort()

    async def break_lines(self) -> None:
        """Every exec ends as when its process is killed: the pod is well."""
        for socket in list(self.lines):
            ended = {"status": "Failure", "message": "command terminated with exit code 137"}
            await socket.send_bytes(b"\3" + json.dumps(ended).encode())


def stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def certificate(directory: Path) -> tuple[Path, Path]:
    """A key and a certificate for 127.0.0.1 that is its own authority."""
    key, cert = directory / "key.pem", directory / "ca.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=fake",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    return key, cert


@asynccontextmanager
async def serving(fake: Fake) -> AsyncIterator[KubernetesSettings]:
    """The server runs; yields the values that a provider needs to reach it."""
    key, cert = certificate(fake.directory)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    (fake.directory / "token").write_text(TOKEN)
    app = web.Application(client_max_size=1 << 26)
    for path in ("{kind}", "{kind}/{name}", "{kind}/{name}/{part}"):
        app.router.add_route("*", f"/api/v1/namespaces/{SPACE}/{path}", fake.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context, backlog=2048)
    await site.start()
    port = runner.addresses[0][1]
    fake.url = f"https://127.0.0.1:{port}"
    try:
        yield KubernetesSettings(
            image="penstock/sandbox:1",
            namespace=SPACE,
            api_server=fake.url,
            token_file=str(fake.directory / "token"),
            ca_file=str(cert),
        )
    finally:
        await runner.cleanup()
        tasks = list(fake.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for runtime in list(fake.runtimes.values()):
            await runtime.stop()


@contextlib.contextmanager
def place() -> Any:
    """A directory that users of sandboxes can pass through."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-fake-"))
    directory.chmod(0o711)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)
