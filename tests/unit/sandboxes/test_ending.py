"""Errors of a sandbox's block, its tasks and its end come out as they are: callers decide by the type."""

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from sandboxes.base import Provider, SandboxError, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.directory import DirectorySandbox
from sandboxes.ending import tasks_ended_by
from sandboxes.local import LocalProvider

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore::sandboxes.local.NoIsolationWarning")]

BLOCK, END, TASK = KeyError("the block"), SandboxError("the end"), OSError("a task")


@pytest.mark.parametrize(
    ("block", "end", "task", "raised"),
    [
        (None, None, None, None),
        (BLOCK, None, None, BLOCK),
        (None, END, None, END),
        (BLOCK, END, None, BLOCK),
        (None, None, TASK, TASK),
        (None, END, TASK, TASK),
    ],
)
@pytest.mark.parametrize("cancelled", [False, True])
async def test_the_first_error_of_a_block_with_tasks_comes_out_in_no_group(
    block: Exception | None,
    end: Exception | None,
    task: Exception | None,
    raised: Exception | None,
    cancelled: bool,
) -> None:
    ends = 0

    async def ending() -> None:
        nonlocal ends
        ends += 1
        await anyio.lowlevel.checkpoint()  # a cancellation does not keep it from its end
        if end is not None:
            raise end

    async def failing() -> None:
        if task is not None:
            raise task

    seen: Exception | None = None
    try:
        async with tasks_ended_by(ending, cancelled=cancelled) as tasks:
            tasks.start_soon(failing)
            if task is not None:
                await anyio.sleep_forever()
            if block is not None:
                raise block
    except Exception as error:  # noqa: BLE001 - compared
        seen = error
    assert (seen, ends) == (raised, 1)


@pytest.mark.parametrize("provider", [BubblewrapProvider, LocalProvider])
@pytest.mark.parametrize("block", [None, BLOCK])
async def test_a_sandbox_whose_first_end_fails_says_so_plainly_and_is_removed(
    provider: type[Provider], block: Exception | None, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises((SandboxError, KeyError)) as raised:
        async with provider().open(SandboxSpec()) as sandbox:
            await sandbox.exec(["true"])
            fails_once(monkeypatch)
            if block is not None:
                raise block
    assert raised.value is block or (block is None and str(raised.value) == "process 5 does not die")
    assert not [*root.rglob(f"{sandbox.id}*")]


@pytest.mark.parametrize("provider", [BubblewrapProvider, LocalProvider])
async def test_files_that_cannot_be_removed_are_a_fault_of_the_sandbox(
    provider: type[Provider], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink, failing = Path.unlink, True

    def unlinks(path: Path, missing_ok: bool = False) -> None:
        if failing and path.suffix == ".json":
            raise OSError(30, "Read-only file system")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", unlinks)
    with pytest.raises(SandboxError, match="cannot remove the sandbox"):
        async with provider().open(SandboxSpec()):
            pass
    failing = False


def fails_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next end of a session fails, as if a process did not die."""
    failures = [SandboxError("process 5 does not die")]
    kinds: list[Any] = [DirectorySandbox, *DirectorySandbox.__subclasses__()]
    for kind in kinds:
        if "end_session" in vars(kind):
            wrap(kind, failures, monkeypatch)


def wrap(kind: type[DirectorySandbox], failures: list[SandboxError], monkeypatch: pytest.MonkeyPatch) -> None:
    ends = kind.end_session

    async def ends_badly(self: DirectorySandbox) -> None:
        await ends(self)
        if failures:
            raise failures.pop()

    monkeypatch.setattr(kind, "end_session", ends_badly)
