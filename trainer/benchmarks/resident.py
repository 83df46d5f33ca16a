"""Peak memory of a piece of work, in a process that does nothing else."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from trainer.benchmarks.shapes import rewrites
from trainer.tree.execute import backward
from trainer.tree.pack import pack_samples
from trainer.tree.passes import PassBudget

T = TypeVar("T")


def grown(model: Any, work: Callable[[], T]) -> tuple[T, float]:
    """The result of the work, and the growth of the resident set at its peak, in MB (10⁶ bytes).

    Gradients exist before, and a small tree has been trained in passes: neither counts. The growth is VmHWM minus VmRSS: ru_maxrss would include
    the parent process. This process must not have held more memory before.
    """
    warm_up = pack_samples(rewrites(1, 1, 2, 8, 4, 4)(model.config.vocab_size), PassBudget(20))
    backward(model, warm_up, lambda rows, logp: -logp.sum())
    model.zero_grad(set_to_none=False)
    before = _status("VmRSS")
    result = work()
    return result, (_status("VmHWM") - before) / 1e6


def _status(field: str) -> int:
    """A field of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [found] = [line for line in lines if line.startswith(f"{field}:")]
    return int(found.split()[1]) * 1024


def in_fresh_process(module: str, *arguments: str) -> Any:
    """The JSON of the last line that `python -m module` prints."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])
