"""Removes the processes and files that a killed chaos run left behind. It finds them by the run's directory and ends processes by identity."""

import shutil
from pathlib import Path

import anyio

from ops.lab import run_directory
from ops.lab.chaos import disk
from ops.lab.chaos.links import socket_directory
from orchestrator.contracts.errors import PenstockError
from orchestrator.deploy.embedded.identity import ProcessId
from orchestrator.deploy.embedded.supervisor import stop_running
from orchestrator.deploy.home import Home
from orchestrator.settings.config import FILE
from sandboxes.owned import sockets_root
from sandboxes.reap import reap

DRIVER = "driver.json"
KEEP_RUNS = 3


def clear(root: Path) -> None:
    """End the processes that dead runs below `root` left running. Their files stay. Living runs are not touched."""
    for directory in sorted(root.iterdir()) if root.is_dir() else ():
        driver = ProcessId.read(directory / DRIVER)
        if driver is not None and driver.alive:
            continue
        if (directory / FILE).exists():
            anyio.run(stop_running, Home.at(directory).layout)
        shutil.rmtree(socket_directory(directory), ignore_errors=True)
        (directory / DRIVER).unlink(missing_ok=True)
    reap(sockets_root())


def remove(directory: Path) -> None:
    """Remove a run's files and its small disk. Raises PenstockError while the run is alive."""
    driver = ProcessId.read(directory / DRIVER)
    if driver is not None and driver.alive:
        raise PenstockError(f"a chaos run (pid {driver.pid}) is at work in {directory}; end it first")
    if (directory / FILE).exists():
        disk.unmount(Home.at(directory).policies)
    run_directory.remove(directory)


def prune(root: Path) -> None:
    """Remove the runs below `root`, except running ones and the newest few."""
    finished = [path for path in root.iterdir() if path.is_dir() and not (path / DRIVER).exists()]
    for old in sorted(finished, key=lambda path: path.stat().st_mtime)[:-KEEP_RUNS]:
        remove(old)
