"""From a finished action to a message: reasoning, text, tool calls. Not streaming, on ids, strict.

Grammar, on token ids (text that merely looks like a marker is text):

    action = [think_open reasoning think_close] text {call_open calls call_close} [end]

If the generation prompt opens the reasoning, the action begins inside it. The model's call syntax (`grammar.py`) reads the text between call
markers. A call is well-formed when it names a tool that the request offered, has the required parameters, and every declared
parameter has a declared type. Everything else is *ill-formed*: it is served as text, recorded as ill-formed, and still trained on.

A request that offers no tools gets no calls: call markers are part of the text, and well-formed unless the request forbids calls. Programs with
a protocol of their own read such text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.contracts.marks import ParseStatus
from orchestrator.gateway.completions.grammar import read_calls
from orchestrator.gateway.messages.requests import CallRule
from orchestrator.gateway.messages.turns import CanonicalCall, Turn
from orchestrator.gateway.render import Renderer
from orchestrator.pool.sanitize import clean


@dataclass(frozen=True, slots=True)
class Parsed:
    """A finished action as a message. status: ok | ill_formed."""

    turn: Turn
    status: ParseStatus


def parse_action(
    renderer: Renderer,
    action: Sequence[int],
    tools: Sequence[Mapping[str, Any]],
    *,
    stop: str | None = None,
    rule: CallRule | None = None,
) -> Parsed:
    """Read one action. `stop`: the stop string that ended it, which is not part of the message. `rule`: the request's
    conditions on calls; None: it has none. An action that breaks them is served as text, and is ill-formed."""
    rule = rule or CallRule()
    marks = renderer.markers
    ids = list(action)
    while ids and ids[-1] in renderer.stop_ids:
        ids.pop()
    reasoning: str | None = None
    start = _skip_blank(renderer, ids)
    starts_with_thinking = (
        marks.think_open is not None and start < len(ids) and ids[start] == marks.think_open
    )
    if renderer.starts_in_thinking or starts_with_thinking:
        begin = start + 1 if starts_with_thinking else 0
        if marks.think_close not in ids[begin:]:
            # Never closed: calls inside it are reasoning, not part of the answer.
            return Parsed(
                Turn(role="assistant", text="", reasoning=_thought(renderer, ids[begin:], stop)),
                ParseStatus.ILL_FORMED,
            )
        end = ids.index(marks.think_close, begin)
        reasoning = _thought(renderer, ids[begin:end], None)
        ids = ids[end + 1 :]
    reply_text = _without(renderer.decode(ids), stop).strip()
    ids, after = _before(renderer, ids, stop)
    structure = {marks.think_open, marks.think_close, *renderer.stop_ids}
    if tools or rule.most == 0:
        structure |= {marks.call_open, marks.call_close}
    if not structure & set(ids):
        return Parsed(
            Turn(role="assistant", text=clean(reply_text), reasoning=reasoning),
            ParseStatus.OK if rule.holds(()) else ParseStatus.ILL_FORMED,
        )
    may_call = tools and rule.most != 0 and marks.call_open is not None
    calls = _calls(renderer, ids, after, tools) if may_call else None
    if calls is None or marks.call_open is None or not rule.holds([call.name for call in calls]):
        return Parsed(
            Turn(role="assistant", text=clean(reply_text), reasoning=reasoning), ParseStatus.ILL_FORMED
        )
    text = renderer.decode(ids[: ids.index(marks.call_open)]).strip()
    return Parsed(Turn(role="assistant", text=clean(text), reasoning=reasoning, calls=calls), ParseStatus.OK)


def _skip_blank(renderer: Renderer, ids: list[int]) -> int:
    at = 0
    while at < len(ids) and not renderer.decode(ids[at : at + 1]).strip():
        at += 1
    return at


def _without(text: str, stop: str | None) -> str:
    """`text` up to the stop string that ended it."""
    return text[: text.rindex(stop)] if stop and stop in text else text


def _before(renderer: Renderer, ids: list[int], stop: str | None) -> tuple[list[int], str]:
    """The ids before the token in which the stop string begins, and the text of that token up to it. A marker inside the stop string does not
    count, except one that closes a call: the stop string ended the call there."""
    if not stop or stop not in renderer.decode(ids):
        return ids, ""
    low, high = 1, len(ids)  # find the shortest end of the action that contains the stop string
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if stop in renderer.decode(ids[-middle:]) else (middle + 1, high)
    start = len(ids) - low
    marks = renderer.markers
    is_open = [each == marks.call_open for each in ids[:start] if each in (marks.call_open, marks.call_close)]
    if is_open and is_open[-1] and marks.call_close in ids[start:]:
        return ids[: ids.index(marks.call_close, start) + 1], ""
    return ids[:start], _without(renderer.decode(ids[start:]), stop)


def _thought(renderer: Renderer, ids: Sequence[int], stop: str | None) -> str | None:
    return clean(_without(renderer.decode(ids), stop).strip()) or None


def _calls(
    renderer: Renderer, ids: list[int], after: str, tools: Sequence[Mapping[str, Any]]
) -> tuple[CanonicalCall, ...] | None:
    """All calls from the first call_open to the end, or None when anything is out of place. `after`: the text after `ids`."""
    marks = renderer.markers
    if marks.call_open not in ids or after.strip():
        return None
    first = ids.index(marks.call_open)
    structural = {marks.think_open, marks.think_close, *renderer.stop_ids}
    if structural & set(ids) or marks.call_close in ids[:first]:
        return None
    calls: list[CanonicalCall] = []
    rest = ids[first:]
    while rest:
        if rest[0] != marks.call_open or marks.call_close not in rest:
            return None
        end = rest.index(marks.call_close)
        if marks.call_open in rest[1:end]:
            return None
        read = read_calls(renderer.call_syntax, renderer.decode(rest[1:end]), tools)
        if read is None:
            return None
        calls += read
        rest = rest[end + 1 :]
        rest = rest[_skip_blank(renderer, rest) :]
    return tuple(calls)
