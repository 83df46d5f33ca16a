"""`python -m tests.integration.export.export_process URL OUT`: an export in parts of two attempts, to be killed at a failpoint."""

import sys
from pathlib import Path

import anyio

from orchestrator.export.drive import export
from orchestrator.export.parquet import Parquet
from orchestrator.pool.engine import Role, open_engine
from orchestrator.queries.attempt_filters import AttemptFilters
from tests.integration.export.rig import RUN


async def main(url: str, out: Path) -> None:
    """The work of `penstock export parquet`, with smaller parts."""
    async with open_engine(url, Role.READER, size=1) as engine:
        await export(engine, RUN, Parquet(part=2), AttemptFilters(), out)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], Path(sys.argv[2]))
