"""A runner as a process of its own, for a test that kills it: RUN DATABASE_URL NATS_URL JOURNAL GATEWAY_URL SECRET SOCKET NO_PROGRESS_S.
Under a watchdog, with heartbeats, where NO_PROGRESS_S is above 0."""

import sys
from pathlib import Path

import anyio

from orchestrator.runner.rollout_runner import RunnerSettings, serve_rollouts
from orchestrator.runner.worker import WorkerSettings
from orchestrator.runtime.log import configure
from orchestrator.runtime.watchdog import WatchdogSettings, watching


def main() -> None:
    run, database_url, nats_url, journal, gateway_url, secret, socket, no_progress_s = sys.argv[1:]
    configure("runner")
    worker = WorkerSettings(
        run=run,
        database_url=database_url,
        nats_url=nats_url,
        journal=Path(journal),
        provider="bubblewrap",
        slots=4,
        owner="runner",
    )
    settings = RunnerSettings(
        worker=worker, gateway_url=gateway_url, gateway_secret=Path(secret), gateway_socket=Path(socket)
    )

    async def serve() -> None:
        if not float(no_progress_s):
            await serve_rollouts(settings)
        with watching("runner", WatchdogSettings(no_progress_s=float(no_progress_s), lag_s=60.0)):
            await serve_rollouts(settings)

    anyio.run(serve)


if __name__ == "__main__":
    main()
