"""Decide from the text which conversations of a session are its scaffold's. A command in the sandbox holds the same token and uses the same
socket, so the text is the only evidence.

A conversation is the scaffold's when
- its first request arrived before any step had a reply: no program had run any output of the policy. Of several such requests it does not matter
  which ends first;
- it begins as a known one does (for a scaffold with one conversation: up to its first question);
- it reviews a known one, as requests for summaries do: its last answer and half of the turns before are known; or it retells one: it contains
  the question, and half of the rest are lines of the session (at most one retelling per further step); or
- it carries text that a step of the scaffold's conversation handed over: the text for a sub-agent, or a reply without calls, as a summary is.
  Each such text begins one conversation; or
- it carries the instruction of a later step of the task. Each begins one conversation, too.
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import Any

from scaffolds.base import Conversations

from orchestrator.contracts.marks import Finish
from orchestrator.gateway.messages.turns import CanonicalCall, Turn, same_turns
from orchestrator.gateway.sessions.node import Node

MIN_CHARACTERS = 16  # characters: shorter words could be part of anything
FIRST = 256  # first requests that are kept in mind


class ScaffoldConversations:
    """The scaffold's own conversations so far. `sub_agents`: patterns of the tools whose calls begin a conversation; None: all conversations are
    its own, since no program in the sandbox has the token. `instructions`: of the later steps of the task."""

    def __init__(
        self,
        conversations: Conversations,
        sub_agents: Sequence[str] | None,
        instructions: Sequence[str] = (),
    ) -> None:
        self._one = conversations == "one"
        self._every = not self._one and sub_agents is None
        self._sub_agents = tuple(sub_agents or ())
        self._first: set[str] = set()  # digests of requests that arrived while it was unanswered
        self.unanswered = True
        """Whether no program can have received any output of the policy."""
        self._later = list(instructions)  # those that no conversation has started with yet
        self._questions: list[tuple[Turn, ...]] = []  # the beginnings of a scaffold with one conversation
        self._openings: list[tuple[Turn, ...]] = []
        self._nodes: list[Node] = []
        self._retold = 0  # the number of steps when a conversation was last retold
        self._handed: list[str] = []  # texts that no conversation has started with yet
        self._unknown = False  # whether the text of a conversation was too large to be recorded

    def add(self, node: Node) -> None:
        """Add the next recorded step (by idx) of the scaffold's own conversations."""
        if node.finish != Finish.ABORT:  # an aborted reply is never served
            self.unanswered = False
        if self._one and node.parent is None and not self._asks(node.history):
            if self._questions:
                self._take_instruction(node.history)
            self._questions.append(_question(node.history))
        if self._every or self._one:
            return
        if node.parent is None:
            self._begin(node)
        self._nodes.append(node)
        if node.finish != Finish.ABORT:
            self._handed += [
                words for words in _hands_over(node, self._sub_agents) if len(words) >= MIN_CHARACTERS
            ]

    def arrived(self, digest: str) -> None:
        """Note a request, by its digest, that arrived while the session was `unanswered`. It may end later than others, or be sent again."""
        if len(self._first) < FIRST:
            self._first.add(digest)

    def owns(self, turns: Sequence[Turn], digest: str | None = None) -> bool:
        """Whether a request with these messages, and of this digest, is the scaffold's."""
        if self.unanswered or self._every or digest in self._first:
            return True
        if self._one:
            return self._asks(turns) or self._instructed(turns) is not None
        known = self._unknown or self._begins(turns) or self._goes_over(turns)
        known = known or self._carried(turns) is not None or self._instructed(turns) is not None
        return known or self._retells(turns)

    def _asks(self, turns: Sequence[Turn]) -> bool:
        """Whether it begins with the question of a known conversation."""
        return any(same_turns(question, turns[: len(question)]) for question in self._questions)

    def _instructed(self, turns: Sequence[Turn]) -> str | None:
        """The instruction of a later step that the conversation begins with."""
        opened_with = "\n".join(turn.text for turn in _opening(turns) if turn.role == "user")
        return next((instruction for instruction in self._later if instruction in opened_with), None)

    def _take_instruction(self, turns: Sequence[Turn]) -> None:
        if (instruction := self._instructed(turns)) is not None:
            self._later.remove(instruction)

    def _begin(self, node: Node) -> None:
        if not node.history:
            self._unknown = True
        elif not self._begins(node.history):
            known = not self._openings or self._goes_over(node.history)
            words = None if known else self._carried(node.history)
            if self._openings and self._instructed(node.history) is not None:
                self._take_instruction(node.history)
            elif words is not None:
                self._handed.remove(words)
            elif not known and self._retells(node.history):
                self._retold = len(self._nodes) + 1
            self._openings.append(_opening(node.history))

    def _begins(self, turns: Sequence[Turn]) -> bool:
        return any(same_turns(opening, turns[: len(opening)]) for opening in self._openings)

    def _goes_over(self, turns: Sequence[Turn]) -> bool:
        """Whether its last answer, and half of the turns before, are of known conversations. Programs request summaries under other system
        prompts, over histories that they cut."""
        end = max((at for at, turn in enumerate(turns) if turn.role == "assistant"), default=-1)
        keys = [_key(turn) for turn in turns[: end + 1] if turn.role != "system"]
        known_keys = {_key(turn) for node in self._nodes for turn in (*node.history, node.reply)}
        return (
            bool(keys) and keys[-1] in known_keys and 2 * sum(key in known_keys for key in keys) >= len(keys)
        )

    def _carried(self, turns: Sequence[Turn]) -> str | None:
        """The longest handed-over text that the conversation begins with. A summary may appear there as an answer."""
        opening = _opening(turns)
        text = "\n".join(turn.text for turn in turns[: len(opening) + 1])
        lines = frozenset(_lines(text))
        return max((words for words in self._handed if _carries(text, lines, words)), key=len, default=None)

    def _retells(self, turns: Sequence[Turn]) -> bool:
        """Whether it repeats text of the session. A program may request a summary of the conversation as one text."""
        text = "\n".join(turn.text for turn in _without_system(_opening(turns)))
        questions = [
            question
            for opening in self._openings
            if len(question := opening[-1].text.strip()) >= MIN_CHARACTERS
        ]
        if len(self._nodes) <= self._retold or not any(question in text for question in questions):
            return False
        question_lines = {line for question in questions for line in _lines(question)}
        known_lines = {line for node in self._nodes for turn in _later(node) for line in _lines(turn.text)}
        lines = [line for line in _lines(text) if line not in question_lines]
        return 0 < sum(map(len, lines)) <= 2 * sum(len(line) for line in lines if line in known_lines)


