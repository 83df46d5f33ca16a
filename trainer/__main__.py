"""python -m trainer --run NAME --policies DIRECTORY --subject SUBJECT: the trainer process of one run.

$DATABASE_URL, or the file $DATABASE_URL_FILE, names the data pool; everything else comes from the run's own configuration there.
Exit status 0: the work is done, or SIGTERM ended it (a batch under way is repeated by the next start); 1: one sentence on stderr says why.

With --ranks N it is N processes, and torchrun may start them instead (ops/guides/ranks.md): then this is one of them, and rank 0 is the trainer.
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
from orchestrator.environment import named
from orchestrator.log import configure
from orchestrator.metrics import Target, measuring, served
from orchestrator.watchdog import WatchdogSettings, watching
from trainer.ranks.place import Followers, RankLost, fork, place_given


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m trainer", description="Train one run's policy.")
    parser.add_argument("--run", required=True, help="the run's name in the data pool")
    parser.add_argument("--policies", required=True, type=Path, help="directory of the checkpoints")
    parser.add_argument("--subject", required=True, help="bus subject on which new versions are announced")
    parser.add_argument(
        "--train-steps", type=int, default=0, help="stop after so many (default: run until done)"
    )
    parser.add_argument("--retry", action="store_true", help="go on although the last batches were bad")
    parser.add_argument("--ranks", type=int, default=1, help="processes on this machine that train together")
    parser.add_argument(
        "--pack-tokens", type=int, default=0, help="tokens of one forward pass (default: as the run began)"
    )
    parser.add_argument(
        "--pack-pairs",
        type=int,
        default=0,
        help="attention pairs of one forward pass (default: as the run began)",
    )
    patience = WatchdogSettings()
    parser.add_argument(
        "--no-progress-s",
        type=float,
        default=patience.no_progress_s,
        help="seconds after which a loop is stuck",
    )
    parser.add_argument(
        "--lag-s", type=float, default=patience.lag_s, help="seconds after which the event loop is blocked"
    )
    parser.add_argument("--metrics", type=Path, help="file for the watchdog's metrics")
    parser.add_argument(
        "--metrics-target",
        type=Path,
        help="file that says where all metrics are served (default: they are not)",
    )
    parser.add_argument("--metrics-host", default="127.0.0.1", help="address at which they are served")
    parser.add_argument("--metrics-port", type=int, default=0, help="its port (default: a free one)")
    return parser


def main() -> int:
    """Parse, run, and say what is wrong in one sentence."""
    parser = options()
    arguments = parser.parse_args()
    try:
        url = named("DATABASE_URL")
        place = place_given(os.environ)
    except ValueError as error:
        parser.error(str(error))
    if not url and not (place and place.rank):
        parser.error("DATABASE_URL is not set")
    if arguments.train_steps < 0:
        parser.error("--train-steps must not be negative")
    if arguments.ranks < 1:
        parser.error("--ranks must be at least 1")
    if min(arguments.pack_tokens, arguments.pack_pairs) < 0:
        parser.error("--pack-tokens and --pack-pairs must not be negative")

    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # until torch is loaded nothing is open
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the import
    if place or arguments.ranks > 1:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a lost rank is one sentence, no stack of C++
    collect_seldom()
    configure("trainer")
    from trainer.loop import TrainerSettings, run_trainer

    keep_loaded(seldom=False)
    followers: Followers | None = None
    if place is None and arguments.ranks > 1:
        place, followers = fork(arguments.ranks)
    settings = TrainerSettings(
        arguments.run,
        url,
        arguments.policies.resolve(),
        arguments.subject,
        arguments.train_steps,
        arguments.retry,
        place,
        {
            key: given
            for key, given in (("pack_tokens", arguments.pack_tokens), ("pack_pairs", arguments.pack_pairs))
            if given
        },
    )
    if place and place.rank:
        from trainer.ranks.follow import follow

        return follow(place, settings.arguments)
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
            if followers is not None:
                tasks.start_soon(followers.watch)
            with measuring() as own, watching("trainer", watchdog) as dog, contextlib.ExitStack() as stack:
                own.registry.register(dog.registry)
                if arguments.metrics_target is not None:
                    target = Target(
                        arguments.metrics_target.resolve(),
                        arguments.run,
                        "trainer",
                        arguments.metrics_host,
                        arguments.metrics_port,
                    )
                    stack.enter_context(served(own.registry, target))
                await run_trainer(settings)
            tasks.cancel_scope.cancel()

    sentence = ""
    try:
        anyio.run(until_told, backend_options={"use_uvloop": True})
    except* (PenstockError, ValueError) as errors:
        first = _first(errors)
        sentence = str(first)
        if followers is not None and isinstance(first, RankLost):
            sentence = followers.named() or sentence
    if followers is not None:
        followers.end()
    if sentence:
        with contextlib.suppress(OSError):  # a full disk
            print(f"trainer: {sentence}", file=sys.stderr, flush=True)
        if place:
            os._exit(1)  # a thread may still wait for a rank that is lost
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
