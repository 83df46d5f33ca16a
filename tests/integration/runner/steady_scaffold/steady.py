"""A program that takes ten turns, each with the output of its own commands. Its bodies carry a session id of its own. INSTRUCTION."""

import json
import os
import subprocess
import sys
import urllib.request
import uuid
from typing import Any

SESSION = str(uuid.uuid4())


def complete(messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = {"model": "policy", "messages": messages, "max_tokens": 12, "user": SESSION}
    request = urllib.request.Request(
        os.environ["BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {os.environ['API_KEY']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        message: dict[str, Any] = json.load(answer)["choices"][0]["message"]
    return message


messages = [{"role": "user", "content": sys.argv[1]}]
for turn in range(10):
    messages.append(complete(messages))
    ran = subprocess.run(
        ["bash", "-c", f"echo {turn} >> log; cat log"], capture_output=True, text=True, check=True
    )
    messages.append({"role": "user", "content": ran.stdout})
print("done")