def _later(node: Node) -> tuple[Turn, ...]:
    """The turns of a step's request after the opening of its conversation, and its reply."""
    history = node.history if node.parent is not None else node.history[len(_opening(node.history)) :]
    return (*history, node.reply)


def _lines(text: str) -> list[str]:
    return [line for line in map(str.strip, text.splitlines()) if line]


def _question(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """The turns up to the first question."""
    at = next((at for at, turn in enumerate(turns) if turn.role == "user"), len(turns) - 1)
    return tuple(turns[: at + 1])


def _opening(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    return tuple(takewhile(lambda turn: turn.role != "assistant", turns))


def _key(turn: Turn) -> tuple[str, str, tuple[CanonicalCall, ...]]:
    return turn.role, turn.text.strip(), turn.calls


def _without_system(turns: Sequence[Turn]) -> Sequence[Turn]:
    return turns[next((at for at, turn in enumerate(turns) if turn.role != "system"), len(turns)) :]


def _hands_over(node: Node, sub_agents: Sequence[str]) -> Iterator[str]:
    if not node.reply.calls:
        yield node.reply.text.strip()
    for call in node.reply.calls:
        if any(fnmatchcase(call.name, pattern) for pattern in sub_agents):
            yield max(_texts(_arguments(call)), key=len, default="").strip()


def _arguments(call: CanonicalCall) -> Any:
    try:
        return call.mapping()
    except (ValueError, RecursionError):
        return {}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def _carries(text: str, lines: frozenset[str], words: str) -> bool:
    """Whether a text contains the words, verbatim or half of them in whole lines, since programs reformat summaries."""
    if words in text:
        return True
    word_lines = _lines(words)
    return 2 * sum(len(line) for line in word_lines if line in lines) >= sum(map(len, word_lines))
