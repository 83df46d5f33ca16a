"""The small disks of tests that were killed: no mount and no directory stays."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.integration.deploy.small_disk import directory, remove_leftovers, small_disk

__all__ = ["directory", "small_disk"]
pytestmark = pytest.mark.tier("processes")

OWNER = """import sys
from pathlib import Path
from tests.integration.deploy.small_disk import mounted
with mounted(Path(sys.argv[1])):
    print("mounted", flush=True)
    sys.stdin.read()
"""


def test_the_small_disk_of_a_killed_process_is_removed_with_its_directory_and_those_of_the_living_stay(
    small_disk: Path,
) -> None:
    place = Path(tempfile.mkdtemp(prefix="penstock-")) / "disk"
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        try:
            assert owner.stdout is not None and owner.stdout.readline() == b"mounted\n"
            (place / "file").touch()
            remove_leftovers()
            assert os.path.ismount(place) and (place / "file").exists()
        finally:
            owner.kill()
    assert os.path.ismount(place), "the kernel removes no mount of a killed process"
    remove_leftovers()
    assert not os.path.ismount(place) and not place.parent.exists()
    assert os.path.ismount(small_disk)
