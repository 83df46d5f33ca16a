"""Process signals: named penalties in [−1, 0] for how one step was written, never for what it achieved.

Each signal reads what was parsed of one action and nothing else: no token, no context, no outcome. A step's process reward is
their sum, not below −1. It counts little (α = 0.1/steps: a rollout that does everything wrong loses 0.1) and it is paid on the
step that earned it.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call of an action; `arguments` is the JSON text that the policy wrote."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ParsedAction:
    """One action as the gateway parsed it. `parse` is `ok`, or says what was ill-formed."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    parse: str = "ok"

    @classmethod
    def from_reply(cls, reply: Mapping[str, Any], parse: str) -> "ParsedAction":
        """Read a recorded reply: {content, reasoning, tool_calls}; a call is {name, arguments}, plain or under `function`.

        Missing and null fields are empty; arguments that were stored parsed are written as JSON again.
        """
        calls: list[ToolCall] = []
        for call in reply.get("tool_calls") or ():
            body = call.get("function", call)
            arguments = body.get("arguments")
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            calls.append(ToolCall(str(body.get("name") or ""), text))
        return cls(str(reply.get("content") or ""), str(reply.get("reasoning") or ""), tuple(calls), parse)


@dataclass(frozen=True, slots=True)
class ProcessScore:
    """A step's process reward and the signals that it is the sum of, by name; `value` = max(−1, Σ signals)."""

    value: float
    signals: tuple[tuple[str, float], ...]


def ill_formed_tool_call(action: ParsedAction) -> float:
    """−1 when the action could not be parsed; else minus the share of calls without a name or a JSON object as arguments.

    >>> ill_formed_tool_call(ParsedAction(tool_calls=(ToolCall("bash", '{"command": "ls"}'), ToolCall("bash", "ls"))))
    -0.5
    """
    if action.parse != "ok":
        return -1.0
    if not action.tool_calls:
        return 0.0
    bad = sum(not (call.name and _is_json_object(call.arguments)) for call in action.tool_calls)
    return -bad / len(action.tool_calls)


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
SCRIPTS = re.compile(
    r"(?P<latin>[A-Za-z\u00c0-\u024f]+)|(?P<han>[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff])|(?P<hangul>[\uac00-\ud7af]+)"
    r"|(?P<cyrillic>[\u0400-\u052f]+)|(?P<arabic>[\u0600-\u06ff]+)|(?P<hebrew>[\u0590-\u05ff]+)"
    r"|(?P<devanagari>[\u0900-\u097f]+)|(?P<thai>[\u0e00-\u0e7f]+)"
)  # Greek is left out: in prose it is mostly mathematics
FEWEST_UNITS = 8  # below, a name or a quotation would decide
TOLERATED = {"latin": 0.3}  # technical terms in another language's text
TOLERATED_ELSE = 0.05


def language_mixing(action: ParsedAction) -> float:
    """Minus twice the share of foreign scripts beyond what is tolerated, in the worse of reasoning and content; at least −1.

    Units are words, and single characters of Han and kana. Code is not read. Tolerated beside the dominant script: 30 % Latin
    (technical terms), 5 % of any other. Reasoning and content may each have a language of their own.

    >>> language_mixing(ParsedAction(content="The file holds seven lines, and each line names one number"))
    0.0
    >>> language_mixing(ParsedAction(reasoning="first list the files 然后数一下行数"))  # 7 of 11 units are Han: dominant
    -0.13
    """
    return min(_mixing(action.reasoning), _mixing(action.content))


def _mixing(text: str) -> float:
    counts = Counter(match.lastgroup or "" for match in SCRIPTS.finditer(CODE.sub(" ", text)))
    total = counts.total()
    if total < FEWEST_UNITS:
        return 0.0
    dominant = counts.most_common(1)[0][0]
    excess = sum(
        max(0.0, count / total - TOLERATED.get(script, TOLERATED_ELSE))
        for script, count in counts.items()
        if script != dominant
    )
    return -round(min(1.0, 2 * excess), 2) if excess else 0.0


MARKER = re.compile(
    r"</?(?:think|thinking|tool_call|tool_response|tool_calls|invoke)\b[^>]*>|<\|im_(?:start|end)\|>"
)
REPETITION_LINES = 6
REPETITION_SHARE = 0.5


def reasoning_structure(action: ParsedAction) -> float:
    """−1 for an empty step, or for markers of thinking or tool calls left in the text; else minus the share of repeated lines.

    Repeated lines count from half of at least six lines on. Thinking is not demanded: a step with content or a call is fine.

    >>> reasoning_structure(ParsedAction(content="</think> The answer is 7."))
    -1.0
    >>> reasoning_structure(ParsedAction(reasoning="Let me check.\\n" * 8, content="7"))
    -0.88
    """
    if not (action.content.strip() or action.reasoning.strip() or action.tool_calls):
        return -1.0
    if MARKER.search(action.reasoning) or MARKER.search(CODE.sub(" ", action.content)):
        return -1.0
    lines = [line.strip() for line in action.reasoning.splitlines() if line.strip()]
    if len(lines) < REPETITION_LINES:
        return 0.0
    repeated = 1 - len(set(lines)) / len(lines)
    return -round(repeated, 2) if repeated >= REPETITION_SHARE else 0.0


SIGNALS: Mapping[str, Callable[[ParsedAction], float]] = {
    "ill_formed_tool_call": ill_formed_tool_call,
    "language_mixing": language_mixing,
    "reasoning_structure": reasoning_structure,
}


def process_score(action: ParsedAction, names: Iterable[str] = tuple(SIGNALS)) -> ProcessScore:
    """The process reward of one step, in [−1, 0]. `names` were checked by `check_signals`."""
    signals = tuple((name, SIGNALS[name](action)) for name in names)
    return ProcessScore(max(-1.0, sum(value for _, value in signals)), signals)
