"""Conversations as chat messages in OpenAI's form, for Parquet and the public API."""

from typing import Any

from orchestrator.export.conversation import Conversations
from orchestrator.queries.attempts import AttemptStep
from orchestrator.queries.chat import chat_message, reply


def conversation(found: Conversations, step: AttemptStep) -> list[dict[str, Any]]:
    """The whole conversation from its first message to the reply of `step`."""
    return [chat_message(each) for each in (*found.before(step), reply(step))]


def added_messages(found: Conversations, step: AttemptStep) -> list[dict[str, Any]]:
    """The messages that the request of `step` added to the conversation."""
    return [chat_message(each) for each in found.added(step)]
