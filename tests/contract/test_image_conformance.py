"""Sandboxes of bubblewrap on an image run the suite that those on this machine's own system run."""

import pytest

from sandboxes.base import SandboxError, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.conformance import CHECKS, ConformanceCheck, run_check
from sandboxes.conformance.on_image import OnImage
from sandboxes.from_environment import VARIABLE
from tests.contract.image_rig import images as images
from tests.contract.image_rig import root as root
from tests.contract.of_checks import each_of
from tests.violations import promise_kept

pytestmark = [pytest.mark.anyio, pytest.mark.tier("sandboxes")]


@pytest.mark.parametrize("check", each_of(CHECKS))
async def test_an_image_keeps_every_promise(check: ConformanceCheck) -> None:
    result = await run_check(OnImage(BubblewrapProvider(), "small"), check)
    promise_kept(result)


async def test_an_image_that_is_not_there_is_named() -> None:
    with pytest.raises(SandboxError, match="penstock images list"):
        async with BubblewrapProvider().open(SandboxSpec(image="absent")):
            pass


async def test_a_provider_without_images_refuses_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(ValueError, match=r"sandbox\.images"):
        async with BubblewrapProvider().open(SandboxSpec(image="small")):
            pass
