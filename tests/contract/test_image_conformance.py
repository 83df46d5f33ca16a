"""Sandboxes of bubblewrap on an image run the suite that those on this machine's own system run."""

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.tasks.harbor import Task
from sandboxes.base import Limits, SandboxError, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.conformance import CHECKS, ConformanceCheck, run_check
from sandboxes.conformance.on_image import OnImage
from sandboxes.from_environment import VARIABLE
from sandboxes.images import rootfs
from sandboxes.images.oci import Description
from sandboxes.images.store import ImageStore
from sandboxes.images.unpack import Unpacker
from tests.contract.image_rig import images as images
from tests.contract.image_rig import root as root
from tests.contract.of_checks import each_of
from tests.violations import promise_kept

pytestmark = [pytest.mark.anyio, pytest.mark.tier("sandboxes")]


@pytest.mark.parametrize("check", each_of(CHECKS))
async def test_an_image_keeps_every_promise(check: ConformanceCheck) -> None:
    result = await run_check(OnImage(BubblewrapProvider(), "small"), check)
    promise_kept(result)


async def test_the_files_of_a_task_that_names_an_image_lie_in_the_work_directory_of_that_image(
    images: Path,
) -> None:
    store = ImageStore(images)
    base = store.find("small").root

    def write(target: Unpacker) -> Description:
        rootfs.copy(base, target)
        return Description(work="/srv/work")

    store.write(write, source="worked", name="worked")
    task = Task.from_files(
        {
            "task.toml": b'[environment]\ndocker_image = "worked"\n',
            "instruction.md": b"do it",
            "tests/test.sh": b"true",
            "environment/data.csv": b"1",
            "environment/files/b": b"2",
        }
    )
    environment = task.environment(None, containers=True)
    spec = environment.spec(environment.files, Limits())
    on_image = OnImage(BubblewrapProvider(), "worked")
    async with on_image.open(replace(spec, build=None, prebuilt=None)) as sandbox:
        found = await sandbox.exec(["sh", "-c", "cd /srv/work && pwd && cat data.csv files/b"])
        assert found.stdout == b"/srv/work\n12", found.stderr


async def test_an_image_that_is_not_there_is_named() -> None:
    with pytest.raises(SandboxError, match="penstock images list"):
        async with BubblewrapProvider().open(SandboxSpec(image="absent")):
            pass


async def test_a_provider_without_images_refuses_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(ValueError, match=r"sandbox\.images"):
        async with BubblewrapProvider().open(SandboxSpec(image="small")):
            pass
