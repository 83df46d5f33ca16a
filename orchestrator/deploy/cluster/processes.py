"""The common part of every render: the command line, the environment and the configuration of each role. The commands are the product's own.

This module knows no target. A target describes in `Links` and `Where` by which names processes find each other and where files are.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from orchestrator.bus import subjects
from orchestrator.contracts.languages import toml_text
from orchestrator.contracts.processes import ProcessRole
from orchestrator.deploy.cluster.placement import PlacedProcess
from orchestrator.deploy.cluster.topology import SecretKey, ServerEngine, ServerPool, Topology
from orchestrator.settings.timeouts import to_argument
from sandboxes.kubernetes import KUBERNETES

READS_POOL = frozenset(ProcessRole) - {ProcessRole.POSTGRES, ProcessRole.NATS, ProcessRole.ROLLOUT_SERVER}
READS_BUS = READS_POOL - {ProcessRole.MIGRATE, ProcessRole.TRAINER}  # the dashboard republishes dead letters
TRAINS = frozenset({ProcessRole.ROLLOUT_SERVER, ProcessRole.TRAINER})  # they import torch
MAX_TOKENS = 262144  # of KV cache in an embedded rollout server
READ_BY: Mapping[str, tuple[str, ...]] = {
    "rollout.slots": (ProcessRole.ORCHESTRATOR, ProcessRole.WEB),  # a runner receives its own
    "rollout.verify_slots": (),
    "servers.urls": (ProcessRole.GATEWAY,),
    "gateway.urls": (ProcessRole.RUNNER,),
}
"""Keys of penstock.toml that follow from counts, and the roles that read them there. Only these roles restart when they change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """How processes find each other on one target: URLs, in order. `nats` has commas between the servers of a cluster."""

    nats: str
    gateways: tuple[str, ...]
    servers: tuple[str, ...]
    provider: str  # of sandboxes, if the topology names none


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The location of one process. `home`: the directory with its penstock.toml; `programs`: prefix of program names; `address`: its listening
    address and reachable name; `secret`: the file of a secret; `leader`, `node`: the first machine of a process that spans several, and
    the index of this machine."""

    home: str
    secret: Callable[[SecretKey], str]
    address: str
    programs: str = ""
    leader: str = ""
    node: str = "0"


@dataclass(frozen=True, slots=True)
class ProcessCommand:
    """How one process is started. `files`: variables that name the file of a secret. `environment` contains no secrets."""

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
    """The secrets that a role may read, by the variable that names the file."""
    files: dict[str, SecretKey] = {}
    if role in READS_POOL:
        own: Mapping[str, SecretKey] = dict(topology.secrets.database_url_of.items())
        files["DATABASE_URL_FILE"] = own.get(role, topology.secrets.database_url)
    if role in READS_BUS and topology.secrets.nats_url is not None:
        files["NATS_URL_FILE"] = topology.secrets.nats_url
    return files


def key_files(topology: Topology, process: PlacedProcess) -> list[SecretKey]:
    """The secrets whose files the command line of a process names."""
    secrets = topology.secrets
    named: list[SecretKey | None] = []
    if process.role in (ProcessRole.GATEWAY, ProcessRole.RUNNER):
        named.append(secrets.gateway_admin)
    if (
        process.role == ProcessRole.ROLLOUT_SERVER
        and pool_of(topology, process).engine is ServerEngine.SGLANG
    ):
        named.append(secrets.server_key_config)
    elif process.role in (ProcessRole.GATEWAY, ProcessRole.ROLLOUT_SERVER):
        named.append(secrets.server_key)
    return [key for key in named if key is not None]


def configuration(topology: Topology, links: Links) -> dict[str, Any]:
    """penstock.toml: `[config]` and the values that follow from the topology, the same for every process of the run."""
    derived: dict[str, Any] = {
        "run": {"name": topology.name},
        "policy": {"model": model_of(topology), "directory": policies_of(topology)},
        "gateway": {"urls": list(links.gateways), "sandbox_port": topology.gateways.sandbox_port},
        "servers": {"urls": list(links.servers)},
        # The dispatcher fills all slots of the maximum count. Each runner receives its own.
        "rollout": {
            "slots": sum(pool.most * pool.slots for pool in topology.runners),
            "verify_slots": sum(pool.most * pool.slots for pool in topology.verifiers),
        },
        "sandbox": {"provider": links.provider},
        "trainer": {"ranks": topology.trainer.ranks},
        "metrics": {"host": "0.0.0.0"},
    }
    if links.provider == KUBERNETES:
        derived["sandbox"]["kubernetes"] = {
            "image": topology.images.sandbox,
            "namespace": topology.kubernetes.sandbox_namespace,
            "runtime_class": topology.kubernetes.sandbox_runtime,
        }
    if topology.secrets.nats_url is None:
        derived["services"] = {"nats_url": links.nats}
    return _merged(topology.config, derived)


def read_by(role: str, configuration: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a configuration that one role reads: everything except other roles' counts."""
    excluded = [key.split(".") for key, roles in READ_BY.items() if role not in roles]
    return {
        section: {name: item for name, item in keys.items() if [section, name] not in excluded}
        for section, keys in configuration.items()
    }


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(one)
    for key, value in other.items():
        base_value = merged.get(key)
        merged[key] = (
            _merged(base_value, value) if isinstance(base_value, dict) and isinstance(value, dict) else value
        )
    return merged


