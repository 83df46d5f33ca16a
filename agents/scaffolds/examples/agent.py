"""An agent program: Chat Completions by the standard library, one tool, its answer in a file. It does not depend on Penstock.

python3 agent.py INSTRUCTION        OPENAI_BASE_URL and OPENAI_API_KEY give the address of the policy
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command in the work directory and see what it prints.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}
TRIES = 30
AT_ONCE = 8  # tool calls of one message that run at the same time
COMMAND_S = 60  # the most seconds of one command
OBSERVATION = 10_000  # characters of an output that the policy sees


def complete(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The next assistant message. A busy or lost connection is retried with the same body; any other error ends the program."""
    body = json.dumps({"model": "policy", "messages": messages, "tools": [BASH]}).encode()
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    for number in range(TRIES):
        request = urllib.request.Request(
            os.environ["OPENAI_BASE_URL"] + "/chat/completions",
            body,
            {**headers, "x-stainless-retry-count": str(number)},
        )
        try:
            with urllib.request.urlopen(request) as answer:
                message: dict[str, Any] = json.load(answer)["choices"][0]["message"]
                return message
        except urllib.error.HTTPError as error:
            if error.code not in (408, 429) and error.code < 500:
                sys.exit(f"{error.code}: {error.read().decode(errors='replace')}")
        except OSError:
            pass
        time.sleep(min(2.0, 0.1 * 2**number))
    sys.exit("the policy does not answer")


def run(call: dict[str, Any]) -> str:
    """The policy's view of one tool call."""
    try:
        return shell(json.loads(call["function"]["arguments"])["command"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        return f"error: {error}"


def shell(command: str) -> str:
    """The head and the tail of a command's output, and how it ended. Its background processes live on, and hold a file open instead of a pipe."""
    with tempfile.TemporaryFile() as file:
        process = subprocess.Popen(
            ["bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            end = f"exit {process.wait(COMMAND_S)}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            end = f"killed after {COMMAND_S} s"
        printed = os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)
    text = printed.decode(errors="replace").rstrip()
    if len(text) > OBSERVATION:
        half = OBSERVATION // 2
        text = f"{text[:half]}\n[{len(text) - OBSERVATION:,} characters left out]\n{text[-half:]}"
    return f"{text}\n{end}" if text and end != "exit 0" else text or end


def main() -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": sys.argv[1]}]
    while True:
        reply = complete(messages)
        messages.append(reply)
        if not reply.get("tool_calls"):
            break
        with ThreadPoolExecutor(AT_ONCE) as pool:  # results in the order of the calls
            for call, content in zip(reply["tool_calls"], pool.map(run, reply["tool_calls"]), strict=True):
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    with open("/logs/answer.txt", "w") as file:
        file.write(reply.get("content") or "")


if __name__ == "__main__":
    main()
