"""One compose file for one machine; for several, one each, on the hosts' own network."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestrator.contracts.languages import markdown_code, without_interpolation
from orchestrator.contracts.processes import WORKERS, ProcessRole
from orchestrator.deploy.cluster.placement import PlacedProcess
from orchestrator.deploy.cluster.processes import (
    READS_BUS,
    READS_POOL,
    TRAINS,
    Links,
    configuration,
    key_files,
    migrate,
    pool_of,
    secrets_of,
)
from orchestrator.deploy.cluster.render.bare import (
    HostSite,
    below,
    nats_conf,
    of_login,
    resources_of,
    secret_files,
    unit_of,
)
from orchestrator.deploy.cluster.render.objects import HOME, TRUTH, USER
from orchestrator.deploy.cluster.render.text import to_yaml
from orchestrator.deploy.cluster.toml import to_toml
from orchestrator.deploy.cluster.topology import SecretKey, ServerEngine, Topology

Service = dict[str, Any]

# The networks of a single machine: only services that talk to each other share one. None of them leads outside.
NETWORKS = {
    "pool": READS_POOL | {ProcessRole.POSTGRES},
    "bus": READS_BUS | {ProcessRole.NATS},
    "sessions": (ProcessRole.GATEWAY, ProcessRole.RUNNER),
    "servers": (ProcessRole.GATEWAY, ProcessRole.ROLLOUT_SERVER),
}
SANDBOX_OPTIONS = [
    "no-new-privileges:true",
    "seccomp:unconfined",
    "apparmor:unconfined",
    "systempaths=unconfined",
]


EXECUTES = (*WORKERS, ProcessRole.ROLLOUT_SERVER, ProcessRole.TRAINER)
"""Roles that run programs from /tmp: sandboxes' programs, and code that torch compiles."""
OWN = "own"
"""The service that gives state directories to the user of the processes: an engine creates them for root."""
OWNED = {OWN: {"condition": "service_completed_successfully"}}


def _file(key: SecretKey) -> str:
    return f"{key.name}.{key.key}"


