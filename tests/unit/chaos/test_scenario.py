"""A required event that does not happen is a sentence in the run's results, not a traceback."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import anyio
import pytest
from rich.console import Console

from ops.lab.chaos import scenario
from ops.lab.chaos.inject import Injector
from ops.lab.chaos.ledger import Ledger
from ops.lab.chaos.links import Links
from ops.lab.chaos.proxy import Proxy
from ops.lab.chaos.scenario import ChaosRun
from orchestrator.deploy.home import Home
from orchestrator.settings.config import Config

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


async def test_what_hangs_ends_the_run_with_its_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def up(home: Home, *, on_started: Callable[[Config], None], **_: object) -> None:
        on_started(Config())
        await anyio.sleep_forever()

    class Stuck(ChaosRun):
        __slots__ = ()

        async def _work(self) -> None:
            async with anyio.create_task_group() as tasks:  # of the load and the watch
                tasks.start_soon(anyio.sleep_forever)
                await self._wait(lambda: False, "a commit")

    monkeypatch.setattr(scenario, "up", up)
    links = Links({}, cast(Proxy, None), tmp_path)
    with Ledger(tmp_path) as ledger:
        stuck = Stuck(
            console=Console(),
            home=cast(Home, None),
            ledger=ledger,
            links=links,
            injector=cast(Injector, None),
            faults=[],
            shown=lambda outcome: None,
            patience_s=0.05,
        )
        results = await stuck.run()
    assert results.problems == ["within 0.05 s there was not: a commit"] and not stuck.interrupted
    assert results.violations == 2  # there was no audit, either
