"""The service behind the HTTP routes: completions, pauses and weight updates over one engine, for the event loop's thread."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from orchestrator.contracts.processes import PauseMode
from orchestrator.runtime.failpoints import boundary
from orchestrator.runtime.log import get
from trainer.serving.engine import Engine, EngineStopped
from trainer.serving.metrics import ServerMetrics
from trainer.serving.model import Model, load_successor
from trainer.serving.protocol import GenerateRequest, Limits, Refusal, Sampling
from trainer.serving.received import Transfers, place
from trainer.serving.replies import Replies
from trainer.serving.scheduler import Scheduler
from trainer.serving.sequence import Sequence

log = get(__name__)


class Crashed(Exception):
    """The engine failed; the process is about to end."""


class Service:
    """Owns the engine's thread between `start` and `stop`.

    Per live sequence there is one asyncio.Event: set when it gained a token (streams) or ended."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        eos_ids: frozenset[int],
        *,
        model_path: str,
        version: str,
        context_length: int,
        max_total_tokens: int,
        max_running: int,
        seed: int,
    ) -> None:
        self.scheduler = Scheduler(
            model,
            tokenizer,
            version=version,
            context_length=context_length,
            max_total_tokens=max_total_tokens,
            max_running=max_running,
            seed=seed,
        )
        self.limits = Limits(model.vocab_size, context_length, experts=model.kv_shape.top_k > 0)
        self.model_path = model_path
        self.metrics = ServerMetrics(self.scheduler, model_path)
        self.crashed = asyncio.Event()
        self.tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._replies = Replies(tokenizer)
        self._loop = asyncio.get_running_loop()
        self._live: dict[str, tuple[Sequence, asyncio.Event]] = {}
        self._update = asyncio.Lock()
        self.transfers = Transfers()
        self._engine = Engine(self.scheduler, self._from_engine, self._on_crash)

    def start(self) -> None:
        self._engine.start()

    def stop(self) -> None:
        self._engine.stop(timeout=0.3)

    async def give_up_when_hanging(self) -> None:
        """Return once the engine hangs; the process then ends as after a crash."""
        await self._engine.hanging()
        log.critical("engine hangs", consequence="the process ends, and a supervisor starts it again")
        self._give_up()

    # ---- called by the engine's thread ----

    def _from_engine(self, touched: list[Sequence]) -> None:
        wake = [sequence for sequence in touched if sequence.finish is not None or sequence.request.stream]
        if wake:
            self._post(lambda: self._notice(wake))

    def _on_crash(self, error: BaseException) -> None:
        log.critical("engine failed", exc_info=error)
        self._post(self._give_up)

    def _post(self, callback: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback)

    # ---- in the event loop ----

    def _notice(self, touched: list[Sequence]) -> None:
        for sequence in touched:
            live = self._live.get(sequence.request.rid)
            if live is not None:
                live[1].set()

    def _give_up(self) -> None:
        self.crashed.set()
        for _, event in self._live.values():
            event.set()

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _open(self, request: GenerateRequest, received: float, *, internal: bool = False) -> Sequence:
        sampling = request.sampling
        sequence = Sequence(
            request=request,
            limit=self.limits.most_new(len(request.ids), sampling.max_new_tokens),
            seed=self.scheduler.draw_seed() if sampling.seed is None else sampling.seed,
            stop_ids=sampling.stop_token_ids | self._eos_ids,
            internal=internal,
        )
        sequence.received = received
        sequence.dispatched = time.time()
        self._live[request.rid] = (sequence, asyncio.Event())
        self._engine.submit(sequence)
        return sequence

    def _close(self, sequence: Sequence) -> None:
        self._live.pop(sequence.request.rid, None)
        if sequence.finish is None:
            with suppress(EngineStopped):
                self._engine.abort(lambda candidate: candidate is sequence)
        elif not sequence.internal:
            self.metrics.completed(sequence)

    async def _step(self, sequence: Sequence) -> None:
        event = self._live[sequence.request.rid][1]
        await event.wait()
        event.clear()
        if self.crashed.is_set():
            raise Crashed("the engine failed")

    async def generate(self, requests: tuple[GenerateRequest, ...], received: float) -> list[dict[str, Any]]:
        """Run completions to their end. If the caller is cancelled, its completions end too."""
        self._refuse_live(requests)
        opened: list[Sequence] = []
        try:
            for request in requests:
                opened.append(self._open(request, received))
            for sequence in opened:
                while sequence.finish is None:
                    await self._step(sequence)
            return [self._replies.reply(entry, self.scheduler.served.label) for entry in opened]
        finally:
            for sequence in opened:
                self._close(sequence)

    async def stream(self, request: GenerateRequest, received: float) -> AsyncGenerator[dict[str, Any], None]:
        """The whole reply so far after every token (or after several, for a slow reader); the last one is finished."""
        self._refuse_live((request,))
        sequence = self._open(request, received)
        try:
            while sequence.finish is None:
                await self._step(sequence)
                yield self._replies.reply(sequence, self.scheduler.served.label)
        finally:
            self._close(sequence)

    def _refuse_live(self, requests: tuple[GenerateRequest, ...]) -> None:
        for request in requests:
            if request.rid in self._live:
                raise Refusal(f"Duplicate request ID detected: {request.rid}")

    async def healthy(self, timeout: float) -> bool:
        """Whether one token can be generated within `timeout` seconds. False while paused, as in SGLang."""
        request = GenerateRequest(
            rid=f"health-{uuid.uuid4().hex}", ids=(0,), sampling=Sampling(max_new_tokens=1, greedy=True)
        )
        sequence = self._open(request, time.time(), internal=True)
        try:
            async with asyncio.timeout(timeout):
                while sequence.finish is None:
                    await self._step(sequence)
        except (TimeoutError, Crashed):
            return False
        finally:
            self._close(sequence)
        return True

    async def abort(self, rid: str | None) -> None:
        """End one request, or every sample of it, or all (None). Unknown ids are not an error."""

        def wanted(sequence: Sequence) -> bool:
            sequence_rid = sequence.request.rid
            return rid is None or sequence_rid == rid or sequence_rid.startswith(f"{rid}_")

        await asyncio.wrap_future(self._engine.abort(wanted))

    async def pause(self, mode: PauseMode) -> None:
        await asyncio.wrap_future(self._engine.pause(mode))

    async def resume(self) -> None:
        await asyncio.wrap_future(self._engine.call(lambda scheduler: scheduler.resume()))

    async def flush(self) -> bool:
        return await asyncio.wrap_future(self._engine.call(lambda scheduler: scheduler.flush()))

    async def relabel(self, version: str) -> None:
        """Give the served weights another label, for all tokens sampled later."""
        await asyncio.wrap_future(self._engine.call(lambda scheduler: scheduler.relabel(version)))

    async def update(self, path: str, version: str | None, *, flush: bool, abort_all: bool) -> None:
        """Serve the weights in `path`. They are loaded and checked while the old ones are served, and exchanged between two steps.

        While paused: at once. Otherwise once the running requests ended, as in SGLang. Raises ValueError (nothing changed)
        for weights that do not fit, and for `flush` while requests keep their KV in a pause in place."""
        async with self._update:
            await self._exchange(path, version, flush=flush, abort_all=abort_all)
            self.model_path = path

    async def update_received(self, group: str, version: str, *, flush: bool, abort_all: bool) -> None:
        """Like `update`, with the weights that `group` has gathered. Raises ValueError and OSError; then nothing has changed."""
        async with self._update:
            with place() as directory:
                await self.transfers.written(group, self.scheduler.model.config, Path(directory))
                await self._exchange(directory, version, flush=flush, abort_all=abort_all)

    async def _exchange(self, path: str, version: str | None, *, flush: bool, abort_all: bool) -> None:
        if abort_all:
            await self.abort(None)
        if flush and self.scheduler.paused and self.scheduler.running:
            raise ValueError("the cache cannot be flushed while requests are paused in place")
        model = await boundary(
            "weights.load", partial(asyncio.to_thread, load_successor, path, self.scheduler.model)
        )
        done = asyncio.Event()

        def post_done() -> None:
            self._post(done.set)

        await asyncio.wrap_future(
            self._engine.call(lambda scheduler: scheduler.swap(model, version, post_done))
        )
        await done.wait()
        log.info(
            "weights updated", path=path, weight_version=self.scheduler.version, weights_digest=model.digest
        )
