# mypy: allow-subclassing-any
"""mini-swe-agent's local environment, changed to run commands like our other scaffolds.

The original runs `/bin/sh` and joins both outputs as they arrive. Here it is `bash -c`, standard output comes before standard error, only files
and background processes persist from one command to the next, and commands do not see the program's own settings.
"""

import os
import signal
import subprocess
from tempfile import TemporaryFile
from typing import Any, Final

from minisweagent.environments.local import (  # type: ignore[import-not-found]
    LocalEnvironment,
    LocalEnvironmentConfig,
)
from penstock_observation import observe, shortened  # type: ignore[import-not-found]

SEEN_BYTES: Final = 1 << 20
"""Of each stream: as many as a sandbox keeps."""
KEPT_CHARACTERS: Final = 1 << 16
"""Of both: the program stores them again after every command."""
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


class Settings(LocalEnvironmentConfig):
    """The section `environment` of the program's configuration."""

    observation_characters: int
    observation_lines: int


class Bash(LocalEnvironment):
    """Runs commands with `bash -c`. The key `observation` is the policy's view, `output` at most KEPT_CHARACTERS of both streams."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(config_class=Settings, **settings)

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run `action["command"]`; raises the program's own `Submitted` when it prints the marker and succeeds."""
        try:
            limit_s = timeout or self.config.timeout
            printed, failed, code = _run(action["command"], cwd or os.getcwd(), limit_s)
            killed = f"killed after {limit_s:g} s" if code is None else ""
        except (OSError, ValueError, TypeError) as error:  # a command that cannot be an argument of bash
            printed, failed, code, killed = b"", f"bash: {error}\n".encode(errors="replace"), 126, ""
        code = KILLED if code is None else code
        text = printed.decode("utf-8", "replace")
        separator = "\n" if text and not text.endswith("\n") else ""
        text += separator + failed.decode("utf-8", "replace")
        output = {"output": text[:KEPT_CHARACTERS], "returncode": code, "exception_info": killed}
        self._check_finished(output)
        observation = observe(
            printed[:SEEN_BYTES],
            failed[:SEEN_BYTES],
            code,
            killed=killed,
            truncated=max(len(printed), len(failed)) > SEEN_BYTES,
            characters=self.config.observation_characters,
            lines=self.config.observation_lines,
        )
        return output | {"output": shortened(text, KEPT_CHARACTERS), "observation": observation}


def _run(command: str, cwd: str, timeout: float) -> tuple[bytes, bytes, int | None]:
    """Standard output, standard error, exit code; None: the time was up, and the command was killed with the programs that it started."""
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
            code: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        code = 128 - code if code is not None and code < 0 else code
        return _head(stdout), _head(stderr), code


def _head(file: Any) -> bytes:
    # At no cost to the place where programs in the background go on to write.
    return os.pread(file.fileno(), SEEN_BYTES + 1, 0)
