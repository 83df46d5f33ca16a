"""Stop strings of an action that was generated in several segments, or that is full. A rollout server checks only the tokens that it generated
itself, and the length first."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from orchestrator.contracts.marks import Finish
from orchestrator.contracts.spans import cut
from orchestrator.gateway.servers.segmented import Generated


def cut_at_stop(
    generated: Generated,
    stops: Sequence[str],
    decode: Callable[[Sequence[int]], str],
    stop_ids: Collection[int],
) -> Generated:
    """The action up to the token that completes a stop string, as one server would have ended it; unchanged if there is none. An end token
    never completes a stop string, regardless of its text: servers check ids first."""
    without_end = (
        generated.ids[:-1] if generated.ids[-1:] and generated.ids[-1] in stop_ids else generated.ids
    )

    def found(length: int) -> str | None:
        """The first stop string within the first `length` tokens."""
        text = decode(without_end[:length])
        return min((stop for stop in stops if stop in text), key=text.index, default=None)

    if found(len(without_end)) is None:
        return generated
    low, high = 1, len(without_end)  # find the shortest prefix that contains a stop string
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if found(middle) is None else (low, middle)
    return replace(
        generated,
        ids=generated.ids[:low],
        logprobs=generated.logprobs[:low],
        spans=tuple(cut(generated.spans, low)),
        finish=Finish.STOP,
        stop=found(low),
        repeats=False,  # it ended before the repetition
        seen=generated.seen[: len(generated.seen) - (len(generated.ids) - low)],
    )
