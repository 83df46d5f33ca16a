"""The demo's first policy: made on this machine from the shipped demonstrations, once per seed and recipe, without any download."""

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from orchestrator.contracts.errors import PenstockError

REPOSITORY = Path(__file__).resolve().parents[3]
DEMONSTRATIONS = REPOSITORY / "ops" / "demonstrations" / "demonstrations.safetensors"


def is_made(cache: Path, seed: int) -> bool:
    """Whether `make` would find the policy in the cache."""
    return (_place(cache, seed) / "model.safetensors").exists()


def make(cache: Path, seed: int, console: Console) -> Path:
    """The policy's directory, absolute. Raises PenstockError with the trainer's last line if it cannot be made."""
    target = _place(cache, seed)
    if is_made(cache, seed):
        return target
    console.print("making the first policy from the shipped demonstrations (once per seed)", highlight=False)
    cache.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=cache, prefix=".making-") as scratch:
        start, trained = f"{scratch}/start", f"{scratch}/trained"
        _trainer("trainer.policy", "--out", start, "--seed", str(seed))
        _trainer(
            "trainer.sft",
            *("--corpus", str(DEMONSTRATIONS), "--model", start, "--out", trained, "--seed", str(seed)),
        )
        os.replace(trained, target)
    console.print(
        f"the policy is made: {target} ({time.monotonic() - started:.0f} s)", highlight=False, soft_wrap=True
    )
    return target


def _place(cache: Path, seed: int) -> Path:
    """The policy's directory, named after everything that determines the policy."""
    recipe = hashlib.sha256()
    code = (path for part in ("policy", "sft") for path in (REPOSITORY / "trainer" / part).iterdir())
    for file in (DEMONSTRATIONS, *sorted(path for path in code if path.is_file())):
        recipe.update(file.read_bytes())
    return (cache / f"{recipe.hexdigest()[:12]}-seed{seed}").resolve()


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
