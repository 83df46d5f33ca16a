"""An attempt that has ended is not changed by its sandbox, which fails as it closes."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from orchestrator.contracts.states import FailureClass
from orchestrator.runner.open_sandbox import open_sandbox
from orchestrator.runner.outcome import AttemptOutcome, captured
from orchestrator.runner.rollout_runner import tolerate_failed_removal
from sandboxes.base import SandboxError, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider

pytestmark = pytest.mark.anyio

DONE = AttemptOutcome(failure=FailureClass.COMPLETED, answer="7", reachable=True)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SandboxError("process 5 does not die"), "sandbox: process 5 does not die"),
        (OSError(5, "Input/output error"), "scaffold: OSError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
@pytest.mark.parametrize("ends", [True, False])
async def test_an_outcome_survives_a_sandbox_that_fails_as_it_closes(
    error: Exception, reason: str, ends: bool
) -> None:
    def failing(end: Callable[[], Awaitable[None]]) -> Any:
        async def fails() -> None:
            await end()
            raise error

        return fails

    async def attempt() -> AttemptOutcome:
        ended = False
        with tolerate_failed_removal(lambda: ended):
            async with open_sandbox(BubblewrapProvider(), SandboxSpec()) as sandbox:
                assert (await sandbox.exec(["true"])).ok
                sandbox.end_session = failing(sandbox.end_session)  # type: ignore[attr-defined]
                ended = ends
        return DONE

    found = await captured(attempt, agent=False)
    assert (found.failure, found.reason) == (
        (FailureClass.COMPLETED, None) if ends else (FailureClass.INFRA_FAILURE, reason)
    )
