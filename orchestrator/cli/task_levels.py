"""Tasks below the level that a run requires: `penstock tasks publish` and `penstock eval` name them before they send anything."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import anyio

from orchestrator.cli.reading import reading
from orchestrator.contracts.vetting import Level

if TYPE_CHECKING:
    from orchestrator.contracts.vetting import Vetting
    from orchestrator.settings.config import Config
    from orchestrator.tasks.harbor import Task


def below_required(config: "Config", tasks: "Sequence[Task]", levels: "Mapping[str, Vetting]") -> list[str]:
    """A sentence for each task that has `tasks.require` neither in `levels` nor in the rows of the run."""
    from orchestrator.vetting.required import below, kept

    required = config.tasks.require
    if required is Level.NONE:
        return []

    async def rows() -> "dict[str, Vetting]":
        async with reading(config, "tasks") as reader:
            return await reader.ask(lambda connection: kept(connection, reader.run.run_id, tasks))

    return below(tasks, required, levels, anyio.run(rows))