def command(topology: Topology, process: PlacedProcess, where: Where) -> ProcessCommand:
    """The command that starts `process` at its location."""
    files = secrets_of(topology, process.role)
    environment = {variable: where.secret(key) for variable, key in files.items()}
    if process.role in TRAINS:
        environment["OMP_NUM_THREADS"] = "1"
    build = {
        ProcessRole.ORCHESTRATOR: _orchestrator,
        ProcessRole.GATEWAY: _gateway,
        ProcessRole.RUNNER: _runner,
        ProcessRole.VERIFIER: _verifier,
        ProcessRole.ROLLOUT_SERVER: _server,
        ProcessRole.TRAINER: _trainer,
        ProcessRole.WEB: _web,
    }[process.role]
    return ProcessCommand(tuple(build(topology, process, where)), environment, files)


def migrate(where: Where) -> list[str]:
    """The command that upgrades the database to this code's schema. Run it in the directory of alembic.ini."""
    return [f"{where.programs}alembic", "upgrade", "head"]


def wait(where: Where, *, run: bool) -> list[str]:
    """The command that returns once the database has this code's schema and, with `run`, the run exists."""
    return [f"{where.programs}penstock", "cluster", "wait", "-c", where.home, *(["--run"] if run else [])]


def _set(key: str, text: str) -> str:
    """A text for `--set`, which reads TOML, and else takes the words as they are: bare where that gives the text, else in quotes."""
    try:
        tomllib.loads(f"{key} = {text}")
    except tomllib.TOMLDecodeError:
        bare = text == text.strip()
    else:
        bare = False
    return f"{key}={text if bare else toml_text(text)}"


def _penstock(what: str, where: Where, *settings: str) -> list[str]:
    set_options = [part for setting in settings for part in ("--set", setting)]
    return [f"{where.programs}penstock", what, "-c", where.home, *set_options]


def _metrics(name: str, process: PlacedProcess) -> str:
    return f"metrics.ports.{name}={process.ports['metrics']}"


def _orchestrator(topology: Topology, process: PlacedProcess, where: Where) -> list[str]:
    return [*_penstock("orchestrator", where, _metrics(process.name, process)), "--name", process.name]


def _gateway(topology: Topology, process: PlacedProcess, where: Where) -> list[str]:
    settings = (
        _set("gateway.host", where.address),
        f"gateway.port={process.ports['http']}",
        f"gateway.sandbox_port={process.ports['sandboxes']}",
        _admin(topology, where),
        _metrics(process.name, process),
    )
    key = topology.secrets.server_key
    of_servers = () if key is None else (_set("servers.key_file", where.secret(key)),)
    return [*_penstock("gateway", where, *settings, *of_servers), "--name", process.name]


