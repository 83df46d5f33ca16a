"""The embedded services as supervised processes."""

import signal
from pathlib import Path

from orchestrator.deploy.embedded.nats import serves
from orchestrator.deploy.embedded.nats_server import NatsHome
from orchestrator.deploy.embedded.postgres import accepts_queries
from orchestrator.deploy.embedded.postgres_cluster import PostgresCluster
from orchestrator.deploy.embedded.process_spec import ProcessSpec


def postgres_spec(cluster: PostgresCluster) -> ProcessSpec:
    """PostgreSQL under the supervisor; a fast shutdown at stop, crash recovery after a kill."""
    return ProcessSpec(
        name="postgres",
        argv=cluster.argv,
        env=cluster.env,
        inherit_env=False,
        cwd=Path("/"),  # a place that the service user can read
        user=cluster.user,
        ready=lambda: accepts_queries(cluster),
        before_start=cluster.before_start,
        ready_timeout_s=600.0,  # crash recovery replays up to max_wal_size
        grace_s=30.0,
        stop_signal=signal.SIGINT,
        writes=(cluster.pgdata,),  # outside the run directory if the service user cannot reach that
    )


def nats_spec(home: NatsHome) -> ProcessSpec:
    """NATS under the supervisor."""
    return ProcessSpec(
        name="nats",
        argv=home.argv,
        env=home.env,
        inherit_env=False,
        ready=lambda: serves(home.url, home.owner),
        before_start=home.before_start,
        stale_after_full=True,  # after one failed write, a stream accepts no more data until the next start
    )
