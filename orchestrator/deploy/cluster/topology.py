"""The file that people write about a run on one machine or many: `topology.toml`, frozen, unknown keys refused by name. Read by `reading.load`.

Sizes: `_gb` are 10^9 bytes, CPUs are cores. A role that names no `hosts` may run on all of them. Names of hosts may be ranges, in Slurm's
syntax: gpu[01-16]. The content of `[config]` goes to penstock.toml; keys that the topology itself decides are refused there.
"""

import math
import re
from enum import StrEnum
from ipaddress import ip_network
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from orchestrator.contracts.quote import quoted
from orchestrator.settings.config import Config
from orchestrator.settings.curriculum import Positive
from orchestrator.settings.section import Section

Port = Annotated[int, Field(ge=1, le=65535)]
Count = Annotated[int, Field(ge=0)]
Amount = Annotated[float, Field(gt=0)]

_NUMBERS = r"\[(?P<first>[0-9]{1,9})-(?P<last>[0-9]{1,9})\]"
_EACH_RANGE = re.compile(_NUMBERS)
_RANGE = re.compile(rf"(?P<before>[^\[\]]*){_NUMBERS}(?P<after>.*)")
_HOST = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_ADDRESS = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?)?")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")


MAX_HOSTS = 10_000
"""Hosts of one range, at most."""
MAX_HOST = 253
"""Characters of a host's name, as DNS has it, and of a range."""


def hosts_of(pattern: str) -> list[str]:
    """The names of a range, in order. ValueError for an empty one, and for one of more than MAX_HOSTS.

    >>> hosts_of("gpu[08-10].rack")
    ['gpu08.rack', 'gpu09.rack', 'gpu10.rack']
    """
    found = _RANGE.fullmatch(pattern) if len(pattern) <= MAX_HOST else None
    if found is None:
        if len(pattern) > MAX_HOST or not _HOST.fullmatch(pattern):
            raise ValueError(
                f"{quoted(pattern)} is not a host name: write a-z, 0-9, '-' and '.', or a range, node[1-4]"
            )
        return [pattern]
    first, last, width = int(found["first"]), int(found["last"]), len(found["first"])
    if last < first:
        raise ValueError(f"the range {quoted(pattern)} is empty: {first} comes after {last}")
    amounts = [int(each["last"]) - int(each["first"]) + 1 for each in _EACH_RANGE.finditer(pattern)]
    if (amount := math.prod(amounts)) > MAX_HOSTS:
        raise ValueError(
            f"the range {quoted(pattern)} has {amount:,} hosts, and {MAX_HOSTS:,} are the most: is a number too long?"
        )
    return [
        name
        for number in range(first, last + 1)
        for name in hosts_of(f"{found['before']}{number:0{width}d}{found['after']}")
    ]


def _label(name: str) -> str:
    if not _LABEL.fullmatch(name):
        raise ValueError(
            f"{quoted(name)} names objects of a cluster: write 1 to 40 of a-z, 0-9 and '-', letters at both ends"
        )
    return name


def _address(address: str) -> str:
    """It stands in URLs, in shell lines and in the configuration of NATS."""
    if not _ADDRESS.fullmatch(address):
        raise ValueError(f"{quoted(address)} is not an address: write a host name or an IPv4 address")
    return address


def _image(image: str) -> str:
    """An image by digest, or by a fixed tag."""
    name, separator, digest = image.partition("@")
    if separator:
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest) or not name:
            raise ValueError(
                f"{quoted(image)} has no digest behind the @: write name@sha256: and 64 hexadecimal digits"
            )
        return image
    tag = name.rpartition("/")[2].partition(":")[2]
    if tag in ("", "latest"):
        raise ValueError(
            f"{quoted(image)} is another image tomorrow: name it by digest (name@sha256:…) or by a fixed tag, never :latest"
        )
    return image


def _by_reference(given: Any) -> Any:
    """A secret is given by name, never by value."""
    if isinstance(given, str):
        raise ValueError(
            'it is a secret, given inline: write where it is kept instead, { name = "…", key = "…" }'
        )
    return given


def _network(addresses: str) -> str:
    try:
        return str(ip_network(addresses))
    except ValueError as error:
        raise ValueError(f"{error}: write a network, 10.96.0.1/32") from None


Label = Annotated[str, BeforeValidator(_label)]
Network = Annotated[str, AfterValidator(_network)]
Image = Annotated[str, BeforeValidator(_image)]
HostPatterns = tuple[str, ...]


