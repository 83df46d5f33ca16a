"""`python -m trainer.verify --run NAME --batch N`: compute a stored batch again, merged and one row per sample, and compare.

Reads the data pool at $DATABASE_URL and the checkpoint that the batch was trained from; changes nothing. The last line printed is the result as
JSON. Exit status 1: one sentence on stderr says why there is none. A missed bound sets `ok` to false.
"""

import argparse
import json
import math
import os
import sys
import time
from typing import Any

import anyio

from orchestrator.contracts.errors import PenstockError
from orchestrator.contracts.numbers import INT4, INT8, option, real, whole
from orchestrator.runtime.unreachable import named_url


def command_line() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m trainer.verify", description=__doc__)
    parser.add_argument("--run", required=True, help="the run's name in the data pool")
    parser.add_argument(
        "--batch", required=True, type=option(whole, least=0, most=INT4), help="the batch's number"
    )
    parser.add_argument("--dtype", choices=["float64", "float32"], default="float64")
    parser.add_argument(
        "--groups",
        type=option(whole, least=0, most=INT4),
        default=0,
        help="only the first so many groups of a train step",
    )
    parser.add_argument(
        "--pack-tokens",
        type=option(whole, least=1, most=INT8),
        help="tokens of one forward pass (default: as the run began)",
    )
    parser.add_argument(
        "--pack-pairs",
        type=option(whole, least=1, most=INT8),
        help="attention pairs of one forward pass (default: as the run began)",
    )
    parser.add_argument(
        "--canary-tolerance",
        type=option(real, least=0, most=math.inf),
        help="bound of the behavior logprobs' mean difference (default: that of the run's dtype)",
    )
    parser.add_argument("--bf16", action="store_true", help="also what bfloat16 rounds, merged and alone")
    return parser


def main() -> int:
    """Parse and verify; report an error in one sentence."""
    parser = command_line()
    options = parser.parse_args()
    url = named_url("DATABASE_URL")
    if not url:
        parser.error("DATABASE_URL is not set")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the import
    from orchestrator.pool.engine import Role
    from orchestrator.pool.opened import opened
    from trainer.verify.compare import verify
    from trainer.verify.stored import RecordedBatch, read_batch

    async def read() -> RecordedBatch:
        async with opened(url, Role.READER, name="penstock-verify") as engine:
            return await read_batch(
                engine, options.run, options.batch, options.groups, process_keys=process_keys(options)
            )

    try:
        started = time.perf_counter()
        recorded = anyio.run(read)
        checks = verify(recorded, options.dtype, bfloat16=options.bf16)
    except (PenstockError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    result = {
        "run": options.run,
        "batch": options.batch,
        "version": recorded.version,
        "dtype": options.dtype,
        "train_steps": len(recorded.parts),
        "samples": sum(bool(sample.trained_tokens) for part in recorded.parts for sample in part.samples),
        "checks": [
            {
                "name": check.name,
                "ours": _json(check.ours),
                "theirs": _json(check.theirs),
                "difference": _json(check.difference),
                "bound": check.bound,
                "ok": not check.missed,
            }
            for check in checks
        ],
        "ok": not any(check.missed for check in checks),
        "seconds": round(time.perf_counter() - started, 2),
    }
    print(json.dumps(result))
    return 0


def process_keys(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The process keys of the configuration that the command line gives, by section."""
    given = {
        "trainer": {"pack_tokens": options.pack_tokens, "pack_pairs": options.pack_pairs},
        "gateway": {"canary_tolerance": options.canary_tolerance},
    }
    return {
        section: {key: value for key, value in keys.items() if value is not None}
        for section, keys in given.items()
    }


def _json(value: float) -> Any:
    return value if math.isfinite(value) else None


if __name__ == "__main__":
    sys.exit(main())
