"""The processes of a run on one machine, as `penstock up` starts them: command, environment, sockets, order of starts and ends."""

import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import aiohttp

from orchestrator.contracts.languages import url_host
from orchestrator.contracts.processes import ProcessRole
from orchestrator.deploy.embedded.held_socket import HeldSocket
from orchestrator.deploy.embedded.ports import free_port
from orchestrator.deploy.embedded.process_spec import (
    ProcessSpec,
    RestartPolicy,
    RestartWhen,
)
from orchestrator.deploy.held_ports import HeldPorts, check_not_taken
from orchestrator.deploy.home import Home
from orchestrator.gateway.servers.client.own_server import OwnServerConnector
from orchestrator.runtime.secret_file import shared_secret, write_private
from orchestrator.settings.config import Config

# Loading a large model takes minutes, and SGLang takes 7 s to end.
COMMAND_START_S, SERVER_STOP_S = (600.0, 20.0)
PENSTOCK = (sys.executable, "-m", "orchestrator.cli")
Route = Callable[[str, str, str], str]
"""(process, service, real address) → the address that the process receives: for a proxy in between. Services: postgres, nats,
gateway, gateway-socket, rollout-server."""


def direct(process: str, what: str, address: str) -> str:
    """The route without a proxy."""
    return address


@dataclass(frozen=True, slots=True, kw_only=True)
class StackProcesses:
    """The processes of a run but its services and rollout servers: those of `only`. `services` are our own: all others start after them and end
    before them."""

    home: Home
    config: Config
    only: Sequence[str]
    services: tuple[str, ...]
    route: Route
    ports: HeldPorts

    def all(self, urls: Sequence[str]) -> Iterator[ProcessSpec]:
        """Every process; `urls`: the rollout servers'."""
        port = self.config.gateway.port  # the same across restarts: runners keep its address
        if ProcessRole.ORCHESTRATOR in self.only:
            yield self._process("orchestrator", self.ports.metrics("orchestrator"))
        if ProcessRole.GATEWAY in self.only:
            gateway = self._gateway(urls)
            port = gateway.sockets[0].port
            yield gateway
        if ProcessRole.RUNNER in self.only:
            yield self._runner(port or free_port())
        if ProcessRole.VERIFIER in self.only:
            yield self._process("verifier", self.ports.metrics("verifier"), after="gateway")
        if ProcessRole.TRAINER in self.only:
            # Like the verifier, it is not needed before rollouts run, and it takes seconds to load.
            trainer = self._process("trainer", self.ports.metrics("trainer"), after="gateway")
            yield replace(trainer, restart=RestartPolicy(when=RestartWhen.ON_FAILURE))
        if ProcessRole.WEB in self.only:
            web = self._process("web", self.ports.web(self.home.web_url_file))
            yield replace(web, ready=_dashboard(self.home.web_url_file))

    def _gateway(self, urls: Sequence[str]) -> ProcessSpec:
        config, sockets = self.config.servers, self.ports.gateway()
        routed = [self.route("gateway", "rollout-server", url) for url in urls]
        servers = tuple(part for url in routed for part in ("--server", url))
        # `penstock up` holds the ports of embedded servers. Those of a command are free while it is dead.
        own = ("--own-servers",) if config.command and not config.urls else ()
        options = (*servers, *own, "--port", str(sockets[0].port))
        url_file = self.home.gateway_url_file
        return replace(
            self._process("gateway", sockets, *options, after="orchestrator"),
            before_start=lambda: url_file.unlink(missing_ok=True),
            ready=_exists(url_file),
        )

    def _runner(self, port: int) -> ProcessSpec:
        """`port`: the gateway's."""
        url = self.route("runner", "gateway", f"http://{url_host(self.config.gateway.host)}:{port}")
        socket = self.route("runner", "gateway-socket", str(self.home.gateway_socket))
        options = ("--gateway", url, "--gateway-socket", socket)
        return replace(
            self._process("runner", self.ports.metrics("runner"), *options, after="orchestrator"),
            # It closes the sessions of its attempts.
            ends_before=("gateway",) if ProcessRole.GATEWAY in self.only else (),
        )

    def _process(
        self, name: str, sockets: tuple[HeldSocket, ...], *options: str, after: str | None = None
    ) -> ProcessSpec:
        """A command of `penstock` that starts after our own services, and after the process `after` if that one is started."""
        home, services = self.home, self.config.services
        overrides = (part for item in home.overrides for part in ("--set", item))
        return ProcessSpec(
            name=name,
            argv=(*PENSTOCK, name, "--config", str(home.file), *overrides, *options),
            env={
                "DATABASE_URL": self.route(name, "postgres", services.database_url),
                "NATS_URL": self.route(name, "nats", services.nats_url),
                "OMP_NUM_THREADS": "1",
                **_compiled(home),
            },
            sockets=sockets,
            after=(*self.services, after) if after is not None and after in self.only else self.services,
        )


