"""Keeps a demo's PostgreSQL and dashboard running after it (`--keep`), until `penstock down`."""

import subprocess
import sys
import time
from pathlib import Path

from orchestrator.contracts.errors import PenstockError
from orchestrator.deploy.embedded.spawn import last_lines
from orchestrator.deploy.embedded.supervisor import read_status
from orchestrator.deploy.home import Home

PATIENCE_S = 60.0


def keep(directory: Path) -> str:
    """Start the dashboard of an ended run and leave it running; returns its URL. Raises PenstockError, one sentence, if it does not start."""
    log, home = directory / "kept.log", Home.at(directory)
    home.web_url_file.unlink(missing_ok=True)
    with log.open("ab") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.cli", "up", "--only", "web", "--config", str(directory)],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    deadline = time.monotonic() + PATIENCE_S
    while not (url := url_of(home)):
        if process.poll() is not None or time.monotonic() > deadline:
            process.terminate()
            output = last_lines(log, 1) or ["no output"]
            raise PenstockError(
                f"the dashboard did not start ({output[0]}); look at it with: penstock up -c {directory} --only web"
            )
        time.sleep(0.1)
    return url


def url_of(home: Home) -> str:
    """The dashboard's URL, with its token; empty before the dashboard has one."""
    try:
        return home.web_url_file.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return ""


def is_kept(directory: Path) -> bool:
    """Whether a supervisor still lives in the directory of a run."""
    status = read_status(Home.at(directory).layout) if (directory / "penstock.toml").exists() else None
    return status is not None and status.supervisor.alive
