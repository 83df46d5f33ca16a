"""Process signals: named functions from one step and the steps before it to [−1, 1].

A signal reads the policy's text and its tools' answers. It rates how a step was taken, never the achievement of the rollout. Each docstring
states how the signal can be gamed. A signal that can be earned without effort is a penalty that costs nothing to avoid, or is bounded and small.
`[reward.process.NAME]` sets the weight of a signal. A custom signal is an entry point of `penstock.process_signals`.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from itertools import islice

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.marks import ParseStatus
from orchestrator.contracts.quote import quoted
from orchestrator.rewards.actions import RecordedStep, ToolResult
from orchestrator.runtime import plugins

Signal = Callable[[RecordedStep, Sequence[RecordedStep]], float]
"""(the step, the steps without a mark before it, of all branches, in commit order) → [−1, 1]. It is not called for marked steps. Deterministic and
fast: a group may have thousands of steps."""
PLUGINS = "process_signals"


def ill_formed_tool_call(step: RecordedStep, before: Sequence[RecordedStep]) -> float:
    """−1 if the action could not be parsed; otherwise minus the share of calls without a name or a JSON object as arguments.

    Gamed by: calls that are well-formed and useless. Only performance shows whether a call helped.

    >>> from orchestrator.rewards.actions import ParsedAction, RecordedStep, ToolCall, ToolResult
    >>> calls = (ToolCall("bash", '{"command": "ls"}'), ToolCall("bash", "ls"))
    >>> ill_formed_tool_call(RecordedStep(ParsedAction(tool_calls=calls)), [])
    -0.5
    """
    action = step.action
    if action.parse is not ParseStatus.OK:
        return -1.0
    if not action.tool_calls:
        return 0.0
    ill_formed = sum(not (call.name and _is_json_object(call.arguments)) for call in action.tool_calls)
    return -ill_formed / len(action.tool_calls)


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
MIN_UNITS = 8  # with fewer units, a name or a quotation would decide
TOLERATED = {"latin": 0.3}  # technical terms within text in another language
TOLERATED_ELSE = 0.05


def language_mixing(step: RecordedStep, before: Sequence[RecordedStep]) -> float:
    """Minus twice the share of foreign scripts above the tolerance, in the worse of reasoning and content; at least −1.

    Units are words, and single characters of Han and kana. Code is not read. Tolerated next to the dominant script: 30 % Latin
    (technical terms), 5 % of any other. Reasoning and content may have different languages.

    Gamed by: text in a code block, which is not read, and silence.

    >>> from orchestrator.rewards.actions import ParsedAction, RecordedStep, ToolCall, ToolResult
    >>> def mixing(text):
    ...     return language_mixing(RecordedStep(ParsedAction(content=text)), [])
    >>> mixing("The file holds seven lines, and each line names one number")
    0.0
    >>> mixing("first list the files 然后数一下行数")  # 7 of 11 units are Han: dominant
    -0.13
    """
    action = step.action
    return min(_mixing(action.reasoning), _mixing(action.content))


def _mixing(text: str) -> float:
    counts = Counter(match.lastgroup or "" for match in SCRIPTS.finditer(CODE.sub(" ", text)))
    total = counts.total()
    if total < MIN_UNITS:
        return 0.0
    dominant = counts.most_common(1)[0][0]
    excess = sum(
        max(0.0, count / total - TOLERATED.get(script, TOLERATED_ELSE))
        for script, count in counts.items()
        if script != dominant
    )
    return -round(min(1.0, 2 * excess), 2) if excess else 0.0


# Not `[^>]*`: thousands of unclosed openings would each be read to the end of the text.
MARKER = re.compile(
    r"</?(?:think|thinking|tool_call|tool_response|tool_calls|invoke)\b[^<>]*>|<\|im_(?:start|end)\|>"
)
CALL_MARKER = re.compile(r"</?(?:tool_calls?|invoke)\b[^<>]*>")
REPETITION_LINES = 6
REPETITION_SHARE = 0.5


def reasoning_structure(step: RecordedStep, before: Sequence[RecordedStep]) -> float:
    """−1 for an empty step, or if the text contains markers of thinking or tool calls; otherwise minus the share of repeated lines.

    Repeated lines count from half of at least six lines on. Thinking is not required: a step with content or a call is fine. Where the request
    offered no tools, markers of calls in the content are the scaffold's own protocol.

    Gamed by: thinking of fewer than six lines, and repetition with small changes.

    >>> from orchestrator.rewards.actions import ParsedAction, RecordedStep, ToolCall, ToolResult
    >>> reasoning_structure(RecordedStep(ParsedAction(content="</think> The answer is 7.")), [])
    -1.0
    >>> reasoning_structure(RecordedStep(ParsedAction(reasoning="Let me check.\\n" * 8, content="7")), [])
    -0.88
    """
    action = step.action
    if not (action.content.strip() or action.reasoning.strip() or action.tool_calls):
        return -1.0
    content = CODE.sub(" ", action.content)
    if not action.shows_tools and action.parse is ParseStatus.OK:
        content = CALL_MARKER.sub(" ", content)
    if MARKER.search(action.reasoning) or MARKER.search(content):
        return -1.0
    lines = [line.strip() for line in action.reasoning.splitlines() if line.strip()]
    if len(lines) < REPETITION_LINES:
        return 0.0
    repeated = 1 - len(set(lines)) / len(lines)
    return -round(repeated, 2) if repeated >= REPETITION_SHARE else 0.0


LOOKED_BACK = 8  # steps: later, the same command may be right again


def repeated_calls(step: RecordedStep, before: Sequence[RecordedStep]) -> float:
    """Minus the share of the step's calls that the same agent made within its last eight steps, with the same answer.

    An earlier call of the same reply counts, too. Same call: name and arguments, as JSON values, white space apart. Same answer: exit code and
    size of the output, if the tools are visible. If they are not, only the agent's previous step counts; a step with a result that is not
    recorded counts as new. So a test that is run again after a change, with another answer, costs nothing.
    Gamed by: a comment or a number that changes at each repetition, an argument that the tool ignores.

    >>> from orchestrator.rewards.actions import ParsedAction, RecordedStep, ToolCall, ToolResult
    >>> ls = RecordedStep(ParsedAction(tool_calls=(ToolCall("bash", '{"command": "ls"}'),)), (ToolResult(name="bash", exit_code=0, bytes=12),))
    >>> repeated_calls(ls, []), repeated_calls(ls, [ls])
    (0.0, -1.0)
    """
    own = _calls(step)
    if not own or not all(result.recorded for result in step.results):
        return 0.0
    past = [earlier for earlier in before[-4 * LOOKED_BACK :] if earlier.agent == step.agent][-LOOKED_BACK:]
    earlier_calls = {call for earlier in past if earlier.results for call in _calls(earlier)}
    if past and not past[-1].results:
        earlier_calls.update(_calls(past[-1]))
    fresh = len(set(own) - earlier_calls)
    return (fresh - len(own)) / len(own) if fresh < len(own) else 0.0


def _calls(step: RecordedStep) -> list[tuple[str, str, int | None, int | None]]:
    results: Sequence[ToolResult | None] = step.results
    if len(results) != len(step.action.tool_calls):
        results = [None] * len(step.action.tool_calls)
    return [
        (
            call.name,
            _canonical(call.arguments),
            result.exit_code if result else None,
            result.bytes if result else None,
        )
        for call, result in zip(step.action.tool_calls, results, strict=True)
    ]


def _canonical(arguments: str) -> str:
    """The same text for arguments that are the same JSON values, or differ in white space alone."""
    with suppress(ValueError, RecursionError):
        arguments = json.dumps(json.loads(arguments), sort_keys=True, ensure_ascii=False)
    return " ".join(arguments.split())


ANSWERS = frozenset({0, 1})  # 1 is an answer of grep, diff, test and of most test runners


def tool_errors(step: RecordedStep, before: Sequence[RecordedStep]) -> float:
    """Minus the share of the step's commands that ended with an exit code other than 0 and 1. Without exit codes: 0.

    Off unless it has a weight. Gamed by: `|| true`, which costs nothing and hides errors from the agent.

    >>> from orchestrator.rewards.actions import ParsedAction, RecordedStep, ToolCall, ToolResult
    >>> codes = (127, 0, 1, 2)
    >>> tool_errors(RecordedStep(ParsedAction(), tuple(ToolResult(name="bash", exit_code=code) for code in codes)), [])
    -0.5
    """
    codes = [result.exit_code for result in step.results if result.exit_code is not None]
    failed = sum(code not in ANSWERS for code in codes)
    return -failed / len(codes) if failed else 0.0


MIN_REASONED = 8  # units (words, or characters of Han and kana) of a thought
OWN_SHARE = 0.5  # share of the runs of four units that occur once, and in no earlier thought
REMEMBERED = 64  # steps
COMPARED = 1024  # units of each thought


def structured_reasoning(step: RecordedStep, before: Sequence[RecordedStep]) -> float:
    """1 for a step that thinks before it acts; otherwise 0. It needs at least eight words of thinking, closed, at least half of it neither
    repeated nor copied from an earlier step, and followed by an answer or by calls that could be parsed.

    `reasoning_structure` and `ill_formed_tool_call` define well-formed. Longer thinking earns no more, and by default neither do more steps.
    Gamed by: fluent filler. Nothing here reads the meaning of a thought, so the signal stays small compared with performance (0.02 of a rollout).

    >>> from orchestrator.rewards.actions import ParsedAction, RecordedStep, ToolCall, ToolResult
    >>> thought = "The tests fail because the parser drops the last line."
    >>> def structured(reasoning, before=()):
    ...     return structured_reasoning(RecordedStep(ParsedAction(content="7", reasoning=reasoning)), before)
    >>> structured(thought), structured("Hm."), structured("yes it is " * 20)
    (1.0, 0.0, 0.0)
    >>> structured(thought, [RecordedStep(ParsedAction(content="6", reasoning=thought))])
    0.0
    """
    action = step.action
    if not (action.content.strip() or action.tool_calls):
        return 0.0
    count, own = _runs(action.reasoning)
    if count < MIN_REASONED - 3:
        return 0.0
    if ill_formed_tool_call(step, ()) < 0 or reasoning_structure(step, ()) < 0:
        return 0.0
    for earlier in reversed(before[-REMEMBERED:]):
        own = own - _runs(earlier.action.reasoning)[1]
        if len(own) < OWN_SHARE * count:
            return 0.0
    return 1.0 if len(own) >= OWN_SHARE * count else 0.0


@lru_cache(maxsize=16 * REMEMBERED)  # for several groups that are rewarded at once
def _runs(thought: str) -> tuple[int, frozenset[int]]:
    """The number of runs of four units in the beginning of a thought, and the different ones, as hashes: they are compared with those of many
    thoughts."""
    units = [match.group().lower() for match in islice(SCRIPTS.finditer(CODE.sub(" ", thought)), COMPARED)]
    runs = list(zip(units, units[1:], units[2:], units[3:], strict=False))
    return len(runs), frozenset(map(hash, runs))


SIGNALS: Mapping[str, Signal] = {
    "ill_formed_tool_call": ill_formed_tool_call,
    "language_mixing": language_mixing,
    "reasoning_structure": reasoning_structure,
    "repeated_calls": repeated_calls,
    "structured_reasoning": structured_reasoning,
    "tool_errors": tool_errors,
}


@cache
def function(name: str) -> Signal:
    """The built-in signal `name`, or the plug-in of that name. ConfigurationError lists the known names."""
    if name in SIGNALS:
        return SIGNALS[name]
    offered = plugins.names(PLUGINS)
    if name not in offered:
        available = ", ".join(sorted({*SIGNALS, *offered}))
        raise ConfigurationError(
            f"reward.process.{name}: the process signal {quoted(name)} is unknown; known: {available}; "
            'a name of the tasks\' process.json says source = "verifier"'
        )
    found: Signal = plugins.load(PLUGINS, name)
    if not callable(found):
        raise ConfigurationError(
            f"reward.process.{name}: the entry point of penstock.process_signals is a {type(found).__name__}, not a function"
        )
    return found
