"""A worker may open more files than a shell allows."""

import subprocess
import sys

import pytest

LIMITS = """\
import resource, sys
from orchestrator.runtime.descriptors import raise_descriptor_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
found = raise_descriptor_limit(int(sys.argv[3]))
assert found == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
print(found)
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "then"),
    [(256, 512, 400, 400), (256, 512, 4000, 512), (300, 512, 200, 300), (512, 512, 4000, 512)],
)
def test_a_process_raises_its_own_limit_of_open_files_as_far_as_it_may(
    soft: int, hard: int, wanted: int, then: int
) -> None:
    command = [sys.executable, "-c", LIMITS, str(soft), str(hard), str(wanted)]
    assert int(subprocess.check_output(command)) == then
