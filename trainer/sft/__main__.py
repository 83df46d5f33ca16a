"""`python -m trainer.sft --corpus FILE --model DIR --out DIR --seed S`: progress lines, then the result as one JSON line."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

from orchestrator.contracts.numbers import INT4, INT8, option, real, whole
from orchestrator.runtime.streams import guard


def main() -> int:
    guard()
    parser = argparse.ArgumentParser(prog="python -m trainer.sft", description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="file of demonstrations")
    parser.add_argument("--model", type=Path, required=True, help="model directory to start from")
    parser.add_argument("--out", type=Path, required=True, help="model directory to write")
    parser.add_argument("--seed", type=option(whole, least=-INT8, most=INT8), default=0)
    parser.add_argument("--steps", type=option(whole, least=1, most=INT4), help="train steps")
    parser.add_argument("--learning-rate", type=option(real, least=0, most=1))
    parser.add_argument("--rows", type=option(whole, least=1, most=INT4), help="demonstrations in a batch")
    options = parser.parse_args()

    import torch
    from safetensors import SafetensorError

    from trainer.sft.train import SftSettings, train

    torch.set_num_threads(1)  # small matrices: a second thread only spins
    chosen = {name: getattr(options, name) for name in ("steps", "learning_rate", "rows")}
    try:
        settings = SftSettings(**{name: value for name, value in chosen.items() if value is not None})
        result = train(
            options.corpus,
            options.model,
            options.out,
            seed=options.seed,
            settings=settings,
            progress=partial(print, flush=True),
        )
    except (ValueError, OSError, SafetensorError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(asdict(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