def rollout_servers(
    home: Home, config: Config, model: str, ports: HeldPorts
) -> list[tuple[ProcessSpec, str]]:
    """Our own rollout servers, with their URLs; none if the configuration names others."""
    if config.servers.urls:
        return []
    key = () if (file := home.server_key) is None else ("--key-file", str(file))
    secret = None if file is None else shared_secret(file)  # made before any process reads it
    if secret is not None and config.servers.command:
        # SGLang takes options from a file, and so others cannot read them.
        write_private(
            home.server_key_config, f"api-key: {json.dumps(secret)}\nadmin-api-key: {json.dumps(secret)}\n"
        )
    found = []
    for index in range(config.servers.embedded):
        name = "rollout-server" if index == 0 else f"rollout-server-{index + 1}"
        sockets = () if config.servers.command else ports.rollout_server(name)
        port = sockets[0].port if sockets else free_port()
        url = f"http://127.0.0.1:{port}"
        seed = config.run.seed + index  # for a command; the embedded server draws its own at every start
        argv = config.servers.starts(
            model, port, seed, key_file=file or Path(), key_config=home.server_key_config
        ) or (
            sys.executable, "-m", "trainer.serving", "--model-path", model, "--host", "127.0.0.1",
            "--port", str(port), "--max-running-requests", str(config.servers.max_running),
            "--max-total-tokens", str(config.servers.max_total_tokens), *key,
        )  # fmt: skip
        answers = _answers(f"{url}/model_info", secret)  # even while it is paused
        spec = ProcessSpec(
            name=name,
            argv=argv,
            env={"OMP_NUM_THREADS": "1", **({} if config.servers.command else _compiled(home))},
            sockets=sockets,
            before_start=None if sockets else partial(check_not_taken, port),
            ready=answers,
            answers=answers,
            hang_s=config.servers.hang_s,
            ready_timeout_s=COMMAND_START_S if config.servers.command else 60.0,
            grace_s=SERVER_STOP_S,
        )
        found.append((spec, url))
    return found


def _compiled(home: Home) -> dict[str, str]:
    """Where torch keeps compiled code: by default in the temporary directory, under a name that another user of the machine can take first."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get(
            "TORCHINDUCTOR_CACHE_DIR", str(home.layout.run / "compiled")
        )
    }


def _answers(url: str, key: str | None = None) -> Callable[[], Awaitable[bool]]:
    """Whether a server answers; one that is sent a key must be this user's."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    limit = aiohttp.ClientTimeout(total=2)

    async def ready() -> bool:
        connector = None if key is None else OwnServerConnector(os.geteuid())
        try:
            async with (
                aiohttp.ClientSession(timeout=limit, headers=headers, connector=connector) as session,
                session.get(url) as response,
            ):
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    return ready


def _dashboard(url_file: Path) -> Callable[[], Awaitable[bool]]:
    async def ready() -> bool:
        try:
            address = url_file.read_text().partition("/?")[0]
        except OSError:
            return False
        return await _answers(f"{address}/healthz")()

    return ready


def _exists(file: Path) -> Callable[[], Awaitable[bool]]:
    async def ready() -> bool:
        return file.exists()

    return ready
