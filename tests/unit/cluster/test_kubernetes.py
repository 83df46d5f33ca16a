"""The Kubernetes render: accepted by three versions of the API server, strictly, and checked by our own rules; seeded defects are caught."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.deploy.cluster.objects import (
    PART,
    PROMETHEUS,
    pods,
    selects,
)
from orchestrator.deploy.cluster.policy import RULES, broken, sentence
from orchestrator.deploy.cluster.policy.network import NAME
from orchestrator.deploy.cluster.read_objects import read_objects
from orchestrator.deploy.cluster.render import render
from orchestrator.deploy.cluster.topology import Topology
from orchestrator.deploy.cluster.validate import VERSIONS, unfit
from orchestrator.settings.config import Config
from sandboxes.kubernetes.objects import Identity, metadata
from sandboxes.kubernetes.settings import KubernetesSettings
from tests.unit.cluster.rendered import EXAMPLES, files, objects, parsed, topology

pytestmark = pytest.mark.tier("cluster")

Objects = list[dict[str, Any]]


@pytest.mark.parametrize("name", EXAMPLES)
def test_three_versions_of_kubernetes_take_every_object_and_every_rule_holds(name: str) -> None:
    found = objects(name)
    assert len(VERSIONS) == 3 and len(RULES) >= 12
    assert unfit(found) == []
    assert broken(found) == []


def get(found: Objects, kind: str, name: str) -> dict[str, Any]:
    return next(each for each in found if each["kind"] == kind and each["metadata"]["name"] == name)


def pod(found: Objects, kind: str, name: str) -> dict[str, Any]:
    spec: dict[str, Any] = get(found, kind, name)["spec"]["template"]["spec"]
    return spec


def main(found: Objects, kind: str = "Deployment", name: str = "nodes4-web") -> dict[str, Any]:
    container: dict[str, Any] = pod(found, kind, name)["containers"][0]
    return container


def drop(found: Objects, kind: str, name: str) -> None:
    found.remove(get(found, kind, name))


def way(found: Objects, server: str, peer: dict[str, Any], port: int = 30000) -> None:
    """One more peer that may reach a server."""
    entry = {"from": [peer], "ports": [{"port": port, "protocol": "TCP"}]}
    get(found, "NetworkPolicy", f"nodes4-{server}")["spec"]["ingress"].append(entry)


GATEWAY, RUNNER, SERVERS = "nodes4-gateway", "nodes4-runner", "nodes4-rollout-server-default"

DEFECTS: dict[str, tuple[Callable[[Objects], Any], str]] = {
    "a field that does not exist": (
        lambda o: main(o).update(imagePullPolice="Always"), "Additional properties are not allowed ('imagePullPolice' was unexpected)",
    ),
    "a field at the wrong place": (
        lambda o: get(o, "Deployment", RUNNER)["spec"].update(terminationGracePeriodSeconds=5), "'terminationGracePeriodSeconds' was unexpected",
    ),
    "a wrong type": (lambda o: get(o, "StatefulSet", GATEWAY)["spec"].update(replicas="2"), "'2' is not of type"),
    "a port as text": (lambda o: main(o)["ports"][0].update(containerPort="8090"), "'8090' is not of type"),
    "no selector": (lambda o: get(o, "Deployment", RUNNER)["spec"].pop("selector"), "'selector' is a required property"),
    "a wrong apiVersion": (
        lambda o: get(o, "Deployment", RUNNER).update(apiVersion="apps/v1beta1"), "apps/v1beta1 has no kind Deployment",
    ),
    "a wrong kind": (lambda o: get(o, "Job", "nodes4-migrate").update(kind="Jobb"), "batch/v1 has no kind Jobb"),
    "a field that CloudNativePG has not": (
        lambda o: get(o, "Cluster", "nodes4-postgres")["spec"].update(replicas=3), "'replicas' was unexpected",
    ),
    "a trigger without its query": (
        lambda o: get(o, "ScaledObject", RUNNER)["spec"]["triggers"][0]["metadata"].pop("query"), "'query' is a required property",
    ),
    "a trigger by what waits at NATS": (
        lambda o: get(o, "ScaledObject", RUNNER)["spec"]["triggers"][0].update(type="nats-jetstream"), "'postgresql' was expected",
    ),
    "runners that are scaled by what waits alone": (
        lambda o: get(o, "ScaledObject", RUNNER)["spec"]["triggers"][0]["metadata"].update(query="SELECT count(*) FROM rollouts"),
        "does not count rollouts that are 'running' by their lease_owner (rule busy-counts)",
    ),
    "a login that is missing": (
        lambda o: drop(o, "TriggerAuthentication", RUNNER), "scaledobject/nodes4-runner: TriggerAuthentication nodes4-runner does not exist",
    ),
    "KEDA at NATS": (
        lambda o: way(o, "nats", {"namespaceSelector": {"matchLabels": {NAME: "keda"}}}, 8222), "namespace keda may reach nats",
    ),
    "an alert for a wrong time": (
        lambda o: get(o, "PrometheusRule", "nodes4-alerts")["spec"]["groups"][0]["rules"][0].update({"for": "soon"}), "'soon' does not match",
    ),
    "a pod of a group with a wrong field": (
        lambda o: get(o, "LeaderWorkerSet", "nodes4-trainer")["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"].update(node="x"),
        "workerTemplate: template.spec: Additional properties are not allowed ('node' was unexpected)",
    ),
    "a plain secret": (
        lambda o: main(o)["env"].append({"name": "DATABASE_URL", "value": "postgresql://x:word@db/y"}), "(rule secrets-by-reference)",
    ),
    "a secret on the command line": (
        lambda o: main(o)["args"].append("postgresql://x:word@db/y"), "its command line holds a secret",
    ),
    "a token in the environment": (
        lambda o: main(o)["env"].append({"name": "BUS", "value": "nats://word@nats:4222"}), "BUS is a secret in plain environment",
    ),
    "a token on the command line": (
        lambda o: main(o)["args"].append("nats://word@nats:4222"), "its command line holds a secret",
    ),
    "an API key on the command line": (
        lambda o: main(o, "StatefulSet", SERVERS)["args"].append("--api-key=word"), "--api-key gives a secret on its command line",
    ),
    "a token in the settings": (
        lambda o: get(o, "ConfigMap", "nodes4-settings")["data"].update({"penstock.toml": 'nats_url = "nats://word@nats:4222"'}),
        "penstock.toml holds a login (rule secrets-by-reference)",
    ),
    "a secret that is written out": (
        lambda o: o.append({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}, "stringData": {"a": "b"}}),
        "a secret is written out",
    ),
    ":latest": (lambda o: main(o).update(image="penstock:latest"), "(rule fixed-images)"),
    "no tag at all": (lambda o: main(o).update(image="registry:5000/penstock"), "(rule fixed-images)"),
    "no limits": (lambda o: main(o)["resources"].pop("limits"), "resources has no limits.cpu, limits.memory (rule limits)"),
    "privileged": (lambda o: main(o)["securityContext"].update(privileged=True), "it is privileged"),
    "an added capability": (
        lambda o: main(o)["securityContext"]["capabilities"].update(add=["NET_ADMIN"]), "capabilities must drop ALL and add none",
    ),
    "root": (lambda o: pod(o, "Deployment", "nodes4-web")["securityContext"].update(runAsUser=0), "(rule not-root)"),
    "a writable root": (lambda o: main(o)["securityContext"].pop("readOnlyRootFilesystem"), "(rule read-only-root)"),
    "a hostPath": (
        lambda o: pod(o, "Deployment", "nodes4-web")["volumes"].append({"name": "h", "hostPath": {"path": "/"}}),
        "volume h is a hostPath, a directory of the node (rule nothing-of-the-node)",
    ),
    "the node's network": (
        lambda o: pod(o, "Deployment", "nodes4-web").update(hostNetwork=True), "hostNetwork must not be set",
    ),
    "ranks without a limit of shared memory": (
        lambda o: pod(o, "StatefulSet", SERVERS)["volumes"][-1]["emptyDir"].pop("sizeLimit"), "(rule shared-memory)",
    ),
    "a trainer whose ranks share 64 MB": (
        lambda o: get(o, "LeaderWorkerSet", "nodes4-trainer")["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0][
            "volumeMounts"
        ].pop(),
        "leaderworkerset/nodes4-trainer: container trainer: /dev/shm must be an emptyDir in Memory",
    ),
    "NATS by labels that its chart does not give": (
        lambda o: get(o, "NetworkPolicy", "nodes4-nats")["spec"]["podSelector"]["matchLabels"].update({"app.kubernetes.io/name": "penstock"}),
        "networkpolicy/nodes4-nats: pods of NATS have the labels",
    ),
    "a way to NATS by labels that its chart does not give": (
        lambda o: get(o, "NetworkPolicy", GATEWAY)["spec"]["egress"][1]["to"][0]["podSelector"]["matchLabels"].update(
            {"app.kubernetes.io/name": "penstock"}
        ),
        "networkpolicy/nodes4-gateway: pods of NATS have the labels",
    ),
    "no default-deny": (
        lambda o: drop(o, "NetworkPolicy", "nodes4-default-deny"),
        "namespace penstock: no NetworkPolicy denies all egress and ingress (rule default-deny)",
    ),
    "a pod without a NetworkPolicy": (
        lambda o: drop(o, "NetworkPolicy", "nodes4-web"), "deployment/nodes4-web: no NetworkPolicy selects its pods",
    ),
    "runners that reach rollout servers": (
        lambda o: get(o, "NetworkPolicy", "nodes4-rollout-server")["spec"]["ingress"][0]["from"].append(
            {"podSelector": {"matchLabels": {"app.kubernetes.io/component": "runner"}}}
        ),
        "runner may reach rollout-server, which is for gateway, rollout-server, trainer (rule reach)",
    ),
    "every namespace reaches rollout servers": (
        lambda o: way(o, "rollout-server", {"namespaceSelector": {}}), "pods of every namespace that there is may reach rollout-server",
    ),
    "namespaces by another label reach rollout servers": (
        lambda o: way(o, "rollout-server", {"namespaceSelector": {"matchLabels": {"team": "x"}}}), "may reach rollout-server: name one by",
    ),
    "sandboxes reach rollout servers": (
        lambda o: way(o, "rollout-server", {"namespaceSelector": {"matchLabels": {NAME: "penstock-sandboxes"}}}),
        "sandboxes may reach rollout-server",
    ),
    "sandboxes reach the gateways' port for runners": (
        lambda o: way(o, "gateway", {"namespaceSelector": {"matchLabels": {NAME: "penstock-sandboxes"}}}, 8080), "sandboxes may reach gateway",
    ),
    "a namespace of others reaches rollout servers": (
        lambda o: way(o, "rollout-server", {"namespaceSelector": {"matchLabels": {NAME: "monitoring"}}}),
        "namespace monitoring may reach rollout-server",
    ),
    "Prometheus reaches a port that it does not read": (
        lambda o: way(
            o, "gateway", {"namespaceSelector": {"matchLabels": {NAME: "monitoring"}}, "podSelector": {"matchLabels": PROMETHEUS}}, 8080,
        ),
        "namespace monitoring may reach gateway",
    ),
    "a policy of all pods that opens them": (
        lambda o: get(o, "NetworkPolicy", "nodes4-names")["spec"].update(ingress=[{"from": [{"podSelector": {}}]}]),
        "every pod may reach rollout-server",
    ),
    "every pod reaches Postgres": (
        lambda o: get(o, "NetworkPolicy", "nodes4-postgres")["spec"]["ingress"][0].pop("from"), "any client may reach postgres",
    ),
    "sandboxes that resolve names": (
        lambda o: get(o, "NetworkPolicy", "nodes4-sandbox")["spec"]["egress"].append({"ports": [{"port": 53, "protocol": "UDP"}]}),
        "sandboxes may reach more than a port of the gateways",
    ),
    "a probe to a wrong port": (
        lambda o: main(o)["livenessProbe"]["httpGet"].update(port=9999), "livenessProbe asks at port 9999, and its ports are http 8090, metrics 9180",
    ),
    "no readiness": (lambda o: main(o).pop("readinessProbe"), "it has no readinessProbe (rule probes)"),
    "a probe that kills a paused server": (
        lambda o: main(o, "StatefulSet", SERVERS)["livenessProbe"]["httpGet"].update(path="/health"), "(rule paused-is-healthy)",
    ),
    "gateways behind an address of all": (
        lambda o: get(o, "Service", GATEWAY)["spec"].pop("clusterIP"), "make it headless (clusterIP: None) with publishNotReadyAddresses",
    ),
    "a gateway without a name while it drains": (
        lambda o: get(o, "Service", GATEWAY)["spec"].pop("publishNotReadyAddresses"), "(rule sessions-stay)",
    ),
    "a probe that ends a gateway that drains": (
        lambda o: main(o, "StatefulSet", GATEWAY)["startupProbe"]["httpGet"].update(port="http"),
        "startupProbe asks /readyz at http, which says 503 while the gateway drains",
    ),
    "a selector that misses": (
        lambda o: get(o, "Deployment", RUNNER)["spec"]["selector"]["matchLabels"].update({"penstock/pool": "other"}),
        "its selector does not take the labels of its own pods",
    ),
    "a Service of a wrong port": (
        lambda o: get(o, "Service", GATEWAY)["spec"]["ports"][0].update(targetPort="htpp"), "no container has the port htpp",
    ),
    "a Service without pods": (
        lambda o: get(o, "Service", GATEWAY)["spec"]["selector"].update({"app.kubernetes.io/component": "gate"}), "its selector takes no pod",
    ),
    "two trainers": (lambda o: get(o, "LeaderWorkerSet", "nodes4-trainer")["spec"].update(replicas=2), "(rule one-trainer)"),
    "gateways that are scaled": (
        lambda o: get(o, "ScaledObject", RUNNER)["spec"]["scaleTargetRef"].update(kind="StatefulSet", name=GATEWAY),
        "statefulset/nodes4-gateway owns leases or state (gateway): it must not be scaled by itself",
    ),
    "replicas along with KEDA": (lambda o: get(o, "Deployment", RUNNER)["spec"].update(replicas=2), "every apply would undo the scaling"),
    "no budget": (lambda o: drop(o, "PodDisruptionBudget", GATEWAY), "no PodDisruptionBudget selects its pods"),
    "a Job that stays": (lambda o: get(o, "Job", "nodes4-migrate")["spec"].pop("ttlSecondsAfterFinished"), "(rule jobs-go)"),
    "no migration": (lambda o: drop(o, "Job", "nodes4-migrate"), "no Job runs `alembic upgrade head`"),
    "a process that does not wait": (
        lambda o: pod(o, "Deployment", RUNNER).pop("initContainers"), "no init container waits for the schema",
    ),
    "a token for every process": (
        lambda o: pod(o, "Deployment", "nodes4-web").update(automountServiceAccountToken=True), "(rule tokens-of-the-api)",
    ),
    "runners that could make no sandbox": (
        lambda o: pod(o, "Deployment", RUNNER).update(automountServiceAccountToken=False),
        "its account may make sandboxes, but automountServiceAccountToken is not true",
    ),
    "runners without a way to the API server": (
        lambda o: drop(o, "NetworkPolicy", "nodes4-runner-default-api-server"),
        "deployment/nodes4-runner: it makes sandboxes, but no NetworkPolicy lets it reach the API server (rule api-server)",
    ),
    "a dashboard with a way to the API server": (
        lambda o: get(o, "NetworkPolicy", "nodes4-web")["spec"]["egress"].append({"ports": [{"port": 6443, "protocol": "TCP"}]}),
        "networkpolicy/nodes4-web lets it reach the API server, which it does not need",
    ),
    "sandboxes of another label": (
        lambda o: get(o, "NetworkPolicy", "nodes4-sandbox")["spec"]["podSelector"]["matchLabels"].update({"app.kubernetes.io/component": "box"}),
        "namespace penstock-sandboxes: no NetworkPolicy lets pods with the labels of sandboxes reach the gateways",
    ),
    "all rights": (
        lambda o: get(o, "Role", "nodes4-sandboxes")["rules"][0].update(verbs=["*"]), "a rule with * gives more than is needed",
    ),
    "a namespace without a standard": (
        lambda o: get(o, "Namespace", "penstock")["metadata"]["labels"].pop("pod-security.kubernetes.io/enforce"),
        "(rule restricted-namespaces)",
    ),
    "settings that are not there": (
        lambda o: drop(o, "ConfigMap", "nodes4-settings"), "ConfigMap nodes4-settings does not exist",
    ),
    "a set whose revision makes no label": (
        lambda o: get(o, "StatefulSet", GATEWAY)["metadata"].update(name="g" * 53),
        "its name has 53 letters, and the cluster makes labels of at most 52 (rule names-fit)",
    ),
    "an object twice": (lambda o: o.append(get(o, "Service", GATEWAY)), "it appears twice in penstock"),
}  # fmt: skip


@cache
def findings(defect: str) -> list[str]:
    """The findings of `penstock cluster check`."""
    found = objects("nodes4")
    DEFECTS[defect][0](found)
    return unfit(found, VERSIONS[:1]) or broken(found)


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_seeded_defect_is_caught(defect: str) -> None:
    assert any(DEFECTS[defect][1] in finding for finding in findings(defect)), findings(defect)


def test_every_rule_has_a_sentence_and_a_defect_that_it_catches() -> None:
    found = [finding for defect in DEFECTS for finding in findings(defect)]
    assert all(sentence(name).endswith(".") for name in RULES)
    assert {name for name in RULES if not any(f"(rule {name})" in each for each in found)} == set()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_settings_are_what_penstock_reads(name: str) -> None:
    import tomllib

    settings = tomllib.loads(
        get(objects(name), "ConfigMap", f"{name if name != 'topology' else 'first'}-settings")["data"][
            "penstock.toml"
        ]
    )
    config = Config.model_validate(settings)
    of = topology(name)
    assert len(config.servers.urls) == sum(pool.replicas for pool in of.servers)
    assert len(config.gateway.urls) == of.gateways.replicas
    assert config.rollout.slots == sum(pool.most * pool.slots for pool in of.runners)


def ports_of(policy: dict[str, Any]) -> set[int]:
    """The ports that it lets its pods reach."""
    return {port["port"] for entry in policy["spec"].get("egress", []) for port in entry.get("ports", [])}


@pytest.mark.parametrize("name", EXAMPLES)
def test_of_other_namespaces_only_prometheus_reaches_rollout_servers(name: str) -> None:
    policy = next(
        each
        for each in objects(name)
        if each["kind"] == "NetworkPolicy" and each["metadata"]["name"].endswith("-rollout-server")
    )
    peers = [
        peer for entry in policy["spec"]["ingress"] for peer in entry["from"] if "namespaceSelector" in peer
    ]
    assert [peer["podSelector"]["matchLabels"] for peer in peers] == [
        {"app.kubernetes.io/name": "prometheus"}
    ]


def made(of: Topology) -> Objects:
    return parsed(dict(render(of, "kubernetes")))


@pytest.mark.parametrize("name", EXAMPLES)
def test_only_pods_whose_account_makes_sandboxes_have_a_token_and_a_way_to_the_api_server(name: str) -> None:
    found = objects(name)
    (role,) = [each for each in found if each["kind"] == "Role"]
    assert role["metadata"]["namespace"] == topology(name).kubernetes.sandbox_namespace
    assert {(*rule["resources"], *rule["verbs"]) for rule in role["rules"]} == {
        ("pods", "create", "get", "list", "watch", "delete"),
        ("pods/exec", "create", "get"),
        ("secrets", "create"),
    }
    makers = {each.component for each in pods(found) if each.spec["automountServiceAccountToken"]}
    assert makers == {"runner", "verifier"}
    assert all(
        (each.spec["serviceAccountName"] == role["metadata"]["name"]) == (each.component in makers)
        for each in pods(found)
    )
    ways = [each for each in found if each["kind"] == "NetworkPolicy" and {443, 6443} <= ports_of(each)]
    operators = set() if topology(name).postgres.external else {"postgres"}
    assert {each["metadata"]["labels"][PART] for each in ways} == makers | operators


def test_a_pool_whose_sandboxes_are_not_pods_has_no_token_and_no_way_to_the_api_server() -> None:
    of = topology("nodes4")
    (pool,) = of.runners
    found = made(of.model_copy(update={"runners": (pool.model_copy(update={"provider": "bubblewrap"}),)}))
    (runner,) = [each for each in pods(found) if each.component == "runner"]
    assert runner.spec["automountServiceAccountToken"] is False
    assert runner.spec["serviceAccountName"] == "nodes4-process"
    names = [each["metadata"]["name"] for each in found]
    assert [name for name in names if name.endswith("-api-server")] == ["nodes4-verifier-default-api-server"]
    assert broken(found) == []


def test_the_api_server_is_reached_at_its_addresses_alone_where_the_topology_says_them() -> None:
    of = topology("nodes4")
    known = of.kubernetes.model_copy(update={"api_server": ("10.96.0.1/32",)})
    found = made(of.model_copy(update={"kubernetes": known}))
    policy = get(found, "NetworkPolicy", "nodes4-runner-default-api-server")
    assert [entry["to"] for entry in policy["spec"]["egress"]] == [[{"ipBlock": {"cidr": "10.96.0.1/32"}}]]
    assert unfit(found) == [] and broken(found) == []


def test_the_policy_of_sandboxes_takes_the_pods_that_the_provider_makes() -> None:
    identity = Identity(name="penstock-first-r1", opening="opening", work=None, owner="runner", uid=1)
    settings = KubernetesSettings(image="python:3.11", labels={PART: "mine"})
    selector = get(objects("nodes4"), "NetworkPolicy", "nodes4-sandbox")["spec"]["podSelector"]
    assert selector["matchLabels"] and selects(selector, metadata(identity, settings)["labels"])


def test_nats_has_values_for_its_own_chart_and_one_url_a_server() -> None:
    values = yaml.safe_load(files("nodes4", "kubernetes")["values/nats.yaml"])
    assert values["config"]["cluster"] == {"enabled": True, "replicas": 3, "port": 6222}
    settings = get(objects("nodes4"), "ConfigMap", "nodes4-settings")["data"]["penstock.toml"]
    assert settings.count("nats://nodes4-nats-") == 3


@pytest.mark.parametrize("role", ["orchestrator", "gateway", "runner", "verifier", "web"])
def test_every_publisher_has_a_way_to_nats(role: str) -> None:
    (policy,) = [
        each
        for each in objects("nodes4")
        if each["kind"] == "NetworkPolicy" and each["metadata"]["name"] == f"nodes4-{role}"
    ]
    peers = [
        peer["podSelector"]["matchLabels"].get(PART)
        for entry in policy["spec"]["egress"]
        for peer in entry.get("to", [])
    ]
    assert "nats" in peers
    services = yaml.safe_load(files("laptop", "compose")["compose.yaml"])["services"]
    assert all("bus" in service["networks"] for name, service in services.items() if name.startswith(role))


@pytest.mark.parametrize(
    ("key", "nodes", "longest"),
    [("servers", 1, 52), ("servers", 2, 48), ("runners", 1, 54), ("verifiers", 1, 54)],
)
@pytest.mark.parametrize("target", ["kubernetes", "helm"])
def test_a_pool_whose_objects_would_have_too_long_a_name_is_refused(
    key: str, nodes: int, longest: int, target: str
) -> None:
    of = topology("nodes4")
    (pool,) = getattr(of, key)
    more = {"nodes": nodes, "tp": 2 * nodes} if key == "servers" else {"max_replicas": 4}
    role = {"servers": "rollout-server", "runners": "runner", "verifiers": "verifier"}[key]
    room = longest - len(f"nodes4-{role}-")

    def called(letters: int) -> Topology:
        return of.model_copy(update={key: (pool.model_copy(update={**more, "name": "p" * letters}),)})

    render(called(room), target)
    with pytest.raises(ValueError, match=f"at most {longest}: shorten `name`, or the name of the pool 'ppp"):
        render(called(room + 1), target)


def test_a_file_without_valid_objects_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no objects"):
        read_objects(tmp_path)
    (tmp_path / "a.yaml").write_text("a: [")
    with pytest.raises(ConfigurationError, match="is not YAML"):
        read_objects(tmp_path)
    (tmp_path / "a.yaml").write_text("- 1")
    with pytest.raises(ConfigurationError, match="not a Kubernetes object"):
        read_objects(tmp_path)
