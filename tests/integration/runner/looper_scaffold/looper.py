"""A harness that knows nothing of Penstock: OpenAI's wire over a Unix socket, a shell, and a file for its answer. SOCKET INSTRUCTION."""

import http.client
import json
import os
import socket
import subprocess
import sys
import urllib.parse
from typing import Any

BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}


class Connection(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(sys.argv[1])


def complete(messages: list[dict[str, Any]]) -> dict[str, Any]:
    url = urllib.parse.urlsplit(os.environ["BASE_URL"])
    connection = Connection(url.netloc)
    body = json.dumps({"model": "policy", "messages": messages, "tools": [BASH]})
    headers = {"Authorization": f"Bearer {os.environ['API_KEY']}", "Content-Type": "application/json"}
    connection.request("POST", f"{url.path}/chat/completions", body, headers)
    answer = connection.getresponse()
    if answer.status != 200:
        sys.exit(f"{answer.status}: {answer.read().decode()}")
    message: dict[str, Any] = json.loads(answer.read())["choices"][0]["message"]
    return message


messages = [{"role": "user", "content": sys.argv[2]}]
while True:
    reply = complete(messages)
    messages.append(reply)
    if not reply.get("tool_calls"):
        break
    for call in reply["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": ran.stdout or "ok"})
with open("/logs/answer.txt", "w") as file:
    file.write(reply["content"])