class SecretKey(Section):
    """One key of one secret: on Kubernetes a Secret's; elsewhere the file `secrets.directory`/name/key."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
    key: Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]+$")]


Secret = Annotated[SecretKey, BeforeValidator(_by_reference)]


class Secrets(Section):
    """The location of secrets. `database_url_of`: logins of single roles, each with only its rights (ops/guides/security.md). `server_key`: what
    rollout servers require; without it, any program that reaches their ports can replace the policy. `server_key_config`: the same for SGLang, a
    YAML file with `admin-api-key`."""

    directory: str = "/etc/penstock/secrets"
    database_url: Secret = SecretKey(name="penstock-postgres-app", key="uri")
    database_url_of: dict[
        Literal["orchestrator", "gateway", "runner", "verifier", "trainer", "web"], Secret
    ] = Field(default={})
    gateway_admin: Secret = SecretKey(name="penstock-gateway", key="admin")
    server_key: Secret | None = None
    server_key_config: Secret | None = None
    nats_url: Secret | None = None  # with a login; None: no login is required
    # systemd, compose: included in NATS's own configuration, so that it requires that login.
    nats_login: Secret | None = None

    @property
    def keys(self) -> tuple[SecretKey, ...]:
        """Every secret that a run's processes read, each once."""
        of_servers = (self.server_key, self.server_key_config)
        keys = [
            self.database_url,
            *self.database_url_of.values(),
            self.gateway_admin,
            *of_servers,
            self.nats_url,
        ]
        return tuple(dict.fromkeys(key for key in keys if key is not None))


class Images(Section):
    """The images of containers."""

    penstock: Image
    sglang: Image = "lmsysorg/sglang:v0.5.23"
    sandbox: Image = "python:3.11-slim-bookworm"  # Kubernetes: where tasks without a Dockerfile run
    nats: Image = "nats:2.15.0-alpine"
    postgres: Image = "ghcr.io/cloudnative-pg/postgresql:18.6"


class Resources(Section):
    """Resources of one process, or of one node's part of it. Requests and limits are equal."""

    cpus: Amount = 1.0
    memory_gb: Amount = 2.0
    disk_gb: Amount = 2.0  # disk space outside of its volumes


class Host(Section):
    """A machine, or a range of equal ones. `address`: its address for others; empty: its name."""

    name: str
    address: Annotated[str, AfterValidator(_address)] = ""
    gpus: Count = 0
    cpus: Amount = 8.0
    memory_gb: Amount = 32.0

    @model_validator(mode="after")
    def _names(self) -> Self:
        if len(hosts_of(self.name)) > 1 and self.address:
            raise ValueError(
                f"{quoted(self.name)} is a range: its hosts have an address each, so leave it out"
            )
        return self


class Shared(Section):
    """The directory that every gateway, rollout server and trainer rank sees, at the same path, with the weights of all versions."""

    path: str = ""
    model: str = ""  # the first policy: a directory, absolute or below `path`
    size_gb: Positive = 500
    storage_class: str = ""  # Kubernetes: one that gives ReadWriteMany; empty: the cluster's default
    claim: str = ""  # Kubernetes: a claim that is there already


class HostedSection(Section):
    """A component that runs on hosts."""

    hosts: HostPatterns = ()


class Nats(HostedSection):
    """JetStream. With 3 or 5 nodes it survives the loss of one or two. `external`: a URL without login of existing servers."""

    nodes: Literal[1, 3, 5] = 1
    external: str = ""
    port: Port = 4222
    cluster_port: Port = 6222
    monitor_port: Port = 8222
    store_gb: Positive = 10
    resources: Resources = Resources(cpus=2, memory_gb=4)


class Postgres(HostedSection):
    """The only truth. Kubernetes: a Cluster of CloudNativePG with this many instances. Elsewhere an existing server or, on compose,
    one container. `external`: none is created anywhere."""

    instances: Positive = 1
    external: bool = False
    port: Port = 5432
    store_gb: Positive = 100
    resources: Resources = Resources(cpus=4, memory_gb=16)


class Role(HostedSection):
    """The common part of the product's roles. The i-th process of a role on one host takes the i-th port, starting at the given one."""

    node_selector: dict[str, str] = Field(default={})  # Kubernetes


class Orchestrators(Role):
    """Any number on one run is safe; two replace each other."""

    replicas: Positive = 1
    metrics_port: Port = 9110
    resources: Resources = Resources(cpus=2, memory_gb=4)


class Gateways(Role):
    """Stateful: each has a journal of steps that are not in Postgres yet, and leases on rollout servers."""

    replicas: Positive = 1
    port: Port = 8080
    sandbox_port: Port = 8060  # the only port that sandboxes reach
    metrics_port: Port = 9120
    journal_gb: Positive = 2
    resources: Resources = Resources(cpus=2, memory_gb=8)


class RunnerPool(Role):
    """Runners with `slots` rollouts each. `provider`: of sandboxes; empty: the target's own. `max_replicas`: the maximum to which Kubernetes
    scales by the waiting and the held work; 0: it does not scale."""

    name: Label = "default"
    replicas: Positive = 1
    max_replicas: Count = 0
    slots: Positive = 8
    provider: str = ""
    metrics_port: Port = 9130
    resources: Resources = Resources(cpus=4, memory_gb=8, disk_gb=10)

    @model_validator(mode="after")
    def _grows(self) -> Self:
        if self.max_replicas and self.max_replicas < self.replicas:
            raise ValueError(f"max_replicas = {self.max_replicas} is less than replicas = {self.replicas}")
        return self

    @property
    def most(self) -> int:
        """Maximum number of runners."""
        return max(self.replicas, self.max_replicas)


class VerifierPool(RunnerPool):
    """Verifier runners with `slots` verifications each."""

    slots: Positive = 2
    metrics_port: Port = 9150


