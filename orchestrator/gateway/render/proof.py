"""The self-check at start: does a longer conversation begin with the exact ids of a shorter one, and do pieces add up to the whole?

The check composes probe conversations as the gateway does, action by action. At every place where the policy would sample, it compares them
with one rendering of the whole conversation by the model's own chat template.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import structs

from orchestrator.gateway.messages.turns import CanonicalCall, Turn
from orchestrator.gateway.problems import Problem
from orchestrator.gateway.render.base import Renderer, Tool, incremental
from orchestrator.runtime.log import get

log = get(__name__)

Whole = Callable[[Sequence[Turn], Sequence[Tool]], list[int]]
TOOL: Tool = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look at a thing",
        "parameters": {
            "type": "object",
            "properties": {"at": {"type": "string"}, "n": {"type": "integer"}},
            "required": ["at"],
        },
    },
}
_ASK, _MORE = Turn(role="user", text="How many oaks?"), Turn(role="user", text="And elms?")
_LOOK, _COUNT = CanonicalCall("look", '{"at":"oak\\nelm"}'), CanonicalCall("look", '{"at":"elm","n":2}')


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A conversation that ends in an assistant turn. `needed`: a template must not refuse it."""

    name: str
    turns: tuple[Turn, ...]
    tools: tuple[Tool, ...] = ()
    thinks: bool = False
    needed: bool = False


def _says(text: str, reasoning: str | None = None, *calls: CanonicalCall) -> Turn:
    return Turn(role="assistant", text=text, reasoning=reasoning, calls=calls)


PROBES = (
    Probe(
        name="questions and answers",
        turns=(_ASK, _says("Two."), _MORE, _says("One."), _ASK, _says("Two.")),
        needed=True,
    ),
    Probe(
        name="a system message",
        turns=(Turn(role="system", text="Be brief."), _ASK, _says("Two."), _MORE, _says("One.")),
    ),
    Probe(
        name="reasoning before a later question",
        turns=(
            _ASK,
            _says("Two.", "I count."),
            _MORE,
            _says("One.", "I count\n\nagain."),
            _ASK,
            _says("Two.", "So."),
        ),
        thinks=True,
    ),
    Probe(
        name="a tool result, then a user's interjection",
        turns=(
            _ASK,
            _says("", None, _LOOK),
            Turn(role="tool", text="oak oak"),
            _says("Two."),
            _MORE,
            _says("", None, _COUNT),
            Turn(role="tool", text="elm"),
            Turn(role="user", text="Hurry."),
            _says("One."),
        ),
        tools=(TOOL,),
    ),
    Probe(
        name="parallel calls",
        turns=(
            _ASK,
            _says("I look.", None, _LOOK, _COUNT),
            Turn(role="tool", text="oak"),
            Turn(role="tool", text="elm"),
            _says("", None, _LOOK),
            Turn(role="tool", text=""),
            _says("Two."),
        ),
        tools=(TOOL,),
    ),
    Probe(
        name="reasoning between tool results",
        turns=(
            _ASK,
            _says("", "Where?", _LOOK),
            Turn(role="tool", text="oak"),
            _says("", "There?", _COUNT),
            Turn(role="tool", text="elm"),
            _says("Two.", "Here."),
            _MORE,
            _says("One.", "There."),
        ),
        tools=(TOOL,),
        thinks=True,
    ),
)


def prove(renderer: Renderer, whole: Whole, *, sampled: bool = True, thinking: bool = True) -> str | None:
    """None when every probe passes, else one sentence with the first difference. `sampled`: assistant turns as the policy samples them,
    otherwise as history; `thinking` False leaves out probes with reasoning. If the template refuses a probe, this is logged: the gateway will
    refuse similar requests."""
    unsupported = []
    for probe in PROBES:
        if probe.thinks and (not thinking or renderer.markers.think_open is None):
            continue
        tools = probe.tools if renderer.tools_in_prompt else ()
        for at in [i for i, turn in enumerate(probe.turns) if turn.role == "assistant"]:
            turns = probe.turns[:at]
            if sampled and renderer.starts_in_thinking:
                turns = tuple(_thoughtful(turn) for turn in turns)
            try:
                expected = whole(turns, tools)
                actual = incremental(renderer, turns, tools, sampled=sampled)
            except Problem as refused:
                if probe.needed:
                    return f"in the probe “{probe.name}” {refused.message}"
                unsupported.append(probe.name)
                break
            # A policy may split the text after its prompt into other tokens than an encoding of the whole does: compare sampled turns as text.
            if actual != expected and not (sampled and renderer.decode(actual) == renderer.decode(expected)):
                return _difference(renderer, probe.name, at, expected, actual)
    if unsupported:
        log.warning("template.unsupported", conversations=sorted(set(unsupported)))
    return None


def _thoughtful(turn: Turn) -> Turn:
    """A sampled answer has reasoning if the prompt opens it: add some to an answer without."""
    return (
        structs.replace(turn, reasoning="Hm.")
        if turn.role == "assistant" and turn.reasoning is None
        else turn
    )


def _difference(renderer: Renderer, name: str, at: int, expected: list[int], made: list[int]) -> str:
    common = 0
    while common < min(len(expected), len(made)) and expected[common] == made[common]:
        common += 1
    expected_text, actual_text = (renderer.decode(ids[common : common + 12]) for ids in (expected, made))
    return (
        f"in the probe “{name}”, before message {at}, the template writes {expected_text!r} at token {common} "
        f"where the ids of what came before go on with {actual_text!r}"
    )
