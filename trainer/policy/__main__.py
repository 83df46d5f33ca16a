"""`python -m trainer.policy --out DIR --seed S`: write a random policy; its size is the last line printed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from safetensors import SafetensorError, safe_open

from orchestrator.contracts.numbers import INT8, option, whole
from orchestrator.runtime.output_place import directory_to_write
from trainer.policy.init import make_policy


def main() -> int:
    """Parse and write; report an error in one sentence."""
    parser = argparse.ArgumentParser(prog="python -m trainer.policy", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="model directory to write")
    parser.add_argument("--seed", type=option(whole, least=-INT8, most=INT8), default=0)
    options = parser.parse_args()
    try:
        directory_to_write("--out", options.out)
        make_policy(options.out, seed=options.seed)
        with safe_open(options.out / "model.safetensors", framework="numpy") as weights:
            size = sum(weights.get_tensor(name).size for name in weights.keys())  # noqa: SIM118 (not a dict)
    except (ValueError, OSError, SafetensorError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{options.out}: {size:,} parameters, random (seed {options.seed})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
