"""mini-swe-agent's model, implemented with the standard library: Chat Completions over the gateway's Unix socket.

The program's default model class imports litellm, which costs seconds of CPU at every start. This class sends the same fields (model,
messages, tools), one request per connection. The address comes from the environment: `OPENAI_BASE_URL` (its path counts),
`OPENAI_API_KEY`, `PENSTOCK_GATEWAY_SOCKET`.

Ends of an attempt, by the exit status in the program's trajectory:

    LimitsExceeded    the gateway reports that the session's budget is used up
    GatewayAway       no reply after PATIENCE_S of pauses between requests
    GatewayRefused    an answer that a retry would not change
"""

import http.client
import json
import os
import socket
import time
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import urlsplit

from minisweagent.exceptions import FormatError, LimitsExceeded  # type: ignore[import-not-found]
from minisweagent.models import GLOBAL_MODEL_STATS  # type: ignore[import-not-found]
from minisweagent.models.utils.actions_toolcall import (  # type: ignore[import-not-found]
    BASH_TOOL,
    format_toolcall_observation_messages,
    parse_toolcall_actions,
)
from pydantic import BaseModel

PATIENCE_S: Final = 60.0
MAX_PAUSE_S: Final = 2.0
BUDGET: Final = ("budget_exhausted", "context_length_exceeded")


class GatewayAway(RuntimeError):
    """Signals that the gateway could not be reached or could not serve."""


class GatewayRefused(RuntimeError):
    """Signals an answer of 4xx that is not about the budget."""


class Settings(BaseModel):
    """The section `model` of the program's configuration."""

    model_name: str
    observation_template: str
    format_error_template: str = "{{ error }}"


class GatewayModel:
    """The program's protocol `Model`, with tool calls. Costs are 0: the gateway counts the budgets."""

    def __init__(self, **settings: Any) -> None:
        self.config = Settings(**settings)

    def query(self, messages: list[dict[str, Any]], **_: Any) -> dict[str, Any]:
        """The next assistant message, as it was served, with the actions in `extra`. FormatError without a usable call."""
        history = [{key: value for key, value in message.items() if key != "extra"} for message in messages]
        reply = _post({"model": self.config.model_name, "messages": history, "tools": [BASH_TOOL]})
        GLOBAL_MODEL_STATS.add(0.0)
        choice = reply["choices"][0]
        extra = {"response": reply, "cost": 0.0, "timestamp": time.time()}
        calls = [
            SimpleNamespace(id=call["id"], function=SimpleNamespace(**call["function"]))
            for call in choice["message"].get("tool_calls") or []
        ]
        try:
            actions = parse_toolcall_actions(
                calls,
                format_error_template=self.config.format_error_template,
                template_kwargs={"finish_reason": choice.get("finish_reason")},
            )
        except FormatError as error:
            error.messages[0]["extra"].update(extra)
            raise
        return {**choice["message"], "extra": {"actions": actions, **extra}}

    def format_message(self, **message: Any) -> dict[str, Any]:
        return message

    def format_observation_messages(
        self,
        message: dict[str, Any],
        outputs: list[dict[str, Any]],
        template_vars: dict[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """One tool message per call, by the observation template."""
        found: list[dict[str, Any]] = format_toolcall_observation_messages(
            actions=message.get("extra", {}).get("actions", []),
            outputs=outputs,
            observation_template=self.config.observation_template,
            template_vars=template_vars,
        )
        return found

    def get_template_vars(self, **_: Any) -> dict[str, Any]:
        return self.config.model_dump()

    def serialize(self) -> dict[str, Any]:
        model = {"model": self.config.model_dump(mode="json"), "model_type": type(self).__name__}
        return {"info": {"config": model}}


def _post(body: dict[str, Any]) -> dict[str, Any]:
    """The reply to `body`, sent again until it is answered. The retry header warns the gateway that it may have received it before."""
    data = json.dumps(body).encode()
    retries, pause, paused = 0, 0.1, 0.0
    while True:
        try:
            status, answer = _exchange(data, retries)
        except (OSError, http.client.HTTPException, ValueError) as failure:
            reason = f"{type(failure).__name__}: {failure}"
        else:
            if status == 200:
                return answer
            error = answer.get("error")
            fields = error if isinstance(error, dict) else {}
            reason = str(fields.get("message", answer))
            if fields.get("code") in BUDGET:
                extra = {"exit_status": "LimitsExceeded", "submission": ""}
                raise LimitsExceeded({"role": "exit", "content": reason, "extra": extra})
            if status < 500 and status not in (408, 429):
                raise GatewayRefused(f"{status}: {reason}")
        if paused > PATIENCE_S:
            raise GatewayAway(f"no reply to {retries + 1} requests; the last: {reason}")
        time.sleep(pause)
        retries, pause, paused = retries + 1, min(2 * pause, MAX_PAUSE_S), paused + pause


def _exchange(data: bytes, retries: int) -> tuple[int, dict[str, Any]]:
    """(status, JSON) of one request. ValueError for an answer that is not JSON."""
    connection = _Connection(os.environ["PENSTOCK_GATEWAY_SOCKET"])
    headers = {
        "Content-Type": "application/json",
        "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
        "x-stainless-retry-count": str(retries),
    }
    try:
        path = urlsplit(os.environ["OPENAI_BASE_URL"]).path.rstrip("/")
        connection.request("POST", f"{path}/chat/completions", data, headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
    finally:
        connection.close()
    if not isinstance(answer, dict):
        raise ValueError("the answer is not an object")
    return response.status, answer


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket, without a time limit: the platform may hold a call, and a call that is given up is generated again from its
    beginning. The attempt's own clocks end it."""

    def __init__(self, path: str) -> None:
        super().__init__("gateway")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)
