"""Stop strings of an action that was generated in several segments: a rollout server looks for them only in what it made itself."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from orchestrator.contracts.events import VersionSpan
from orchestrator.gateway.servers import Generated


def cut_at_stop(
    generated: Generated,
    stops: Sequence[str],
    decode: Callable[[Sequence[int]], str],
    stop_ids: Collection[int],
) -> Generated:
    """The action up to the token that completes a stop string, as one server would have ended it; unchanged without one. An end token
    is none, whatever its text: servers look at ids first."""
    said = generated.ids[:-1] if generated.ids[-1:] and generated.ids[-1] in stop_ids else generated.ids

    def found(length: int) -> str | None:
        """The first stop string within so many tokens."""
        text = decode(said[:length])
        return min((stop for stop in stops if stop in text), key=text.index, default=None)

    if found(len(said)) is None:
        return generated
    low, high = 1, len(said)  # the shortest prefix that holds one
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if found(middle) is None else (low, middle)
    return replace(
        generated,
        ids=generated.ids[:low],
        logprobs=generated.logprobs[:low],
        spans=tuple(
            VersionSpan(span.version, span.start, min(span.end, low))
            for span in generated.spans
            if span.start < low
        ),
        finish="stop",
        stop=found(low),
        repeats=False,  # it ended before that
        seen=generated.seen[: len(generated.seen) - (len(generated.ids) - low)],
    )
