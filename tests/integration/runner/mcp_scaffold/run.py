"""A harness that sends one request to each MCP server of its configuration file, and passes the answers on."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

settings = json.loads(Path("/home/agent/settings.json").read_text())
assert settings["context"] > 0
answers: dict[str, str | list[str]] = {}
for name, server in settings["mcpServers"].items():
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize"}) + "\n"
    ran = subprocess.run(
        [server["command"], *server["args"]], input=line, capture_output=True, text=True, check=True
    )
    answers[name] = ran.stdout.strip()
answers["skills"] = sorted(path.name for path in Path("/home/agent/.skills").iterdir())
Path("/app/answers.json").write_text(json.dumps(answers))
body = json.dumps(
    {"model": "policy", "messages": [{"role": "user", "content": f"{sys.argv[1]} {json.dumps(answers)}"}]}
)
request = urllib.request.Request(
    f"{os.environ['BASE_URL']}/chat/completions",
    body.encode(),
    {"Authorization": f"Bearer {os.environ['API_KEY']}", "Content-Type": "application/json"},
)
with urllib.request.urlopen(request) as answer:
    content = json.load(answer)["choices"][0]["message"]["content"]
Path("/logs/answer.txt").write_text(content)
