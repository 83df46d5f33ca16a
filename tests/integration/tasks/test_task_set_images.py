"""The tasks of the set whose Dockerfile needs an image: each builds on a base from a Debian mirror, and its controls hold. Minutes each; by hand."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio
import pytest

from ops.lab.task_set import WITH_IMAGES, made
from orchestrator.contracts.vetting import Level
from orchestrator.settings.providers import ImagesSection
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.harbor import Task
from orchestrator.vetting.built import problem_of
from orchestrator.vetting.task import Options, provider_of, vet
from sandboxes.images.bootstrap import bootstrap
from sandboxes.images.settings import ImageSettings

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.tier("sets"),
    pytest.mark.timeout(900),
]
NAMES = ("python:3.11-slim", "node:18")


@pytest.fixture(scope="module")
def section() -> Iterator[SandboxSection]:
    """The sandboxes of a run with images, and a base in their store."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-test-set-"))
    directory.chmod(0o711)
    bases = dict.fromkeys(NAMES, "debian:12")
    section = SandboxSection(
        memory_mb=1024, disk_mb=256, images=ImagesSection(directory=str(directory / "store"), bases=bases)
    )
    settings = ImageSettings(**section.images.model_dump())
    store = settings.store()
    assert store is not None
    anyio.run(partial(bootstrap, store, settings, "debian:12", include=("python3", "ca-certificates")))
    yield section
    shutil.rmtree(directory)


@pytest.mark.parametrize("name", WITH_IMAGES)
async def test_the_controls_of_a_well_made_task_with_an_image_hold(
    name: str, section: SandboxSection
) -> None:
    if name == "named-user" and os.geteuid() != 0:
        pytest.skip("only root's sandboxes have several users")
    options = Options(section=section, times=1, until=Level.CONTROLS_HOLD)
    report = await vet(name, Task.from_files(made(name)), provider_of(section), options)
    assert [(f.fault, f.says) for f in report.findings if f.counts] == [] and not report.undecided
    assert report.level is Level.CONTROLS_HOLD


async def test_tests_that_fetch_their_own_programs_need_a_network_in_an_image_too(
    section: SandboxSection,
) -> None:
    script = b"pip install pytest==8.4.1 && pytest /tests && echo 1 > /logs/verifier/reward.txt\n"
    task = Task.from_files({**made("pip"), "tests/test.sh": script})
    found = await problem_of(task, provider_of(section), section)
    assert "it needs the network to be graded" in found and "tests/test.sh line 1 (pip install" in found
