"""What hosts without containers have in common: addresses, places and the command line of every process that the topology puts on a host."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from orchestrator.cluster.placement import Process, placed
from orchestrator.cluster.processes import Command, Links, Where, command
from orchestrator.cluster.topology import Resources, RunnerPool, SecretKey, ServerPool, Topology

PROVIDER = "bubblewrap"
MAX_PAYLOAD = "8MB"
SERVICES = ("nats", "postgres")


@dataclass(slots=True)
class Site:
    """A topology on hosts. `address`: of a host, as others reach it; `home`: of a process; `secret`: the file of a secret."""

    topology: Topology
    address: Callable[[str], str]
    home: Callable[[Process], str]
    secret: Callable[[SecretKey], str]
    programs: str
    listen: Callable[[Process], str] | None = None
    processes: list[Process] = field(init=False)  # in the order in which they start

    def __post_init__(self) -> None:
        self.processes = placed(self.topology)

    def urls(self, role: str) -> tuple[str, ...]:
        """Of those that others call over HTTP."""
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
            if each.role == "nats"
        ]
        return Links(
            self.topology.nats.external or ",".join(nats),
            self.urls("gateway"),
            self.urls("rollout-server"),
            PROVIDER,
        )

    def where(self, process: Process) -> Where:
        """Where one process is."""
        leader = next(each for each in self.processes if each.name == process.name and each.node == 0)
        address = self.address(process.host) if self.listen is None else self.listen(process)
        return Where(
            self.home(process), self.secret, address, self.programs,
            leader=self.address(leader.host), node=str(process.node), number=str(process.number),
        )  # fmt: skip

    def command(self, process: Process) -> Command:
        """How it is started, GPUs included."""
        found = command(self.topology, process, self.where(process))
        if not process.gpus:
            return found
        gpus = ",".join(map(str, process.gpus))
        return Command(found.argv, {**found.environment, "CUDA_VISIBLE_DEVICES": gpus}, found.files)


def resources_of(topology: Topology, process: Process) -> Resources:
    """What one process may take."""
    single: Mapping[str, Resources] = {
        "nats": topology.nats.resources,
        "postgres": topology.postgres.resources,
        "orchestrator": topology.orchestrators.resources,
        "gateway": topology.gateways.resources,
        "trainer": topology.trainer.resources,
        "web": topology.web.resources,
    }
    if process.role in single:
        return single[process.role]
    pools: Mapping[str, Sequence[RunnerPool | ServerPool]] = {
        "runner": topology.runners,
        "verifier": topology.verifiers,
        "rollout-server": topology.servers,
    }
    return next(pool.resources for pool in pools[process.role] if pool.name == process.pool)


def unit_of(process: Process) -> str:
    """A name of its own for each machine's part."""
    return f"{process.name}-node-{process.node}" if process.node else process.name


def nats_conf(site: Site, process: Process, store: str, listen: str, login: str = "") -> str:
    """nats.conf of one server. `login`: a file with NATS_TOKEN and NATS_ROUTES, as `nats_logins` writes it, seen from the configuration's
    directory: NATS takes no other path. Empty: nobody is asked for a login."""
    all_of_them = [each for each in site.processes if each.role == "nats"]
    lines = [
        f'server_name: "{process.name}"',
        f'listen: "{listen}:{process.ports["client"]}"',
        f'http: "{listen}:{process.ports["monitor"]}"  # JetStream\'s state, for whoever watches',
        f"max_payload: {MAX_PAYLOAD}",
        *([f'include "{login}"', "authorization { token: $NATS_TOKEN }"] if login else []),
        "jetstream {",
        f'  store_dir: "{store}"',
        f"  max_file_store: {site.topology.nats.store_gb}GB",
        "}",
    ]
    if len(all_of_them) > 1:
        routes = [
            f'"nats-route://{site.address(each.host)}:{each.ports["cluster"]}"'
            for each in all_of_them
            if each is not process
        ]
        lines += [
            "cluster {",
            f'  name: "{site.topology.name}"',
            f'  listen: "{listen}:{process.ports["cluster"]}"',
            *(
                ["  authorization { user: penstock, password: $NATS_TOKEN }", "  routes: $NATS_ROUTES"]
                if login
                else [f"  routes: [{', '.join(routes)}]"]
            ),
            "}",
        ]
    return "\n".join(lines) + "\n"


def nats_logins(site: Site, login: str, url: str) -> list[str]:
    """Shell lines that make a token and write it: for the servers into the file `login`, for everybody else into `url`."""
    servers = [each for each in site.processes if each.role == "nats"]
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


def of_login(site: Site) -> str:
    """How a README says to make the login of NATS, or that it asks for none."""
    topology, of = site.topology, site.topology.secrets
    if topology.nats.external:
        return ""
    if of.nats_login is None or of.nats_url is None:
        ports = [topology.nats.port, topology.nats.monitor_port]
        if topology.nats.nodes > 1:
            ports.insert(1, topology.nats.cluster_port)
        return (
            f"\n   **NATS asks nobody for a login**, and whoever reaches it can send what looks like a result. Keep ports "
            f"{', '.join(map(str, ports))}\n   from everybody but these hosts, or name secrets.nats_login and secrets.nats_url, and render again.\n"
        )
    files = (below(of.directory, key.name, key.key) for key in (of.nats_login, of.nats_url))
    lines = "\n".join(f"       {line}" for line in nats_logins(site, *files))
    return f"\n   NATS asks for a login. Make it once, and put the same two files everywhere:\n\n{lines}\n"


def below(directory: str, *parts: str) -> str:
    """A path."""
    return str(PurePosixPath(directory, *parts))


def secret_files(topology: Topology) -> str:
    """The files of all secrets, a line each, as a README lists them."""
    directory = topology.secrets.directory
    login = topology.secrets.nats_login
    keys = [*topology.secrets.keys, *([login] if login is not None else [])]
    return "\n".join(f"       {below(directory, key.name, key.key)}" for key in keys)
