"""`python -m orchestrator.export.wandb_process DIRECTORY`: curves as JSON from standard input into an offline run of W&B."""

import hashlib
import importlib
import sys

import msgspec

from orchestrator.queries.scalars import RunScalars


def main() -> None:
    """One history row per row of the curves; each axis is a metric that the others are drawn over."""
    scalars = msgspec.json.decode(sys.stdin.buffer.read(), type=RunScalars)
    wandb = importlib.import_module("wandb")
    key = hashlib.sha256(f"{scalars.run}/{scalars.created.isoformat()}".encode()).hexdigest()[:12]
    settings = wandb.Settings(
        mode="offline",
        console="off",
        disable_git=True,
        save_code=False,
        x_disable_stats=True,
        x_disable_meta=True,
        x_save_requirements=False,
    )
    with wandb.init(
        project="penstock",
        name=scalars.run,
        id=key,
        dir=sys.argv[1],
        config=dict(scalars.config),
        settings=settings,
    ) as run:
        for axis, pattern in (("train_step", "train/*"), ("policy_version", "eval/*")):
            run.define_metric(axis)
            run.define_metric(pattern, step_metric=axis)
        for row in scalars.rows:
            run.log({row.axis: row.step, "_timestamp": row.at.timestamp(), **row.values})


if __name__ == "__main__":
    main()
