"""One run on fifteen hosts, started as a person would start it, by the product's own commands. The places:

    nats1 nats2 nats3   a JetStream cluster          gate1 gate2     gateways
    db                  PostgreSQL                   run1 run2       a runner and a verifier runner each
    orch1 orch2         orchestrators, both at work  serve1 serve2   rollout servers
    train1 train2       the trainer's two ranks      client          the test

Each host has a directory of its own with the run's configuration and its journals. The weights lie in a directory that all hosts see.
"""

import os
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from rich.console import Console

from ops.lab.chaos.prepare import scaled, toml
from ops.lab.demo import policy, prepare
from ops.lab.demo.suite import draw_suite
from orchestrator.bus.nats import NatsBus
from orchestrator.contracts.events import TaskSubmitted
from orchestrator.contracts.states import SubmissionStatus
from orchestrator.deploy.stack import upgrade
from orchestrator.pool.engine import Role, open_engine
from orchestrator.pool.runs import get_run
from orchestrator.pool.transact import transact
from orchestrator.publish import publish_tasks
from orchestrator.runtime.plugins import names
from orchestrator.settings.config import FILE, Config
from orchestrator.tasks.harbor import Task
from sandboxes.reap import default_root
from tests.e2e.feeder import Feeder
from tests.e2e.observer import Observer, a_task
from tests.e2e.stack_rig import REPOSITORY, START_S, until
from tests.hosts.network import Host, Network
from tests.hosts.services import Database, NatsCluster

SCALE = 5.0
NAMES = (
    "nats1", "nats2", "nats3", "db", "orch1", "orch2", "gate1", "gate2", "run1", "run2", "serve1", "serve2", "train1", "train2", "client",
)  # fmt: skip
GATEWAY, SANDBOXES, SERVER, RANKS = 8080, 8081, 30000, 29500
SLOTS, VERIFY_SLOTS = 5, 2
ROLES = {
    "orch1": ("orchestrator",), "orch2": ("orchestrator",), "gate1": ("gateway",), "gate2": ("gateway",), "serve1": ("server",),
    "run1": ("runner", "verifier"), "run2": ("runner", "verifier"), "train1": ("trainer",), "train2": ("trainer",),
}  # fmt: skip
WAITING_GROUPS = 8
WAITING = "select count(*) from groups where run_id = :run and state = 'accepted'"


def configuration(model: Path, shared: Path, hosts: dict[str, Host]) -> Config:
    """The demo's configuration, in small batches, every duration a fifth of its default."""
    scaffolds = ", ".join(
        f'"{name}" = {share}' for name, share in prepare.SCAFFOLDS.items() if name in names("scaffolds")
    )
    demo = prepare.CONFIG.format(
        seed=0,
        model=model,
        train_steps=0,
        seconds=0,
        scaffolds=scaffolds,
        sandbox="bubblewrap",
        control="false",
        servers="",
        dtype="float32",
    )
    raw = tomllib.loads(demo)
    raw["run"] = {"name": "hosts"}
    raw["policy"]["directory"] = str(shared / "policies")
    raw["queue"] |= {"batch_groups": 4, "capacity": 16, "max_attempts": 10}
    del raw["stage"]["end_seconds"]
    # Of the run: the total capacity of both runners.
    raw["rollout"] |= {"slots": 2 * SLOTS, "verify_slots": 2 * VERIFY_SLOTS}
    raw["trainer"] |= {"keep_checkpoints": 100}
    raw["servers"] = {"urls": [f"http://{hosts[name].address}:{SERVER}" for name in ("serve1", "serve2")]}
    raw["gateway"] = {
        "port": GATEWAY,
        "sandbox_port": SANDBOXES,
        "secret_file": str(shared / "gateway.secret"),
        "urls": [f"http://{hosts[name].address}:{GATEWAY}" for name in ("gate1", "gate2")],
    }
    return scaled(Config.model_validate(raw), SCALE)