class ServerEngine(StrEnum):
    """The program of a rollout server."""

    SGLANG = "sglang"
    EMBEDDED = "embedded"  # the product's own, for CPUs


class ServerPool(Role):
    """Rollout servers of one kind. One of them takes tp × pp × dp GPUs, on `nodes` machines with `gpus_per_node` each.

    `engine`: sglang, or embedded, the product's own for CPUs. `options` are additional command-line options. `address`: where
    the sockets between the nodes of one server listen.
    """

    name: Label = "default"
    engine: ServerEngine = ServerEngine.SGLANG
    replicas: Positive = 1
    nodes: Positive = 1
    gpus_per_node: Count = 1
    tp: Positive = 1
    dp: Positive = 1
    pp: Positive = 1
    port: Port = 30000
    meeting_port: Port = 20000
    options: tuple[str, ...] = ()
    resources: Resources = Resources(cpus=8, memory_gb=64, disk_gb=20)

    @property
    def gpus(self) -> int:
        """GPUs that its parallelism takes."""
        return 0 if self.engine is ServerEngine.EMBEDDED else self.tp * self.pp * self.dp


class Trainer(Role):
    """One trainer of `ranks` processes on `nodes` machines. `gpus_per_node = 0`: it trains on CPUs."""

    ranks: Positive = 1
    nodes: Positive = 1
    gpus_per_node: Count = 0
    port: Port = 29400
    metrics_port: Port = 9170
    resources: Resources = Resources(cpus=8, memory_gb=64, disk_gb=20)


class Web(Role):
    """The dashboard; at most one."""

    replicas: Annotated[int, Field(ge=0, le=1)] = 1
    port: Port = 8090
    metrics_port: Port = 9180
    resources: Resources = Resources(cpus=1, memory_gb=1)


class ExpectedLoad(Section):
    """Known properties of the work: the ratio of the slowest group of a window to the mean."""

    longest_over_mean: Annotated[float, Field(ge=1)] = 2.0


class Kubernetes(Section):
    """Settings for Kubernetes only. `sandbox_runtime`: the RuntimeClass of sandboxes (gvisor, kata); empty: the cluster's own.
    `api_server`: its addresses (10.96.0.1/32), for the policies of its clients; empty: any address at its ports."""

    namespace: Label = "penstock"
    sandbox_namespace: Label = "penstock-sandboxes"
    sandbox_runtime: str = ""
    api_server: tuple[Network, ...] = ()
    gpu_resource: str = "nvidia.com/gpu"
    storage_class: str = ""  # of journals, NATS and Postgres
    monitoring: bool = True  # objects of the Prometheus operator
    monitoring_namespace: Label = "monitoring"  # where Prometheus scrapes from
    autoscaling: bool = True  # objects of KEDA


class BareHosts(Section):
    """Hosts without containers (Slurm, systemd): the directory of Penstock's installation, and of each host's own data."""

    install: str = "/opt/penstock"  # bin/penstock, bin/python, alembic.ini
    state: str = "/var/lib/penstock"
    user: str = "penstock"


class Slurm(Section):
    """Settings of the batch job."""

    partition: str = ""
    account: str = ""
    hours: Amount = 24.0
    gres: str = "gpu"


class Topology(Section):
    """A whole run."""

    name: Label
    images: Images
    shared: Shared = Shared()
    secrets: Secrets = Secrets()
    hosts: tuple[Host, ...] = ()
    nats: Nats = Nats()
    postgres: Postgres = Postgres()
    orchestrators: Orchestrators = Orchestrators()
    gateways: Gateways = Gateways()
    runners: Annotated[tuple[RunnerPool, ...], Field(min_length=1)] = (RunnerPool(),)
    verifiers: Annotated[tuple[VerifierPool, ...], Field(min_length=1)] = (VerifierPool(),)
    servers: Annotated[tuple[ServerPool, ...], Field(min_length=1)] = (
        ServerPool(engine=ServerEngine.EMBEDDED, gpus_per_node=0),
    )
    trainer: Trainer = Trainer()
    web: Web = Web()
    load: ExpectedLoad = ExpectedLoad()
    config: dict[str, Any] = Field(default={})
    kubernetes: Kubernetes = Kubernetes()
    bare: BareHosts = BareHosts()
    slurm: Slurm = Slurm()

    @property
    def machines(self) -> dict[str, Host]:
        """Every host by its name, in the order in which they are written."""
        return {
            name: host.model_copy(update={"name": name, "address": host.address or name})
            for host in self.hosts
            for name in hosts_of(host.name)
        }

    @property
    def penstock(self) -> Config:
        """`[config]` as a resolved configuration. Of the values that the topology decides, it has only the run's name."""
        servers = dict(self.config.get("servers", {}))
        count = sum(pool.replicas for pool in self.servers)
        # Only the number is checked here.
        evaluation = servers.get("evaluation", 0)
        servers["embedded"] = max(count, evaluation + 1 if isinstance(evaluation, int) else 0)
        run = {**self.config.get("run", {}), "name": self.name}
        return Config.model_validate({**self.config, "run": run, "servers": servers})
