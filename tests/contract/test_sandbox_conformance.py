"""Every provider runs the suite that third parties run."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxes.base import File, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.conformance import (
    CHECKS,
    ConformanceCheck,
    background,
    beginnings,
    checks_for,
    endings,
    escapes,
    limits,
    run_check,
    sessions,
)
from sandboxes.conformance.attempts import ATTEMPTS, Attempt, Control
from sandboxes.effective import observe
from sandboxes.local import LocalProvider
from sandboxes.reap import default_root, reap
from tests.contract.of_checks import each_of
from tests.preallocating import PREALLOCATED, PREALLOCATES
from tests.violations import promise_kept

pytestmark = [pytest.mark.anyio, pytest.mark.tier("sandboxes")]

LOCAL_DOES_NOT_ISOLATE = {
    "programs die with a killed owner",
    "the hosts environment and processes cannot be seen",
    "the hosts files cannot be read",
    "programs have no rights",
    "the network cannot be reached",
    "the number of processes is limited",
    "foreground and background share the number of processes",
}
# The tests that depend on control groups; the rest does not depend on them.
WITH_LIMITS = [
    each
    for each in CHECKS
    if getattr(each.body, "__module__", None)
    in {each.__name__ for each in (beginnings, limits, background, endings, escapes, sessions)}
]
OF_LOCAL = [each for each in CHECKS if not each.escape]
# Features that some kernels are built without, or restrict.
OPTIONAL = {
    "vsock, the line of a virtual machine to its host",
    "input into a terminal at all",
    "a user namespace, to be root in",
    "a process in new namespaces",
    "the same by the call that no filter can read",
    "a program in the kernel",
    "counters of the processor",
    "faults handled by a program",
    "a processor to oneself",  # a control group may have no share of real time
    "io_uring",
    "looking at every user's files",
}


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory for sandboxes of this process and of the owners it kills."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-test-"))
    directory.chmod(0o711)
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    yield directory
    reap(default_root())
    assert not list(directory.glob("*/*.json")), "a sandbox was left behind"
    shutil.rmtree(directory)


@pytest.mark.parametrize("check", each_of(CHECKS))
async def test_bubblewrap_keeps_every_promise(check: ConformanceCheck) -> None:
    result = await run_check(BubblewrapProvider(), check)
    promise_kept(result)


@pytest.mark.parametrize("check", each_of(WITH_LIMITS))
async def test_bubblewrap_keeps_every_promise_without_control_groups(check: ConformanceCheck) -> None:
    result = await run_check(BubblewrapProvider(use_cgroups=False), check)
    promise_kept(result)


async def test_space_cannot_be_preallocated_and_programs_that_want_it_write_zeros() -> None:
    """Gigabytes would be there within milliseconds, long before the disk's use is measured again."""
    async with BubblewrapProvider().open(
        SandboxSpec(files={"/app/prog.py": File(PREALLOCATES.encode())})
    ) as sandbox:
        ended = await sandbox.exec(["python3", "prog.py"])
    assert ended.stdout.decode().split() == PREALLOCATED, ended


async def test_a_machine_that_cannot_limit_cores_is_named() -> None:
    concerns = (await observe(BubblewrapProvider(use_cgroups=False))).concerns
    assert any(each.startswith("no control group limits cores: ") for each in concerns)
    provider = BubblewrapProvider()
    found = await observe(provider)
    assert provider.limits_cores == (not any("limits cores" in each for each in found.concerns))


def test_every_attempt_to_escape_succeeds_where_nothing_holds_it() -> None:
    def may(attempt: Attempt) -> bool:
        return attempt.control is Control.ANYBODY or (attempt.control is Control.ROOT and os.geteuid() == 0)

    outcomes = {attempt.name: escapes.outside(attempt) for attempt in ATTEMPTS if may(attempt)}
    assert {name: how for name, how in outcomes.items() if how != "out" and name not in OPTIONAL} == {}
    assert len(outcomes) >= 20 and len(ATTEMPTS) >= 70


async def test_an_attempt_to_escape_is_never_made_without_isolation() -> None:
    (bomb,) = [each for each in CHECKS if each.name == "a fork bomb stays in its sandbox"]
    assert bomb not in checks_for(LocalProvider()) and checks_for(BubblewrapProvider()) == CHECKS
    with pytest.raises(AssertionError, match="would harm this machine"):
        await run_check(LocalProvider(), bomb)


@pytest.mark.filterwarnings("ignore::sandboxes.local.NoIsolationWarning")
@pytest.mark.parametrize("check", each_of(OF_LOCAL))
async def test_local_keeps_every_promise_but_isolation(check: ConformanceCheck) -> None:
    result = await run_check(LocalProvider(), check)
    assert result.passed == (check.name not in LOCAL_DOES_NOT_ISOLATE), result.detail or "isolates after all"
    assert result.passed or check.isolation
