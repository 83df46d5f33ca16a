"""An agent program by the standard library. It asks for its turns whatever it is told, and tells a witness what it received.

The witness listens at the same socket: a connection that begins with WITNESS is for it. It hears of an answer before the program goes on.
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
SOCKET = os.environ["PENSTOCK_SOCKET"]
TOKEN = os.environ["PENSTOCK_TOKEN"]
BASE = urlsplit(os.environ["PENSTOCK_BASE_URL"]).path


class Gateway(http.client.HTTPConnection):
    """HTTP over the gateway's Unix socket."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(SOCKET)


def complete(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The next assistant message. A lost connection or a busy gateway is tried again with the same body."""
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    for number in range(TRIES):
        connection = Gateway("gateway")
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
            pass  # the gateway is away, or was while it answered
        finally:
            connection.close()
        time.sleep(min(1.0, 0.05 * 2**number))
    sys.exit("the policy does not answer")


def clean(value: Any) -> Any:
    """Text as a text column can hold it."""
    if isinstance(value, str):
        return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    return [clean(item) for item in value] if isinstance(value, list) else value


def digest_of(message: dict[str, Any]) -> str:
    """Of what was said: text, reasoning, calls."""
    calls = [
        [call["function"]["name"], json.loads(call["function"]["arguments"])]
        for call in message.get("tool_calls") or []
    ]
    said = clean([message.get("content") or "", message.get("reasoning_content"), calls])
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def tell(message: dict[str, Any]) -> None:
    """The witness hears it, or is away: then this answer is not in the ledger."""
    line = {"session": hashlib.sha256(TOKEN.encode()).hexdigest(), "digest": digest_of(message)}
    try:
        with socket.socket(socket.AF_UNIX) as witness:
            witness.settimeout(5)
            witness.connect(SOCKET)
            witness.sendall(b"WITNESS\n" + json.dumps(line).encode() + b"\n")
    except OSError:
        pass


def main() -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": sys.stdin.read()}]
    for number in range(int(os.environ["PENSTOCK_TURNS"])):
        message = complete(messages)
        tell(message)
        messages += [message, {"role": "user", "content": f"go on: {number}"}]
        time.sleep(PAUSE_S)
    print("done")


if __name__ == "__main__":
    main()
