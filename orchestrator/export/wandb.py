"""W&B, offline: a run's directory for `wandb sync`. The package claims a process, its signals and its environment, so it gets its own."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from orchestrator.contracts.errors import PenstockError
from orchestrator.export.packages import need
from orchestrator.queries.scalars import RunScalars

MAX_S = 600.0


class Wandb:
    """`wandb/offline-run-<time>-<id>/run-<id>.wandb` and W&B's other files of a run. The id is the run's, so a repeated sync adds no second
    run."""

    name = "wandb"

    def __init__(self) -> None:
        need("wandb", "wandb", self.name)

    def write(self, directory: Path, scalars: RunScalars) -> list[str]:
        # Without the caller's account and settings: an export never reaches a network.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
        environment |= {
            "WANDB_MODE": "offline",
            "WANDB_SILENT": "true",
            "WANDB_ERROR_REPORTING": "false",
            "WANDB_CONFIG_DIR": str(directory / "config"),
            "WANDB_CACHE_DIR": str(directory / "cache"),
            "WANDB_DATA_DIR": str(directory / "data"),
        }
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator.export.wandb_process", str(directory)],
            input=msgspec.json.encode(scalars),
            env=environment,
            capture_output=True,
            timeout=MAX_S,
        )
        if done.returncode:
            error_lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or [
                "it printed nothing"
            ]
            raise PenstockError(f"wandb could not write the run: {error_lines[-1]}")
        (run,) = (directory / "wandb").glob("offline-run-*")
        # Without its logs: they describe this machine only.
        files = [*run.glob("*.wandb"), *sorted(path for path in run.glob("files/**/*") if path.is_file())]
        return [path.relative_to(directory).as_posix() for path in files]