class _ComposeFiles:
    """`host`: the machine; empty: the only one, whose services each have a network."""

    def __init__(self, topology: Topology, host: str) -> None:
        self.topology, self.host = topology, host
        machines = topology.machines
        self.site = HostSite(
            topology=topology,
            address=lambda name: machines[name].address,
            home=lambda process: HOME,
            secret=lambda key: f"/run/secrets/{_file(key)}",
            programs="",
            listen=None if host else lambda process: "0.0.0.0",
        )
        self.single = not host

    def address(self, process: PlacedProcess) -> str:
        """The address for other processes."""
        return unit_of(process) if self.single else self.site.address(process.host)

    @property
    def links(self) -> Links:
        """The links between processes: on a single machine by the names of their services."""
        links = self.site.links
        if not self.single:
            return links

        def urls(role: str, scheme: str, port: str) -> list[str]:
            return [
                f"{scheme}://{unit_of(each)}:{each.ports[port]}"
                for each in self.site.processes
                if each.role == role
            ]

        return Links(
            nats=self.topology.nats.external or ",".join(urls("nats", "nats", "client")),
            gateways=tuple(urls("gateway", "http", "http")),
            servers=tuple(urls("rollout-server", "http", "http")),
            provider=links.provider,
        )

    def settings(self) -> str:
        """penstock.toml."""
        return to_toml(configuration(self.topology, self.links))

    # --- services ---------------------------------------------------------------------------------------------

    def _base(self, role: str, image: str, process: PlacedProcess | None) -> Service:
        limits: Service = {}
        if process is not None:
            resources = resources_of(self.topology, process)
            limits = {"cpus": f"{resources.cpus:g}", "memory": f"{round(resources.memory_gb * 1000)}M"}
        found: Service = {"image": image}
        if self.single:
            found["networks"] = [name for name, roles in NETWORKS.items() if role in roles]
        else:
            found["network_mode"] = "host"
        found |= {
            "read_only": True,
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges:true"],
            "tmpfs": ["/tmp:mode=1777,exec" if role in EXECUTES else "/tmp:mode=1777"],  # noexec by default
        }
        if limits:
            found["deploy"] = {"resources": {"limits": limits}}
            if process is not None and process.gpus:
                devices = [
                    {
                        "driver": "nvidia",
                        "device_ids": [str(gpu) for gpu in process.gpus],
                        "capabilities": ["gpu"],
                    }
                ]
                found["deploy"]["resources"]["reservations"] = {"devices": devices}
        return found

    def _own(self, process: PlacedProcess) -> Service:
        topology, role = self.topology, process.role
        sglang = (
            role == ProcessRole.ROLLOUT_SERVER and pool_of(topology, process).engine is ServerEngine.SGLANG
        )
        starts = self.site.command(process)
        argv = [
            part.replace("0.0.0.0", self.address(process)) if part.startswith("gateway.host=") else part
            for part in starts.argv
        ]
        found = self._base(role, topology.images.sglang if sglang else topology.images.penstock, process)
        found["user"] = f"{USER}:{USER}"
        found["command"] = argv
        # Containers count their GPUs from 0: they see no others.
        environment = {
            key: value for key, value in starts.environment.items() if key != "CUDA_VISIBLE_DEVICES"
        }
        if role in TRAINS:
            environment["HOME"] = "/tmp"
        if sglang or role == ProcessRole.TRAINER:  # ranks share it; the engine's default has 64 MB
            found["shm_size"] = "8gb"
        if environment:
            found["environment"] = environment
        keys = [*secrets_of(topology, role).values(), *key_files(topology, process)]
        if names := list(dict.fromkeys(_file(key) for key in keys)):
            found["secrets"] = names
        volumes: list[str | Service] = []
        if role != ProcessRole.ROLLOUT_SERVER:
            volumes += [
                "./penstock.toml:/penstock/penstock.toml:ro",
                f"state-{unit_of(process)}:/penstock/.penstock",
            ]
            found["depends_on"] = dict(OWNED)
            if self._here(ProcessRole.ORCHESTRATOR):
                found["depends_on"][ProcessRole.MIGRATE] = {"condition": "service_completed_successfully"}
        if role in (ProcessRole.GATEWAY, ProcessRole.ROLLOUT_SERVER, ProcessRole.TRAINER):
            # In the long form, which takes a path with a colon.
            where = {"source": topology.shared.path, "target": topology.shared.path}
            volumes.append({"type": "bind", **where, "read_only": role != ProcessRole.TRAINER})
        found["volumes"] = volumes
        if role in WORKERS:  # its sandboxes need user namespaces, which the defaults forbid
            found["security_opt"] = list(SANDBOX_OPTIONS)
        if "http" in process.ports and role == ProcessRole.ROLLOUT_SERVER:
            found["healthcheck"] = _asks(
                f"http://{self._local(process)}:{process.ports['http']}/model_info", start_s=600
            )
        elif "metrics" in process.ports:
            found["healthcheck"] = _asks(f"http://127.0.0.1:{process.ports['metrics']}/readyz", start_s=120)
        found["restart"] = "on-failure" if role == ProcessRole.TRAINER else "unless-stopped"
        found["stop_grace_period"] = "120s" if role == ProcessRole.RUNNER else "60s"
        return found

    def _local(self, process: PlacedProcess) -> str:
        return "127.0.0.1" if self.single else self.site.address(process.host)

    def _here(self, role: str) -> bool:
        return any(each.role == role for each in self.mine())

    def mine(self) -> list[PlacedProcess]:
        """The processes of this machine."""
        return [each for each in self.site.processes if self.single or each.host == self.host]

    def _nats(self, process: PlacedProcess) -> Service:
        found = self._base(ProcessRole.NATS, self.topology.images.nats, process)
        if (login := self.topology.secrets.nats_login) is not None:
            found["secrets"] = [_file(login)]
        return found | {
            "user": f"{USER}:{USER}",
            "command": ["--config", "/etc/nats/nats.conf"],
            "volumes": [f"./{process.name}.conf:/etc/nats/nats.conf:ro", f"state-{process.name}:/data"],
            "depends_on": dict(OWNED),
            "restart": "unless-stopped",
        }

    def _postgres(self, process: PlacedProcess) -> Service:
        found = self._base(ProcessRole.POSTGRES, "postgres:18.1", process)
        del found["cap_drop"]  # at its start it gives the directory to its own user
        return found | {
            "command": ["-c", f"port={process.ports['client']}", "-c", "max_connections=400"],
            "environment": {
                "POSTGRES_USER": "penstock",
                "POSTGRES_DB": "penstock",
                "POSTGRES_PASSWORD_FILE": "/run/secrets/postgres.password",
            },
            "secrets": ["postgres.password"],
            "tmpfs": ["/tmp:mode=1777", "/var/run/postgresql"],
            "volumes": [f"state-{process.name}:/var/lib/postgresql"],
            "healthcheck": {
                "test": [
                    "CMD",
                    "pg_isready",
                    "-h",
                    "127.0.0.1",
                    "-p",
                    str(process.ports["client"]),
                    "-U",
                    "penstock",
                ],
                "interval": "2s",
                "timeout": "5s",
                "retries": 60,
            },
            "restart": "unless-stopped",
        }

    def _migrate(self) -> Service:
        key = self.topology.secrets.database_url
        found = self._base(ProcessRole.MIGRATE, self.topology.images.penstock, None)
        found |= {
            "user": f"{USER}:{USER}",
            "working_dir": TRUTH,
            "command": migrate(self.site.where(self.mine()[0])),
            "environment": {"DATABASE_URL_FILE": f"/run/secrets/{_file(key)}"},
            "secrets": [_file(key)],
            "restart": "on-failure",
        }
        if self._here(ProcessRole.POSTGRES):
            found["depends_on"] = {"postgres-0": {"condition": "service_healthy"}}
        return found

    def _own_state(self, services: Mapping[str, Service]) -> dict[str, Service]:
        """The service that gives state directories to their user, except PostgreSQL's: that does so by itself."""
        names = [
            name
            for service in services.values()
            if OWN in service.get("depends_on", {})
            for name in _states(service)
        ]
        if not names:
            return {}
        found = self._base(OWN, self.topology.images.penstock, None)
        found.pop("networks", None)
        found |= {
            "network_mode": "none",
            "user": "0:0",
            "cap_add": ["CHOWN"],
            "command": ["chown", f"{USER}:{USER}", *(f"/state/{name}" for name in names)],
            "volumes": [f"{name}:/state/{name}" for name in names],
            "restart": "no",
        }
        return {OWN: found}

    def files(self, directory: str) -> dict[str, str]:
        """The compose file of this machine and the files that it mounts."""
        services: dict[str, Service] = {}
        files = {f"{directory}penstock.toml": self.settings()}
        if self._here(ProcessRole.ORCHESTRATOR):
            services[ProcessRole.MIGRATE] = self._migrate()
        for process in self.mine():
            if process.role == ProcessRole.NATS:
                services[process.name] = self._nats(process)
                key = self.topology.secrets.nats_login
                login = "" if key is None else f"../../run/secrets/{_file(key)}"
                listen = "0.0.0.0" if self.single else self.site.address(process.host)
                files[f"{directory}{process.name}.conf"] = nats_conf(
                    self.site, process, "/data", listen, login
                )
            elif process.role == ProcessRole.POSTGRES:
                services[process.name] = self._postgres(process)
            else:
                services[unit_of(process)] = self._own(process)
        services = {**self._own_state(services), **services}
        used = sorted({name for service in services.values() for name in service.get("secrets", [])})
        document: dict[str, Any] = {"name": f"penstock-{self.topology.name}", "services": services}
        if self.single:
            document["networks"] = {
                name: {} if name == "pool" else {"internal": True}
                for name in NETWORKS
                if any(name in service.get("networks", []) for service in services.values())
            }
        document["volumes"] = {name: {} for service in services.values() for name in _states(service)}
        if used:
            secrets_directory = self.topology.secrets.directory
            document["secrets"] = {
                name: {
                    "file": below(secrets_directory, *name.split(".", 1))
                    if name != "postgres.password"
                    else below(secrets_directory, "postgres", "password")
                }
                for name in used
            }
        title = f"The Penstock run {self.topology.name}" + ("" if self.single else f" on {self.host}")
        files[f"{directory}compose.yaml"] = f"# {title}. Written by `penstock cluster render`.\n" + to_yaml(
            without_interpolation(document)
        )
        return files


