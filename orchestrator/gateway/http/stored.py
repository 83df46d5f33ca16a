"""Responses and items that a client of the Responses wire refers to by id instead of sending them. They are found in the session's steps.

| id | means |
|---|---|
| `resp_<digest>_<n>` | the n-th answer (from 0, without aborted ones) to the request of that digest, with the conversation before it |
| `msg_s<step>`, `rs_s<step>` | the text, the reasoning of a step |
| `fc_s<step>_<call>`, and with `ctc`, `lsh`, `sh` or `apc` for `fc` | a call of a step, of any tool |
| `msg_h<step>_<n>`, `fco_h<step>_<n>`, `fc_h<step>_<n>_<call>` | the n-th message that came with a step, a result, a call of such a message |

An id locates its step, so it also works after a restart of the gateway and in a resumed attempt. The gateway stores only the ids that do not:
those of retries whose abandoned first call still got a whole answer, after the retry had its id.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.contracts.events import StepTimings
from orchestrator.contracts.marks import Finish
from orchestrator.gateway.http.dialects.opaque_reasoning import keep_reasoning
from orchestrator.gateway.messages.answers import UNKNOWN
from orchestrator.gateway.messages.content import LEFT_KEY
from orchestrator.gateway.messages.requests import Reply
from orchestrator.gateway.messages.turns import (
    INSTRUCTIONS_KEY,
    STEP_KEY,
    Turn,
    call_id,
)
from orchestrator.gateway.sessions.call import CompletionCall
from orchestrator.gateway.sessions.node import Node
from orchestrator.gateway.sessions.session import Session

_RESPONSE = re.compile(r"resp_([0-9a-f]{32})_(0|[1-9][0-9]{0,5})")
_ITEM = re.compile(r"(msg|rs|fc|fco|ctc|lsh|sh|apc)_([sh])([0-9]{1,9})(?:_[0-9]{1,9}){0,2}")
Message = dict[str, Any]


def response_id(session: Session, digest: str, call: CompletionCall) -> str:
    """The id of the response of a call. A reply that is served again has the same id."""
    nodes = session.forest.nodes
    before = nodes[: call.step] if call.succeeded else nodes
    return f"resp_{digest[:32]}_{len(_answers(before, digest[:32]))}"


def name_step(session: Session, identifier: str, step: int) -> bool:
    """Let an id, announced when its call began, name the call's step. Returns whether it has to be saved: it locates another step, or none."""
    if _located(session, identifier) is session.forest.nodes[step]:
        return False
    session.responses[identifier] = step
    return True


def node_of(session: Session, identifier: str) -> Node | None:
    """The step of a response's id; None: it was not served here, or was deleted."""
    if identifier in session.deleted:
        return None
    if (step := session.responses.get(identifier)) is not None:
        return session.forest.nodes[step]
    return _located(session, identifier)


def _located(session: Session, identifier: str) -> Node | None:
    found = _RESPONSE.fullmatch(identifier)
    if found is None:
        return None
    equal = _answers(session.forest.nodes, found[1])
    return equal[int(found[2])] if int(found[2]) < len(equal) else None


def _answers(nodes: Iterable[Node], digest: str) -> list[Node]:
    """The answers to the request whose digest begins so. An aborted one reaches no client, and may be recorded after its retry began."""
    return [
        node
        for node in nodes
        if node.finish != Finish.ABORT and node.digest is not None and node.digest.startswith(digest)
    ]


def resolved(session: Session, ids: Iterable[str]) -> dict[str, Any]:
    """The meaning of ids, in the form of `Known.stored`."""
    found = {identifier: _ITEM.fullmatch(identifier) for identifier in ids}
    served = _served(session, {(part[2], int(part[3])) for part in found.values() if part is not None})
    meanings: dict[str, Any] = {}
    for identifier, part in found.items():
        if part is not None:
            of_call = f"fc{identifier.removeprefix(part[1])}"
            meanings[identifier] = served.get(identifier) or served.get(of_call)
        else:
            node = node_of(session, identifier)
            meanings[identifier] = None if node is None else conversation(node)
    return meanings


def _served(session: Session, places: Iterable[tuple[str, int]]) -> dict[str, Message]:
    """The items of steps by id: of a reply (s), or of the conversation before it (h). The newest conversation holds those before it."""
    nodes, read = session.forest.nodes, set[int]()
    served: dict[str, Message] = {}
    for place, step in sorted(places, key=lambda place: place[1], reverse=True):
        if step >= len(nodes):
            continue
        if place == "s":
            served |= items(nodes[step])
        elif step not in read:
            served |= {item["id"]: item for item in input_items(nodes[step]) or ()}
            read |= {each.idx for each in _path(nodes[step])}
    return served


