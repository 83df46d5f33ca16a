"""Runner and gateway start in any order: the runner waits for the secret that the gateway makes."""

from pathlib import Path

import anyio
import pytest

from orchestrator.clock import Clock, ticking
from orchestrator.contracts.errors import ServiceError
from orchestrator.flow.rollout_runner import _secret

pytestmark = pytest.mark.anyio


async def test_a_secret_that_comes_later_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    found: list[str] = []

    async def wait() -> None:
        found.append(await _secret(file))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.sleep(0.15)
        file.touch()  # made, not yet written
        await anyio.sleep(0.15)
        assert found == []
        file.write_text("s3cret\n")
    assert found == ["s3cret"]


async def test_one_that_never_comes_is_named(tmp_path: Path) -> None:
    never = r"admin secret .*/none cannot be read \(No such file or directory\)"
    with ticking(Clock(gateway_start_s=0.2)), pytest.raises(ServiceError, match=never):
        await _secret(tmp_path / "none")
