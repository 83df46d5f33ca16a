"""The common part of hosts without containers: addresses, places and the command line of every process that the topology puts on a host."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from orchestrator.contracts.languages import json_text
from orchestrator.contracts.processes import ProcessRole
from orchestrator.deploy.cluster.placement import PlacedProcess, placed
from orchestrator.deploy.cluster.processes import (
    Links,
    ProcessCommand,
    Where,
    command,
)
from orchestrator.deploy.cluster.topology import (
    Resources,
    RunnerPool,
    SecretKey,
    ServerPool,
    Topology,
)

PROVIDER = "bubblewrap"
MAX_PAYLOAD = "8MB"


@dataclass(slots=True, kw_only=True)
class HostSite:
    """A topology on hosts. `address`: of a host for others; `home`: of a process; `secret`: the file of a secret."""

    topology: Topology
    address: Callable[[str], str]
    home: Callable[[PlacedProcess], str]
    secret: Callable[[SecretKey], str]
    programs: str
    listen: Callable[[PlacedProcess], str] | None = None
    processes: list[PlacedProcess] = field(init=False)  # in the order in which they start

    def __post_init__(self) -> None:
        self.processes = placed(self.topology)

    def urls(self, role: str) -> tuple[str, ...]:
        """URLs of the processes of a role that others call over HTTP."""
        return tuple(
            f"http://{self.address(each.host)}:{each.ports['http']}"
            for each in self.processes
            if each.role == role and each.node == 0
        )

    @property
    def links(self) -> Links:
        nats = [
            f"nats://{self.address(each.host)}:{each.ports['client']}"
            for each in self.processes
            if each.role == ProcessRole.NATS
        ]
        return Links(
            nats=self.topology.nats.external or ",".join(nats),
            gateways=self.urls(ProcessRole.GATEWAY),
            servers=self.urls(ProcessRole.ROLLOUT_SERVER),
            provider=PROVIDER,
        )

    def where(self, process: PlacedProcess) -> Where:
        """The location of one process."""
        leader = next(each for each in self.processes if each.name == process.name and each.node == 0)
        address = self.address(process.host) if self.listen is None else self.listen(process)
        return Where(
            home=self.home(process),
            secret=self.secret,
            address=address,
            programs=self.programs,
            leader=self.address(leader.host),
            node=str(process.node),
        )

    def command(self, process: PlacedProcess) -> ProcessCommand:
        """The command that starts it, including its GPUs."""
        found = command(self.topology, process, self.where(process))
        if not process.gpus:
            return found
        gpus = ",".join(map(str, process.gpus))
        return ProcessCommand(found.argv, {**found.environment, "CUDA_VISIBLE_DEVICES": gpus}, found.files)


def resources_of(topology: Topology, process: PlacedProcess) -> Resources:
    """The resources that one process may use."""
    single: Mapping[str, Resources] = {
        ProcessRole.NATS: topology.nats.resources,
        ProcessRole.POSTGRES: topology.postgres.resources,
        ProcessRole.ORCHESTRATOR: topology.orchestrators.resources,
        ProcessRole.GATEWAY: topology.gateways.resources,
        ProcessRole.TRAINER: topology.trainer.resources,
        ProcessRole.WEB: topology.web.resources,
    }
    if process.role in single:
        return single[process.role]
    pools: Mapping[str, Sequence[RunnerPool | ServerPool]] = {
        ProcessRole.RUNNER: topology.runners,
        ProcessRole.VERIFIER: topology.verifiers,
        ProcessRole.ROLLOUT_SERVER: topology.servers,
    }
    return next(pool.resources for pool in pools[process.role] if pool.name == process.pool)


def unit_of(process: PlacedProcess) -> str:
    """The unit name, unique for each machine's part of a process."""
    return f"{process.name}-node-{process.node}" if process.node else process.name


