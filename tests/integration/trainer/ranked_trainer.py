"""A trainer of several ranks, life after life: `python -m tests.integration.trainer.ranked_trainer PLAN <trainer's own arguments>`.

Each life is forked from one process that has loaded torch, because to load it takes longer than to train. PLAN is JSON: a list of lives, each
{"ranks": N, "database": URL, "policies": PATH}, with "kill": [EVENT, RANK] or "train_steps": N where they are given: `--ranks N --train-steps N`,
and as soon as rank 0 has logged EVENT that rank is killed with SIGKILL; "breaks": [RANK, GROUP]: an error of that rank whenever it trains that
group. One line of JSON on stdout per life: its exit status, the seconds from the
kill to its end, its log and its other output.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import cast

import torch
from torch import nn

import trainer.__main__
import trainer.loop
import trainer.ranks.learner
import trainer.ranks.worker
from trainer.loss.metrics import TrainStepMetrics
from trainer.ranks.process_group import Ranks
from trainer.ranks.update import train_step_together
from trainer.samples import Sample
from trainer.update import UpdateSettings


def live(plan: dict[str, object], log: int) -> None:
    """One life of the trainer's rank 0, which forks the others."""
    os.dup2(log, sys.stderr.fileno())
    os.close(log)
    os.environ["DATABASE_URL"] = str(plan["database"])
    sys.argv += ["--ranks", str(plan["ranks"]), "--policies", str(plan["policies"])]
    if "train_steps" in plan:
        sys.argv += ["--train-steps", str(plan["train_steps"])]
    if "breaks" in plan:
        break_over(*cast(tuple[int, str], plan["breaks"]))
    status = trainer.__main__.main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def break_over(rank: int, group: str) -> None:
    """A defect of the code: one rank raises whenever a train step has a group."""

    def broken(
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        samples: Sequence[Sample],
        settings: UpdateSettings,
        ranks: Ranks,
        *,
        trainer_version: int,
    ) -> TrainStepMetrics:
        if ranks.rank == rank and any(sample.group == group for sample in samples):
            raise KeyError(f"of group {group}")
        return train_step_together(
            model, optimizer, samples, settings, ranks, trainer_version=trainer_version
        )

    vars(trainer.ranks.learner)["train_step_together"] = broken


def main() -> None:
    """All lives."""
    assert trainer.loop and trainer.ranks.worker  # loaded before the first fork
    plans, sys.argv = json.loads(sys.argv[1]), [sys.argv[0], *sys.argv[2:]]
    for plan in plans:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            live(plan, writing)
        os.close(writing)
        pids: dict[int, int] = {0: child}
        events: list[str] = []
        lines: list[str] = []
        kill, killed = plan.get("kill"), 0.0
        with open(reading, encoding="utf-8") as log:
            for line in log:
                sys.stderr.write(line)
                if not line.startswith("{"):
                    lines.append(line.strip())
                    continue
                entry = json.loads(line)
                if entry["event"] == "rank.joined":
                    pids[entry["rank"]] = entry["pid"]
                elif not entry.get("rank"):
                    events.append(entry["event"])
                    if kill and entry["event"] == kill[0] and not killed:
                        killed = time.monotonic()
                        os.kill(pids[kill[1]], signal.SIGKILL)
        _, status = os.waitpid(child, 0)  # the log ended, so every rank has
        seconds = time.monotonic() - killed if killed else None
        ended = os.waitstatus_to_exitcode(status)
        print(json.dumps({"ended": ended, "seconds": seconds, "events": events, "log": lines}), flush=True)


if __name__ == "__main__":
    main()
