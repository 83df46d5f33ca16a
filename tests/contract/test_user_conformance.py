"""The suite as a named user: all promises as a user with a range, and those of isolation as root, without and on an image."""

import os
from pathlib import Path

import pytest

from ops.lab.root_filesystem import make_root
from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.conformance import (
    CHECKS,
    ConformanceCheck,
    background,
    endings,
    files,
    isolation,
    limits,
    run_check,
)
from sandboxes.conformance.as_user import AsUser
from sandboxes.conformance.on_image import OnImage
from sandboxes.images.store import ImageStore
from tests.contract.image_rig import images as images
from tests.contract.image_rig import root as root
from tests.contract.of_checks import each_of
from tests.violations import promise_kept

pytestmark = [pytest.mark.anyio, pytest.mark.tier("images")]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root's sandboxes have several users")
ESCAPES = [
    each for each in CHECKS if (each.escape or each.isolation) and each.name != "no way out: becoming root"
]
MODULES = {module.__name__ for module in (files, endings, isolation, limits)}
ON_IMAGE = [each for each in CHECKS if each.escape or getattr(each.body, "__module__", "") in MODULES]


@pytest.fixture(scope="module")
def owned(images: Path) -> str:
    """The name of an image whose work directory belongs to the user."""
    root = make_root(images.parent / "owned")
    (root / "app").mkdir(exist_ok=True)
    os.chown(root / "app", 1234, 1234)
    ImageStore(images).add(root, name="owned")
    return "owned"


WITH_LIMITS = [
    each
    for each in CHECKS
    if getattr(each.body, "__module__", "") in {limits.__name__, background.__name__, endings.__name__}
]


@as_root
@pytest.mark.parametrize("check", each_of(CHECKS))
async def test_every_promise_holds_for_a_user_with_a_range(check: ConformanceCheck) -> None:
    result = await run_check(AsUser(BubblewrapProvider(), "1234"), check)
    promise_kept(result)


@pytest.mark.parametrize("check", each_of(ESCAPES))
async def test_root_inside_has_no_way_out(check: ConformanceCheck) -> None:
    result = await run_check(AsUser(BubblewrapProvider(), "root"), check)
    promise_kept(result)


@as_root
@pytest.mark.parametrize("check", each_of(ON_IMAGE))
async def test_every_promise_holds_for_a_user_with_a_range_on_an_image(
    check: ConformanceCheck, owned: str
) -> None:
    result = await run_check(AsUser(OnImage(BubblewrapProvider(), owned), "1234"), check)
    promise_kept(result)


@as_root
@pytest.mark.parametrize("check", each_of(WITH_LIMITS))
async def test_limits_and_endings_hold_for_a_user_with_a_range_without_control_groups(
    check: ConformanceCheck,
) -> None:
    result = await run_check(AsUser(BubblewrapProvider(use_cgroups=False), "1234"), check)
    promise_kept(result)
