"""Runner and gateway start in any order: the runner waits for the secret that the gateway makes."""

from pathlib import Path

import anyio
import pytest

from orchestrator.contracts.errors import ServiceError
from orchestrator.runner.rollout_runner import _secret
from orchestrator.settings.timeouts import Timeouts, use
from tests.waiting import stays_true_for

pytestmark = pytest.mark.anyio


async def test_a_secret_that_comes_later_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    found: list[str] = []

    async def wait() -> None:
        found.append(await _secret(file))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await stays_true_for(0.15, lambda: found == [])
        file.touch()  # made, not yet written
        await stays_true_for(0.15, lambda: found == [])
        file.write_text("s3cret\n")
    assert found == ["s3cret"]


async def test_one_that_never_comes_is_named(tmp_path: Path) -> None:
    never = r"admin secret .*/none cannot be read \(No such file or directory\)"
    with use(Timeouts(gateway_start_s=0.2)), pytest.raises(ServiceError, match=never):
        await _secret(tmp_path / "none")
