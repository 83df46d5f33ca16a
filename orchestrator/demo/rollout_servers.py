"""What the demo's policy runs on: the embedded rollout server, or a real SGLang that `ops/sglang_cpu` sets up and starts."""

import json
import subprocess
import time
from enum import StrEnum

from rich.console import Console

from orchestrator.contracts.errors import PenstockError
from orchestrator.demo.policy import REPOSITORY

SGLANG = REPOSITORY / "ops" / "sglang_cpu"


class Kind(StrEnum):
    EMBEDDED = "embedded"
    SGLANG = "sglang"


def section(kind: Kind, console: Console) -> str:
    """The `[servers]` section of the demo's configuration. PenstockError with the last line of a set-up that failed."""
    if kind is Kind.EMBEDDED:
        return ""
    started = time.monotonic()
    done = subprocess.run([SGLANG / "setup"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise PenstockError((done.stdout.strip().splitlines() or ["ops/sglang_cpu/setup failed"])[-1])
    console.print(f"SGLang is set up ({time.monotonic() - started:.0f} s)", highlight=False)
    # As the weights are stored: in half precision the canary of this sharply trained policy differs by 0.011, too near to the bound of 0.02.
    command = [
        *(str(SGLANG / "serve"), "--model-path", "{model}", "--port", "{port}"),
        *("--random-seed", "{seed}", "--dtype", "float32"),
    ]
    return f"[servers]\ncommand = {json.dumps(command)}\n\n"
