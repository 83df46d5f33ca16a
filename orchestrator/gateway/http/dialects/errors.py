"""The form of a refusal on each wire, and the wire of a request that no dialect handled."""

from collections.abc import Mapping
from typing import Any

from orchestrator.gateway.problems import Problem

_OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    417: "invalid_request_error",
    431: "invalid_request_error",
}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    417: "invalid_request_error",
    431: "invalid_request_error",
    503: "overloaded_error",
}
CONTEXT_LENGTH = "context_length_exceeded"
"""OpenAI's code for a full context, by which programs recognize one."""


def openai_code(problem: Problem) -> str:
    """The code of a refusal in OpenAI's words."""
    return CONTEXT_LENGTH if problem.full_context else problem.code


def openai_error(problem: Problem) -> dict[str, Any]:
    """The error body of Chat Completions and Responses."""
    return {
        "error": {
            "message": problem.message,
            "type": _OPENAI_TYPES.get(problem.status, "server_error"),
            "param": problem.param,
            "code": openai_code(problem),
        }
    }


def anthropic_error(problem: Problem) -> dict[str, Any]:
    """The error body of Anthropic Messages, and the data of its error event."""
    kind = _ANTHROPIC_TYPES.get(problem.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": problem.message}}


def error_for(path: str, headers: Mapping[str, str], problem: Problem) -> dict[str, Any]:
    """The error of a request that no dialect handled. The path shows the wire, or the header that all clients of Anthropic's send."""
    if "/v1/messages" in path or "anthropic-version" in headers:
        return anthropic_error(problem)
    return openai_error(problem)
