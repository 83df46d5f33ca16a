"""Three NATS servers as one cluster, and PostgreSQL, each on a host of its own."""

import secrets
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import nats

from orchestrator.deploy.embedded.nats_server import MAX_PAYLOAD, find_nats
from orchestrator.deploy.embedded.postgres_cluster import PostgresCluster, discard_cluster, prepare_cluster
from tests.e2e.stack_rig import until
from tests.hosts.network import NET, Host

CLIENTS, ROUTES = 4222, 6222
START_S = 60.0


@dataclass(slots=True)
class NatsCluster:
    """Servers that know each other. `url` is the URL for configurations."""

    hosts: list[Host]
    directory: Path
    token: str

    @classmethod
    def prepare(cls, hosts: list[Host], directory: Path) -> "NatsCluster":
        """Write a configuration for each."""
        cluster = cls(hosts, directory, secrets.token_urlsafe(16))
        routes = ", ".join(f'"nats-route://{host.address}:{ROUTES}"' for host in hosts)
        for host in hosts:
            place = directory / host.name
            place.mkdir(parents=True)
            (place / "nats.conf").write_text(
                f'server_name: "{host.name}"\n'
                f'listen: "{host.address}:{CLIENTS}"\n'
                f"max_payload: {MAX_PAYLOAD}\n"
                f'authorization {{ token: "{cluster.token}" }}\n'
                f'jetstream {{ store_dir: "{place}", max_file: {1 << 40} }}\n'
                f'cluster {{ name: "hosts", listen: "{host.address}:{ROUTES}", routes: [{routes}] }}\n'
            )
        return cluster

    @property
    def url(self) -> str:
        return ",".join(self.url_of(host) for host in self.hosts)

    def url_of(self, host: Host) -> str:
        return f"nats://{self.token}@{host.address}:{CLIENTS}"

    def start(self, host: Host) -> None:
        place = self.directory / host.name
        argv = [str(find_nats().path), "-c", str(place / "nats.conf")]
        host.start("nats", argv, log=place / "nats.log", env={})

    async def leader(self, stream: str) -> Host | None:
        """The leader of a stream, as any server reports it; None while no server reports one."""
        client = await nats.connect(
            [self.url_of(host) for host in self.hosts if host.alive("nats")],
            allow_reconnect=False,
            error_cb=_quiet,
        )
        try:
            info = await client.jetstream(timeout=1.0).stream_info(stream)
        except (nats.errors.Error, OSError):
            return None
        finally:
            await client.close()
        named = info.cluster.leader if info.cluster is not None else None
        return next((host for host in self.hosts if host.name == named), None)

    async def replicas(self, stream: str) -> int:
        """How many servers have all of a stream; 0 while no server reports it."""
        client = await nats.connect(
            [self.url_of(host) for host in self.hosts], allow_reconnect=False, error_cb=_quiet
        )
        try:
            info = await client.jetstream().stream_info(stream)
        except (nats.errors.Error, OSError):
            return 0
        finally:
            await client.close()
        assert info.cluster is not None
        return 1 + sum(bool(peer.current) for peer in info.cluster.replicas or [])


async def _quiet(error: Exception) -> None:
    return None


@dataclass(slots=True)
class Database:
    """PostgreSQL that hosts of the network reach."""

    host: Host
    directory: Path
    cluster: PostgresCluster

    @classmethod
    def prepare(cls, host: Host, directory: Path) -> "Database":
        return cls(host, directory, prepare_cluster(directory, port=5432, durable=False))

    @property
    def url(self) -> str:
        return self.cluster.url.replace("127.0.0.1", self.host.address)

    async def start(self) -> None:
        """Returns when it answers."""
        self.cluster.before_start()
        with (self.cluster.pgdata / "postgresql.conf").open("a") as settings:
            settings.write("listen_addresses = '*'\n")
        with (self.cluster.pgdata / "pg_hba.conf").open("a") as access:
            access.write(f"host all all {NET}.0/24 scram-sha-256\n")
        self.host.start(
            "postgres",
            self.cluster.argv,
            log=self.directory / "postgres.log",
            env=self.cluster.env,
            cwd=Path("/"),
            user=self.cluster.user,
        )

        async def answers() -> bool:
            try:
                connection = await asyncpg.connect(self.url, timeout=2)
            except (OSError, TimeoutError, asyncpg.PostgresError):
                return False
            await connection.close()
            return True

        await until(answers, "PostgreSQL answers", START_S)

    def discard(self) -> None:
        discard_cluster(self.directory)
