"""What must happen and does not is a sentence of the run's, not a traceback."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import anyio
import pytest
from rich.console import Console

from orchestrator.chaos import course
from orchestrator.chaos.course import Course
from orchestrator.chaos.inject import Injector
from orchestrator.chaos.ledger import Ledger
from orchestrator.chaos.links import Links
from orchestrator.chaos.proxy import Proxy
from orchestrator.config import Config
from orchestrator.home import Home

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


async def test_what_hangs_ends_the_run_with_its_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def up(home: Home, *, started: Callable[[Config], None], **_: object) -> None:
        started(Config())
        await anyio.sleep_forever()

    class Stuck(Course):
        __slots__ = ()

        async def _work(self) -> None:
            async with anyio.create_task_group() as tasks:  # of the load and the watch
                tasks.start_soon(anyio.sleep_forever)
                await self._wait(lambda: False, "a commit")

    monkeypatch.setattr(course, "up", up)
    links = Links({}, cast(Proxy, None), tmp_path)
    with Ledger(tmp_path) as ledger:
        stuck = Stuck(
            Console(), cast(Home, None), ledger, links, cast(Injector, None), [], lambda outcome: None, 0.05
        )
        results = await stuck.run()
    assert results.problems == ["within 0.05 s there was not: a commit"] and not stuck.interrupted
    assert results.violations == 2  # there was no audit, either
