"""A policy that replies as scripted, and harnesses that replay history their own way, around a real forest."""

import json
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from orchestrator.contracts.ids import Ids, ids_from_bytes, ids_to_bytes
from orchestrator.contracts.marks import Finish
from orchestrator.gateway.completions.parse import parse_action
from orchestrator.gateway.messages.turns import (
    CanonicalCall,
    Turn,
    call_id,
    canonical_json,
    read_messages,
)
from orchestrator.gateway.render import Renderer
from orchestrator.gateway.sessions.forest import Forest, StepOrigin
from orchestrator.gateway.sessions.id_buffer import IdBuffer
from orchestrator.gateway.sessions.node import Node, Placement

Message = dict[str, Any]
TEXTS = ("oak", "elm 12", "a\n\nb", "ünïcode 목", "<|im_end|>", "</think>", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The part of a step's ids that Postgres gets."""

    parent: int | None
    keep_len: int
    delta: bytes
    action: bytes


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Stepped:
    """One call. `message`: the reply as a harness replays it."""

    message: Message
    node: Node
    origin: StepOrigin
    placement: Placement


@dataclass
class Driver:
    """Places, speaks, commits. `stored` folds to every step's full ids, which `step` checks against the sent ids."""

    renderer: Renderer
    forest: Forest = field(init=False)
    stored: list[Stored] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.forest = Forest(self.renderer)

    def step(
        self, messages: list[Message], says: Turn, *, tools: str = "", cut: int | None = None
    ) -> Stepped:
        """One call in which the policy replies `says`. With `cut`, only that many tokens of it, as if stopped by length."""
        placement = self.placing(messages, tools=tools)
        origin = self.forest.classify(placement, None)
        state = np.asarray(placement.ids, dtype="<i4")
        action = self.renderer.action(says)[:cut]
        sent = np.concatenate([state, np.asarray(action, dtype="<i4")])
        idx = len(self.forest.nodes)
        offered = [{"name": call.name, "parameters": {}} for call in says.calls]
        parsed = parse_action(self.renderer, action, offered)
        self.stored.append(
            Stored(
                parent=origin.parent.idx if origin.parent else None,
                keep_len=origin.keep_len if origin.parent else 0,
                delta=ids_to_bytes(state[origin.keep_len if origin.parent else 0 :]),
                action=ids_to_bytes(action),
            )
        )
        assert np.array_equal(self.fold(idx), sent), "the fold of what is stored is what was sent"
        node = Node(
            idx=idx,
            parent=placement.parent,
            history=placement.appended,
            reply=parsed.turn,
            buffer=IdBuffer(sent),
            full_len=len(sent),
            state_len=len(state),
            root=origin.parent.root if origin.parent else idx,
            chain=bytes(32),
            tools=tools,
            agent="main",
            parse=parsed.status,
            ended=action[-1] in self.renderer.stop_ids,
            finish=Finish.STOP,
            digest="",
            versions=(0,),
        )
        self.forest.add(node)
        return Stepped(message=as_message(node), node=node, origin=origin, placement=placement)

    def placing(self, messages: list[Message], *, tools: str = "", before: int | None = None) -> Placement:
        """Where a request belongs, or belonged before the step of that idx; nothing is recorded."""
        return self.forest.place(read_messages(messages)[0], (), tools, before)

    def fold(self, idx: int) -> Ids:
        """The full ids of a step from stored deltas alone."""
        step = self.stored[idx]
        above = (
            self.fold(step.parent)[: step.keep_len] if step.parent is not None else np.empty(0, dtype="<i4")
        )
        return np.concatenate([above, ids_from_bytes(step.delta), ids_from_bytes(step.action)])


def saying(dice: random.Random) -> Turn:
    """A random reply of a policy."""
    calls = tuple(
        CanonicalCall("bash", canonical_json({"command": dice.choice(TEXTS), "n": str(dice.randrange(3))}))
        for _ in range(dice.choice((0, 1, 1, 2)))
    )
    return Turn(
        role="assistant", text=dice.choice(TEXTS), reasoning=dice.choice(TEXTS).strip() or None, calls=calls
    )


def as_message(node: Node) -> Message:
    """A step's reply on the wire."""
    calls = [
        {
            "id": call_id(node.idx, i),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for i, call in enumerate(node.reply.calls)
    ]
    message: Message = {"role": "assistant", "content": node.reply.text, "tool_calls": calls}
    if node.reply.reasoning:
        message["reasoning_content"] = node.reply.reasoning
    return message


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def respond(reply: Message, dice: random.Random) -> list[Message]:
    """The messages that a harness adds: one result per call, sometimes with an interjection, or a user message."""
    results: list[Message] = [
        {"role": "tool", "tool_call_id": call["id"], "content": dice.choice(TEXTS)}
        for call in reply["tool_calls"]
    ]
    interjection = [user(dice.choice(TEXTS))] if dice.random() < 0.2 else []
    return [*results, *interjection] if results else [user(dice.choice(TEXTS))]


def replayed(messages: list[Message], dice: random.Random) -> list[Message]:
    """The same history as another program would write it: spacing and key order of arguments, lists of parts, cache markers, missing
    reasoning, content null."""
    out = []
    for message in messages:
        message = dict(message)
        if message["role"] == "assistant":
            if dice.random() < 0.5:
                message.pop("reasoning_content", None)
            if not message["content"]:
                message["content"] = dice.choice((None, ""))
            message["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": _respelled(call, dice)}}
                for call in message["tool_calls"]
            ]
        elif dice.random() < 0.5:
            marker = {"cache_control": {"type": "ephemeral"}} if dice.random() < 0.5 else {}
            message["content"] = [{"type": "text", "text": message["content"], **marker}]
        out.append(message)
    return out


def _respelled(call: Message, dice: random.Random) -> Any:
    value = json.loads(call["function"]["arguments"])
    items = list(value.items())
    dice.shuffle(items)
    return dice.choice(
        (json.dumps(dict(items), indent=2), json.dumps(dict(items), ensure_ascii=True), dict(items))
    )