def nats_conf(site: HostSite, process: PlacedProcess, store: str, listen: str, login: str = "") -> str:
    """nats.conf of one server. `login`: a file with NATS_TOKEN and NATS_ROUTES, as `nats_logins` writes it, relative to the configuration's
    directory, since NATS accepts no other path. Empty: no login is required."""
    all_of_them = [each for each in site.processes if each.role == ProcessRole.NATS]
    lines = [
        f"server_name: {json_text(process.name)}",
        "listen: " + json_text(f"{listen}:{process.ports['client']}"),
        "http: "
        + json_text(f"{listen}:{process.ports['monitor']}")
        + "  # JetStream's state, for monitoring",
        f"max_payload: {MAX_PAYLOAD}",
        *([f"include {json_text(login)}", "authorization { token: $NATS_TOKEN }"] if login else []),
        "jetstream {",
        f"  store_dir: {json_text(store)}",
        f"  max_file_store: {site.topology.nats.store_gb}GB",
        "}",
    ]
    if len(all_of_them) > 1:
        routes = [
            json_text(f"nats-route://{site.address(each.host)}:{each.ports['cluster']}")
            for each in all_of_them
            if each is not process
        ]
        lines += [
            "cluster {",
            f"  name: {json_text(site.topology.name)}",
            "  listen: " + json_text(f"{listen}:{process.ports['cluster']}"),
            *(
                ["  authorization { user: penstock, password: $NATS_TOKEN }", "  routes: $NATS_ROUTES"]
                if login
                else [f"  routes: [{', '.join(routes)}]"]
            ),
            "}",
        ]
    return "\n".join(lines) + "\n"


def nats_logins(site: HostSite, login: str, url: str) -> list[str]:
    """Shell lines that create a token and write it: for the servers into the file `login`, for all clients into `url`. Both are words of a shell."""
    servers = [each for each in site.processes if each.role == ProcessRole.NATS]
    routes = [
        f'\\"nats-route://penstock:$token@{site.address(each.host)}:{each.ports["cluster"]}\\"'
        for each in servers
        if len(servers) > 1
    ]
    urls = [f"nats://$token@{site.address(each.host)}:{each.ports['client']}" for each in servers]
    return [
        "token=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \\n')",
        f"""(umask 077 && printf '%s\\n' "NATS_TOKEN: \\"$token\\"" "NATS_ROUTES: [{", ".join(routes)}]" > {login})""",
        f"""(umask 077 && printf '%s\\n' "{",".join(urls)}" > {url})""",
    ]


def of_login(site: HostSite) -> str:
    """The README's text: how to create the login of NATS, or that it requires none."""
    topology, secrets = site.topology, site.topology.secrets
    if topology.nats.external:
        return ""
    if secrets.nats_login is None or secrets.nats_url is None:
        ports = [topology.nats.port, topology.nats.monitor_port]
        if topology.nats.nodes > 1:
            ports.insert(1, topology.nats.cluster_port)
        return (
            f"\n   **NATS requires no login**, and any client that reaches it can forge results. Close ports "
            f"{', '.join(map(str, ports))}\n   to all but these hosts, or name secrets.nats_login and secrets.nats_url, and render again.\n"
        )
    files = [below(secrets.directory, key.name, key.key) for key in (secrets.nats_login, secrets.nats_url)]
    lines = "\n".join(f"       {line}" for line in nats_logins(site, *map(shlex.quote, files)))
    return f"\n   NATS requires a login. Make it once, and put the same two files everywhere:\n\n{lines}\n"


def below(directory: str, *parts: str) -> str:
    """A path below `directory`."""
    return str(PurePosixPath(directory, *parts))


def secret_files(topology: Topology) -> str:
    """The files of all secrets, one per line, as a README lists them."""
    directory = topology.secrets.directory
    login = topology.secrets.nats_login
    keys = [*topology.secrets.keys, *([login] if login is not None else [])]
    return "\n".join(f"       {below(directory, key.name, key.key)}" for key in keys)
