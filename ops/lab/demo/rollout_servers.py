"""The rollout server of the demo: the embedded one, or a real SGLang that `ops/sglang_cpu` sets up and starts."""

import json
import subprocess
import time

from rich.console import Console

from ops.lab.demo.policy import REPOSITORY
from orchestrator.contracts.errors import PenstockError
from orchestrator.deploy.cluster.topology import ServerEngine

SGLANG = REPOSITORY / "ops" / "sglang_cpu"


def section(kind: ServerEngine, console: Console) -> str:
    """The `[servers]` section of the demo's configuration. Raises PenstockError with the last line of a failed set-up."""
    if kind is ServerEngine.EMBEDDED:
        return ""
    started = time.monotonic()
    done = subprocess.run([SGLANG / "setup"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise PenstockError((done.stdout.strip().splitlines() or ["ops/sglang_cpu/setup failed"])[-1])
    console.print(f"SGLang is set up ({time.monotonic() - started:.0f} s)", highlight=False)
    # The dtype of the stored weights: in half precision this sharply trained policy's canary differs by 0.011, too close to the bound of 0.02.
    command = [
        *(str(SGLANG / "serve"), "--model-path", "{model}", "--port", "{port}"),
        *("--dtype", "float32"),
    ]
    return f"[servers]\ncommand = {json.dumps(command)}\n\n"
