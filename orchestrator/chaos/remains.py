"""What a chaos run that was killed left behind, found by its directory and ended by its identity."""

import shutil
from pathlib import Path

import anyio

from orchestrator.chaos import disk
from orchestrator.chaos.links import socket_directory
from orchestrator.config import FILE
from orchestrator.contracts.errors import PenstockError
from orchestrator.embedded.identity import ProcessId
from orchestrator.embedded.supervisor import stop_running
from orchestrator.home import Home
from sandboxes.owned import sockets_root
from sandboxes.reap import reap

DRIVER = "driver.json"
KEEP_RUNS = 3


def clear(root: Path) -> None:
    """End what dead runs below `root` left running. Their files stay. Living runs are left alone."""
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
    """A run's files, and its small disk. Raises PenstockError while it lives."""
    driver = ProcessId.read(directory / DRIVER)
    if driver is not None and driver.alive:
        raise PenstockError(f"a chaos run (pid {driver.pid}) is at work in {directory}; end it first")
    if (directory / FILE).exists():
        disk.unmount(Home.at(directory).policies)
    shutil.rmtree(directory, ignore_errors=True)


def prune(root: Path) -> None:
    """Remove the runs below `root` but the newest few."""
    finished = [path for path in root.iterdir() if path.is_dir() and not (path / DRIVER).exists()]
    for old in sorted(finished, key=lambda path: path.stat().st_mtime)[:-KEEP_RUNS]:
        remove(old)
