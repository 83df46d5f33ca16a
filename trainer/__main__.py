"""python -m trainer --run NAME --policies DIRECTORY --subject SUBJECT: the trainer process of one run.

$DATABASE_URL names the data pool; everything else comes from the run's own configuration there. Exit status 0: the work is done, or
SIGTERM ended it (a batch under way is repeated by the next start); 1: one sentence on stderr says why.
"""

import argparse
import contextlib
import os
import signal
import sys
from pathlib import Path

import anyio

from orchestrator.collector import collect_seldom, keep_loaded
from orchestrator.contracts.errors import PenstockError
from orchestrator.log import configure
from orchestrator.watchdog import WatchdogSettings, watching


def main() -> int:
    """Parse, run, and say what is wrong in one sentence."""
    parser = argparse.ArgumentParser(prog="python -m trainer", description="Train one run's policy.")
    parser.add_argument("--run", required=True, help="the run's name in the data pool")
    parser.add_argument("--policies", required=True, type=Path, help="directory of the checkpoints")
    parser.add_argument("--subject", required=True, help="bus subject on which new versions are announced")
    parser.add_argument(
        "--train-steps", type=int, default=0, help="stop after so many (default: run until done)"
    )
    parser.add_argument("--retry", action="store_true", help="go on although the last batches were bad")
    parser.add_argument(
        "--no-progress-s", type=float, default=60.0, help="seconds after which a loop is stuck"
    )
    parser.add_argument(
        "--lag-s", type=float, default=5.0, help="seconds after which the event loop is blocked"
    )
    parser.add_argument("--metrics", type=Path, help="file for the watchdog's metrics")
    arguments = parser.parse_args()
    url = os.environ.get("DATABASE_URL", "")
    if not url:
        parser.error("DATABASE_URL is not set")
    if arguments.train_steps < 0:
        parser.error("--train-steps must not be negative")

    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # until torch is loaded nothing is open
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the import
    collect_seldom()
    configure("trainer")
    from trainer.loop import TrainerSettings, run_trainer

    keep_loaded(seldom=False)
    settings = TrainerSettings(
        arguments.run,
        url,
        arguments.policies.resolve(),
        arguments.subject,
        arguments.train_steps,
        arguments.retry,
    )
    watchdog = WatchdogSettings(arguments.no_progress_s, arguments.lag_s, arguments.metrics)
    stopped = False

    async def until_told() -> None:
        async with anyio.create_task_group() as tasks:

            async def obey() -> None:
                nonlocal stopped
                with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                    async for _ in signals:
                        stopped = True
                        tasks.cancel_scope.cancel()
                        return

            tasks.start_soon(obey)
            with watching("trainer", watchdog):
                await run_trainer(settings)
            tasks.cancel_scope.cancel()

    sentence = ""
    try:
        anyio.run(until_told, backend_options={"use_uvloop": True})
    except* (PenstockError, ValueError) as errors:
        sentence = str(_first(errors))
    if sentence:
        with contextlib.suppress(OSError):  # a full disk
            print(f"trainer: {sentence}", file=sys.stderr)
        return 1
    if stopped:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(0)  # a train step may still run in its thread, and nobody needs its result
    return 0


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error that is not a group."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


if __name__ == "__main__":
    sys.exit(main())
