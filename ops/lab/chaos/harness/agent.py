"""An agent program that uses only the standard library. It requests a fixed number of turns and reports every answer to a witness.

The witness listens at the same socket: a connection that starts with WITNESS is for it. The program reports each answer before it continues.
"""

import hashlib
import http.client
import json
import os
import socket
import sys
import time
from typing import Any
from urllib.parse import urlsplit

TRIES = 40
PAUSE_S = 0.1
POISON = "Poison: "  # begins the instruction of a task whose agent leaves poison behind
SOCKET = os.environ["PENSTOCK_SOCKET"]
TOKEN = os.environ["PENSTOCK_TOKEN"]
BASE = urlsplit(os.environ["PENSTOCK_BASE_URL"]).path


class GatewayConnection(http.client.HTTPConnection):
    """HTTP over the gateway's Unix socket."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(SOCKET)


def complete(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The next assistant message. After a lost connection or from a busy gateway, the same body is sent again."""
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    for number in range(TRIES):
        connection = GatewayConnection("gateway")
        headers = {
            "Authorization": f"Bearer {TOKEN}",
            "Content-Type": "application/json",
            "X-Stainless-Retry-Count": str(number),
        }
        try:
            connection.request("POST", f"{BASE}/chat/completions", body, headers)
            answer = connection.getresponse()
            raw = answer.read()
            if answer.status == 200:
                message: dict[str, Any] = json.loads(raw)["choices"][0]["message"]
                return message
            if answer.status not in (408, 429) and answer.status < 500:
                sys.exit(f"{answer.status}: {raw.decode(errors='replace')}")
        except (OSError, http.client.HTTPException, ValueError):
            pass  # the gateway is down, or stopped while it answered
        finally:
            connection.close()
        time.sleep(min(1.0, 0.05 * 2**number))
    sys.exit("the policy does not answer")


def clean(value: Any) -> Any:
    """The value with its text in a form that a text column can hold."""
    if isinstance(value, str):
        return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    return [clean(item) for item in value] if isinstance(value, list) else value


def digest_of(message: dict[str, Any]) -> str:
    """The digest of a message's text, reasoning and calls."""
    calls = [
        [call["function"]["name"], json.loads(call["function"]["arguments"])]
        for call in message.get("tool_calls") or []
    ]
    reply = clean([message.get("content") or "", message.get("reasoning_content"), calls])
    return hashlib.sha256(json.dumps(reply, sort_keys=True).encode()).hexdigest()


def tell(message: dict[str, Any]) -> None:
    """Report an answer to the witness. If the witness is down, the answer is not in the ledger."""
    line = {"session": hashlib.sha256(TOKEN.encode()).hexdigest(), "digest": digest_of(message)}
    try:
        with socket.socket(socket.AF_UNIX) as witness:
            witness.settimeout(5)
            witness.connect(SOCKET)
            witness.sendall(b"WITNESS\n" + json.dumps(line).encode() + b"\n")
    except OSError:
        pass


def main() -> None:
    instruction = sys.stdin.read()
    messages: list[dict[str, Any]] = [{"role": "user", "content": instruction}]
    for number in range(int(os.environ["PENSTOCK_TURNS"])):
        message = complete(messages)
        tell(message)
        messages += [message, {"role": "user", "content": f"go on: {number}"}]
        time.sleep(PAUSE_S)
    if instruction.startswith(POISON):
        sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
        import poison  # type: ignore[import-not-found]  # next to this file in the sandbox

        poison.leave(instruction.removeprefix(POISON).strip())
    else:
        print("done")


if __name__ == "__main__":
    main()