def items(node: Node) -> dict[str, Message]:
    """The output of a step as items of the wire, by id; a call of any tool has the form of a function call."""
    step, turn = node.idx, node.reply
    found: dict[str, Message] = {}
    if turn.reasoning is not None:
        found[f"rs_s{step}"] = {
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": turn.reasoning}],
            "encrypted_content": keep_reasoning(step, turn.reasoning),
        }
    if turn.text or (turn.reasoning is None and not turn.calls):
        part = {"type": "output_text", "text": turn.text, "annotations": [], "logprobs": []}
        found[f"msg_s{step}"] = {"type": "message", "role": "assistant", "content": [part]}
    for index, call in enumerate(turn.calls):
        fields = {"call_id": call_id(step, index), "name": call.name, "arguments": call.arguments}
        found[f"fc_s{step}_{index}"] = {"type": "function_call", **fields}
    return {name: {"id": name, "status": "completed", **item} for name, item in found.items()}


def conversation(node: Node) -> list[Message] | None:
    """The conversation up to and including a step's reply, in chat form; None if its text was too large to be recorded."""
    placed = _placed(node)
    return None if placed is None else [message for _, message in placed]


def _placed(node: Node) -> list[tuple[str, Message]] | None:
    """The same, each message with the end of its ids: its step, and its place among the messages that came with the step. So an id has one
    meaning in all branches of a session."""
    path = list(_path(node))
    if not path[-1].history:
        return None
    placed: list[tuple[str, Message]] = []
    called: list[list[str]] = []
    for each in reversed(path):
        for number, turn in enumerate(each.history):
            stem = f"h{each.idx}_{number}"
            ids = [f"call_{stem}_{index}" for index in range(len(turn.calls))]
            placed.append((stem, _message(turn, ids, called)))
        ids = [call_id(each.idx, index) for index in range(len(each.reply.calls))]
        placed.append((f"s{each.idx}", {**_message(each.reply, ids, called), STEP_KEY: each.idx}))
    return placed


def _message(turn: Turn, ids: list[str], called: list[list[str]]) -> Message:
    """A turn in chat form; `called`: the ids of the calls before it. The turn's own ids are added to it."""
    message: Message = {"role": turn.role, "content": turn.text}
    if turn.left_out:
        message[LEFT_KEY] = list(turn.left_out)
    if turn.instructions:
        message[INSTRUCTIONS_KEY] = True
    if turn.reasoning is not None:
        message["reasoning_content"] = turn.reasoning
    if ids:
        message["tool_calls"] = [
            {"id": identifier, "function": {"name": call.name, "arguments": call.arguments}}
            for identifier, call in zip(ids, turn.calls, strict=True)
        ]
        called.append(ids)
    if turn.role == "tool" and turn.answers is not None:
        answers = turn.answers
        known = answers != UNKNOWN and answers.back < len(called)
        message["tool_call_id"] = called[-1 - answers.back][answers.call] if known else "unknown"
    return message


def input_items(node: Node) -> list[Message] | None:
    """The conversation before a step's reply as items of the wire, oldest first; None as for `conversation`."""
    placed = _placed(node)
    if placed is None:
        return None
    steps = {each.idx: each for each in _path(node)}
    found: list[Message] = []
    for stem, message in placed[:-1]:
        if message.get(INSTRUCTIONS_KEY):
            continue
        if STEP_KEY in message:
            found += items(steps[message[STEP_KEY]]).values()
        elif message["role"] == "tool":
            fields = {"call_id": message.get("tool_call_id"), "output": message["content"]}
            found.append(
                {"id": f"fco_{stem}", "type": "function_call_output", "status": "completed", **fields}
            )
        else:
            found += _others(stem, message)
    return found


def _others(stem: str, message: Mapping[str, Any]) -> Iterable[Message]:
    """Items of a message that no step produced."""
    from_assistant = message["role"] == "assistant"
    if message["content"] or not message.get("tool_calls"):
        part = {"type": "output_text" if from_assistant else "input_text", "text": message["content"]}
        extra: Message = {"annotations": [], "logprobs": []} if from_assistant else {}
        yield {
            "id": f"msg_{stem}",
            "type": "message",
            "role": message["role"],
            "status": "completed",
            "content": [{**part, **extra}],
        }
    for number, call in enumerate(message.get("tool_calls") or ()):
        fields = {"call_id": call["id"], **call["function"]}
        yield {"id": f"fc_{stem}_{number}", "type": "function_call", "status": "completed", **fields}


def _path(node: Node) -> Iterable[Node]:
    current: Node | None = node
    while current is not None:
        yield current
        current = current.parent


def reply_of(node: Node) -> Reply:
    """The reply of a recorded step, as it was served."""
    return Reply(
        step=node.idx,
        turn=node.reply,
        finish=node.finish,
        parse=node.parse,
        prompt_tokens=node.state_len,
        completion_tokens=len(node.action),
        timings=StepTimings(),
    )
