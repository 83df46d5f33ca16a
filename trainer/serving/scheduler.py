"""Continuous batching: selects the running sequences, the tokens that each feeds in the next pass, and records the drawn tokens.

One `step` is one forward pass. Every running sequence has `len(ids) − computed` ≥ 1 tokens without keys and values:
one when it decodes, many when it was just admitted; so prefill, chunked prefill, decoding and recomputation after a
retraction are the same case. Single-threaded: the engine's thread owns it, commands run between steps.

| state | enters by | leaves by |
|---|---|---|
| waiting | `submit`, retraction (front of the queue) | admission when a slot and room for its tokens are free; abort |
| running | admission | finish; abort; retraction (pause, or no room for an older sequence to grow) |

While paused, nothing is admitted or fed, and submissions wait. The weights change only between two steps, so each token
was drawn from the logits of exactly one version. The prefix cache holds keys and values of the current weights only.
"""

import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer

from orchestrator.contracts.processes import PauseMode
from orchestrator.trajectory.common_prefix import common_prefix
from trainer.serving import stopping
from trainer.serving.kv import KvPool
from trainer.serving.model import Model
from trainer.serving.packing import Feed, pack
from trainer.serving.prefix_cache import Ids, PrefixCache
from trainer.serving.sampling import Draw, Drawn, draw, likeliest, noise_key
from trainer.serving.sequence import Label, Sequence, aborted

PREFILL_TOKENS = 1024
"""Prompt tokens per pass: bounds how long a long prompt delays the decoding sequences."""

SHARED = 32
"""A waiting sequence that shares at least this many uncached tokens with one being prefilled waits for its cache."""


@dataclass(slots=True, kw_only=True)
class Counters:
    """Totals since the start; read by other threads, written by the engine's."""

    steps: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    aborted: int = 0
    retracted: int = 0
    throughput: float = 0.0
    """Generated tokens per second over the last full second of work."""


@dataclass(frozen=True, slots=True)
class Served:
    """The weights and their version: one reference, so that other threads never see those of two exchanges."""

    model: Model
    version: str

    @property
    def label(self) -> Label:
        return self.version, self.model.digest


@dataclass(slots=True)
class _Swap:
    model: Model
    version: str | None
    done: Callable[[], None]


