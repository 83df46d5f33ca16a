"""Secrets that processes of one run share: a file that only their user reads."""

import os
import secrets
from pathlib import Path

from orchestrator.contracts.errors import ConfigurationError


def write_private(path: Path, text: str) -> None:
    """Write a file that only its user reads, and that no process reads yet. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def shared_secret(path: Path) -> str:
    """The secret in `path`, created (mode 0600) when the file is absent. Raises ConfigurationError when it is empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        secret = path.read_text(encoding="ascii").strip()
        if not secret:
            raise ConfigurationError(
                f"the secret file {path} is empty: remove it, and a new one is made"
            ) from None
        return secret
    with os.fdopen(descriptor, "w") as file:
        secret = secrets.token_urlsafe(32)
        file.write(secret + "\n")
    return secret
