"""The promises that depend on how a sandbox gets its writable layer, where overlayfs cannot be had and without control groups."""

import os

import pytest

from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.conformance import (
    CHECKS,
    ConformanceCheck,
    background,
    endings,
    files,
    limits,
    programs,
    run_check,
)
from sandboxes.conformance.on_image import OnImage
from sandboxes.images.mounted import Layering
from tests.contract.image_rig import images as images
from tests.contract.image_rig import root as root
from tests.violations import promise_kept

pytestmark = [pytest.mark.anyio, pytest.mark.tier("images")]


def checks_of(*modules: object) -> list[ConformanceCheck]:
    found = {getattr(module, "__name__", "") for module in modules}
    return [each for each in CHECKS if getattr(each.body, "__module__", None) in found]


OF_LAYERS = checks_of(files, programs, endings)
OF_LIMITS = checks_of(limits, background)


@pytest.mark.parametrize("kind", [Layering.FUSE, Layering.COPY])
@pytest.mark.parametrize("check", OF_LAYERS, ids=[each.name for each in OF_LAYERS])
async def test_an_image_keeps_its_promises_where_overlayfs_cannot_be_had(
    check: ConformanceCheck, kind: Layering
) -> None:
    if kind not in Layering.candidates(own_user=os.geteuid() == 0):
        pytest.skip("fuse-overlayfs is not installed, or /dev/fuse cannot be opened")
    result = await run_check(OnImage(BubblewrapProvider(layering=kind), "small"), check)
    promise_kept(result)


@pytest.mark.parametrize("check", OF_LIMITS, ids=[each.name for each in OF_LIMITS])
async def test_an_image_keeps_its_promises_without_control_groups(check: ConformanceCheck) -> None:
    result = await run_check(OnImage(BubblewrapProvider(use_cgroups=False), "small"), check)
    promise_kept(result)
