"""The gateways that a runner may use: each attempt uses one of them, from its session to its seal.

A session stays where it was opened: the newest steps may exist only in that gateway's journal, and another gateway would seal without them. So
an attempt does not change its gateway. When a gateway dies and another one answers, its attempts end as resumable and continue under new leases.

| produces | waits for | unblocked by |
|---|---|---|
| a gateway for each attempt; lost attempts, resumed elsewhere | answers of several gateways | time |
"""

import hashlib
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import anyio

from orchestrator.bus.feed import in_background
from orchestrator.contracts.errors import PenstockError, ServiceError
from orchestrator.gateway_client import GatewayAdmin, GatewayAway, GatewayRefused
from orchestrator.pool.stall_causes import GATEWAY_DRAINS
from orchestrator.runner.bridge import bridged
from orchestrator.runtime.liveness import pause, restartable
from orchestrator.runtime.log import get
from orchestrator.settings.timeouts import timeouts
from sandboxes.owned import owned_directory, sockets_root

log = get(__name__)

ASK_S = 1.0


@dataclass(slots=True, eq=False, kw_only=True)
class KnownGateway:
    """One gateway as a runner sees it. `socket`: path on this host that sandboxes may see. For a `remote` gateway it leads to its `sandbox_port`,
    which is 0 until the gateway has reported it."""

    url: str
    admin: GatewayAdmin
    socket: Path
    remote: bool = False
    sandbox_port: int = 0
    answers: bool = False
    draining: bool = False  # it opens no new sessions
    last_answer: float = field(default_factory=anyio.current_time)  # when it last answered
    held: set[anyio.CancelScope] = field(default_factory=set)

    @contextmanager
    def serving(self) -> Iterator[anyio.CancelScope]:
        """The scope of one attempt with this gateway; cancelled when it is lost (`cancelled_caught`)."""
        with anyio.CancelScope() as scope:
            self.held.add(scope)
            try:
                yield scope
            finally:
                self.held.discard(scope)

    async def greet(self) -> None:
        """Query the gateway's presence and the address for its sandboxes. Raises GatewayAway, or ServiceError for a problem that a person must
        fix."""
        with known_secret():
            seen = await self.admin.activity(rollout=0, attempt=0, epoch=0)
        self.sandbox_port, self.draining = seen.sandbox_port, seen.draining
        if self.remote and not seen.sandbox_port:
            raise ServiceError(
                f"the gateway at {self.url} takes no sandboxes of other hosts: set gateway.sandbox_port in its configuration"
            )
        self.answers, self.last_answer = True, anyio.current_time()

    def place(self) -> tuple[str, int] | None:
        """Address of its routes for sandboxes; None while unknown."""
        return (urlsplit(self.url).hostname or "", self.sandbox_port) if self.sandbox_port else None


class Gateways:
    """All gateways of a runner. Made by `reached`."""

    def __init__(self, gateways: Sequence[KnownGateway]) -> None:
        self._gateways = gateways
        self._turn = itertools.cycle(gateways)

    @property
    def all(self) -> Sequence[KnownGateway]:
        return self._gateways

    def choose(self) -> KnownGateway:
        """A gateway for a new attempt: the least loaded of those that answer and do not drain, else the next in turn, which may be back soon."""
        answering = [gateway for gateway in self._gateways if gateway.answers and not gateway.draining]
        first = next(self._turn)
        return min(answering, key=lambda gateway: (len(gateway.held), gateway is not first), default=first)

    async def why_closed(self) -> str | None:
        """The condition that blocks a new attempt; None: it may begin. An absent gateway does not block: it may be back soon."""
        if len(self._gateways) == 1:  # a single gateway has no `watch`
            await _answers(self._gateways[0])
        return GATEWAY_DRAINS if all(gateway.draining for gateway in self._gateways) else None

    async def wait_open(self) -> None:
        """Wait until one of them takes sessions."""
        while await self.why_closed() is not None:
            await anyio.sleep(ASK_S)

    async def until_one_answers(self) -> None:
        """Return when one gateway answers. Raises GatewayAway when none does within the clients' patience, ServiceError if one refuses the secret or
        serves no sandboxes on other hosts."""
        problems: list[PenstockError] = []
        async with anyio.create_task_group() as tasks:

            async def ask(gateway: KnownGateway) -> None:
                try:
                    await gateway.greet()
                except GatewayAway as error:
                    problems.append(error)
                    if len(problems) < len(self._gateways):
                        return
                except PenstockError as error:
                    problems.insert(0, error)
                else:
                    problems.clear()
                tasks.cancel_scope.cancel()

            for gateway in self._gateways:
                tasks.start_soon(ask, gateway)
        if problems:
            raise problems[0]

    async def watch(self, gateway: KnownGateway) -> None:
        """Query one gateway periodically, until cancelled. It is lost after `timeouts.gateway_silent_s` of silence while another one answers."""
        while True:
            answered = gateway.answers
            if await _answers(gateway):
                if not answered:
                    log.info("gateway.back", gateway=gateway.url)
            else:
                if answered:
                    log.warning("gateway.away", gateway=gateway.url, attempts=len(gateway.held))
                gateway.answers = False
                silent = anyio.current_time() - gateway.last_answer > timeouts().gateway_silent_s
                if silent and gateway.held and any(other.answers for other in self._gateways):
                    log.warning("gateway.lost", gateway=gateway.url, attempts=len(gateway.held))
                    for scope in list(gateway.held):
                        scope.cancel()
            await pause(min(ASK_S, timeouts().gateway_silent_s / 4))


async def _answers(gateway: KnownGateway) -> bool:
    with anyio.move_on_after(min(ASK_S, timeouts().gateway_silent_s / 4)):
        try:
            await gateway.greet()
            return True
        except PenstockError as error:
            log.info("gateway.silent", error=str(error))
    return False


@contextmanager
def known_secret() -> Iterator[None]:
    """ServiceError if the gateway has another secret."""
    try:
        yield
    except GatewayRefused as error:
        if error.status in (401, 403):
            raise ServiceError(
                f"the gateway refuses this runner's admin secret ({error}): both must read the same file"
            ) from error
        raise


@asynccontextmanager
async def reached(
    urls: Sequence[str], secret: str, socket: Path | None, owner: str
) -> AsyncIterator[Gateways]:
    """Clients of the gateways at `urls`, which share `secret`. `socket`: the socket of a single gateway on this host. None: this process creates a
    socket for each, named after `owner`, that leads to it. Several gateways are watched while the context is open."""
    async with AsyncExitStack() as stack:
        found = []
        for url in urls:
            admin = await stack.enter_async_context(GatewayAdmin(url, secret))
            if socket is not None:
                found.append(KnownGateway(url=url, admin=admin, socket=socket))
                continue
            name = hashlib.sha256(f"{owner}|{url}".encode()).hexdigest()[:12]
            gateway = KnownGateway(
                url=url, admin=admin, socket=sockets_root() / name / "gateway.sock", remote=True
            )
            stack.enter_context(owned_directory(gateway.socket.parent))
            await stack.enter_async_context(bridged(gateway.socket, gateway.place))
            found.append(gateway)
        gateways = Gateways(found)
        if len(found) > 1:
            for gateway in found:
                watch = partial(gateways.watch, gateway)
                await stack.enter_async_context(
                    in_background(partial(restartable, f"gateway {gateway.url}", watch))
                )
        yield gateways
