# mypy: allow-subclassing-any
"""mini-swe-agent's local environment, changed to run commands like our other scaffolds.

The original runs `/bin/sh` and joins both outputs as they arrive. Here it is `bash -c`, standard output comes before standard error, only files
persist from one command to the next, and commands do not see the program's own settings.
"""

import os
import signal
import subprocess
from contextlib import suppress
from tempfile import TemporaryFile
from typing import Any, Final

from minisweagent.environments.local import LocalEnvironment  # type: ignore[import-not-found]

KEPT_BYTES: Final = 1 << 16
KILLED: Final = 128 + signal.SIGKILL
OWN: Final = (
    "MSWEA_",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "PENSTOCK_GATEWAY_",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONIOENCODING",
    "PYTHONPATH",
    "TYPER_",
)
"""Prefixes of the program's own variables (`mini_swe.environment`). All others are the task's."""


class Bash(LocalEnvironment):
    """Runs commands with `bash -c`. The key `output` holds at most KEPT_BYTES of each stream."""

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run `action["command"]`; raises the program's own `Submitted` when it prints the marker and succeeds."""
        try:
            text, code = _run(action["command"], cwd or os.getcwd(), timeout or self.config.timeout)
        except (OSError, ValueError, TypeError) as error:  # a command that cannot be an argument of bash
            text, code = f"bash: {error}\n", 126
        output = {"output": text, "returncode": code, "exception_info": ""}
        self._check_finished(output)
        return output


def _run(command: str, cwd: str, timeout: float) -> tuple[str, int]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(OWN)}
    with TemporaryFile() as stdout, TemporaryFile() as stderr:
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = KILLED
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        text = _head(stdout)
        separator = "\n" if text and not text.endswith("\n") else ""
        return text + separator + _head(stderr), code if code >= 0 else 128 - code


def _head(file: Any) -> str:
    file.seek(0)
    text: str = file.read(KEPT_BYTES).decode("utf-8", "replace")
    return text
