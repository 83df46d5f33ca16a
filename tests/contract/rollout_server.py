"""A real rollout server process for tests, and the recorded answers of a real SGLang 0.5.23 server to hold it to."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "wire" / "golden" / "sglang"


@dataclass(frozen=True, slots=True)
class ServerProcess:
    url: str
    pid: int
    process: "subprocess.Popen[str]"


@contextmanager
def running_server(model: Path, *options: str) -> Iterator[ServerProcess]:
    """Start on a free port, wait until it listens, stop by SIGTERM."""
    command = [sys.executable, "-m", "trainer.serving", "--model-path", str(model), "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        said = []
        for line in process.stderr:
            said.append(line)
            if line.startswith("{") and json.loads(line).get("event") == "listening":
                port = json.loads(line)["port"]
                yield ServerProcess(f"http://127.0.0.1:{port}", process.pid, process)
                break
        else:
            raise AssertionError("the server ended before it listened:\n" + "".join(said))
    finally:
        process.send_signal(signal.SIGTERM)
        print(process.communicate(timeout=10)[1], file=sys.stderr)  # shown by pytest when a test failed


def golden(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(request, response) of one recorded exchange; trimmed id lists are written out again."""
    exchange = json.loads((GOLDEN / f"{name}.json").read_text())
    body = exchange["request"]["body"]
    ids = (body or {}).get("input_ids") if isinstance(body, dict) else None
    if ids and isinstance(ids[-1], str):
        (count,) = re.findall(r"<(\d+) ids>", ids[-1])
        body["input_ids"] = [ids[0]] * int(count)
    return exchange["request"], exchange["response"]


def shape(value: Any) -> Any:
    """A value without its content: keys, element types, nesting. Whole and fractional numbers are one type."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items()}
    if isinstance(value, list):
        kept = [one for one in value if not (isinstance(one, str) and one.startswith("...<"))]
        shapes = [shape(one) for one in kept]
        return [one for i, one in enumerate(shapes) if one not in shapes[:i]]
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return type(value).__name__
    return "number"
