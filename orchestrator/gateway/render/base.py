"""The port: the gateway's interface to a policy's chat format. Ids are plain lists of int."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from orchestrator.gateway.messages.turns import Turn

Tool = Mapping[str, Any]
CallSyntax = Literal["json", "invoke", "function", "none"]  # the notation of calls, see `grammar.py`


@dataclass(frozen=True, slots=True, kw_only=True)
class Markers:
    """Token ids that structure an action; None where the format has no such token."""

    think_open: int | None
    think_close: int | None
    call_open: int | None
    call_close: int | None


class Renderer(Protocol):
    """One policy's chat format.

    `opening`, `between` and `given` return pieces of a state. With `asking` a piece ends in the generation prompt, after which the policy
    samples. Every piece begins at a special token or is encoded together with the text before it, so pieces can be joined as ids.
    """

    stop_ids: frozenset[int]
    markers: Markers
    call_syntax: CallSyntax
    context: int  # tokens that the model can attend to
    longest: int  # bytes of the longest token as JSON writes it
    tools_in_prompt: bool
    starts_in_thinking: bool  # whether the generation prompt ends inside the reasoning
    extends: bool  # False: a longer conversation does not begin with the ids of a shorter one, and `whole` is used instead of pieces

    def opening(self, turns: Sequence[Turn], tools: Sequence[Tool], *, asking: bool) -> list[int]:
        """The ids of a conversation's first turns, none of them by the assistant."""

    def between(
        self, action: Sequence[int], turns: Sequence[Turn], *, asking: bool, caller: Turn | None = None
    ) -> list[int]:
        """The ids after `action`: its close if it was cut off, the boundary, `turns` (none of the assistant). `caller`: the assistant turn of
        `action`. The results among `turns` answer its calls; some templates print their names or ids."""

    def given(self, turn: Turn) -> list[int]:
        """An assistant turn that this policy did not sample, from its header to its end token, reasoning kept."""

    def action(self, turn: Turn) -> list[int]:
        """The ids that the policy would sample after the generation prompt to produce `turn`, with the end token."""

    def whole(self, turns: Sequence[Turn], tools: Sequence[Tool]) -> list[int]:
        """A whole conversation with the generation prompt, rendered at once."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included."""

    def measured(self, texts: Iterable[str], most: int) -> int:
        """The approximate number of tokens of `texts`, without rendering them; it stops counting above `most`."""


def close(
    action: Sequence[int], end: int, stop_ids: frozenset[int], markers: Markers, opened: bool
) -> list[int]:
    """The missing end of an action that was cut off: the end of its reasoning, if that is still open, and the end of its turn.

    `opened`: whether the generation prompt opens the reasoning.
    """
    if action and action[-1] in stop_ids:
        return []
    thinking = opened
    for token in action:
        if token == markers.think_open:
            thinking = True
        elif token == markers.think_close:
            thinking = False
    return [markers.think_close, end] if thinking and markers.think_close is not None else [end]


def incremental(
    renderer: Renderer, turns: Sequence[Turn], tools: Sequence[Tool], *, sampled: bool
) -> list[int]:
    """The ids of a conversation with the generation prompt, composed of pieces. `sampled`: every assistant turn counts as sampled by
    the policy after a generation prompt, otherwise as written by another author."""
    ids: list[int] = []
    action: list[int] | None = None
    caller: Turn | None = None
    run: list[Turn] = []
    for turn in [*turns, None]:
        if turn is not None and turn.role != "assistant":
            run.append(turn)
            continue
        asking = sampled or turn is None
        if action is None:
            ids += renderer.opening(run, tools, asking=asking)
        else:
            ids += renderer.between(action, run, asking=asking, caller=caller)
        if turn is not None:
            caller = turn
            action = renderer.action(turn) if sampled else renderer.given(turn)
            ids, run = ids + action, []
    return ids
