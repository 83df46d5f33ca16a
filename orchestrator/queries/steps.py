"""Steps of a trajectory as a conversation: the appended messages and the policy's answer, cut to the size of a page."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.errors import NotFoundError
from orchestrator.contracts.states import StepKind
from orchestrator.queries.chat import TOOLS, ConversationMessage, History, chat_message
from orchestrator.queries.texts import (
    SHOWN,
    Cut,
    cut,
    cut_or_none,
)

PAGE = 20
PAGE_BYTES = 4_000_000  # stored bytes of messages at which a page ends early: at least one step is in it


@dataclass(frozen=True, slots=True)
class ShownCall:
    """A tool call. `arguments`: JSON text."""

    name: str
    arguments: Cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. `at`: its index among the messages that the step appended, used to fetch its whole text."""

    at: int
    role: str
    content: Cut
    reasoning: Cut | None
    calls: list[ShownCall]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepText:
    """A step's texts. `appended`: the messages that its request added to the conversation it continues, or the whole conversation if it
    continues none; the first `known` of these also belong to step `near`. `tools`: names of the tools in the prompt, if the step started a
    conversation. `text_left_out`: the messages were too large to be recorded with the token ids."""

    idx: int
    tools: list[str]
    appended: list[Message]
    known: int
    near: int | None
    reasoning: Cut | None
    content: Cut
    calls: list[ShownCall]
    text_left_out: bool


@dataclass(frozen=True, slots=True)
class _Recorded:
    """`queries.chat.RecordedTexts`."""

    idx: int
    appended: list[dict[str, Any]]
    reply: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPage:
    """Steps from one idx on. `next`: start of the next page; None after the last step."""

    rollout_id: int
    attempt: int
    steps: list[StepText]
    next: int | None


_SIZES = text(
    """SELECT s.idx, coalesce(pg_column_size(m.appended) + pg_column_size(m.reply), 0) AS bytes
         FROM steps s LEFT JOIN messages m
           ON m.run_id = s.run_id AND m.rollout_id = s.rollout_id AND m.attempt = s.attempt AND m.idx = s.idx
        WHERE s.run_id = :run AND s.rollout_id = :rollout AND s.attempt = :attempt AND s.idx >= :first
        ORDER BY s.idx LIMIT :n"""
)
_TEXTS = text(
    """SELECT s.idx, s.kind, s.branch, s.state_len - s.keep_len AS added, m.appended, m.reply
         FROM steps s LEFT JOIN messages m
           ON m.run_id = s.run_id AND m.rollout_id = s.rollout_id AND m.attempt = s.attempt AND m.idx = s.idx
        WHERE s.run_id = :run AND s.rollout_id = :rollout AND s.attempt = :attempt AND s.idx = ANY(:steps)
        ORDER BY s.idx"""
)
_ONE = text(
    """SELECT appended, reply FROM messages
        WHERE run_id = :run AND rollout_id = :rollout AND attempt = :attempt AND idx = :idx"""
)
_CONVERSATION = text(
    """WITH RECURSIVE w AS (
         SELECT idx, parent_idx, kind FROM steps
          WHERE run_id = :run AND rollout_id = :rollout AND attempt = :attempt AND idx = :idx
         UNION ALL
         SELECT s.idx, s.parent_idx, s.kind FROM w JOIN steps s
             ON s.run_id = :run AND s.rollout_id = :rollout AND s.attempt = :attempt AND s.idx = w.parent_idx
          WHERE w.kind = 'continues')
       SELECT w.idx, m.appended, m.reply FROM w LEFT JOIN messages m
           ON m.run_id = :run AND m.rollout_id = :rollout AND m.attempt = :attempt AND m.idx = w.idx
        ORDER BY w.idx"""
)


async def steps(
    connection: AsyncConnection,
    run_id: int,
    rollout_id: int,
    attempt: int,
    *,
    first: int = 0,
    n: int = PAGE,
    limit: int = SHOWN,
) -> StepPage:
    """Up to `n` steps of an attempt from idx `first` on, each text cut at `limit` characters."""
    key = {"run": run_id, "rollout": rollout_id, "attempt": attempt}
    sizes = (await connection.execute(_SIZES, {**key, "first": first, "n": n + 1})).all()
    chosen: list[int] = []
    bytes_ = 0
    for row in sizes[:n]:
        bytes_ += row.bytes
        if chosen and bytes_ > PAGE_BYTES:
            break
        chosen.append(row.idx)
    rows = await connection.execute(_TEXTS, {**key, "steps": chosen})
    texts = [
        _step_text(row.idx, row.kind, row.branch, row.added, row.appended or [], row.reply or {}, limit)
        for row in rows
    ]
    following = sizes[len(chosen)].idx if len(sizes) > len(chosen) else None
    return StepPage(rollout_id=rollout_id, attempt=attempt, steps=texts, next=following)


async def whole_step_text(
    connection: AsyncConnection, run_id: int, rollout_id: int, attempt: int, idx: int, part: str
) -> str:
    """A text that a page cut. `part`: content, reasoning, calls.N (of the reply), or appended.N.content, appended.N.reasoning,
    appended.N.calls.M. Raises NotFoundError."""
    row = (
        await connection.execute(_ONE, {"run": run_id, "rollout": rollout_id, "attempt": attempt, "idx": idx})
    ).first()
    missing = NotFoundError(f"rollout {rollout_id}, attempt {attempt}, step {idx} has no text {part!r}")
    if row is None:
        raise missing
    keys = part.split(".")
    message: Any = row.reply or {}
    try:
        if keys[0] == "appended":
            message = _plain(row.appended or [])[int(keys[1])]
            keys = keys[2:]
        if keys[0] == "calls" and len(keys) == 2:
            return _arguments(message["tool_calls"][int(keys[1])])
        if keys == ["content"] or keys == ["reasoning"]:
            return str(message.get(keys[0]) or "")
    except (LookupError, ValueError, TypeError):
        raise missing from None
    raise missing


