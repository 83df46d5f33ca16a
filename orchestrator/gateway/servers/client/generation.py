"""One completion as a rollout server returns it: exact ids, their logprobs, the weight version of each token, and on request the
experts that each token was routed to."""

import base64
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from orchestrator.contracts.ids import Ids
from orchestrator.contracts.marks import Finish
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.spans import not_tiling
from orchestrator.gateway.servers.client.errors import shown
from orchestrator.gateway.servers.client.replies import MAX_BYTES, TOKEN_BYTES, Completion, decoded
from orchestrator.trajectory.routes import Experts, Routes

TESTED_SGLANG = "0.5.23"
"""The SGLang whose protocol the client speaks. Old ones tell no `weight_versions`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters of one request. The first four are always sent, the others only if they differ from the server's defaults.

    `top_k` −1 = off. `seed`: gives the same tokens again, independent of concurrent requests. `stop_token_ids` have no effect with
    `ignore_eos`, as in SGLang."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None

    def body(self) -> dict[str, Any]:
        params: dict[str, Any] = {
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
        }
        if self.min_new_tokens:
            params["min_new_tokens"] = self.min_new_tokens
        if self.stop:
            params["stop"] = list(self.stop)
        if self.stop_token_ids:
            params["stop_token_ids"] = list(self.stop_token_ids)
        if self.ignore_eos:
            params["ignore_eos"] = True
        if self.seed is not None:
            params["sampling_seed"] = self.seed
        return params


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSpan:
    """The weights labelled `version` generated the completion tokens start … end−1. `digest`: of these weights, where the server tells it."""

    version: str
    start: int
    end: int
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class FinishReason:
    """`matched`: the stop token's id or the stop string; `message`: why it was aborted."""

    kind: Finish
    matched: int | str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds, as the server measured them; None where the server did not get that far."""

    queue_s: float
    first_token_s: float | None


def _nothing() -> Ids:
    return np.empty(0, dtype="<i4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Invariant, checked on arrival: len(output_ids) == len(logprobs) == sum of span lengths == completion_tokens.

    The stop token is in `output_ids` and `logprobs`. Logprobs are those of the temperature-scaled distribution,
    before top-p and top-k. An aborted completion is a valid, partial one."""

    rid: str
    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    spans: tuple[WeightSpan, ...]
    finish: FinishReason
    weight_version: str
    weights_digest: str | None = None
    prompt_tokens: int | None
    completion_tokens: int
    cached_tokens: int
    retractions: int
    timings: Timings
    text: str = field(repr=False)
    sent: Ids = field(default_factory=_nothing, repr=False, compare=False)  # the ids that the request carried
    routes: Routes | None = field(default=None, repr=False, compare=False)
    """int16[n, layers, top_k]: from the requested position to the token before the last; the last was only sampled. None: no routes came."""

    @property
    def labels(self) -> frozenset[str]:
        """Every weight version that generated a token; the server's own without tokens."""
        return frozenset(span.version for span in self.spans) or frozenset({self.weight_version})

    @property
    def weights(self) -> frozenset[tuple[str, str | None]]:
        """As `labels`, each with the digest of the weights; None where the server does not tell it."""
        spans = frozenset((span.version, span.digest) for span in self.spans)
        return spans or frozenset({(self.weight_version, self.weights_digest)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """The request that a reply answers: tokens of its prompt, the most tokens that it may generate, its stop strings, the size of the vocabulary
    (None: unknown), and the position from which on routes of `experts` are wanted (None: no routes)."""

    prompt: int
    limit: int
    stop: tuple[str, ...] = ()
    vocabulary: int | None = None
    experts: Experts | None = None
    routes_from: int = 0

    @property
    def longest_reply(self) -> int:
        """Bytes of the longest reply that is read."""
        routed = 0 if self.experts is None else self.prompt + self.limit - self.routes_from
        return MAX_BYTES + TOKEN_BYTES * self.limit + (self.experts.bytes_of(routed) if self.experts else 0)


def parse_generation(raw: bytes, requested: Requested) -> Generation:
    """Read the `/generate` reply to `requested`, with return_logprob. Raises ValueError when it has another form, or contradicts itself, the request
    or the model."""
    reply = decoded(raw, Completion)
    meta, ids = reply.meta_info, tuple(reply.output_ids)
    scored = meta.output_token_logprobs or []
    finish, spans = meta.finish_reason, meta.weight_versions or []
    if meta.weight_versions is None and ids:
        raise ValueError(
            f"the reply has no weight_versions, which name the version of each token: start SGLang {TESTED_SGLANG} as the rollout server"
        )
    if not ids and [(span.start, span.end) for span in spans] == [(0, 0)]:  # SGLang's form of no tokens
        spans = []
    matched = None if isinstance(finish.matched, list) else finish.matched
    generation = Generation(
        rid=meta.id,
        output_ids=ids,
        logprobs=tuple(token.logprob for token in scored),
        spans=tuple(
            WeightSpan(
                version=span.version, start=span.start, end=span.end, digest=span.weights_digest or None
            )
            for span in spans
        ),
        finish=FinishReason(finish.type, matched, None if finish.message is None else shown(finish.message)),
        weight_version=meta.weight_version,
        weights_digest=meta.weights_digest or None,
        prompt_tokens=meta.prompt_tokens,
        completion_tokens=meta.completion_tokens,
        cached_tokens=meta.cached_tokens or 0,
        retractions=meta.num_retractions or 0,
        timings=Timings(
            queue_s=meta.queue_time or 0.0,
            first_token_s=meta.first_token_latency,
        ),
        text=reply.text,
        routes=_routes(meta.routed_experts, requested.experts),
    )
    if tuple(token.id for token in scored) != ids:
        raise ValueError("output ids and the ids of their logprobs differ")
    _check_tokens(generation, requested)
    return generation


def _check_tokens(generation: Generation, requested: Requested) -> None:
    """Raise ValueError when the tokens do not fit their spans, the request or the model."""
    ids = generation.output_ids
    if generation.completion_tokens != len(ids):
        raise ValueError(f"{len(ids)} output ids, but completion_tokens = {generation.completion_tokens}")
    stop = generation.finish.matched
    if isinstance(stop, str) and stop not in requested.stop:  # SGLang's "NaN happened"
        raise ValueError(f"it stopped at {quoted(stop)}, which is not a stop string of the request")
    if len(ids) > requested.limit:
        raise ValueError(f"{len(ids)} output ids, but max_new_tokens = {requested.limit} was requested")
    if requested.vocabulary is not None and ids and (largest := max(ids)) >= requested.vocabulary:
        raise ValueError(
            f"output id {largest} is outside the vocabulary (0 … {requested.vocabulary - 1}): the server has another model"
        )
    if fault := not_tiling(generation.spans, len(ids)):
        raise ValueError(fault)
    if not ids:
        return
    if generation.prompt_tokens not in (None, requested.prompt):
        raise ValueError(
            f"a prompt of {requested.prompt} tokens was sent, but prompt_tokens = {generation.prompt_tokens}"
        )
    fed = requested.prompt + len(ids) - 1 - requested.routes_from
    if generation.routes is not None and len(generation.routes) != fed:
        raise ValueError(f"routes of {len(generation.routes)} tokens came, {fed} were requested")


def _routes(encoded: str | None, experts: Experts | None) -> Routes | None:
    """SGLang's encoding: base64 of little-endian int32 [tokens, layers, top_k]."""
    if experts is None or encoded is None:
        return None
    raw = base64.b64decode(encoded, validate=True)
    if len(raw) % 4:
        raise ValueError(f"routes of {len(raw)} bytes do not hold int32")
    return experts.shaped(np.frombuffer(raw, "<i4"))
