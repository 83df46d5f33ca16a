"""Plain objects for `kubectl apply`, one file a subject, in the order in which they are applied; and values for the chart of NATS."""

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.cluster.objects import called, unlabelled
from orchestrator.cluster.placement import kinds
from orchestrator.cluster.processes import Links, configuration
from orchestrator.cluster.render import monitoring, network, scaling, services
from orchestrator.cluster.render.objects import PROVIDER, Object, made, named
from orchestrator.cluster.render.text import documents, to_yaml
from orchestrator.cluster.render.workloads import Workloads
from orchestrator.cluster.toml import to_toml
from orchestrator.cluster.topology import Topology


@dataclass(frozen=True, slots=True)
class Part:
    """One file of objects: `comment` says what they are."""

    name: str
    comment: str
    objects: list[Object]


def links(topology: Topology) -> Links:
    """Names that the cluster's DNS knows."""
    space = topology.kubernetes.namespace

    def each(name: str, count: int, port: int) -> list[str]:
        full = named(topology, name)
        return [f"http://{full}-{number}.{full}.{space}.svc:{port}" for number in range(count)]

    nats = named(topology, "nats")
    one = f"nats://{nats}.{space}.svc:{topology.nats.port}"
    many = [
        f"nats://{nats}-{number}.{nats}-headless.{space}.svc:{topology.nats.port}"
        for number in range(topology.nats.nodes)
    ]
    return Links(
        nats=topology.nats.external or (one if topology.nats.nodes == 1 else ",".join(many)),
        gateways=tuple(each("gateway", topology.gateways.replicas, topology.gateways.port)),
        servers=tuple(
            url
            for pool in topology.servers
            for url in each(f"rollout-server-{pool.name}", pool.replicas, pool.port)
        ),
        provider=PROVIDER,
    )


def parts(topology: Topology) -> list[Part]:
    """All objects, by file. ValueError where a pool's name makes one that the cluster cannot take."""
    found = kinds(topology)
    linked = links(topology)
    settings = to_toml(configuration(topology, linked))
    make = Workloads(topology, linked, settings)
    settings_map = made(
        topology, "v1", "ConfigMap", "settings", "settings", None, data={"penstock.toml": settings}
    )
    runners = [
        (found[role, pool.name], pool)
        for role, pools in (("runner", topology.runners), ("verifier", topology.verifiers))
        for pool in pools
    ]
    scaled = [each for process, pool in runners for each in scaling.scaled(topology, process, pool)]
    listed = [
        Part("00-namespaces", "Where the run lives, and where its sandboxes do.", services.namespaces(topology)),
        Part("01-network", "Who may talk to whom: nothing by default.", network.policies(topology, found)),
        Part("02-accounts", "Accounts: one that may do nothing, one that may make sandboxes.", services.accounts(topology)),
        Part("10-settings", "penstock.toml, the same for every process.", [settings_map]),
        Part("11-shared", "The directory of weights, which gateways, rollout servers and trainer share.", services.shared(topology)),
        Part("20-postgres", "The data pool, by CloudNativePG's operator. It is the only truth: back it up.", services.postgres(topology)),
        Part("30-migrate", "Brings the data pool to this code's schema. Everything else waits for it.", make.migration()),
        Part(
            "40-rollout-servers",
            "Rollout servers. Gateways lease them one by one, by name: nothing scales them by itself.",
            [each for (role, _), process in found.items() if role == "rollout-server" for each in make.servers(process)],
        ),
        Part("41-orchestrators", "Orchestrators.", make.orchestrators(found["orchestrator", ""])),
        Part("42-gateways", "Gateways, each with a journal of its own.", make.gateways(found["gateway", ""])),
        Part("43-runners", "Runners and verifier runners.", [each for process, pool in runners for each in make.runners(process, pool)]),
        Part("44-trainer", "The trainer: one.", make.trainer(found["trainer", ""])),
        Part("45-web", "The dashboard: kubectl port-forward, then the URL in .penstock/run/web.url of its pod.",
             make.web(found["web", ""]) if topology.web.replicas else []),
        Part("50-scaling", "Runner pools by the work that waits and that they hold (KEDA).", scaled),
        Part("60-monitoring", "What Prometheus scrapes, and when it calls (Prometheus operator); Grafana's dashboards.", [
            *monitoring.scrapes(topology), *monitoring.alerts(topology), *monitoring.dashboards(topology),
        ] if topology.kubernetes.monitoring else []),
    ]  # fmt: skip
    long = [(each, said) for part in listed for each in part.objects if (said := unlabelled(each))]
    if long:
        one, said = long[0]
        pool = one["metadata"]["labels"].get("penstock/pool", "")
        raise ValueError(
            f"{called(one)}: {said}: shorten `name`, or the name of the pool {pool!r}, which are parts of it"
        )
    return [part for part in listed if part.objects]


def needed_secrets(topology: Topology) -> list[str]:
    """Commands that make the secrets which nobody else makes."""
    made_by_operator = "" if topology.postgres.external else f"{named(topology, 'postgres')}-app"
    found: dict[str, list[str]] = {}
    for key in topology.secrets.keys:
        if key.name != made_by_operator and key.key not in found.setdefault(key.name, []):
            found[key.name].append(key.key)
    return [
        f"kubectl -n {topology.kubernetes.namespace} create secret generic {name} "
        + " ".join(f"--from-file={key}=./secrets/{name}/{key}" for key in sorted(names))
        for name, names in sorted(found.items())
    ]


def notes(topology: Topology, apply: str) -> str:
    """README.md of the rendered directory."""
    nats = ""
    if not topology.nats.external:
        nats = (
            "2. NATS, by the chart of its own project:\n\n"
            f"       helm install {named(topology, 'nats')} nats/nats -n {topology.kubernetes.namespace} -f values/nats.yaml\n"
        )
    commands = "\n".join(f"       {line}" for line in needed_secrets(topology))
    return f"""\
# {topology.name} on Kubernetes

Written by `penstock cluster render`; change the topology and render again, or go on by hand: these are plain objects.
The cluster has, or does not need: CloudNativePG, the chart of NATS, KEDA (50-scaling), LeaderWorkerSet (groups of several machines), the
Prometheus operator (60-monitoring), a network plugin that keeps NetworkPolicies, a storage class that gives ReadWriteMany.

1. The namespaces, and the secrets, whose files you make (the admin secret: 32 random bytes as text):

       kubectl apply -f 00-namespaces.yaml
{commands}

{nats}
3. Everything else; pods wait for the Job that migrates the data pool:

       {apply}

To bring a new version: render it, `kubectl -n {topology.kubernetes.namespace} delete job {named(topology, "migrate")} --ignore-not-found`
(a Job cannot be changed), then step 3.
"""


def render(topology: Topology) -> Mapping[str, str]:
    """The files."""
    files = {f"{part.name}.yaml": documents(part.comment, part.objects) for part in parts(topology)}
    if not topology.nats.external:
        files["values/nats.yaml"] = "# Values of the chart nats/nats.\n" + to_yaml(
            services.nats_values(topology)
        )
    files["README.md"] = notes(topology, "kubectl apply -f .")
    return files
