"""What every render starts: the command line, the environment and the configuration of each role. The commands are the product's own.

Nothing here knows a target. A target says in `Links` and `Where` under which names processes find each other and where files lie.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from orchestrator.bus import subjects
from orchestrator.cluster.placement import Process
from orchestrator.cluster.topology import SecretKey, ServerPool, Topology

READS_POOL = frozenset({"migrate", "orchestrator", "gateway", "runner", "verifier", "trainer", "web"})
READS_BUS = frozenset(
    {"orchestrator", "gateway", "runner", "verifier", "web"}
)  # the dashboard publishes dead letters again
TRAINS = frozenset({"rollout-server", "trainer"})  # they import torch
MOST_TOKENS = 262144  # of KV that an embedded rollout server keeps
READ_BY: Mapping[str, tuple[str, ...]] = {
    "rollout.slots": ("orchestrator", "web"),  # a runner is told its own
    "rollout.verify_slots": (),
    "servers.urls": ("gateway",),
    "gateway.urls": ("runner",),
}
"""Keys of penstock.toml that follow from counts, and the roles that read them there: nobody else begins anew when they change."""


@dataclass(frozen=True, slots=True)
class Links:
    """How processes find each other on one target: URLs, in order. `nats` has commas between the servers of a cluster."""

    nats: str
    gateways: tuple[str, ...]
    servers: tuple[str, ...]
    provider: str  # of sandboxes, where the topology names none


@dataclass(frozen=True, slots=True)
class Where:
    """Where one process is. `home`: the directory with its penstock.toml; `programs`: prefix of program names; `address`: what it listens on
    and is reached at; `secret`: the file of a secret; `leader`, `node`, `number`: the first machine of those that it spreads over, which of
    them this is, and its own number."""

    home: str
    secret: Callable[[SecretKey], str]
    address: str
    programs: str = ""
    leader: str = ""
    node: str = "0"
    number: str = "0"


@dataclass(frozen=True, slots=True)
class Command:
    """How one process is started. `files`: variables that name the file of a secret; `environment` has nothing secret."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    files: Mapping[str, SecretKey]


def model_of(topology: Topology) -> str:
    """The directory of the first policy."""
    return str(PurePosixPath(topology.shared.path) / topology.shared.model)


def policies_of(topology: Topology) -> str:
    """The directory of all versions."""
    return str(PurePosixPath(topology.shared.path) / "policies")


def secrets_of(topology: Topology, role: str) -> dict[str, SecretKey]:
    """What a role may read, by the variable that names its file."""
    files: dict[str, SecretKey] = {}
    if role in READS_POOL:
        own: Mapping[str, SecretKey] = dict(topology.secrets.database_url_of.items())
        files["DATABASE_URL_FILE"] = own.get(role, topology.secrets.database_url)
    if role in READS_BUS and topology.secrets.nats_url is not None:
        files["NATS_URL_FILE"] = topology.secrets.nats_url
    return files


def configuration(topology: Topology, links: Links) -> dict[str, Any]:
    """penstock.toml: `[config]` and what follows from the topology, the same for every process of the run."""
    derived: dict[str, Any] = {
        "run": {"name": topology.name},
        "policy": {"model": model_of(topology), "directory": policies_of(topology)},
        "gateway": {"urls": list(links.gateways), "sandbox_port": topology.gateways.sandbox_port},
        "servers": {"urls": list(links.servers)},
        # What the dispatcher fills: all slots that there can be. Each runner is told its own.
        "rollout": {
            "slots": sum(pool.most * pool.slots for pool in topology.runners),
            "verify_slots": sum(pool.most * pool.slots for pool in topology.verifiers),
        },
        "sandbox": {"provider": links.provider},
        "trainer": {"ranks": topology.trainer.ranks},
        "metrics": {"host": "0.0.0.0"},
    }
    if links.provider == "kubernetes":
        derived["sandbox"]["kubernetes"] = {
            "image": topology.images.sandbox,
            "namespace": topology.kubernetes.sandbox_namespace,
            "runtime_class": topology.kubernetes.sandbox_runtime,
        }
    if topology.secrets.nats_url is None:
        derived["services"] = {"nats_url": links.nats}
    return _merged(topology.config, derived)


