"""`python -m trainer.picture --run NAME --batch N --svg FILE`: draw the prefix tree that a train step of a stored batch was.

Reads the data pool at $DATABASE_URL; changes nothing there. The last line printed says what was drawn. Exit status 1: one sentence on stderr.
"""

import argparse
import os
import sys
from pathlib import Path

import anyio

from orchestrator.contracts.errors import PenstockError
from orchestrator.contracts.numbers import INT4, option, whole
from orchestrator.runtime.unreachable import named_url


def main() -> int:
    """Parse and draw; report an error in one sentence."""
    parser = argparse.ArgumentParser(prog="python -m trainer.picture", description=__doc__)
    parser.add_argument("--run", required=True, help="the run's name in the data pool")
    parser.add_argument(
        "--batch", required=True, type=option(whole, least=0, most=INT4), help="the batch's number"
    )
    parser.add_argument("--svg", required=True, type=Path, help="the file to write")
    parser.add_argument(
        "--train-step",
        type=option(whole, least=1, most=INT4),
        default=1,
        help="which train step of the batch, from 1",
    )
    parser.add_argument(
        "--groups",
        type=option(whole, least=0, most=INT4),
        default=0,
        help="only the first so many groups of it",
    )
    options = parser.parse_args()
    url = named_url("DATABASE_URL")
    if not url:
        parser.error("DATABASE_URL is not set")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the import
    from orchestrator.pool.engine import Role
    from orchestrator.pool.opened import opened
    from trainer.batch import BatchPart
    from trainer.picture.draw import picture
    from trainer.verify.stored import read_train_steps

    async def read() -> BatchPart:
        async with opened(url, Role.READER, name="penstock-picture") as engine:
            _, _, parts = await read_train_steps(engine, options.run, options.batch, options.groups)
        if not 1 <= options.train_step <= len(parts):
            raise ValueError(f"batch {options.batch} has train steps 1 to {len(parts)}")
        chosen: BatchPart = parts[options.train_step - 1]
        return chosen

    try:
        part = anyio.run(read)
        title = f"train step {options.train_step} of batch {options.batch} of run {options.run!r}"
        samples = [sample for sample in part.samples if sample.trained_tokens]
        options.svg.write_text(picture(samples, title), encoding="utf-8")
    except (PenstockError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{options.svg} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    print(f"{options.svg}: {title}, {len(samples)} samples of {len({s.seq for s in samples})} groups")
    return 0


if __name__ == "__main__":
    sys.exit(main())
