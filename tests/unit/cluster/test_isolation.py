"""The destinations that a sandbox reaches are found also if it knows no names; the report lists unresolved names and silent destinations."""

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

import anyio
import pytest

from orchestrator.deploy.cluster.doctor import isolation
from orchestrator.runtime.plugins import provider
from sandboxes.base import ExecResult, Provider, Sandbox, SandboxSpec

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::sandboxes.local.NoIsolationWarning"),
]
NO_NAMES = """
import socket
def unknown(*arguments, **more):
    raise socket.gaierror(-2, "Name or service not known")
socket.getaddrinfo = unknown
"""


class Nameless:
    """A sandbox of this machine in which no name is known, as in a pod that may not query any."""

    name = "nameless"
    isolated = False
    containers = False

    def __init__(self, inner: Provider) -> None:
        self.inner = inner

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        async with self.inner.open(spec) as sandbox:

            class Without:
                async def exec(self, argv: list[str], *, timeout_s: float) -> ExecResult:
                    return await sandbox.exec([*argv[:2], NO_NAMES + argv[2], *argv[3:]], timeout_s=timeout_s)

            yield Without()  # type: ignore[misc]

    async def problems(self) -> tuple[str, ...]:
        return ()


@contextmanager
def listener(backlog: int = 5) -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(backlog)
        yield server.getsockname()[1]


async def test_a_server_known_by_name_that_is_reached_is_found_though_the_sandbox_knows_no_names() -> None:
    with listener() as port, anyio.fail_after(60):
        [one] = await isolation.checks(Nameless(provider("local")), [("a rollout server", "localhost", port)])
    assert not one.ok and "is reached, at 127.0.0.1" in one.detail and "network policy" in one.fix


@pytest.mark.parametrize("name", ["nowhere.invalid", f"{64 * 'a'}.invalid"])
async def test_a_name_that_does_not_resolve_is_a_finding(name: str) -> None:
    with listener() as port, anyio.fail_after(60):
        found = await isolation.checks(
            provider("local"), [("a rollout server", name, 80), ("NATS", "127.0.0.1", port)]
        )
    assert [one.ok for one in found] == [False, False]
    assert "nothing was tried" in found[0].detail and found[1].detail == "is reached"


async def test_thirty_silent_servers_are_tried_at_once() -> None:
    with ExitStack() as stack, anyio.fail_after(60):
        ports = [stack.enter_context(listener(0)) for _ in range(30)]
        for port in ports:  # one waits in each queue: the next connection gets no answer
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        reached = stack.enter_context(listener())
        targets = [("a rollout server", "127.0.0.1", port) for port in [*ports, reached]]
        found = await isolation.checks(provider("local"), targets)
    assert [one.detail for one in found[:-1]] == 30 * ["is not reached (no answer)"]
    assert not found[-1].ok


async def test_a_port_without_a_listener_is_not_reached_and_the_detail_says_why() -> None:
    with listener() as port:
        pass
    with anyio.fail_after(60):
        [one] = await isolation.checks(provider("local"), [("NATS", "127.0.0.1", port)])
    assert one.ok and one.detail == "is not reached (Connection refused)"


async def test_an_address_without_a_route_is_not_reached() -> None:
    with anyio.fail_after(60):
        [one] = await isolation.checks(provider("bubblewrap"), [("NATS", "192.0.2.1", 4222)])
    assert one.ok and one.detail == "is not reached (Network is unreachable)"
