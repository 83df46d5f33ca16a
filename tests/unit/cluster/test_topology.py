"""A topology is consistent, or is refused with the key and the arithmetic."""

import copy
import tomllib
from pathlib import Path
from typing import Any

import pytest

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.deploy.cluster.placement import placed
from orchestrator.deploy.cluster.reading import load, read
from orchestrator.deploy.cluster.topology import hosts_of

CLUSTER = Path(__file__).resolve().parents[3] / "ops" / "cluster"
FILES = [CLUSTER / "topology.toml", *sorted((CLUSTER / "examples").glob("*.toml"))]
RAW = tomllib.loads((CLUSTER / "examples" / "nodes4.toml").read_text())


def changed(key: str, value: Any) -> dict[str, Any]:
    """nodes4.toml with one key set, `servers.0.tp`; None removes it."""
    raw: dict[str, Any] = copy.deepcopy(RAW)
    node: Any = raw
    path = key.split(".")
    for part in path[:-1]:
        node = node[int(part)] if part.isdigit() else node.setdefault(part, {})
    if value is None:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return raw


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_example_holds_together(file: Path) -> None:
    assert placed(load(file))


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (
            "trainer.ranks", 32,
            "trainer.ranks = 32 needs 32 GPUs, but trainer.nodes × gpus_per_node = 2 × 8 = 16",
        ),
        ("trainer.ranks", 8, "trainer.ranks = 8 leaves 8 GPUs idle: trainer.nodes × gpus_per_node = 2 × 8 = 16"),
        ("servers.0.tp", 4, "servers[0]: tp × pp × dp = 4 × 1 × 1 needs 4 GPUs, but nodes × gpus_per_node = 1 × 2 = 2"),
        ("servers.0.tp", 1, "servers[0]: tp × pp × dp = 1 × 1 × 1 uses only 1 GPUs"),
        ("servers.0.replicas", 5, "host gpu1 has gpus = 8, but its processes need 10 (servers[0]) = 10"),
        (
            "config.queue.capacity", 40,
            "min(N, (S+1)·P) + W = min(40, 3·32) + 12 = 52 groups idle the trainer: runners hold 256 slots ÷ group_size 8 = 32 groups, and the "
            "slowest takes load.longest_over_mean = 2 times the mean, so 32 × 2 = 64 pass it by then: set config.queue.capacity to 51",
        ),
        (
            "config.queue.max_staleness", 0,
            "min(N, (S+1)·P) + W = min(96, 1·32) + 28 = 60 groups idle the trainer: runners hold 256 slots ÷ group_size 8 = 32 groups, and the "
            "slowest takes load.longest_over_mean = 2 times the mean, so 32 × 2 = 64 pass it by then: set config.queue.max_staleness to 1, or take",
        ),
        ("runners.0.slots", 1, "runners: replicas × slots = 4, but config.queue.group_size = 8"),
        ("config.queue.capacity", 8, "queue.capacity (8) must be at least queue.batch_groups (32)"),
        ("shared.path", None, "shared.path is empty, but gateways, rollout servers and trainer run on 4 hosts (cpu1, gpu1, gpu2, gpu3)"),
        ("shared.path", "weights", "shared.path = 'weights' must be absolute"),
        ("shared.model", None, "shared.model is empty"),
        ("kubernetes.sandbox_namespace", "penstock", "kubernetes.sandbox_namespace = 'penstock' is kubernetes.namespace too"),
        ("kubernetes.api_server", ["10.96.0.1/8"], "kubernetes.api_server[0]: 10.96.0.1/8 has host bits set: write a network, 10.96.0.1/32"),
        (
            "gateways.port", 30001,
            "port 30001 of host gpu1 has two owners: rollout-server-default-1 (servers[0], http) and gateway-1 (gateways, http)",
        ),
        ("web.port", 8080, "port 8080 of host cpu1 has two owners: gateway-0 (gateways, http) and web-0 (web, http)"),
        ("trainer.hosts", ["gpu2"], "trainer: two nodes of trainer would be host gpu2"),
        ("nats.hosts", ["gpu1", "gpu2"], "nats.nodes = 3, but they are placed on 2 hosts (gpu1, gpu2)"),
        ("web.hosts", ["cpu9"], "web.hosts: cpu9 is none of the hosts (known: gpu[1-3], cpu1)"),
        ("hosts.0.name", "gpu[3-1]", "the range 'gpu[3-1]' is empty"),
        ("secrets.database_url", "postgresql://me:word@db/x", "secrets.database_url: it is a secret, given inline"),
        ("secrets.gateway_admin", "word", "secrets.gateway_admin: it is a secret, given inline"),
        ("nats.external", "nats://me:word@nats:4222", "nats.external holds a login, given inline"),
        ("nats.external", "nats://TOKEN@nats:4222", "nats.external holds a login, given inline"),
        ("nats.external", "nats://one:4222,nats://TOKEN@two:4222", "nats.external holds a login, given inline"),
        ("nats.external", "TOKEN@nats:4222", "nats.external holds a login, given inline"),
        ("shared.model", "https://host/policy?token=word", "shared.model holds a login, given inline"),
        ("servers.0.options", ["--api-key", "word"], "servers[0].options: --api-key gives a secret inline"),
        ("servers.0.options", ["--api-key=word"], "servers[0].options: --api-key gives a secret inline"),
        ("servers.0.options", ["--admin-api-key", "word"], "servers[0].options: --admin-api-key gives a secret inline"),
        ("servers.0.options", ["--admin-api-key=word"], "servers[0].options: --admin-api-key gives a secret inline"),
        ("servers.0.options", ["--api", "word"], "servers[0].options: --api-key gives a secret inline"),
        ("secrets.nats_login", {"name": "nats", "key": "login"}, "secrets.nats_login lets NATS ask for a login, but no process would have one"),
        (
            "secrets.server_key_config", {"name": "servers", "key": "config"},
            "secrets.server_key_config lets SGLang ask for a key, but no gateway would have one",
        ),
        (
            "secrets.server_key", {"name": "servers", "key": "key"},
            "secrets.server_key gives gateways a key, but SGLang would not ask for it: name in secrets.server_key_config",
        ),
        ("config.servers", {"key_file": "/etc/key"}, "config.servers.key_file follows from the topology (secrets.server_key)"),
        ("config.services.database_url", "postgresql://db/x", "config.services.database_url follows from the topology"),
        ("config.trainer.ranks", 2, "config.trainer.ranks follows from the topology (trainer.ranks)"),
        ("config.trainer.lr", "fast", "config.trainer.lr: "),
        ("config.queue.capacitee", 4, "config.queue.capacitee: is not a known key"),
        ("trainer.rankz", 2, "trainer.rankz: is not a known key"),
        ("config.servers", {"evaluation": 4}, "config.servers.evaluation = 4 of 4 rollout servers"),
        ("config.sampling", {"top_p": 0.9}, "config.sampling.top_p is 0.9: tokens would come from a part of the distribution"),
        ("images.penstock", "penstock:latest", "images.penstock: 'penstock:latest' is another image tomorrow"),
        ("images.penstock", "registry:5000/penstock", "is another image tomorrow"),
        ("images.penstock", "penstock@sha256:12", "has no digest behind the @"),
        ("runners.0.max_replicas", 1, "max_replicas = 1 is less than replicas = 2"),
        ("name", "Nodes 4", "name: 'Nodes 4' names objects of a cluster"),
    ],
)  # fmt: skip
def test_a_contradiction_is_refused_with_its_key_and_the_arithmetic(key: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(changed(key, value))
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_the_suggested_remedy_helps() -> None:
    with pytest.raises(ConfigurationError, match="capacity to 51"):
        read(changed("config.queue.capacity", 40))
    read(changed("config.queue.capacity", 51))


def test_the_window_is_that_of_the_policy() -> None:
    raw = changed("config.queue.policy", "fifo")
    raw["config"]["queue"]["capacity"] = 62
    with pytest.raises(
        ConfigurationError, match=r"min\(62, 3·32\) \+ 1 = 63 groups .* set config\.queue\.capacity to 65"
    ):
        read(raw)
    raw["config"]["queue"]["capacity"] = 65
    read(raw)
    raw["config"]["queue"] |= {"capacity": 40, "policy": "greedy"}
    read(raw)


def test_two_pools_of_one_name_are_refused() -> None:
    raw = changed("runners.0.name", "a")
    raw["runners"].append({**raw["runners"][0]})
    with pytest.raises(ConfigurationError, match=r"runners\[0\] and runners\[1\] are both called 'a'"):
        read(raw)


def test_hosts_are_written_as_slurm_writes_them() -> None:
    assert hosts_of("gpu[08-10]") == ["gpu08", "gpu09", "gpu10"]
    assert hosts_of("r[1-2]-n[1-2]") == ["r1-n1", "r1-n2", "r2-n1", "r2-n2"]


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("config", 5, "config: "),
        *((f"config.{name}", 5, f"config.{name}: must be a table, got 5") for name in ("run", "servers", "web", "queue")),
        ("config.servers", [], "config.servers: must be a table, got []"),
        ("config.run", "", "config.run: must be a table, got ''"),
        ("config.servers.evaluation", [1], "config.servers.evaluation: "),
        ("config.servers.evaluation", "x", "config.servers.evaluation: "),
        ("config.servers.evaluation", "1", "config.servers.evaluation: "),
        ("config.servers.evaluation", -1, "config.servers.evaluation: "),
        ("config.servers.evaluation", {}, "config.servers.evaluation: "),
        ("config.unknown", 5, "config.unknown: is not a known key"),
        ("hosts.0.name", "n[1-3000000]", "the range 'n[1-3000000]' has 3,000,000 hosts, and 10,000 are the most"),
        ("hosts.0.name", "n[1-200][1-200]", "the range 'n[1-200][1-200]' has 40,000 hosts"),
        ("hosts.0.name", f"n[1-{'9' * 5000}]", "is not a host name"),
        ("hosts.0.name", "n" + 2000 * "[1-1]", "is not a host name"),
        ("hosts.0.name", 5000 * "a-", "is not a host name"),
        ("runners.0.hosts", ["n[1-3000000]"], "runners[0].hosts: the range 'n[1-3000000]' has 3,000,000 hosts"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_a_value_of_the_wrong_shape_or_size_is_one_sentence_with_its_key(
    key: str, value: Any, says: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(changed(key, value))
    assert says in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_a_range_may_have_ten_thousand_hosts_and_an_evaluation_server_counts() -> None:
    assert len(hosts_of("n[1-10000]")) == len(hosts_of("r[01-10]n[001-100]x[1-10]")) == 10_000
    assert read(changed("config.servers.evaluation", 1)).penstock.servers.evaluation == 1


@pytest.mark.parametrize(
    "text", ["a." * 5000 + "b = 1\n", "config." + "a." * 5000 + "b = 1\n", "a = " + 90 * "[" + 90 * "]"]
)
def test_a_topology_that_is_nested_too_deeply_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "topology.toml"
    file.write_text(text)
    with pytest.raises(
        ConfigurationError, match=r"topology\.toml is not valid TOML: it is nested too deeply"
    ):
        load(file)


def test_no_two_processes_of_a_host_share_a_gpu_or_a_port() -> None:
    for file in FILES:
        topology = load(file)
        gpus = [(process.host, gpu) for process in placed(topology) for gpu in process.gpus]
        ports = [(process.host, port) for process in placed(topology) for port in process.ports.values()]
        assert len(set(gpus)) == len(gpus) and len(set(ports)) == len(ports)
        assert all(gpu < topology.machines[host].gpus for host, gpu in gpus)
