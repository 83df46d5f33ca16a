"""A runner as a process of its own, for a test that kills it: RUN DATABASE_URL NATS_URL JOURNAL GATEWAY_URL SECRET SOCKET."""

import sys
from pathlib import Path

import anyio

from orchestrator.flow.rollout_runner import RunnerSettings, serve_rollouts
from orchestrator.flow.worker import WorkerSettings
from orchestrator.log import configure


def main() -> None:
    run, database_url, nats_url, journal, gateway_url, secret, socket = sys.argv[1:]
    configure("runner")
    worker = WorkerSettings(run, database_url, nats_url, Path(journal), "bubblewrap", 4, "runner")
    anyio.run(serve_rollouts, RunnerSettings(worker, gateway_url, Path(secret), Path(socket)))


if __name__ == "__main__":
    main()
