"""`python -m trainer.sft.export --run NAME --model DIR --out FILE`: recorded trajectories of one run as a file of demonstrations.

Reads the data pool at $DATABASE_URL and nothing else; the options select by label, purpose, domain, scaffold and performance. The last
line printed is the result as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio
from safetensors import SafetensorError
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.errors import PenstockError
from orchestrator.contracts.numbers import option, real
from orchestrator.contracts.states import Purpose
from orchestrator.pool.engine import Role
from orchestrator.pool.opened import opened
from orchestrator.pool.runs import get_run
from orchestrator.queries.recorded import Selection, recorded, without_verdict
from orchestrator.runtime.output_place import file_to_write
from orchestrator.runtime.unreachable import named_url
from trainer.sft.corpus import Demonstrations, TokenRole, tokenizer_digest
from trainer.sft.samples import demonstrations_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The content of the file. `success` is the mean performance of the rollouts, `scaffolds` counts them by scaffold. `without_verdict`:
    rollouts of the selection that ended without a verdict, and are in no share."""

    rollouts: int
    demonstrations: int
    tokens: int
    action_tokens: int
    longest: int
    success: float
    without_verdict: int
    scaffolds: dict[str, int]
    bytes: int


async def export(engine: AsyncEngine, run: str, wanted: Selection, model: Path, out: Path) -> Exported:
    """Write `out` whole or not at all. Raises ValueError if nothing matches, ConfigurationError for an unknown run."""
    tokenizer = tokenizer_digest(model)
    samples: list[tuple[list[int], list[int]]] = []
    scaffolds: dict[str, int] = {}
    performances: list[float] = []
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="REPEATABLE READ")
        found = await get_run(connection, run)
        async for rollout in recorded(connection, found.run_id, wanted):
            samples += demonstrations_of(rollout.steps)
            scaffolds[rollout.scaffold] = scaffolds.get(rollout.scaffold, 0) + 1
            performances.append(rollout.performance)
        lost = await without_verdict(connection, found.run_id, wanted)
    if not samples:
        raise ValueError(f"run {run!r} has no verified rollout that matches: ask for less, or record some")
    demonstrations = Demonstrations.of(samples, tokenizer=tokenizer)
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = out.with_name(f".{out.name}.{os.getpid()}")
    demonstrations.save(scratch)
    os.replace(scratch, out)
    return Exported(
        rollouts=len(performances),
        demonstrations=len(demonstrations),
        tokens=len(demonstrations.ids),
        action_tokens=int((demonstrations.action == TokenRole.ACTION).sum()),
        longest=max(len(ids) for ids, _ in samples),
        success=sum(performances) / len(performances),
        without_verdict=lost,
        scaffolds=scaffolds,
        bytes=out.stat().st_size,
    )


def main() -> int:
    """Parse and export; report an error in one sentence."""
    parser = argparse.ArgumentParser(prog="python -m trainer.sft.export", description=__doc__)
    parser.add_argument("--run", required=True, help="the run's name in the data pool")
    parser.add_argument(
        "--model", type=Path, required=True, help="model directory whose tokenizer the run used"
    )
    parser.add_argument("--out", type=Path, required=True, help="file of demonstrations to write")
    parser.add_argument("--label", help='only what was submitted under this label; "": without one')
    parser.add_argument("--purpose", choices=[*Purpose], help="only train, eval or record")
    parser.add_argument("--domain", help="only this domain")
    parser.add_argument("--scaffold", help="only this scaffold")
    parser.add_argument(
        "--min-performance",
        type=option(real, least=0, most=1),
        help="only rollouts with at least this performance, 0–1",
    )
    options = parser.parse_args()
    url = named_url("DATABASE_URL")
    if not url:
        parser.error("DATABASE_URL is not set")
    wanted = Selection(
        label=options.label,
        purpose=Purpose(options.purpose) if options.purpose else None,
        domain=options.domain,
        scaffold=options.scaffold,
        min_performance=options.min_performance,
    )

    async def work() -> Exported:
        async with opened(url, Role.READER, name="penstock-sft-export") as engine:
            return await export(engine, options.run, wanted, options.model, options.out)

    try:
        file_to_write("--out", options.out)
        print(json.dumps(asdict(anyio.run(work))))
    except (PenstockError, ValueError, OSError, SafetensorError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
