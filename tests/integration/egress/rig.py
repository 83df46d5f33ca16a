"""A sandbox with an egress proxy, and a world on loopback: servers that stand for those of the internet, and a resolver of the test.

`Proxy` is the product's, with every check of its own. The test replaces where names lead (`resolve`) and where a connection to a checked address goes
(`dial`): to the servers here, so that nothing leaves the machine.
"""

import ssl
from collections.abc import AsyncIterator, Iterable, MutableMapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
from anyio.streams.tls import TLSStream
from structlog.testing import capture_logs

from orchestrator.contracts.hosts import Address, HostList
from orchestrator.contracts.network import Access
from orchestrator.runner.egress import proxy
from orchestrator.runner.egress.proxy import Proxy
from orchestrator.runner.egress.sandbox import listening
from sandboxes.base import File, Provider, Sandbox, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider

PUBLIC = "93.184.216.34"
CIPHERS = "AECDH-AES128-SHA:@SECLEVEL=0"  # TLS without certificates
PROBE = Path(__file__).with_name("probe.py")


@dataclass(slots=True)
class World:
    """`names`: the answers about a name, the last one again and again. `dialled`: every connection that left the proxy. `seen`: what servers got."""

    names: dict[str, list[list[str]]] = field(default_factory=dict)
    looked_up: list[str] = field(default_factory=list)
    dialled: list[tuple[str, int]] = field(default_factory=list)
    seen: list[bytes] = field(default_factory=list)
    answers: dict[bytes, bytes] = field(default_factory=dict)
    ports: dict[int, int] = field(default_factory=dict)
    log: list[MutableMapping[str, Any]] = field(default_factory=list)

    async def resolve(self, name: str) -> Sequence[Address]:
        self.looked_up.append(name)
        answers = self.names.get(name, [[PUBLIC]])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return [ip_address(each) for each in answer]

    async def dial(self, address: Address, port: int) -> anyio.abc.ByteStream:
        self.dialled.append((str(address), port))
        return await anyio.connect_tcp("127.0.0.1", self.ports[port])

    async def answer(self, stream: anyio.abc.ByteStream) -> None:
        """One request: `answers` by its first line, else a page that repeats that line."""
        async with stream:
            try:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += await stream.receive()
                self.seen.append(head)
                line = head.partition(b"\r\n")[0]
                body = b"page of " + line
                found = self.answers.get(
                    line, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
                )
                await stream.send(found)
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return

    async def answer_tls(self, stream: anyio.abc.SocketStream) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(CIPHERS)
        async with stream:
            try:
                wrapped = await TLSStream.wrap(
                    stream, server_side=True, ssl_context=context, standard_compatible=False
                )
            except (ssl.SSLError, anyio.EndOfStream, anyio.BrokenResourceError):
                self.seen.append(b"no TLS")
                return
            await self.answer(wrapped)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """The servers of ports 80 and 443."""
        async with AsyncExitStack() as stack:
            listeners = []
            for port, serve in ((80, self.answer), (443, self.answer_tls)):
                listener = await stack.enter_async_context(
                    await anyio.create_tcp_listener(local_host="127.0.0.1")
                )
                self.ports[port] = listener.extra(anyio.abc.SocketAttribute.local_port)
                listeners.append((listener, serve))
            tasks = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(tasks.cancel_scope.cancel)
            for listener, serve in listeners:
                tasks.start_soon(listener.serve, serve)
            yield

    def reasons(self, event: str = "egress.refused") -> list[str]:
        """The reasons of the log's lines about an event."""
        return [str(line["reason"]) for line in self.log if line["event"] == event]


@dataclass(slots=True)
class Opened:
    """An open sandbox and its world."""

    world: World
    sandbox: Sandbox

    async def python(self, text: str) -> str:
        """The output of a program that begins with the probe's functions; its error where it fails."""
        result = await self.sandbox.exec(["python3", "-c", f"from probe import *\n{text}"], timeout_s=60)
        assert result.ok, result.stderr.decode(errors="replace")
        return result.stdout.decode(errors="replace")


@asynccontextmanager
async def open_world(
    hosts: Iterable[str] | None = ("example.org", "*.example.org"),
    *,
    most_bytes: int = 1 << 24,
    provider: Provider | None = None,
    background: bool = True,
) -> AsyncIterator[Opened]:
    """A bubblewrap sandbox whose task may reach `hosts`, None: every public one."""
    world = World()
    access = Access(None if hosts is None else HostList.of(hosts), most_bytes)
    async with AsyncExitStack() as stack:
        world.log = stack.enter_context(capture_logs())
        await stack.enter_async_context(world.serving())
        proxy = Proxy(access, resolve=world.resolve, dial=world.dial)
        listener_of_sandbox = await stack.enter_async_context(listening(access, proxy))
        spec = SandboxSpec(files={"/app/probe.py": File(PROBE.read_bytes())}, background=background)
        sandbox = await stack.enter_async_context(
            (provider or BubblewrapProvider()).open(listener_of_sandbox.spec(spec))
        )
        await listener_of_sandbox.begin(sandbox)
        yield Opened(world, sandbox)


def placed(monkeypatch: pytest.MonkeyPatch) -> World:
    """A world whose hosts every proxy of this process finds."""
    found = World()

    async def look_up(name: str, limiter: anyio.CapacityLimiter) -> Sequence[Address]:
        return await found.resolve(name)

    monkeypatch.setattr(proxy, "look_up", look_up)
    monkeypatch.setattr(proxy, "connect", found.dial)
    return found
