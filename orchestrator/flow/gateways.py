"""The gateways that a runner may use: each attempt has one of them, from its session to its seal.

A session lives where it was opened: the newest steps may lie in that gateway's journal alone, and another one would seal without them. So an
attempt does not change its gateway. When one dies and another one answers, its attempts end, resumable, and go on under another lease.

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

from orchestrator.bus.feed import beside
from orchestrator.clock import clock
from orchestrator.contracts.errors import PenstockError, ServiceError
from orchestrator.flow.bridge import bridged
from orchestrator.gateway_client import GatewayAdmin, GatewayAway, GatewayRefused
from orchestrator.log import get
from orchestrator.pool.culprits import GATEWAY_DRAINS
from orchestrator.progress import pause, restartable
from sandboxes.owned import owned_directory, sockets_root

log = get(__name__)

ASK_S = 1.0


@dataclass(slots=True, eq=False)
class Gateway:
    """One gateway as a runner sees it. `socket`: of this host, what sandboxes may see; of a `remote` one it leads to its `sandbox_port`, 0 until
    the gateway has said that."""

    url: str
    admin: GatewayAdmin
    socket: Path
    remote: bool = False
    sandbox_port: int = 0
    answers: bool = False
    draining: bool = False  # it opens no new sessions
    heard: float = field(default_factory=anyio.current_time)  # when it last answered
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
        """Ask it whether it is there, and where sandboxes find it. Raises GatewayAway, or ServiceError for what a person must change."""
        with known_secret():
            seen = await self.admin.activity(rollout=0, attempt=0, epoch=0)
        self.sandbox_port, self.draining = seen.sandbox_port, seen.draining
        if self.remote and not seen.sandbox_port:
            raise ServiceError(
                f"the gateway at {self.url} takes no sandboxes of other hosts: set gateway.sandbox_port in its configuration"
            )
        self.answers, self.heard = True, anyio.current_time()

    def place(self) -> tuple[str, int] | None:
        """Where its routes for sandboxes are; None while that is not known."""
        return (urlsplit(self.url).hostname or "", self.sandbox_port) if self.sandbox_port else None


class Gateways:
    """All of them. Made by `reached`."""

    def __init__(self, gateways: Sequence[Gateway]) -> None:
        self._gateways = gateways
        self._turn = itertools.cycle(gateways)

    @property
    def all(self) -> Sequence[Gateway]:
        return self._gateways

    def choose(self) -> Gateway:
        """For a new attempt: of those that answer and do not drain the one with the fewest, else whoever's turn it is, which may be back soon."""
        answering = [gateway for gateway in self._gateways if gateway.answers and not gateway.draining]
        first = next(self._turn)
        return min(answering, key=lambda gateway: (len(gateway.held), gateway is not first), default=first)

    async def shut(self) -> str:
        """What an attempt has to wait for before it begins, empty: nothing. One that is away is no reason: it may be back soon."""
        if len(self._gateways) == 1:  # nobody watches it
            await _answers(self._gateways[0])
        return GATEWAY_DRAINS if all(gateway.draining for gateway in self._gateways) else ""

    async def opens(self) -> None:
        """Wait until one of them takes sessions."""
        while await self.shut():
            await anyio.sleep(ASK_S)

    async def until_one_answers(self) -> None:
        """Return when one of them has. Raises GatewayAway when none does within the clients' patience, ServiceError where one refuses the
        secret, or takes no sandboxes of other hosts."""
        problems: list[PenstockError] = []
        async with anyio.create_task_group() as tasks:

            async def ask(gateway: Gateway) -> None:
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

    async def watch(self, gateway: Gateway) -> None:
        """Ask one gateway now and then, until cancelled. Silent for `clock.gateway_silent_s` while another one answers, it is lost."""
        while True:
            answered = gateway.answers
            if await _answers(gateway):
                if not answered:
                    log.info("gateway.back", gateway=gateway.url)
            else:
                if answered:
                    log.warning("gateway.away", gateway=gateway.url, attempts=len(gateway.held))
                gateway.answers = False
                silent = anyio.current_time() - gateway.heard > clock().gateway_silent_s
                if silent and gateway.held and any(other.answers for other in self._gateways):
                    log.warning("gateway.lost", gateway=gateway.url, attempts=len(gateway.held))
                    for scope in list(gateway.held):
                        scope.cancel()
            await pause(min(ASK_S, clock().gateway_silent_s / 4))


async def _answers(gateway: Gateway) -> bool:
    with anyio.move_on_after(min(ASK_S, clock().gateway_silent_s / 4)):
        try:
            await gateway.greet()
            return True
        except PenstockError as error:
            log.info("gateway.silent", error=str(error))
    return False


@contextmanager
def known_secret() -> Iterator[None]:
    """ServiceError where the gateway knows another secret."""
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
    """Clients of the gateways at `urls`, which share `secret`. `socket`: the only one's own, on this host; None: this process makes one for
    each, named after `owner`, that leads there. Several are watched while the context is open."""
    async with AsyncExitStack() as stack:
        found = []
        for url in urls:
            admin = await stack.enter_async_context(GatewayAdmin(url, secret))
            if socket is not None:
                found.append(Gateway(url, admin, socket))
                continue
            name = hashlib.sha256(f"{owner}|{url}".encode()).hexdigest()[:12]
            gateway = Gateway(url, admin, sockets_root() / name / "gateway.sock", remote=True)
            stack.enter_context(owned_directory(gateway.socket.parent))
            await stack.enter_async_context(bridged(gateway.socket, gateway.place))
            found.append(gateway)
        gateways = Gateways(found)
        if len(found) > 1:
            for gateway in found:
                watch = partial(gateways.watch, gateway)
                await stack.enter_async_context(beside(partial(restartable, f"gateway {gateway.url}", watch)))
        yield gateways
