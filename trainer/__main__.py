"""python -m trainer --run NAME --policies DIRECTORY --subject SUBJECT: the trainer process of one run.

$DATABASE_URL, or the file $DATABASE_URL_FILE, names the data pool; everything else comes from the run's own configuration there.
Exit status 0: the work is done, or SIGTERM ended it (the next start repeats a batch in progress); 1: one sentence on stderr has the reason.

With --ranks N it starts N processes. torchrun may start them instead (ops/guides/ranks.md): then this is one of them. Rank 0 is the trainer.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from orchestrator.contracts.errors import PenstockError
from orchestrator.contracts.numbers import INT4, INT8, option, real, whole
from orchestrator.runtime.ending import ended_by_signal
from orchestrator.runtime.exception_groups import first_error
from orchestrator.runtime.gc_tuning import collect_infrequently, keep_loaded
from orchestrator.runtime.log import configure
from orchestrator.runtime.metrics import Target, measuring, served
from orchestrator.runtime.streams import guard
from orchestrator.runtime.unreachable import named_url
from orchestrator.runtime.watchdog import WatchdogSettings, watching
from orchestrator.settings.timeouts import from_argument
from trainer.ranks.rank_env import Followers, Place, RankLost, fork, place_given

if TYPE_CHECKING:
    from trainer.loop import TrainerSettings

COUNT = option(whole, least=0, most=INT4)
TOKENS = option(whole, least=0, most=INT8)
SECONDS = option(real, least=0, most=math.inf)


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m trainer", description="Train one run's policy.")
    parser.add_argument("--run", required=True, help="the run's name in the data pool")
    parser.add_argument("--policies", required=True, type=Path, help="directory of the checkpoints")
    parser.add_argument("--subject", required=True, help="bus subject on which new versions are announced")
    parser.add_argument(
        "--train-steps", type=COUNT, default=0, help="stop after so many (default: run until done)"
    )
    parser.add_argument("--retry", action="store_true", help="go on although the last batches were bad")
    parser.add_argument(
        "--ranks",
        type=option(whole, least=1, most=INT4),
        default=1,
        help="processes on this machine that train together",
    )
    parser.add_argument(
        "--pack-tokens", type=TOKENS, default=0, help="tokens of one forward pass (default: as the run began)"
    )
    parser.add_argument(
        "--pack-pairs",
        type=TOKENS,
        default=0,
        help="attention pairs of one forward pass (default: as the run began)",
    )
    parser.add_argument(
        "--timeouts",
        type=from_argument,
        help="[timeouts] as KEY=SECONDS with commas between, all others at their defaults (default: as the run began)",
    )
    patience = WatchdogSettings()
    parser.add_argument(
        "--no-progress-s",
        type=SECONDS,
        default=patience.no_progress_s,
        help="seconds after which a loop is stuck",
    )
    parser.add_argument(
        "--lag-s", type=SECONDS, default=patience.lag_s, help="seconds after which the event loop is blocked"
    )
    parser.add_argument("--metrics", type=Path, help="file for the watchdog's metrics")
    parser.add_argument(
        "--metrics-target",
        type=Path,
        help="file that says where all metrics are served (default: they are not)",
    )
    parser.add_argument("--metrics-host", default="127.0.0.1", help="address at which they are served")
    parser.add_argument(
        "--metrics-port",
        type=option(whole, least=0, most=65535),
        default=0,
        help="its port (default: a free one)",
    )
    return parser


def process_keys(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The process keys of the configuration that the command line gives, by section."""
    budget = {"pack_tokens": arguments.pack_tokens, "pack_pairs": arguments.pack_pairs}
    found: dict[str, dict[str, Any]] = {"trainer": {key: value for key, value in budget.items() if value}}
    if arguments.timeouts is not None:
        found["timeouts"] = arguments.timeouts.model_dump()
    return found


def checked(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, str, Place | None]:
    """(arguments, URL of the data pool, place of this process among the ranks). It ends the process with one sentence if one of them is wrong."""
    arguments = parser.parse_args()
    try:
        url = named_url("DATABASE_URL")
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
    return arguments, url, place


def main() -> int:
    """Parse and run; report an error in one sentence."""
    guard()
    arguments, url, place = checked(options())
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # until torch is loaded nothing is open
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the import
    if place or arguments.ranks > 1:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # no C++ stack trace for a lost rank
    collect_infrequently()
    try:
        configure("trainer")
    except ValueError as error:
        print(f"trainer: {error}", file=sys.stderr)
        return 1
    from trainer.loop import TrainerSettings

    keep_loaded(infrequent=False)
    followers: Followers | None = None
    if place is None and arguments.ranks > 1:
        place, followers = fork(arguments.ranks)
    settings = TrainerSettings(
        run=arguments.run,
        database_url=url,
        policies=arguments.policies.resolve(),
        subject=arguments.subject,
        train_steps=arguments.train_steps,
        retry=arguments.retry,
        place=place,
        process_keys=process_keys(arguments),
    )
    if place and place.rank:
        from trainer.ranks.worker import follow

        return follow(place, settings.arguments)
    return run_to_end(settings, arguments, followers)


def run_to_end(settings: TrainerSettings, arguments: argparse.Namespace, followers: Followers | None) -> int:
    """Train; 0 once the work is done. After a signal or an error this process ends here at once, with the error on stderr: a thread may still
    train, save or wait for a lost rank, its result is not needed, and the next trainer may already have the lock on the checkpoints."""
    sentence = ""
    status: int | None = None  # of an end at once
    try:
        if anyio.run(run_until_signal, settings, arguments, followers, backend_options={"use_uvloop": True}):
            status = 0
    except* (PenstockError, ValueError) as errors:
        cause = first_error(errors)
        sentence, status = str(cause), 1
        if followers is not None and isinstance(cause, RankLost):
            sentence = followers.named() or sentence
    except* Exception:  # noqa: BLE001  # printed, and the process ends
        status = 1
        with contextlib.suppress(OSError):  # a full disk
            traceback.print_exc()
    if followers is not None:
        followers.end()
    if status is None:
        return 0
    with contextlib.suppress(OSError):  # a full disk
        if sentence:
            print(f"trainer: {sentence}", file=sys.stderr)
        sys.stderr.flush()
    os._exit(status)


async def run_until_signal(
    settings: TrainerSettings, arguments: argparse.Namespace, followers: Followers | None
) -> bool:
    """Train until the work is done. True if a signal ended it earlier."""
    from trainer.loop import run_trainer

    watchdog = WatchdogSettings(arguments.no_progress_s, arguments.lag_s, arguments.metrics)
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True

    async with ended_by_signal(stop) as tasks:
        if followers is not None:
            tasks.start_soon(followers.watch)
        with (
            measuring() as measures,
            watching("trainer", watchdog) as dog,
            contextlib.ExitStack() as stack,
        ):
            measures.registry.register(dog.registry)
            if arguments.metrics_target is not None:
                target = Target(
                    file=arguments.metrics_target.resolve(),
                    run=arguments.run,
                    process="trainer",
                    host=arguments.metrics_host,
                    port=arguments.metrics_port,
                )
                stack.enter_context(served(measures.registry, target))
            await run_trainer(settings)
    return stopped


if __name__ == "__main__":
    sys.exit(main())