async def conversation(
    connection: AsyncConnection, run_id: int, rollout_id: int, attempt: int, idx: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(messages, tools) of a step's prompt: its whole conversation before the answer, in OpenAI's chat form. Raises NotFoundError if the step
    does not exist, or if a text of the conversation was too large to be recorded."""
    key = {"run": run_id, "rollout": rollout_id, "attempt": attempt, "idx": idx}
    rows = (await connection.execute(_CONVERSATION, key)).all()
    if not rows or rows[-1].idx != idx:
        raise NotFoundError(f"rollout {rollout_id}, attempt {attempt} has no step {idx} in this run")
    history = History()
    tools: list[dict[str, Any]] = []
    for row in rows:
        step = _Recorded(row.idx, list(row.appended or []), row.reply or {})
        if not step.appended:
            raise NotFoundError(
                f"the messages of step {row.idx} were too large to be recorded with its token ids, so its request is unknown"
            )
        if step.appended[0].get("role") == TOOLS:
            tools = list(step.appended[0].get("tools") or [])
        history.add(step)
        if step.idx != idx:
            history.reply(step)
    return [_as_request(message) for message in history.messages], tools


def _as_request(message: ConversationMessage) -> dict[str, Any]:
    """A chat message. The result of an unknown call gets an id that no call has: without one, a gateway takes it for the next open call's."""
    chat = chat_message(message)
    return {"tool_call_id": "unknown", **chat} if message.role == "tool" else chat


async def curl(connection: AsyncConnection, run_id: int, rollout_id: int, attempt: int, idx: int) -> str:
    """A shell command that repeats this step at the gateway, in OpenAI's chat form. Address and token of a session are variables that its
    user sets. It is ASCII on one line: it is safe to paste into a terminal. Raises NotFoundError."""
    messages, tools = await conversation(connection, run_id, rollout_id, attempt, idx)
    sampling = await connection.scalar(
        text(
            """SELECT p.params FROM steps s JOIN sampling p ON p.sampling_id = s.sampling_id
                WHERE s.run_id = :run AND s.rollout_id = :rollout AND s.attempt = :attempt AND s.idx = :idx"""
        ),
        {"run": run_id, "rollout": rollout_id, "attempt": attempt, "idx": idx},
    )
    body: dict[str, Any] = {"model": "policy", "messages": messages}
    if tools:
        body["tools"] = [_tool(tool) for tool in tools]
    for key in ("temperature", "top_p"):
        if isinstance(sampling, dict) and key in sampling:
            body[key] = sampling[key]
    quoted = shlex.quote(json.dumps(body, ensure_ascii=True))
    return (
        'curl "$GATEWAY_URL/v1/chat/completions" -H "Authorization: Bearer $SESSION_TOKEN" '
        f"-H 'Content-Type: application/json' --data-raw {quoted}"
    )


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    return tool if tool.get("type") == "function" else {"type": "function", "function": tool}


def _plain(appended: Sequence[Any]) -> list[dict[str, Any]]:
    """The messages among those that a step appended, without the leading entry for its prompt's tools, which has a role of its own."""
    return [m for m in appended if isinstance(m, dict) and m.get("role") != TOOLS]


def _step_text(
    idx: int, kind: str, branch: Any, added: int, appended: Sequence[Any], reply: dict[str, Any], limit: int
) -> StepText:
    shown = (
        appended[0] if appended and isinstance(appended[0], dict) and appended[0].get("role") == TOOLS else {}
    )
    tools = [
        str(_tool(tool)["function"].get("name", ""))
        for tool in shown.get("tools") or []
        if isinstance(tool, dict)
    ]
    messages = [_message(at, message, limit) for at, message in enumerate(_plain(appended))]
    rewrite = branch if kind == StepKind.REWRITES and isinstance(branch, dict) else {}
    turn = rewrite.get("turn")
    return StepText(
        idx=idx,
        tools=tools,
        appended=messages,
        known=min(turn, len(messages)) if isinstance(turn, int) and turn > 0 else 0,
        near=rewrite.get("near") if isinstance(rewrite.get("near"), int) else None,
        reasoning=cut_or_none(_as_text(reply.get("reasoning")), limit),
        content=cut(_as_text(reply.get("content")), limit),
        calls=_calls(reply, limit),
        text_left_out=not messages and added > 0,
    )


def _message(at: int, message: dict[str, Any], limit: int) -> Message:
    return Message(
        at=at,
        role=str(message.get("role", "")),
        content=cut(_as_text(message.get("content")), limit),
        reasoning=cut_or_none(_as_text(message.get("reasoning")), limit),
        calls=_calls(message, limit),
    )


def _as_text(value: Any) -> str:
    """A text field as text; any other recorded value as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def _calls(message: dict[str, Any], limit: int) -> list[ShownCall]:
    calls = message.get("tool_calls") or []
    return [
        ShownCall(
            str(call.get("name") or call.get("function", {}).get("name") or ""), cut(_arguments(call), limit)
        )
        for call in calls
        if isinstance(call, dict)
    ]


def _arguments(call: dict[str, Any]) -> str:
    arguments = call.get("function", call).get("arguments")
    if isinstance(arguments, str):
        return arguments
    return json.dumps(arguments, ensure_ascii=False)
