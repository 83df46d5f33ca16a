"""The step tree of an attempt as conversations: chains of steps that continue each other, and the messages before each step (`queries.chat`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from orchestrator.contracts.states import StepKind
from orchestrator.queries.attempts import AttemptStep
from orchestrator.queries.chat import TOOLS, ConversationMessage, History


class Relation(StrEnum):
    """The relation of a chain to the others of its attempt."""

    MAIN = "main"  # the first of all
    AGENT = "agent"  # another agent's conversation (a sub-agent)
    CONVERSATION = "conversation"  # another one of the same agent
    REWRITE = "rewrite"  # the history was changed (compaction, an edit)
    SIBLING = "sibling"  # a second answer to the same history


@dataclass(slots=True, kw_only=True)
class Chain:
    """Steps that each continue the one before. `parent`: the step that its first step rewrites or continues; None: a new conversation."""

    number: int
    relation: Relation
    parent: int | None
    steps: list[AttemptStep] = field(default_factory=list)

    @property
    def agent(self) -> str:
        return self.steps[0].stored.agent


def chains(steps: Sequence[AttemptStep]) -> list[Chain]:
    """Every step in exactly one chain, in the order of their first steps."""
    found: list[Chain] = []
    tail: dict[int, Chain] = {}  # by the idx of its last step
    agents = {step.idx: step.stored.agent for step in steps}
    for step in steps:
        parent = step.stored.parent
        if step.stored.kind is StepKind.CONTINUES and parent in tail:
            chain = tail.pop(parent)
        else:
            chain = Chain(number=len(found), relation=_relation(step, agents, bool(found)), parent=parent)
            found.append(chain)
        chain.steps.append(step)
        tail[step.idx] = chain
    return found


def _relation(step: AttemptStep, agents: Mapping[int, str], others: bool) -> Relation:
    if not others:
        return Relation.MAIN
    parent, agent = step.stored.parent, step.stored.agent
    if parent is not None and agents.get(parent) == agent:
        return Relation.SIBLING if step.stored.kind is StepKind.CONTINUES else Relation.REWRITE
    return Relation.CONVERSATION if parent is None and agents[min(agents)] == agent else Relation.AGENT


class Conversations:
    """The conversations of an attempt's steps. Steps that continue each other share one, made once, so each message is read once."""

    def __init__(self, steps: Sequence[AttemptStep]) -> None:
        self._steps = steps
        # By idx: the conversation, where the messages of the step's request begin in it, and where they end. A reply follows.
        self._known: dict[int, tuple[list[ConversationMessage], int, int]] = {}

    def before(self, step: AttemptStep) -> list[ConversationMessage]:
        """The conversation that `step` answers, from its first message. Empty if the text was too large to be recorded."""
        messages, _, end = self._all()[step.idx]
        return messages[:end]

    def added(self, step: AttemptStep) -> list[ConversationMessage]:
        """The messages that the request of `step` added to the conversation of its parent."""
        messages, begin, end = self._all()[step.idx]
        return messages[begin:end]

    def _all(self) -> Mapping[int, tuple[list[ConversationMessage], int, int]]:
        if not self._known:
            growing: dict[int, History] = {}  # by the idx of the last step
            for step in self._steps:
                history = self._of_parent(step, growing)
                begin = len(history.messages)
                history.add(step)
                self._known[step.idx] = history.messages, begin, len(history.messages)
                history.reply(step)
                growing[step.idx] = history
        return self._known

    def _of_parent(self, step: AttemptStep, growing: dict[int, History]) -> History:
        """The conversation that the step continues: a second answer to one history gets a copy."""
        parent = step.stored.parent
        if step.stored.kind is not StepKind.CONTINUES or parent not in self._known:
            return History()
        if parent in growing:
            return growing.pop(parent)
        messages, _, end = self._known[parent]
        return History(messages[: end + 1])


def tools_of(steps: Sequence[AttemptStep]) -> list[Mapping[str, Any]]:
    """The tools of the first prompt that has any: OpenAI's function form, as in the request."""
    for step in steps:
        for message in step.appended:
            if message.get("role") == TOOLS:
                return list(message.get("tools") or [])
    return []
