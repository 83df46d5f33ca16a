"""A rollout server process for tests, embedded or a real SGLang, and recorded answers of SGLang 0.5.23 to hold the embedded one to."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.waiting import eventually_blocking

REPOSITORY = Path(__file__).parents[2]
GOLDEN = REPOSITORY / "tests" / "wire" / "golden" / "sglang"

KINDS = ("embedded", "sglang")
START_S = 240.0  # SGLang imports 60 s of Python on a busy machine, once twice that
STOP_S = 20.0  # SGLang takes 7 s


@dataclass(frozen=True, slots=True)
class ServerProcess:
    url: str
    pid: int
    process: "subprocess.Popen[bytes]"


@contextmanager
def running_server(model: Path, *options: str, kind: str = "embedded") -> Iterator[ServerProcess]:
    """Start on a free port, wait until it serves, stop by SIGTERM; nothing of its process group stays behind."""
    program, serves = {
        "embedded": (
            (sys.executable, "-m", "trainer.serving", "--port", "0", "--seed", "0"),
            r'"port": (\d+),.*"event": "listening"',
        ),
        "sglang": (
            (str(REPOSITORY / "ops" / "sglang_cpu" / "serve"),),
            r"(?s)running on http://127\.0\.0\.1:(\d+).*fired up and ready",
        ),
    }[kind]
    with tempfile.TemporaryFile() as log:  # an unread pipe would stop the server
        process = subprocess.Popen(
            [*program, "--model-path", str(model), *options], stdout=log, stderr=log, start_new_session=True
        )

        def output() -> str:
            return os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0).decode(errors="replace")

        try:

            def serving() -> re.Match[str] | None:
                found = re.search(serves, output())
                assert found or process.poll() is None, f"the server ended before it listened:\n{output()}"
                return found

            try:
                found = eventually_blocking(serving, within_s=START_S, every_s=0.05)
            except TimeoutError:
                raise AssertionError(f"the server does not serve after {START_S} s:\n{output()}") from None
            assert found is not None
            yield ServerProcess(f"http://127.0.0.1:{found[1]}", process.pid, process)
        finally:
            _end(process)
            print(output()[-20_000:], file=sys.stderr)  # shown by pytest when a test failed


def _end(process: "subprocess.Popen[bytes]") -> None:
    """SIGTERM, patience, then SIGKILL to the rest of the group, while the dead leader still holds its number."""
    if process.returncode is not None:
        return
    handle = os.pidfd_open(process.pid)
    try:
        process.send_signal(signal.SIGTERM)
        select.select([handle], [], [], STOP_S)
    finally:
        os.close(handle)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


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
