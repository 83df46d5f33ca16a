"""One trainer per run: the process that holds the lock of the checkpoint directory. The kernel frees the lock when its holder dies.

The data pool already prevents two trainers from training a batch twice. The lock prevents them from overwriting each other's files.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.contracts.errors import ConfigurationError


@contextmanager
def only_trainer(root: Path) -> Iterator[None]:
    """Hold `root` (made if needed). Raises ConfigurationError at once when another process holds it."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / "trainer.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                f"another trainer is at work on {root}; stop it first, or let it do the work"
            ) from None
        yield
