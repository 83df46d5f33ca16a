"""Every provider runs the suite that third parties run."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.conformance import CHECKS, Check, endings, limits, run_check
from sandboxes.local import LocalProvider
from sandboxes.reap import default_root, reap

pytestmark = pytest.mark.anyio

LOCAL_DOES_NOT_ISOLATE = {
    "programs die with a killed owner",
    "the hosts environment and processes cannot be seen",
    "the hosts files cannot be read",
    "programs have no rights",
    "there is no network",
    "the number of processes is limited",
}
# What control groups have a hand in; the rest does not depend on them.
WITH_LIMITS = [each for each in CHECKS if each.body.__module__ in (limits.__name__, endings.__name__)]


def names(checks: list[Check]) -> list[str]:
    return [each.name for each in checks]


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where sandboxes of this process and of the owners it kills are kept."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-test-"))
    directory.chmod(0o711)
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    yield directory
    reap(default_root())
    assert not list(directory.glob("*/*.json")), "a sandbox was left behind"
    shutil.rmtree(directory)


@pytest.mark.parametrize("check", CHECKS, ids=names(CHECKS))
async def test_bubblewrap_keeps_every_promise(check: Check) -> None:
    result = await run_check(BubblewrapProvider(), check)
    assert result.passed, result.detail


@pytest.mark.parametrize("check", WITH_LIMITS, ids=names(WITH_LIMITS))
async def test_bubblewrap_keeps_every_promise_without_control_groups(check: Check) -> None:
    result = await run_check(BubblewrapProvider(use_cgroups=False), check)
    assert result.passed, result.detail


@pytest.mark.filterwarnings("ignore::sandboxes.local.NoIsolationWarning")
@pytest.mark.parametrize("check", CHECKS, ids=names(CHECKS))
async def test_local_keeps_every_promise_but_isolation(check: Check) -> None:
    result = await run_check(LocalProvider(), check)
    assert result.passed == (check.name not in LOCAL_DOES_NOT_ISOLATE), result.detail or "isolates after all"
    assert result.passed or check.isolation
