"""The border of a rollout server's replies: the size that is read of each, and its type. Everything else raises ValueError, which the client turns
into RolloutServerBroken of that server. Nothing that a server sends ends the gateway, or counts against the request that it answers."""

from typing import Annotated, TypeVar

import aiohttp
import msgspec
import numpy as np
from msgspec import Meta

from orchestrator.contracts.ids import LOGPROB_SLACK
from orchestrator.contracts.marks import Finish
from orchestrator.contracts.numbers import INT4, INT8
from orchestrator.contracts.quote import quoted

MAX_BYTES = 4 * 2**20  # bytes of a reply without tokens
TOKEN_BYTES = 512  # of one token in a reply: its id, logprob, text and version span
MAX_SPANS = 1024  # exchanges of weights while one reply is generated
ERROR_BYTES = 2**16  # of an error's body that are read; the rest is dropped

T = TypeVar("T")
_YEAR = 366 * 86400.0
_MAX_FLOAT = float(np.finfo("<f4").max)  # logprobs are stored as float32

Number = Annotated[int, Meta(ge=-INT8, le=INT8)]
Count = Annotated[int, Meta(ge=0, le=INT8)]
Position = Annotated[int, Meta(ge=0, le=INT4)]
Ranks = Annotated[int, Meta(ge=1, le=2**16)]
Seconds = Annotated[float, Meta(ge=-_YEAR, le=_YEAR)]
Logprob = Annotated[float, Meta(ge=-_MAX_FLOAT, le=LOGPROB_SLACK)]
PromptLogprob = Annotated[float, Meta(ge=-_MAX_FLOAT, le=_MAX_FLOAT)]
Label = Annotated[str, Meta(max_length=256)]
Digest = Annotated[str, Meta(max_length=128, pattern=r"\A[0-9a-f]*\Z")]


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The reply of /model_info. An empty text tells as little as None."""

    weight_version: Label | None = None
    model_path: Annotated[str, Meta(max_length=4096)] | None = None
    weights_digest: Digest | None = None  # the embedded server's; SGLang has none


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The reply of /server_info: the longest prompt in tokens, the ranks, replicas and pipeline stages, the device of the weights."""

    max_req_input_len: Count | None = None
    tp_size: Ranks = 1
    dp_size: Ranks = 1
    pp_size: Ranks = 1
    device: Label | None = None


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The load of one rank in a reply of /v1/loads. None: the server does not tell it."""

    num_waiting_reqs: Count | None = None
    num_running_reqs: Count | None = None
    max_running_requests: Count | None = None
    num_used_tokens: Number | None = None
    num_total_tokens: Number | None = None
    total_prefill_uncached_tokens: Number | None = None


class Loads(msgspec.Struct, frozen=True):
    """The reply of /v1/loads: one load per rank."""

    loads: Annotated[list[Load], Meta(min_length=1)]


class Updated(msgspec.Struct, frozen=True):
    """The reply of the routes that exchange weights."""

    success: bool = False


# Arrays, because SGLang sends these as [logprob, id, text].
class Scored(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A generated token."""

    logprob: Logprob
    id: Position


class ScoredPrompt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A token of a prompt; the first one has no logprob."""

    logprob: PromptLogprob | None
    id: Position


class ReportedSpan(msgspec.Struct, frozen=True, kw_only=True):
    """The weights that generated the tokens start … end−1."""

    version: Label
    start: Position
    end: Position
    weights_digest: Digest | None = None


class ReportedFinish(msgspec.Struct, frozen=True, kw_only=True):
    """How a completion ended."""

    type: Finish
    matched: int | str | list[int] | None = None
    message: str | None = None


class CompletionMeta(msgspec.Struct, frozen=True, kw_only=True):
    """`meta_info` of a completion."""

    id: str
    finish_reason: ReportedFinish
    weight_version: Label
    weights_digest: Digest | None = None
    weight_versions: Annotated[list[ReportedSpan], Meta(max_length=MAX_SPANS)] | None = None
    output_token_logprobs: list[Scored] | None = None
    routed_experts: str | None = None
    prompt_tokens: Position | None = None  # SGLang leaves it out for a request that was aborted in its queue
    completion_tokens: Position
    cached_tokens: Position | None = None
    num_retractions: Position | None = None
    queue_time: Seconds | None = None
    first_token_latency: Seconds | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The reply of /generate."""

    text: str
    output_ids: list[Position]
    meta_info: CompletionMeta


class PromptMeta(msgspec.Struct, frozen=True):
    """`meta_info` of a reply with the logprobs of its prompt."""

    input_token_logprobs: list[ScoredPrompt]


class Prompt(msgspec.Struct, frozen=True):
    """The reply of /generate to a request with logprob_start_len = 0."""

    meta_info: PromptMeta


async def body_of(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The body of a reply, of an error at most its first ERROR_BYTES. Raises ValueError for more than `most` bytes, and for a compressed body."""
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding.strip().lower() not in ("", "identity"):
        raise ValueError(f"the reply is compressed ({quoted(encoding)}), which was not requested")
    good = response.status < 300
    parts, size, most = list[bytes](), 0, most if good else ERROR_BYTES
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > most:
            if good:
                raise ValueError(f"the reply is longer than {most:,} bytes")
            break
    return b"".join(parts)[:most]


def decoded(raw: bytes, kind: type[T]) -> T:
    """The reply in `raw`. Raises ValueError if it is of another form."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"the reply has another form than replies of this route: {error}") from None
    except ValueError as error:
        raise ValueError(f"the reply is not JSON: {error}") from None
    except RecursionError:
        raise ValueError("the reply is nested too deeply") from None


def error_message(raw: bytes) -> str:
    """The sentence in an error body, which is `{"error": "…"}`, `{"error": {"message": "…"}}`, `{"message": "…"}`,
    or plain text."""
    try:
        body = msgspec.json.decode(raw)
        if isinstance(body, dict):
            error = body.get("error", body)
            if isinstance(error, dict):
                error = error.get("message", error)
            return str(error)
        return str(body)
    except (ValueError, RecursionError):  # also of a number with thousands of digits
        return raw.decode(errors="replace").strip()
