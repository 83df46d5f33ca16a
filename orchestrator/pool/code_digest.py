"""Which code a process runs, as a digest that a checkout and a wheel built from it share."""

import hashlib
from functools import cache
from pathlib import Path

from orchestrator.pool.engine import INSTALLED_MIGRATIONS

_PACKAGES = Path(__file__).resolve().parents[2]


@cache
def digest_of(*packages: str) -> str:
    """Hex sha256 of the Python files of `packages` on disk at the first call, with their names. The migrations, which only a wheel has inside
    the orchestrator, do not count."""
    digest = hashlib.sha256()
    for package in packages:
        for file in sorted((_PACKAGES / package).rglob("*.py")):
            if file.is_relative_to(INSTALLED_MIGRATIONS):
                continue
            content = file.read_bytes()
            digest.update(f"{file.relative_to(_PACKAGES).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()
