"""The small disks of chaos runs that were killed, and the files on them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.lab.chaos import disk, leftovers
from ops.lab.chaos.prepare import write_run
from orchestrator.contracts.errors import PenstockError
from orchestrator.deploy.embedded.identity import ProcessId
from orchestrator.deploy.home import Home

DEAD = ProcessId(os.getpid(), 1, ProcessId.mine().boot)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """The directory of all runs."""
    yield tmp_path
    for directory in tmp_path.iterdir():
        disk.unmount(Home.at(directory).policies)


def a_run(root: Path, name: str, driver: ProcessId | None) -> Path:
    """A run with a checkpoint on its small disk."""
    directory = root / name
    write_run(directory, seed=0, scale=20.0, model=root / "model")
    policies = Home.at(directory).policies
    if not disk.mount(policies):
        pytest.skip("only root can mount a small disk")
    (policies / "checkpoint").touch()
    if driver is not None:
        driver.write(directory / leftovers.DRIVER)
    return directory


def has_its_disk(directory: Path) -> bool:
    policies = Home.at(directory).policies
    return os.path.ismount(policies) and (policies / "checkpoint").exists()


def test_the_disk_of_a_killed_run_stays_to_be_looked_at_and_goes_with_the_run(root: Path) -> None:
    killed = a_run(root, "killed", DEAD)
    leftovers.clear(root)
    assert has_its_disk(killed) and not (killed / leftovers.DRIVER).exists()
    policies = Home.at(killed).policies
    leftovers.remove(killed)
    assert not os.path.ismount(policies) and not killed.exists()


def test_a_run_at_work_keeps_its_disk_and_is_not_removed(root: Path) -> None:
    living = a_run(root, "living", ProcessId.mine())
    leftovers.clear(root)
    leftovers.prune(root)
    with pytest.raises(PenstockError, match=f"pid {os.getpid()}.*end it first"):
        leftovers.remove(living)
    assert has_its_disk(living) and (living / leftovers.DRIVER).exists()


def test_of_finished_runs_the_newest_few_keep_their_disks(root: Path) -> None:
    runs = [a_run(root, f"run{number}", None) for number in range(leftovers.KEEP_RUNS + 2)]
    for age, directory in enumerate(reversed(runs)):
        os.utime(directory, (1e9 - age, 1e9 - age))
    places = [Home.at(directory).policies for directory in runs]
    leftovers.prune(root)
    assert [directory.exists() for directory in runs] == [False, False, *[True] * leftovers.KEEP_RUNS]
    assert [os.path.ismount(place) for place in places] == [False, False, *[True] * leftovers.KEEP_RUNS]
    assert all(has_its_disk(directory) for directory in runs[2:])
