"""`python -m trainer.serving`: check, bind, load, serve until SIGTERM.

Cheap checks come first: arguments, the port and the directory cost milliseconds; torch is imported only after them.
Exit codes: 0 after SIGTERM or SIGINT, 1 with one sentence on stderr for a start that cannot
work and for an engine that failed, 2 for unknown options.
"""

import os

# Before torch: two threads on a busy machine spin and are slower than one.
os.environ["OMP_NUM_THREADS"] = "1"

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import uvloop

from orchestrator.runtime.ending import ending_signals
from orchestrator.runtime.gc_tuning import collect_infrequently, keep_loaded
from orchestrator.runtime.inherited import inherited
from orchestrator.runtime.log import configure as configure_log
from orchestrator.runtime.metrics import measuring
from orchestrator.runtime.streams import guard
from orchestrator.runtime.watchdog import WatchdogSettings, watching
from trainer.model_directory import ModelDirectory, inspect_directory, load_tokenizer
from trainer.serving.settings import ServerSettings, parse_arguments

if TYPE_CHECKING:
    from aiohttp.web import Application, AppRunner

    from trainer.serving.service import Service

KV_BYTES = 512 * 2**20
"""Memory for keys and values if --max-total-tokens is not given."""

SHUTDOWN_S = 0.3


def bind(host: str, port: int) -> socket.socket:
    """A listening socket: the one that a supervisor holds for `port`, else a new one. Raises ValueError, one sentence."""
    if port and (held := inherited(port)) is not None:
        return held
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        if error.errno == 98:  # EADDRINUSE
            sentence = f"port {port} on {host} is taken: stop what listens there or give another --port"
            raise ValueError(sentence) from error
        raise ValueError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    listener.setblocking(False)
    return listener


def token_limits(
    settings: ServerSettings, directory: ModelDirectory, bytes_per_token: int
) -> tuple[int, int]:
    """(context length, tokens of KV): the context never exceeds the limits of the model and the KV memory."""
    context = min(settings.context_length or directory.context_length, directory.context_length)
    total = settings.max_total_tokens or max(context, KV_BYTES // bytes_per_token)
    return min(context, total), total


async def serve(settings: ServerSettings, listener: socket.socket, started: float) -> int:
    """Load the model, then serve. Returns the exit code."""
    directory = inspect_directory(settings.model_path)
    tokenizer, eos_ids = load_tokenizer(directory)

    from trainer.serving.app import build_app
    from trainer.serving.model import load_model
    from trainer.serving.service import Service, log
    from trainer.serving.state import Described

    keep_loaded(infrequent=False)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in ending_signals():
        loop.add_signal_handler(number, stop.set)
    model = load_model(directory)
    context, total = token_limits(settings, directory, model.kv_shape.bytes_per_token)
    service = Service(
        model,
        tokenizer,
        eos_ids,
        model_path=str(settings.model_path),
        version=settings.weight_version,
        context_length=context,
        max_total_tokens=total,
        max_running=settings.max_running_requests,
        seed=settings.seed,
    )
    service.start()
    app = build_app(service, Described(settings, directory.config, time.time()))
    runner = await _listen(app, listener, settings.head_timeout)
    host, port = listener.getsockname()[:2]
    log.info(
        "listening",
        host=host,
        port=port,
        model_path=str(settings.model_path),
        weight_version=settings.weight_version,
        context_length=context,
        max_total_tokens=total,
        forward=type(model).__name__,
        start_s=round(time.monotonic() - started, 2),
    )
    await _until_it_ends(service, stop)
    if not service.crashed.is_set():
        await service.abort(None)  # partial completions are answered before the connections close
    await runner.cleanup()
    service.stop()
    log.info("stopped")
    return 1 if service.crashed.is_set() else 0


async def _listen(app: "Application", listener: socket.socket, head_s: float) -> "AppRunner":
    """Serve `app` on `listener`, until the runner that it returns is cleaned up."""
    from aiohttp import web

    from orchestrator.runtime.descriptors import raise_descriptor_limit
    from orchestrator.runtime.http_connections import BoundedRunner

    raise_descriptor_limit()
    runner = BoundedRunner(
        app, head_s=head_s, handler_cancellation=True, access_log=None, shutdown_timeout=SHUTDOWN_S
    )
    await runner.setup()
    await web.SockSite(runner, listener).start()
    return runner


async def _until_it_ends(service: "Service", stop: asyncio.Event) -> None:
    """Until a signal, or until the engine crashes or hangs."""
    waits = [
        asyncio.ensure_future(wait)
        for wait in (stop.wait(), service.crashed.wait(), service.give_up_when_hanging())
    ]
    with measuring() as measures, watching("rollout-server", WatchdogSettings()) as dog:
        service.metrics.join(measures.registry)
        service.metrics.join(dog.registry)
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def main(argv: Sequence[str]) -> int:
    started = time.monotonic()
    guard()
    collect_infrequently()
    try:
        configure_log("rollout-server")
        settings = parse_arguments(argv)
        listener = bind(settings.host, settings.port)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve(settings, listener, started))
    except ValueError as error:
        with contextlib.suppress(OSError):  # a full disk
            print(f"rollout server: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    code = main(sys.argv[1:])
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(code)  # torch's and the engine's threads need no clean end: nothing here is durable