def _admin(topology: Topology, where: Where) -> str:
    return _set("gateway.secret_file", where.secret(topology.secrets.gateway_admin))


def _provider(provider: str) -> tuple[str, ...]:
    return (_set("sandbox.provider", provider),) if provider else ()


def _runner(topology: Topology, process: PlacedProcess, where: Where) -> list[str]:
    pool = next(pool for pool in topology.runners if pool.name == process.pool)
    settings = (f"rollout.slots={pool.slots}", *_provider(pool.provider), _admin(topology, where))
    return [*_penstock("runner", where, *settings, _metrics(process.name, process)), "--name", process.name]


def _verifier(topology: Topology, process: PlacedProcess, where: Where) -> list[str]:
    pool = next(pool for pool in topology.verifiers if pool.name == process.pool)
    settings = (f"rollout.verify_slots={pool.slots}", *_provider(pool.provider))
    return [*_penstock("verifier", where, *settings, _metrics(process.name, process)), "--name", process.name]


def _web(topology: Topology, process: PlacedProcess, where: Where) -> list[str]:
    # On loopback only: users connect through a tunnel, `ssh -L` or `kubectl port-forward`.
    return _penstock("web", where, f"web.port={process.ports['http']}", _metrics(ProcessRole.WEB, process))


def pool_of(topology: Topology, process: PlacedProcess) -> ServerPool:
    """The pool of a rollout server."""
    return next(pool for pool in topology.servers if pool.name == process.pool)


def _server(topology: Topology, process: PlacedProcess, where: Where) -> list[str]:
    pool, keys = pool_of(topology, process), [where.secret(key) for key in key_files(topology, process)]
    python, port = f"{where.programs}python3", str(process.ports.get("http", pool.port))
    if pool.engine is ServerEngine.EMBEDDED:
        return [
            python, "-m", "trainer.serving", "--model-path", model_of(topology), "--host", where.address, "--port", port,
            "--max-total-tokens", str(MAX_TOKENS), *(part for key in keys for part in ("--key-file", key)), *pool.options,
        ]  # fmt: skip
    spread = []
    if pool.nodes > 1:
        rendezvous = f"{where.leader}:{process.ports['meeting']}"
        spread = ["--nnodes", str(pool.nodes), "--node-rank", where.node, "--dist-init-addr", rendezvous]
    return [
        python, "-m", "sglang.launch_server", "--model-path", model_of(topology), "--host", where.address, "--port", port,
        "--tp-size", str(pool.tp), "--dp-size", str(pool.dp), "--pp-size", str(pool.pp), *spread,
        "--enable-metrics", "--skip-server-warmup", *(part for key in keys for part in ("--config", key)), *pool.options,
    ]  # fmt: skip


def _trainer(topology: Topology, process: PlacedProcess, where: Where) -> list[str]:
    trainer, budget = topology.trainer, topology.penstock.trainer
    if trainer.nodes == 1:
        return _penstock(
            "trainer", where, f"trainer.ranks={trainer.ranks}", _metrics(ProcessRole.TRAINER, process)
        )
    return [
        f"{where.programs}torchrun", "--nnodes", str(trainer.nodes), "--nproc-per-node", str(trainer.ranks // trainer.nodes),
        "--node-rank", where.node, "--master-addr", where.leader, "--master-port", str(trainer.port), "-m", "--", "trainer",
        "--run", topology.name, "--policies", policies_of(topology), "--subject", subjects.policy(topology.name),
        "--pack-tokens", str(budget.pack_tokens), "--pack-pairs", str(budget.pack_pairs),
        f"--timeouts={to_argument(topology.penstock.timeouts)}",
        "--no-progress-s", str(topology.penstock.watchdog.no_progress_s), "--lag-s", str(topology.penstock.watchdog.lag_s),
        "--metrics-target", f"{where.home}/.penstock/run/trainer.metrics.json",
        "--metrics-host", "0.0.0.0", "--metrics-port", str(trainer.metrics_port),
    ]  # fmt: skip