def _states(service: Service) -> list[str]:
    """The named volumes of a service: state directories."""
    texts = [volume for volume in service.get("volumes", []) if isinstance(volume, str)]
    return [text.partition(":")[0] for text in texts if text.startswith("state-")]


def _asks(url: str, *, start_s: int) -> Service:
    """A health check: healthy if the URL, of the container itself, answers 200. docker may give the container a proxy."""
    script = f"import urllib.request as u; u.build_opener(u.ProxyHandler({{}})).open('{url}', timeout=4)"
    return {
        "test": ["CMD", "python3", "-c", script],
        "interval": "10s",
        "timeout": "8s",
        "retries": 3,
        "start_period": f"{start_s}s",
    }


def links(topology: Topology) -> Links:
    """The links between processes."""
    machines = list(topology.machines)
    return _ComposeFiles(topology, "" if len(machines) == 1 else machines[0]).links


def render(topology: Topology) -> Mapping[str, str]:
    """compose.yaml and the files that it mounts, or such a directory for each host. ValueError if no host is named."""
    if not topology.hosts:
        raise ValueError("hosts is empty: name the machine that runs the containers ([[hosts]])")
    files: dict[str, str] = {}
    if len(topology.machines) == 1:
        files |= _ComposeFiles(topology, "").files("")
        directory, copied = "this directory", ""
    else:
        for host in topology.machines:
            files |= _ComposeFiles(topology, host).files(f"hosts/{host}/")
        copied = (
            f"\n   This directory with its files' modes (`rsync -rp`), as `penstock-{topology.name}` in the home of the user that "
            "starts it on each HOST: `penstock scale` puts new files there."
        )
        directory = f"`penstock-{topology.name}/hosts/HOST` on each HOST"
    database = next(
        (each for each in _ComposeFiles(topology, "").mine() if each.role == ProcessRole.POSTGRES), None
    )
    password = ""
    if database is not None:
        host = "postgres-0" if len(topology.machines) == 1 else topology.machines[database.host].address
        password = (
            f"       {below(topology.secrets.directory, 'postgres', 'password')}\n\n"
            f"   PostgreSQL is one of the containers: its URL is postgresql://penstock:PASSWORD@{host}:{database.ports['client']}/penstock.\n"
        )
    only = len(topology.machines) == 1
    login = ""
    if not only or topology.secrets.nats_login is not None:  # otherwise only its network can reach it
        first_site = _ComposeFiles(topology, "" if only else next(iter(topology.machines))).site
        login = of_login(replace(first_site, address=lambda host: "nats-0") if only else first_site)
    files["README.md"] = f"""\
# {topology.name} with compose

Written by `penstock cluster render`; change the topology and render again, or go on by hand.

1. The secrets, as files that the containers' user ({USER}) can read (the admin secret: 32 random bytes as text):

{secret_files(topology)}
{password}{login}
2. The directory {markdown_code(topology.shared.path)}, owned by {USER}, with the first policy in it.{copied}
3. `docker compose up -d` in {directory}. The dashboard listens on loopback of its container: read its URL with
   `docker compose exec web-0 cat /penstock/.penstock/run/web.url`, and publish it as you like.

Runners make sandboxes inside of their containers by user namespaces: their containers go without the runtime's system call filter (bubblewrap
brings its own), and the host must allow user namespaces to every user.
"""
    return files
