"""The demo's first policy: made on this machine from the shipped demonstrations, once per seed and recipe, without any download."""

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from orchestrator.contracts.errors import PenstockError

DEMONSTRATIONS = Path(__file__).resolve().parents[2] / "ops" / "demonstrations"
SFT_STEPS = 0  # 0: the recipe's own number


def make(cache: Path, seed: int, console: Console) -> Path:
    """The policy's directory, absolute. Raises PenstockError with the trainer's last line when it cannot be made."""
    recipe = hashlib.sha256()
    for file in sorted(
        [*DEMONSTRATIONS.glob("*"), *(Path(__file__).resolve().parents[2] / "trainer").glob("*/*.py")]
    ):
        if file.is_file() and file.parent.name in ("demonstrations", "policy", "sft"):
            recipe.update(file.read_bytes())
    target = (cache / f"{recipe.hexdigest()[:12]}-seed{seed}").resolve()
    if (target / "model.safetensors").exists():
        return target
    console.print(f"making the first policy from {DEMONSTRATIONS.name} (once per seed)", highlight=False)
    cache.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    _trainer("trainer.policy", "--out", f"{scratch}-init", "--seed", str(seed))
    for corpus in sorted(DEMONSTRATIONS.glob("*.npz")):
        _trainer(
            "trainer.sft",
            "--corpus",
            str(corpus),
            "--model",
            f"{scratch}-init",
            "--out",
            f"{scratch}-sft",
            "--seed",
            str(seed),
        )
    os.replace(f"{scratch}-sft", target)
    console.print(f"the policy is made: {target} ({time.monotonic() - started:.0f} s)", highlight=False)
    return target


def _trainer(module: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        tail = done.stdout.strip().splitlines()[-1:] or ["no output"]
        raise PenstockError(f"python -m {module} failed: {tail[0]}")