@dataclass(slots=True, kw_only=True)
class World:
    """The hosts, their services, and the client's view of the run."""

    directory: Path
    hosts: dict[str, Host]
    nats: NatsCluster
    database: Database
    config: Config
    seen: Observer
    tasks: Iterator[Task]
    feeder: Feeder = field(init=False)
    slow: list[str] = field(default_factory=list)  # submissions whose tests take three seconds

    def __post_init__(self) -> None:
        self.feeder = Feeder(feed=self._feed, every_s=0.2)

    # --- processes ---

    def home(self, host: str) -> Path:
        return self.directory / "hosts" / host

    @property
    def sandboxes(self) -> Path:
        """Where all runners keep their sandboxes."""
        return self.directory / "tmp" / default_root().name

    def log(self, host: str, process: str) -> Path:
        return self.home(host) / f"{process}.log"

    def log_text(self, host: str, process: str) -> str:
        log = self.log(host, process)
        return log.read_text(errors="replace") if log.exists() else ""

    def start(self, name: str, process: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start one role on its host."""
        host = self.hosts[name]
        argv = [sys.executable, "-m", *self._command(host, process)]
        env = self._environment(host, process) | environment
        return host.start(process, argv, log=self.log(name, process), env=env, cwd=REPOSITORY)

    def _command(self, host: Host, process: str) -> list[str]:
        if process == "server":
            return [
                "trainer.serving",
                "--model-path",
                self.config.policy.model,
                "--host",
                host.address,
                "--port",
                str(SERVER),
                "--max-running-requests",
                "32",
                "--max-total-tokens",
                "65536",
            ]
        own = {
            "gateway": [f"gateway.host={host.address}"],
            "runner": [f"rollout.slots={SLOTS}"],
            "verifier": [f"rollout.verify_slots={VERIFY_SLOTS}"],
        }
        options = [part for item in own.get(process, []) for part in ("--set", item)]
        return ["orchestrator.cli", process, "--config", str(self.home(host.name)), *options]

    def _environment(self, host: Host, process: str) -> dict[str, str]:
        ranks = {
            "RANK": host.name.removeprefix("train"),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": self.hosts["train1"].address,
            "MASTER_PORT": str(RANKS),
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        if process == "trainer":
            ranks["RANK"] = str(int(ranks["RANK"]) - 1)
        return {
            **{key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")},
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "agents")]),
            "TMPDIR": str(self.directory / "tmp"),
            "OMP_NUM_THREADS": "1",
            "NO_COLOR": "1",
            "DATABASE_URL": self.database.url,
            "NATS_URL": self.nats.url,
            **(ranks if process == "trainer" else {}),
        }

    def penstock(self, host: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one command on one host's directory to its end (on the client's network)."""
        return subprocess.run(
            [sys.executable, "-m", "orchestrator.cli", *arguments, "--config", str(self.home(host))],
            env=self._environment(self.hosts[host], ""),
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=120,
        )

    async def says(
        self, host: str, process: str, what: str, patience_s: float = START_S, *, times: int = 1
    ) -> None:
        """Wait until a log contains something so often."""

        def appeared() -> bool:
            assert self.hosts[host].alive(process), (
                f"{process} of {host} ended: {self.log_text(host, process)[-3000:]}"
            )
            return self.log_text(host, process).count(what) >= times

        await until(appeared, f"{process} of {host} says {what}", patience_s)

    def let_end(self, name: str, process: str) -> subprocess.Popen[bytes]:
        """The process, which may end from now on."""
        return self.hosts[name].processes.pop(process)

    def all_alive(self) -> None:
        """Every process that was started and not ended still runs."""
        for host in self.hosts.values():
            for process in host.processes:
                assert host.alive(process), (
                    f"{process} of {host.name} ended: {self.log_text(host.name, process)[-3000:]}"
                )

    # --- the run ---

    async def rows(self, statement: str, **parameters: Any) -> list[Any]:
        return list(await self.seen.rows(statement, **parameters))

    async def counted(self, *names: str) -> int:
        """The sum of counters of the run."""
        statement = "select coalesce(sum(value), 0) from counters where run_id = :run and name = any(:names)"
        return int(await self.seen.value(statement, names=list(names)))

    async def newest(self) -> int:
        """The newest published version."""
        return int(
            await self.seen.value(
                "select coalesce(max(version), -1) from policy_versions where run_id = :run"
            )
        )

    async def _feed(self) -> None:
        """Publish so that there is always work: the demo's tasks, and a few whose tests take three seconds."""
        self.all_alive()
        if await self.seen.value(WAITING) < WAITING_GROUPS:
            tasks = [next(self.tasks) for _ in range(4)]
            number = len(self.seen.ledger)
            await self.submit([*tasks, a_task(number, 3.0)])
            self.slow.append(self.seen.ledger[-1])

    async def submit(self, tasks: list[Task]) -> None:
        """Into the ledger, onto the bus, and wait until accepted. A cancellation waits: nothing is in the ledger that the bus did not get."""
        first = len(self.seen.ledger)
        called = [f"task:{number:05d}" for number in range(first, first + len(tasks))]
        events = [
            (task.settings.metadata.domain, TaskSubmitted(task=task.to_message(), submission=name))
            for name, task in zip(called, tasks, strict=True)
        ]
        with anyio.CancelScope(shield=True):
            self.seen.ledger += called
            with (self.directory / "ledger.txt").open("a") as ledger:
                ledger.writelines(f"{name}\n" for name in called)
            answers = await publish_tasks(self.seen.bus, self.seen.run, events, timeout_s=60)
        assert answers == dict.fromkeys(called, (SubmissionStatus.ACCEPTED, None)), answers

    async def progress(self, patience_s: float, *, rollouts: int = 1) -> None:
        """Wait until this many more rollouts were verified."""
        statement = "select count(*) from transitions where run_id = :run and kind = 'rollout' and to_state = 'verified'"
        before = await self.seen.value(statement)

        async def more() -> bool:
            return bool(await self.seen.value(statement) >= before + rollouts)

        await until(more, f"{rollouts} more rollouts are verified", patience_s)

    async def trains(self, patience_s: float, *, batches: int = 1) -> None:
        """Wait until this many more batches are committed."""
        await self.seen.until_batches(await self.seen.batches() + batches, patience_s)


@asynccontextmanager
async def living(network: Network, directory: Path) -> AsyncIterator[World]:
    """All hosts but serve2's server at work, and tasks coming in, while the context is open."""
    hosts = network.hosts
    shared = directory / "shared"
    shared.mkdir()
    (shared / "policies").mkdir()
    (shared / "gateway.secret").write_text("a secret of this test alone\n")
    model = policy.make(REPOSITORY / "var" / "policy", 0, Console(stderr=True))
    config = configuration(model, shared, hosts)
    for name in NAMES:
        (directory / "hosts" / name).mkdir(parents=True)
        (directory / "hosts" / name / FILE).write_text(toml(config))
    nats = NatsCluster.prepare([hosts[f"nats{number}"] for number in (1, 2, 3)], directory / "nats")
    database = Database.prepare(hosts["db"], directory / "postgres")
    async with AsyncExitStack() as stack:
        stack.callback(database.discard)
        stack.callback(network.remove)
        for host in nats.hosts:
            nats.start(host)
        await database.start()
        await anyio.to_thread.run_sync(upgrade, database.url)
        engine = await stack.enter_async_context(
            open_engine(database.url, Role.READER, size=2, name="hosts-client")
        )
        bus = await stack.enter_async_context(
            NatsBus.connect(nats.url, name="hosts-client", patience_s=START_S)
        )
        tasks = iter([task for seed in range(4) for task in draw_suite(seed).train])
        world = World(
            directory=directory,
            hosts=hosts,
            nats=nats,
            database=database,
            config=config,
            seen=Observer(run="hosts", run_id=0, bus=bus, engine=engine),
            tasks=tasks,
        )
        for name in ("orch1", "orch2"):
            world.start(name, "orchestrator")
        for name in ("serve1",):
            world.start(name, "server")
        for name in ("train1", "train2"):
            world.start(name, "trainer")
        for name in ("orch1", "orch2"):
            await world.says(name, "orchestrator", '"orchestrator.ready"')
        run = await transact(engine, lambda connection: get_run(connection, "hosts"), at="tests")
        world.seen.run_id = run.run_id
        for name in ("gate1", "gate2"):
            world.start(name, "gateway")
        for name in ("run1", "run2"):
            world.start(name, "runner")
            world.start(name, "verifier")
        for name in ("run1", "run2"):
            await world.says(name, "runner", '"runner.ready"')
        async with anyio.create_task_group() as group:
            group.start_soon(world.feeder.run)
            yield world
            group.cancel_scope.cancel()
