"""The self-check at start: does a longer conversation begin with the exact ids of a shorter one, and do pieces make up the whole?

Probe conversations are put together as the gateway does it, action by action, and compared, at every place where the policy would be
asked, with one rendering of the whole conversation by the model's own chat template.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import structs

from orchestrator.gateway.messages import Call, Turn
from orchestrator.gateway.problems import Problem
from orchestrator.gateway.render.base import Renderer, Tool, incremental
from orchestrator.log import get

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
_ASK, _MORE = Turn("user", "How many oaks?"), Turn("user", "And elms?")
_LOOK, _COUNT = Call("look", '{"at":"oak\\nelm"}'), Call("look", '{"at":"elm","n":2}')


@dataclass(frozen=True, slots=True)
class Probe:
    """A conversation that ends in an assistant turn. `needed`: one that a template may not refuse."""

    name: str
    turns: tuple[Turn, ...]
    tools: tuple[Tool, ...] = ()
    thinks: bool = False
    needed: bool = False


def _says(text: str, reasoning: str | None = None, *calls: Call) -> Turn:
    return Turn("assistant", text, reasoning, calls)


PROBES = (
    Probe("questions and answers", (_ASK, _says("Two."), _MORE, _says("One."), _ASK, _says("Two.")), needed=True),
    Probe("a system message", (Turn("system", "Be brief."), _ASK, _says("Two."), _MORE, _says("One."))),
    Probe(
        "reasoning before a later question",
        (_ASK, _says("Two.", "I count."), _MORE, _says("One.", "I count\n\nagain."), _ASK, _says("Two.", "So.")),
        thinks=True,
    ),
    Probe(
        "a tool result, then a user's interjection",
        (_ASK, _says("", None, _LOOK), Turn("tool", "oak oak"), _says("Two."), _MORE, _says("", None, _COUNT),
         Turn("tool", "elm"), Turn("user", "Hurry."), _says("One.")),
        (TOOL,),
    ),
    Probe(
        "parallel calls",
        (_ASK, _says("I look.", None, _LOOK, _COUNT), Turn("tool", "oak"), Turn("tool", "elm"), _says("", None, _LOOK),
         Turn("tool", ""), _says("Two.")),
        (TOOL,),
    ),
    Probe(
        "reasoning between tool results",
        (_ASK, _says("", "Where?", _LOOK), Turn("tool", "oak"), _says("", "There?", _COUNT), Turn("tool", "elm"),
         _says("Two.", "Here."), _MORE, _says("One.", "There.")),
        (TOOL,),
        thinks=True,
    ),
)  # fmt: skip


def prove(renderer: Renderer, whole: Whole, *, sampled: bool = True, thinking: bool = True) -> str | None:
    """None when every probe holds, else one sentence with the first difference. `sampled`: assistant turns as the policy samples them,
    otherwise as history; `thinking` False leaves probes with reasoning out. A probe that the template refuses is logged: so will be the
    requests that are like it."""
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
                made = incremental(renderer, turns, tools, sampled=sampled)
            except Problem as refused:
                if probe.needed:
                    return f"in the probe “{probe.name}” {refused.message}"
                unsupported.append(probe.name)
                break
            # A policy may split the text after its prompt otherwise than an encoding of the whole: sampled turns are compared as text.
            if made != expected and not (sampled and renderer.decode(made) == renderer.decode(expected)):
                return _difference(renderer, probe.name, at, expected, made)
    if unsupported:
        log.warning("template.unsupported", conversations=sorted(set(unsupported)))
    return None


def _thoughtful(turn: Turn) -> Turn:
    """Where the prompt opens the reasoning, an answer that is sampled has some."""
    return (
        structs.replace(turn, reasoning="Hm.")
        if turn.role == "assistant" and turn.reasoning is None
        else turn
    )


def _difference(renderer: Renderer, name: str, at: int, expected: list[int], made: list[int]) -> str:
    same = 0
    while same < min(len(expected), len(made)) and expected[same] == made[same]:
        same += 1
    wants, has = (renderer.decode(ids[same : same + 12]) for ids in (expected, made))
    return (
        f"in the probe “{name}”, before message {at}, the template writes {wants!r} at token {same} "
        f"where the ids of what came before go on with {has!r}"
    )
