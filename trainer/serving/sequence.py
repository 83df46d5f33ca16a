"""One completion in the engine: its tokens, their records and its timestamps.

Only the engine's thread writes it. The event loop reads finished sequences, and only prefixes of unfinished ones:
every list below is append-only, and `ids` grows last, so a reader that takes n = `completion_tokens` first sees n
complete entries in every list.
"""

import time
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from trainer.serving.kv import KvRow
from trainer.serving.protocol import GenerateRequest

Finish = dict[str, Any]
"""The protocol's finish_reason object: {type: stop, matched} | {type: length, length} | {type: abort, …}."""

TopLogprobs = list[tuple[float, int]]

Label = tuple[str, str]
"""The version that weights are called by, and the digest of what they are."""


def aborted(message: str = "Aborted") -> Finish:
    return {"type": "abort", "message": message, "status_code": None, "err_type": None}


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """`computed` tokens of `ids` have their keys and values in `row`; a finished sequence has no row.

    Invariants: len(logprobs) == sum of span lengths == completion tokens; spans are half-open, adjacent, and name
    the weights that gave the logits that the token was drawn from."""

    request: GenerateRequest
    limit: int
    """Most completion tokens: max_new_tokens, or the rest of the context if that is less."""
    seed: int
    stop_ids: frozenset[int]
    internal: bool = False
    """A health probe: it goes first, is not counted and leaves nothing in the prefix cache."""

    ids: list[int] = field(init=False)
    logprobs: list[float] = field(default_factory=list)
    spans: list[tuple[Label, int, int]] = field(default_factory=list)
    tops: list[TopLogprobs] = field(default_factory=list)
    masks: list[tuple[list[int] | None, float]] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    prompt_tops: list[TopLogprobs] = field(default_factory=list)
    routes: Tensor | None = None
    """int16 [tokens, layers, top_k] of a finished sequence whose request wants them: from `routes_start` on, all but the last token, which
    was never fed. None if it was aborted without its own keys and values."""
    finish: Finish | None = None
    final_label: Label = ("", "")

    row: KvRow | None = None
    computed: int = 0
    weights_epoch: int = -1
    """The weights that made this row's keys and values; -1 when more than one did (a pause in place)."""
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache at the first admission."""
    retractions: int = 0

    received: float = field(default_factory=time.time)
    dispatched: float = 0.0
    admitted: float | None = None
    first_token: float | None = None
    finished: float | None = None
    queued_since: float = field(default_factory=time.monotonic)
    queue_time: float = 0.0

    def __post_init__(self) -> None:
        self.ids = list(self.request.ids)

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.ids)

    @property
    def completion_tokens(self) -> int:
        return len(self.ids) - len(self.request.ids)

    def append(self, token: int, logprob: float, label: Label) -> None:
        """Record one sampled token; `ids` grows last (see above)."""
        at = len(self.logprobs)
        self.logprobs.append(logprob)
        if self.spans and self.spans[-1][0] == label:
            self.spans[-1] = (label, self.spans[-1][1], at + 1)
        else:
            self.spans.append((label, at, at + 1))
        self.ids.append(token)

    def end(self, finish: Finish, label: Label) -> None:
        self.final_label = label
        self.finished = time.time()
        self.finish = finish
