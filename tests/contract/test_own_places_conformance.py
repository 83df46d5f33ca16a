"""Sandboxes whose work directory is one of their own places keep what the port says of files, programs and isolation."""

from pathlib import Path

import pytest

from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.conformance import CHECKS, ConformanceCheck, files, isolation, programs, run_check
from sandboxes.conformance.on_image import OnImage
from sandboxes.images import rootfs
from sandboxes.images.oci import Description
from sandboxes.images.store import ImageStore
from sandboxes.images.unpack import Unpacker
from sandboxes.moves import TAKES
from tests.contract.image_rig import images as images
from tests.contract.image_rig import root as root
from tests.violations import promise_kept

pytestmark = [pytest.mark.anyio, pytest.mark.tier("sandboxes")]
MODULES = {each.__name__ for each in (files, isolation, programs)}
BEGIN_AT_APP = {
    "programs run in the work directory or the requested one",
    "the spec makes directories and says where programs begin",
}
"""These expect `/app` as the name of the work directory."""
OF_PLACES = [
    each
    for each in CHECKS
    if getattr(each.body, "__module__", None) in MODULES and each.name not in BEGIN_AT_APP
]


@pytest.fixture(scope="module")
def named(images: Path) -> dict[str, str]:
    """Work directory → the name of an image that has it, empty."""
    store = ImageStore(images)
    base = store.find("small").root

    def made(work: str) -> str:
        def write(target: Unpacker) -> Description:
            rootfs.copy(base, target)
            return Description(work=work)

        name = f"own{work.replace('/', '-')}"
        store.write(write, source=name, name=name)
        return name

    return {work: made(work) for work in TAKES}


LEADS_OUT = ("changed counts what it does not list", "/tmp")
"""By links to `/tmp`, which lead nowhere else where the work directory is there."""
CASES = [(each, work) for work in sorted(TAKES) for each in OF_PLACES if (each.name, work) != LEADS_OUT]


@pytest.mark.parametrize(("check", "work"), CASES, ids=[f"{work}: {each.name}" for each, work in CASES])
async def test_a_work_directory_in_a_place_of_the_sandbox_keeps_every_promise(
    check: ConformanceCheck, work: str, named: dict[str, str]
) -> None:
    promise_kept(await run_check(OnImage(BubblewrapProvider(), named[work]), check))
