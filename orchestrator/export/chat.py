"""Conversations as chat messages in OpenAI's form, for Parquet and the public API."""

from collections.abc import Sequence
from typing import Any

from orchestrator.export.conversation import before
from orchestrator.queries.attempts import AttemptStep
from orchestrator.queries.chat import TOOLS, chat_message, reply


def conversation(steps: Sequence[AttemptStep], step: AttemptStep) -> list[dict[str, Any]]:
    """The whole conversation from its first message to the reply of `step`."""
    return [chat_message(each) for each in (*before(steps, step), reply(step))]


def added_messages(steps: Sequence[AttemptStep], step: AttemptStep) -> list[dict[str, Any]]:
    """The messages that the request of `step` added to the conversation."""
    messages = before(steps, step)
    count = sum(message.get("role") != TOOLS for message in step.appended)
    return [chat_message(each) for each in messages[len(messages) - count :]]
