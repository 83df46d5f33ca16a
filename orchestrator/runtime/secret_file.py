"""Secrets that processes of one run share: a file that only their user reads."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from orchestrator.contracts.errors import ConfigurationError
from sandboxes.text_files import read_text


def write_private(path: Path, text: str) -> None:
    """Write a file that only its user reads, and that no process reads yet. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def kept_secret(path: Path) -> str:
    """The text of `path`, which only its user reads; a new secret, if the file is absent. Raises OSError, and then leaves no part of a file, and
    like `read_secret`.

    Several processes may call it at the same moment, and all get the same secret.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        secret = secrets.token_urlsafe(32)
        partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            write_private(partial, secret + "\n")
            _name(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    return read_secret(path)


def read_secret(path: Path) -> str:
    """The text of a secret's file as an editor saved it, without a byte order mark. Raises OSError, and ValueError, which names the file, for another
    encoding and for characters that no HTTP header has."""
    secret = read_text(path).strip()
    if not (secret.isascii() and secret.isprintable()):
        raise ValueError(f"the secret in {path} must be one line of ASCII characters: write another one")
    return secret


def _name(partial: Path, path: Path) -> None:
    """Give the complete file its name, unless another process was faster."""
    try:
        path.hardlink_to(partial)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        with (
            suppress(FileExistsError),
            os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file,
        ):
            file.write(partial.read_text(encoding="ascii"))


def shared_secret(path: Path) -> str:
    """`kept_secret` for processes of one run. Raises ConfigurationError when the file is empty."""
    secret = kept_secret(path)
    if not secret:
        raise ConfigurationError(f"the secret file {path} is empty: remove it, and a new one is made")
    return secret


def given_secret(path: Path, key: str) -> str:
    """The secret in a file that a person wrote and that the key `key` of the configuration names. Raises ConfigurationError if it does not exist or
    is empty, and like `read_secret`."""
    if not path.exists():
        raise ConfigurationError(
            f"{key}: file {path} does not exist: correct the path, or write the secret into it"
        )
    if not (secret := read_secret(path)):
        raise ConfigurationError(f"{key}: file {path} is empty: write the secret into it")
    return secret