class Scheduler:
    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        *,
        version: str,
        context_length: int,
        max_total_tokens: int,
        max_running: int,
        seed: int,
    ) -> None:
        assert context_length <= max_total_tokens
        self.served = Served(model, version)
        self.context_length = context_length
        self.max_total_tokens = max_total_tokens
        self.max_running = max_running
        self.pool = KvPool(model.kv_shape, context_length, max_total_tokens)
        self.cache = PrefixCache()
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.paused = False
        self.counters = Counters()
        self._tokenizer = tokenizer
        self._random = random.Random(seed)
        self._epoch = 0
        self._swaps: list[_Swap] = []
        self._rate_since, self._rate_tokens = time.monotonic(), 0

    @property
    def model(self) -> Model:
        return self.served.model

    @property
    def version(self) -> str:
        return self.served.version

    # ---- commands, run between two steps ----

    def relabel(self, version: str) -> None:
        """Call the same weights by another version."""
        self.served = Served(self.model, version)

    def submit(self, sequence: Sequence) -> None:
        if sequence.internal:
            self.waiting.appendleft(sequence)
            return
        self.waiting.append(sequence)
        self.counters.requests += 1
        self.counters.prompt_tokens += sequence.prompt_tokens

    def draw_seed(self) -> int:
        """A seed for a request without one."""
        return self._random.getrandbits(63)

    def abort(self, wanted: Callable[[Sequence], bool]) -> list[Sequence]:
        """End matching sequences at once; their partial output is kept. Returns those that ended."""
        ended = [
            candidate
            for candidate in (*self.running, *self.waiting)
            if wanted(candidate) and not candidate.internal
        ]
        for sequence in ended:
            if sequence.row is None:
                self.waiting.remove(sequence)
                sequence.end(aborted("Abort in waiting queue"), self.served.label)
            else:
                self._finish(sequence, aborted())
        self.counters.aborted += len(ended)
        self._apply_swaps()
        return ended

    def pause(self, mode: PauseMode) -> list[Sequence]:
        """Stop after the current step. Returns the sequences that `ABORT` ended."""
        self.paused = True
        ended: list[Sequence] = []
        if mode is PauseMode.ABORT:
            ended = self.abort(lambda _: True)
        elif mode is PauseMode.RETRACT:
            for sequence in reversed(list(self.running)):
                self._retract(sequence)
        self._apply_swaps()
        return ended

    def resume(self) -> None:
        self.paused = False

    def flush(self) -> bool:
        """Empty the prefix cache, unless a running sequence holds keys and values."""
        if self.running:
            return False
        self.cache.clear()
        return True

    def swap(self, model: Model, version: str | None, done: Callable[[], None]) -> None:
        """Exchange the weights: at once if nothing runs or the scheduler is paused, otherwise once the running sequences ended.

        `version` None keeps the label. `done` is called in the engine's thread, after the exchange."""
        self._swaps.append(_Swap(model, version, done))
        self._apply_swaps()

    def _apply_swaps(self) -> None:
        if not self._swaps or (self.running and not self.paused):
            return
        swaps, self._swaps = self._swaps, []
        for swap in swaps:
            self.served = Served(swap.model, self.version if swap.version is None else swap.version)
            self._epoch += 1
            self.cache.clear()
            for sequence in self.running:
                sequence.weights_epoch = -1
            swap.done()

    # ---- one step ----

    @property
    def has_work(self) -> bool:
        return not self.paused and bool(self.running or self.waiting)

    def step(self) -> list[Sequence]:
        """One forward pass. Returns the sequences that gained a token or ended."""
        self._apply_swaps()
        if not self._swaps:
            self._admit()
        self._make_rows_fit()
        fed, feeds = self._feeds()
        if not feeds:
            return []
        plan, order = pack(feeds)
        logits = self.model.logits(plan)
        touched = self._take_logits([(fed[i], feeds[i]) for i in order], logits)
        self.counters.steps += 1
        self._apply_swaps()
        return touched

    def _admit(self) -> None:
        if not self.waiting:
            return
        leaders: dict[bytes, list[Ids]] = {}

        def add_leader(ids: Ids) -> None:
            leaders.setdefault(ids[:SHARED].tobytes(), []).append(ids)

        for sequence in self.running:
            if len(sequence.ids) - sequence.computed > 1:
                add_leader(np.array(sequence.ids, dtype=np.int32))
        later: list[Sequence] = []
        while self.waiting:
            sequence = self.waiting[0]
            if len(self.running) >= self.max_running and not sequence.internal:
                break
            ids = np.array(sequence.ids, dtype=np.int32)
            found, pieces = self.cache.match(ids[: self._cacheable(sequence)], sequence.request.namespace)
            if any(
                common_prefix(ids, leader) >= found + SHARED
                for leader in leaders.get(ids[:SHARED].tobytes(), ())
            ):
                later.append(self.waiting.popleft())
                continue
            if not self._make_room(self.pool.capacity_for(len(ids))):
                break
            self.waiting.popleft()
            sequence.row = self.pool.place(len(ids))
            at = 0
            for piece in pieces:
                sequence.row.write(at, piece)
                at += piece[0].shape[2]
            sequence.computed = found
            sequence.weights_epoch = self._epoch
            now = time.time()
            sequence.queue_time += time.monotonic() - sequence.queued_since
            if sequence.admitted is None:
                sequence.admitted = now
                sequence.cached_tokens = found
                if not sequence.internal:
                    self.counters.cached_tokens += found
            self.running.append(sequence)
            add_leader(ids)
        self.waiting.extendleft(reversed(later))

    def _cacheable(self, sequence: Sequence) -> int:
        """The number of leading tokens whose logits are not needed: those before the last token and before the next prompt logprob's position."""
        maximum = len(sequence.ids) - 1
        start = self._next_prompt_logits(sequence)
        return maximum if start is None else min(maximum, start)

    def _next_prompt_logits(self, sequence: Sequence) -> int | None:
        """The first position whose logits a prompt logprob still needs."""
        start = sequence.request.logprob_start
        if start is None:
            return None
        position = start + len(sequence.prompt_logprobs)
        return position if position < sequence.prompt_tokens - 1 else None

    def _make_room(self, tokens: int) -> bool:
        """Evict from the prefix cache until `tokens` more may be held; False if that is not enough."""
        available = self.max_total_tokens - self.pool.held - tokens
        if available >= 0 and self.cache.tokens > available:
            self.cache.evict(available)
        return available >= 0

    def _make_rows_fit(self) -> None:
        """Give every running sequence a row for its tokens; if they do not fit, retract the youngest.

        The oldest always fits: no sequence is longer than the context, and the budget holds at least that."""
        for sequence in list(self.running):
            row = sequence.row
            if row is None or len(sequence.ids) <= row.capacity:
                continue
            extra = self.pool.capacity_for(len(sequence.ids)) - row.capacity
            while not self._make_room(extra) and self.running[-1] is not sequence:
                self._retract(self.running[-1])
            if self._make_room(extra):
                sequence.row = self.pool.grow(row, len(sequence.ids), sequence.computed)
            else:
                self._retract(sequence)

    def _feeds(self) -> tuple[list[Sequence], list[Feed]]:
        fed, feeds, budget = list[Sequence](), list[Feed](), PREFILL_TOKENS
        for sequence in self.running:
            assert sequence.row is not None
            pending = len(sequence.ids) - sequence.computed
            count = pending
            if pending > 1:
                count = min(pending, budget)
                budget -= count
                if count == 0:
                    continue
            end = sequence.computed + count
            wanted = 1 if count == pending else 0
            prompt = self._next_prompt_logits(sequence)
            if prompt is not None:
                wanted = max(0, end - max(sequence.computed, prompt))
            fed.append(sequence)
            feeds.append(
                Feed(
                    arena=sequence.row.arena,
                    row=sequence.row.index,
                    start=sequence.computed,
                    tokens=sequence.ids[sequence.computed : end],
                    wanted=wanted,
                )
            )
        return fed, feeds

    def _take_logits(self, fed: list[tuple[Sequence, Feed]], logits: torch.Tensor) -> list[Sequence]:
        """Advance `computed`, record prompt logprobs, draw one token for each sequence that is up to date."""
        at = 0
        last_rows: list[int] = []
        ready: list[Sequence] = []
        for sequence, feed in fed:
            start = sequence.computed + len(feed.tokens) - feed.wanted
            sequence.computed += len(feed.tokens)
            if feed.wanted and self._next_prompt_logits(sequence) is not None:
                self._take_prompt_logprobs(sequence, start, logits[at : at + feed.wanted])
            at += feed.wanted
            if sequence.computed == len(sequence.ids):
                last_rows.append(at - 1)
                ready.append(sequence)
                if sequence.first_token is None:
                    self._cache_row(sequence)
        if not ready:
            return []
        rows = logits if len(last_rows) == len(logits) else logits[last_rows]
        now = time.time()
        for sequence, drawn in zip(
            ready, draw(rows, [self._draw(candidate) for candidate in ready]), strict=True
        ):
            self._take_token(sequence, drawn, now)
        self._measure(len(ready))
        return ready

    def _take_prompt_logprobs(self, sequence: Sequence, start: int, logits: torch.Tensor) -> None:
        """Logprobs, at temperature 1, of the prompt tokens at start+1 …; `logits` are those of start …"""
        count = min(len(logits), sequence.prompt_tokens - 1 - start)
        logprobs = torch.log_softmax(logits[:count], -1)
        targets = torch.tensor(sequence.ids[start + 1 : start + 1 + count])
        sequence.prompt_logprobs.extend(logprobs.gather(1, targets[:, None])[:, 0].tolist())
        if sequence.request.top_logprobs:
            sequence.prompt_tops.extend(likeliest(row, sequence.request.top_logprobs) for row in logprobs)

    def _draw(self, sequence: Sequence) -> Draw:
        request = sequence.request
        early = sequence.completion_tokens < request.sampling.min_new_tokens
        return Draw(
            sampling=request.sampling,
            key=noise_key(sequence.seed, len(sequence.ids)),
            forbidden=tuple(sequence.stop_ids) if early else (),
            top=request.top_logprobs,
            mask=request.return_mask,
        )

    def _take_token(self, sequence: Sequence, drawn: Drawn, now: float) -> None:
        if sequence.first_token is None:
            sequence.first_token = now
        if sequence.limit == 0:
            self._finish(sequence, {"type": "length", "length": 0})
            return
        if sequence.request.top_logprobs:
            sequence.tops.append(drawn.top)
        if sequence.request.return_mask:
            sequence.masks.append((drawn.kept, drawn.kept_logprob))
        sequence.append(drawn.token, drawn.logprob, self.served.label)
        finish = stopping.check(sequence, self._tokenizer)
        if finish is not None:
            self._finish(sequence, finish)

    # ---- leaving ----

    def _cache_row(self, sequence: Sequence) -> None:
        """Copy the new part of this sequence's row into the prefix cache."""
        row = sequence.row
        if row is None or sequence.internal or sequence.weights_epoch != self._epoch:
            return
        ids = np.array(sequence.ids[: sequence.computed], dtype=np.int32)
        self.cache.insert(ids, sequence.request.namespace, row.read)
        self.cache.evict(self.max_total_tokens - self.pool.held)

    def _leave(self, sequence: Sequence) -> None:
        assert sequence.row is not None
        self.running.remove(sequence)
        self.pool.release(sequence.row)
        sequence.row, sequence.computed = None, 0

    def _finish(self, sequence: Sequence, finish: dict[str, object]) -> None:
        row, start, end = sequence.row, sequence.request.routes_start, len(sequence.ids) - 1
        if row is not None and sequence.request.return_routes and sequence.computed >= end:
            sequence.routes = row.read(start, end)[2][:, 0].transpose(0, 1)
        self._cache_row(sequence)
        self._leave(sequence)
        sequence.end(finish, self.served.label)

    def _retract(self, sequence: Sequence) -> None:
        """Back to the front of the queue; keys and values are computed again."""
        self._leave(sequence)
        sequence.retractions += 1
        sequence.queued_since = time.monotonic()
        self.counters.retracted += 1
        self.waiting.appendleft(sequence)

    def _measure(self, tokens: int) -> None:
        self.counters.generated_tokens += tokens
        self._rate_tokens += tokens
        passed = time.monotonic() - self._rate_since
        if passed >= 1.0:
            self.counters.throughput = self._rate_tokens / passed
            self._rate_since, self._rate_tokens = time.monotonic(), 0