def read_by(role: str, configuration: Mapping[str, Any]) -> dict[str, Any]:
    """What one role reads of a configuration: all but the counts of others."""
    others = [key.split(".") for key, roles in READ_BY.items() if role not in roles]
    return {
        section: {name: item for name, item in keys.items() if [section, name] not in others}
        for section, keys in configuration.items()
    }


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(one)
    for key, value in other.items():
        mine = merged.get(key)
        merged[key] = _merged(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else value
    return merged


def command(topology: Topology, process: Process, where: Where) -> Command:
    """How `process` is started there."""
    files = secrets_of(topology, process.role)
    environment = {variable: where.secret(key) for variable, key in files.items()}
    if process.role in TRAINS:
        environment["OMP_NUM_THREADS"] = "1"
    make = {
        "orchestrator": _orchestrator,
        "gateway": _gateway,
        "runner": _runner,
        "verifier": _verifier,
        "rollout-server": _server,
        "trainer": _trainer,
        "web": _web,
    }[process.role]
    return Command(tuple(make(topology, process, where)), environment, files)


def migrate(where: Where) -> list[str]:
    """Brings the database to this code's schema; run where alembic.ini lies."""
    return [f"{where.programs}alembic", "upgrade", "head"]


def wait(where: Where, *, run: bool) -> list[str]:
    """Returns once the database has this code's schema, and the run where it is asked for."""
    return [f"{where.programs}penstock", "cluster", "wait", "-c", where.home, *(["--run"] if run else [])]


def _penstock(what: str, where: Where, *settings: str) -> list[str]:
    sets = [part for setting in settings for part in ("--set", setting)]
    return [f"{where.programs}penstock", what, "-c", where.home, *sets]


def _metrics(name: str, process: Process) -> str:
    return f"metrics.ports.{name}={process.ports['metrics']}"


def _orchestrator(topology: Topology, process: Process, where: Where) -> list[str]:
    return [*_penstock("orchestrator", where, _metrics(process.name, process)), "--name", process.name]


def _gateway(topology: Topology, process: Process, where: Where) -> list[str]:
    settings = (
        f"gateway.host={where.address}", f"gateway.port={process.ports['http']}",
        f"gateway.sandbox_port={process.ports['sandboxes']}", _admin(topology, where), _metrics(process.name, process),
    )  # fmt: skip
    return [*_penstock("gateway", where, *settings), "--name", process.name]


def _admin(topology: Topology, where: Where) -> str:
    return f"gateway.secret_file={where.secret(topology.secrets.gateway_admin)}"


def _provider(provider: str) -> tuple[str, ...]:
    return (f"sandbox.provider={provider}",) if provider else ()


def _runner(topology: Topology, process: Process, where: Where) -> list[str]:
    pool = next(pool for pool in topology.runners if pool.name == process.pool)
    settings = (f"rollout.slots={pool.slots}", *_provider(pool.provider), _admin(topology, where))
    return [*_penstock("runner", where, *settings, _metrics(process.name, process)), "--name", process.name]


def _verifier(topology: Topology, process: Process, where: Where) -> list[str]:
    pool = next(pool for pool in topology.verifiers if pool.name == process.pool)
    settings = (f"rollout.verify_slots={pool.slots}", *_provider(pool.provider))
    return [*_penstock("verifier", where, *settings, _metrics(process.name, process)), "--name", process.name]


def _web(topology: Topology, process: Process, where: Where) -> list[str]:
    # On loopback alone: who looks comes through a tunnel, `ssh -L` or `kubectl port-forward`.
    return _penstock("web", where, f"web.port={process.ports['http']}", _metrics("web", process))


def pool_of(topology: Topology, process: Process) -> ServerPool:
    """The pool of a rollout server."""
    return next(pool for pool in topology.servers if pool.name == process.pool)


def _server(topology: Topology, process: Process, where: Where) -> list[str]:
    pool = pool_of(topology, process)
    python, port = f"{where.programs}python3", str(process.ports.get("http", pool.port))
    if pool.engine == "embedded":
        return [
            python, "-m", "trainer.serving", "--model-path", model_of(topology), "--host", where.address, "--port", port,
            "--max-total-tokens", str(MOST_TOKENS), "--seed", where.number, *pool.options,
        ]  # fmt: skip
    spread = []
    if pool.nodes > 1:
        meeting = f"{where.leader}:{process.ports['meeting']}"
        spread = ["--nnodes", str(pool.nodes), "--node-rank", where.node, "--dist-init-addr", meeting]
    return [
        python, "-m", "sglang.launch_server", "--model-path", model_of(topology), "--host", where.address, "--port", port,
        "--tp-size", str(pool.tp), "--dp-size", str(pool.dp), "--pp-size", str(pool.pp), *spread,
        "--enable-metrics", "--skip-server-warmup", *pool.options,
    ]  # fmt: skip


def _trainer(topology: Topology, process: Process, where: Where) -> list[str]:
    trainer, budget = topology.trainer, topology.penstock.trainer
    if trainer.nodes == 1:
        return _penstock("trainer", where, f"trainer.ranks={trainer.ranks}", _metrics("trainer", process))
    return [
        f"{where.programs}torchrun", "--nnodes", str(trainer.nodes), "--nproc-per-node", str(trainer.ranks // trainer.nodes),
        "--node-rank", where.node, "--master-addr", where.leader, "--master-port", str(trainer.port), "-m", "--", "trainer",
        "--run", topology.name, "--policies", policies_of(topology), "--subject", subjects.policy(topology.name),
        "--pack-tokens", str(budget.pack_tokens), "--pack-pairs", str(budget.pack_pairs),
        "--metrics-target", f"{where.home}/.penstock/run/trainer.metrics.json",
        "--metrics-host", "0.0.0.0", "--metrics-port", str(trainer.metrics_port),
    ]  # fmt: skip
