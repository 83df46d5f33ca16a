"""Plain objects for `kubectl apply`, one file per subject, in the order of application; and values for the chart of NATS."""

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.contracts.processes import ProcessRole
from orchestrator.contracts.quote import quoted
from orchestrator.deploy.cluster.objects import called, unlabelled
from orchestrator.deploy.cluster.placement import kinds
from orchestrator.deploy.cluster.processes import Links, configuration
from orchestrator.deploy.cluster.render import (
    monitoring,
    network,
    scaling,
    services,
)
from orchestrator.deploy.cluster.render.objects import (
    PROVIDER,
    Object,
    made,
    named,
)
from orchestrator.deploy.cluster.render.text import documents, to_yaml
from orchestrator.deploy.cluster.render.workloads import Workloads
from orchestrator.deploy.cluster.toml import to_toml
from orchestrator.deploy.cluster.topology import Topology


@dataclass(frozen=True, slots=True)
class ManifestPart:
    """One file of objects: `comment` describes them."""

    name: str
    comment: str
    objects: list[Object]


def links(topology: Topology) -> Links:
    """Links by names that the cluster's DNS resolves."""
    namespace = topology.kubernetes.namespace

    def each(name: str, count: int, port: int) -> list[str]:
        full_name = named(topology, name)
        return [f"http://{full_name}-{number}.{full_name}.{namespace}.svc:{port}" for number in range(count)]

    nats = named(topology, ProcessRole.NATS)
    single = f"nats://{nats}.{namespace}.svc:{topology.nats.port}"
    addresses = [
        f"nats://{nats}-{number}.{nats}-headless.{namespace}.svc:{topology.nats.port}"
        for number in range(topology.nats.nodes)
    ]
    return Links(
        nats=topology.nats.external or (single if topology.nats.nodes == 1 else ",".join(addresses)),
        gateways=tuple(each(ProcessRole.GATEWAY, topology.gateways.replicas, topology.gateways.port)),
        servers=tuple(
            url
            for pool in topology.servers
            for url in each(f"rollout-server-{pool.name}", pool.replicas, pool.port)
        ),
        provider=PROVIDER,
    )


def parts(topology: Topology) -> list[ManifestPart]:
    """All objects, by file. ValueError if a pool's name leads to one that the cluster cannot accept."""
    found = kinds(topology)
    linked = links(topology)
    settings = to_toml(configuration(topology, linked))
    workloads = Workloads(topology, linked, settings)
    settings_map = made(
        topology, "v1", "ConfigMap", "settings", "settings", None, data={"penstock.toml": settings}
    )
    runners = [
        (found[role, pool.name], pool)
        for role, pools in (
            (ProcessRole.RUNNER, topology.runners),
            (ProcessRole.VERIFIER, topology.verifiers),
        )
        for pool in pools
    ]
    scaled = [each for process, pool in runners for each in scaling.scaled(topology, process, pool)]
    listed = [
        ManifestPart("00-namespaces", "Where the run lives, and where its sandboxes do.", services.namespaces(topology)),
        ManifestPart("01-network", "Who may talk to whom: nothing by default.", network.policies(topology, found)),
        ManifestPart("02-accounts", "Accounts: one that may do nothing, one that may make sandboxes.", services.accounts(topology)),
        ManifestPart("10-settings", "penstock.toml, the same for every process.", [settings_map]),
        ManifestPart("11-shared", "The directory of weights, which gateways, rollout servers and trainer share.", services.shared(topology)),
        ManifestPart("20-postgres", "The data pool, by CloudNativePG's operator. It is the only truth: back it up.", services.postgres(topology)),
        ManifestPart("30-migrate", "Brings the data pool to this code's schema. Everything else waits for it.", workloads.migration()),
        ManifestPart(
            "40-rollout-servers",
            "Rollout servers. Gateways lease them one by one, by name: nothing scales them by itself.",
            [each for (role, _), process in found.items() if role == ProcessRole.ROLLOUT_SERVER for each in workloads.servers(process)],
        ),
        ManifestPart("41-orchestrators", "Orchestrators.", workloads.orchestrators(found[ProcessRole.ORCHESTRATOR, ""])),
        ManifestPart("42-gateways", "Gateways, each with a journal of its own.", workloads.gateways(found[ProcessRole.GATEWAY, ""])),
        ManifestPart("43-runners", "Runners and verifier runners.", [each for process, pool in runners for each in workloads.runners(process, pool)]),
        ManifestPart("44-trainer", "The trainer: one.", workloads.trainer(found[ProcessRole.TRAINER, ""])),
        ManifestPart("45-web", "The dashboard: kubectl port-forward, then the URL in .penstock/run/web.url of its pod.",
             workloads.web(found[ProcessRole.WEB, ""]) if topology.web.replicas else []),
        ManifestPart("50-scaling", "Runner pools by the work that waits and that they hold (KEDA).", scaled),
        ManifestPart("60-monitoring", "What Prometheus scrapes, and when it calls (Prometheus operator); Grafana's dashboards.", [
            *monitoring.scrapes(topology), *monitoring.alerts(topology), *monitoring.dashboards(topology),
        ] if topology.kubernetes.monitoring else []),
    ]  # fmt: skip
    too_long = [(each, problem) for part in listed for each in part.objects if (problem := unlabelled(each))]
    if too_long:
        first, problem = too_long[0]
        pool = first["metadata"]["labels"].get("penstock/pool", "")
        raise ValueError(
            f"{called(first)}: {problem}: shorten `name`, or the name of the pool {quoted(pool)}, which are parts of it"
        )
    return [part for part in listed if part.objects]


def needed_secrets(topology: Topology) -> list[str]:
    """Commands that create the secrets that no other component creates."""
    operator_secret = "" if topology.postgres.external else f"{named(topology, ProcessRole.POSTGRES)}-app"
    found: dict[str, list[str]] = {}
    for key in topology.secrets.keys:
        if key.name != operator_secret and key.key not in found.setdefault(key.name, []):
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
            f"       helm install {named(topology, ProcessRole.NATS)} nats/nats -n {topology.kubernetes.namespace} -f values/nats.yaml\n"
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

To bring a new version: render it, `kubectl -n {topology.kubernetes.namespace} delete job {named(topology, ProcessRole.MIGRATE)} --ignore-not-found`
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
