"""Reading `/generate`: JSON bodies in, frozen requests out, or one of the protocol's two shapes of refusal.

Plain classes without torch, so that everything about the wire can be tested in microseconds. Facts kept from
SGLang 0.5.23: an unknown sampling key is refused with a plain string under `error`, everything else with an object
`{"message": …}`; `ignore_eos` also switches `stop_token_ids` off; a temperature below 1e-6 means greedy, and its
logprobs are those of temperature 1. Kinder than SGLang: ids outside the vocabulary are refused, not fatal.
"""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

SAMPLING_KEYS = [
    "max_new_tokens",
    "stop",
    "stop_token_ids",
    "stop_regex",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "min_new_tokens",
    "n",
    "json_schema",
    "regex",
    "ebnf",
    "structural_tag",
    "ignore_eos",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "no_stop_trim",
    "stream_interval",
    "logit_bias",
    "sampling_seed",
    "custom_params",
    "beam_width",
    "watermark",
    "choice",
]
"""Every sampling key that SGLang 0.5.23 knows, in the order in which its own error message lists them."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "watermark": (False,),
    **{key: () for key in ("stop_regex", "json_schema", "regex", "ebnf", "structural_tag", "custom_params")},
    **{key: () for key in ("beam_width", "choice")},
}
"""Known keys that this server does not implement, with the values that have no effect (None always has none)."""

DEFAULT_NEW_TOKENS = 128
GREEDY_BELOW = 1e-6
MAX_SAMPLES = 256
MAX_NUMBER = 1e30
"""The largest absolute value of a number. Logits are fp32: a larger temperature or bias makes them infinite, and their logprobs NaN."""


class Refusal(ValueError):
    """A request answered with 400. `body` is the JSON body in the shape that SGLang uses for this kind of fault."""

    def __init__(self, message: str, *, plain: bool = False) -> None:
        super().__init__(message)
        self.body: dict[str, Any] = {"error": message if plain else {"message": message}}


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the served model: ids in [0, vocab_size), fewer than `context_length` tokens per request."""

    vocab_size: int
    context_length: int
    experts: bool = False  # whether it is a mixture whose routers report their choices

    @property
    def longest_prompt(self) -> int:
        """The longest prompt, in tokens: SGLang reserves six places of the context."""
        return self.context_length - 6

    def most_new(self, prompt: int, requested: int) -> int:
        """The longest completion of a prompt of `prompt` tokens. Two places of the context stay empty, as in SGLang."""
        return max(0, min(requested, self.context_length - prompt - 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How one completion is sampled. `temperature` > 0 always; with `greedy`, the likeliest token is taken."""

    max_new_tokens: int = DEFAULT_NEW_TOKENS
    min_new_tokens: int = 0
    temperature: float = 1.0
    greedy: bool = False
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    skip_special_tokens: bool = True
    no_stop_trim: bool = False

    @property
    def truncates(self) -> bool:
        """Whether tokens are drawn from a part of the vocabulary only."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One completion to make. `logprob_start` None: no prompt logprobs; otherwise from that position of the prompt on. `return_routes`: return the
    experts of all fed tokens from position `routes_start` on. The last sampled token is never fed."""

    rid: str
    ids: tuple[int, ...]
    sampling: Sampling
    return_logprob: bool = False
    logprob_start: int | None = None
    top_logprobs: int = 0
    return_text: bool = False
    return_mask: bool = False
    return_prompt_ids: bool = False
    return_routes: bool = False
    routes_start: int = 0
    stream: bool = False
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class GenerateCall:
    """One POST: its completions in order, and whether the reply is a list (a batch, or n > 1)."""

    requests: tuple[GenerateRequest, ...]
    many: bool
    stream: bool


def _number(params: Mapping[str, Any], key: str, default: float) -> float:
    value = params.get(key)
    if value is None:
        return default
    # Compared before it is converted: Python compares an integer of any size, and converts none above 1.8e308.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_NUMBER:
        raise Refusal(
            f"{key} must be a finite number from -{MAX_NUMBER:g} to {MAX_NUMBER:g}, got {value!r:.80}."
        )
    return float(value)


def _integer(params: Mapping[str, Any], key: str, default: int) -> int:
    value = params.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refusal(f"{key} must be an integer, got {value!r:.80}.")
    return value


def _flag(params: Mapping[str, Any], key: str, default: bool = False) -> bool:
    value = params.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise Refusal(f"{key} must be true or false, got {value!r:.80}.")
    return value


def _ids(value: Any, name: str, vocab_size: int) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(token) is not int for token in value):
        raise Refusal(f"{name} must be a list of integers.")
    if value and (min(value) < 0 or max(value) >= vocab_size):
        at, bad = next((i, token) for i, token in enumerate(value) if not 0 <= token < vocab_size)
        raise Refusal(f"{name}[{at}] = {bad} is outside the vocabulary (0 … {vocab_size - 1}).")
    return tuple(value)


def _bias(value: Any, vocab_size: int) -> tuple[tuple[int, float], ...]:
    if value is None:
        return ()
    try:
        pairs = tuple((int(token), float(bias)) for token, bias in value.items())
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise Refusal("logit_bias must map token ids to numbers.") from error
    if any(not 0 <= token < vocab_size or not abs(bias) <= MAX_NUMBER for token, bias in pairs):
        raise Refusal(
            f"logit_bias must map ids in 0 … {vocab_size - 1} to finite numbers from -{MAX_NUMBER:g} to {MAX_NUMBER:g}."
        )
    return pairs


def parse_sampling(params: Any, limits: Limits) -> tuple[Sampling, int]:
    """Sampling parameters and `n`. Raises Refusal."""
    if params is None:
        params = {}
    if not isinstance(params, dict):
        raise Refusal("sampling_params must be an object.")
    for key, value in params.items():
        if key not in SAMPLING_KEYS:
            expected = ", ".join(f"`{known}`" for known in SAMPLING_KEYS)
            raise Refusal(f"unknown field `{key}`, expected one of {expected}", plain=True)
        if key in NEUTRAL and value is not None and value not in NEUTRAL[key]:
            raise Refusal(f"the sampling parameter {key} is not supported by this server.")
    temperature = _number(params, "temperature", 1.0)
    top_p, top_k = _number(params, "top_p", 1.0), _integer(params, "top_k", -1)
    min_p = _number(params, "min_p", 0.0)
    maximum = _integer(params, "max_new_tokens", DEFAULT_NEW_TOKENS)
    minimum, count = _integer(params, "min_new_tokens", 0), _integer(params, "n", 1)
    if temperature < 0:
        raise Refusal(f"temperature must be non-negative, got {temperature}.")
    if not 0 < top_p <= 1:
        raise Refusal(f"top_p must be in (0, 1], got {top_p}.")
    if top_k != -1 and top_k < 1:
        raise Refusal(f"top_k must be -1 (disable) or at least 1, got {top_k}.")
    if not 0 <= min_p <= 1:
        raise Refusal(f"min_p must be in [0, 1], got {min_p}.")
    if maximum < 0:
        raise Refusal(f"max_new_tokens must be at least 0, got {maximum}.")
    if not 0 <= minimum <= maximum:
        raise Refusal(f"min_new_tokens must be in [0, max_new_tokens({maximum})], got {minimum}.")
    if not 1 <= count <= MAX_SAMPLES:
        raise Refusal(f"n must be in [1, {MAX_SAMPLES}], got {count}.")
    stop = params.get("stop") or []
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or any(not isinstance(string, str) or not string for string in stop):
        raise Refusal("stop must be a string or a list of non-empty strings.")
    greedy = temperature < GREEDY_BELOW
    seed = params.get("sampling_seed")
    return Sampling(
        max_new_tokens=maximum,
        min_new_tokens=minimum,
        temperature=1.0 if greedy else temperature,
        greedy=greedy or top_k == 1,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        stop=tuple(stop),
        stop_token_ids=frozenset(
            _ids(params.get("stop_token_ids") or [], "stop_token_ids", limits.vocab_size)
        ),
        ignore_eos=_flag(params, "ignore_eos"),
        seed=None if seed is None else _integer(params, "sampling_seed", 0),
        logit_bias=_bias(params.get("logit_bias"), limits.vocab_size),
        skip_special_tokens=_flag(params, "skip_special_tokens", True),
        no_stop_trim=_flag(params, "no_stop_trim"),
    ), count


def _check_length(prompt: int, params: Any, limits: Limits) -> None:
    if prompt >= limits.context_length:
        raise Refusal(
            f"The input ({prompt} tokens) is longer than the model's context length ({limits.context_length} tokens)."
        )
    requested = params.get("max_new_tokens") if isinstance(params, dict) else None
    if requested is not None and prompt + requested > limits.context_length:
        raise Refusal(
            f"Requested token count exceeds the model's maximum context length of {limits.context_length} tokens. "
            f"You requested a total of {prompt + requested} tokens: {prompt} tokens from the input messages and "
            f"{requested} tokens for the completion. Please reduce the number of tokens in the input messages or the "
            "completion to fit within the limit."
        )
    if prompt > limits.longest_prompt:
        raise Refusal(
            f"Input length ({prompt} tokens) exceeds the maximum allowed length ({limits.longest_prompt} tokens). "
            "Use a shorter input or enable --allow-auto-truncate."
        )


def _prompts(body: Mapping[str, Any], encode: Callable[[str], list[int]]) -> tuple[list[Any], bool]:
    """The prompts as id lists, unchecked, and whether the body is a batch."""
    ids, text = body.get("input_ids"), body.get("text")
    if ids is None and text is None:
        raise Refusal("Either text, input_ids or input_embeds should be provided.")
    if ids is not None and text is not None:
        raise Refusal("Only one of text and input_ids may be given.")
    if text is not None:
        if isinstance(text, str):
            return [encode(text)], False
        if not isinstance(text, list) or not text or any(not isinstance(prompt, str) for prompt in text):
            raise Refusal("text must be a string or a non-empty list of strings.")
        return [encode(prompt) for prompt in text], True
    if not isinstance(ids, list) or not ids:
        raise Refusal("input_ids must be a non-empty list.")
    return (ids, True) if isinstance(ids[0], list) else ([ids], False)


def _routes(body: Mapping[str, Any], prompt: int, limits: Limits) -> tuple[bool, int]:
    """Whether routes are requested, and from which position on."""
    wants, start = _flag(body, "return_routed_experts"), _integer(body, "routed_experts_start_len", 0)
    if wants and not limits.experts:
        raise Refusal("return_routed_experts: the model of this server has no experts, or they are unknown.")
    if not 0 <= start <= prompt:
        raise Refusal(
            f"routed_experts_start_len must be in [0, {prompt}], the tokens of the prompt, got {start}."
        )
    return wants, start


def _sample_of(sampling: Sampling, sample: int) -> Sampling:
    """With a seed, the samples of one prompt take seed, seed + 1, …: equal seeds would make them equal."""
    return (
        sampling if sampling.seed is None or sample == 0 else replace(sampling, seed=sampling.seed + sample)
    )


def parse_generate(body: Any, limits: Limits, encode: Callable[[str], list[int]]) -> GenerateCall:
    """Check one `/generate` body completely; nothing is queued unless every completion in it is valid.

    `encode` turns text into ids without special tokens added. Raises Refusal."""
    if not isinstance(body, dict):
        raise Refusal("the body must be a JSON object.")
    prompts, batch = _prompts(body, encode)
    requests: list[GenerateRequest] = []
    stream = _flag(body, "stream")
    namespace = "\0".join(str(body.get(key) or "") for key in ("extra_key", "cache_salt"))
    for at, prompt in enumerate(prompts):

        def pick(key: str, at: int = at) -> Any:
            """The at-th entry if a batch has one per prompt."""
            value = body.get(key)
            return value[at] if isinstance(value, list) and batch and at < len(value) else value

        ids = _ids(prompt, "input_ids", limits.vocab_size)
        if not ids:
            raise Refusal("input_ids must not be empty.")
        params = pick("sampling_params")
        sampling, count = parse_sampling(params, limits)
        _check_length(len(ids), params, limits)
        fields = {key: pick(key) for key in ("logprob_start_len", "top_logprobs_num", "return_logprob")}
        wants = _flag(fields, "return_logprob")
        start = _integer(fields, "logprob_start_len", -1)
        if start >= len(ids):
            raise Refusal(f"logprob_start_len ({start}) must be smaller than the prompt ({len(ids)} tokens).")
        top = _integer(fields, "top_logprobs_num", 0)
        if not 0 <= top <= limits.vocab_size:
            raise Refusal(f"top_logprobs_num must be in [0, {limits.vocab_size}], got {top}.")
        routes, routes_start = _routes(body, len(ids), limits)
        rid = pick("rid")
        if rid is not None and not isinstance(rid, str):
            raise Refusal("rid must be a string, or a list of strings for a batch.")
        for sample in range(count):
            name = uuid.uuid4().hex if rid is None else rid if count == 1 else f"{rid}_{sample}"
            requests.append(
                GenerateRequest(
                    rid=name,
                    ids=ids,
                    sampling=_sample_of(sampling, sample),
                    return_logprob=wants,
                    logprob_start=start if wants and start >= 0 else None,
                    top_logprobs=top if wants else 0,
                    return_text=_flag(body, "return_text_in_logprobs"),
                    return_mask=wants and _flag(body, "return_sampling_mask"),
                    return_prompt_ids=_flag(body, "return_prompt_token_ids"),
                    return_routes=routes,
                    routes_start=routes_start,
                    stream=stream,
                    namespace=namespace,
                )
            )
    multiple = batch or len(requests) > 1
    if stream and multiple:
        raise Refusal("this server streams single completions only: send one prompt with n = 1.")
    if len({request.rid for request in requests}) < len(requests):
        raise Refusal("rid must name each completion of a batch differently.")
    return GenerateCall(tuple(requests), multiple, stream)
