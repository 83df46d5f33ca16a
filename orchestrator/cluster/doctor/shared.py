"""The directory of the policies: it takes files durably, and is the one that others see.

The versions in the data pool are the probe that every host has: whoever sees other files there, or none, looks at another directory. Before
the first version, or to be sure of two hosts: `--write-probe` on one, `--read-probe` with what it printed on the other.
"""

import hashlib
import secrets
import socket
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.embedded.doctor import Check
from orchestrator.embedded.identity import write_atomically

MOUNT = "mount the same file system on every host, at the same path, and name it in policy.directory"
_NEWEST = text(
    "SELECT version, path, manifest_sha FROM policy_versions WHERE run_id = :run AND superseded_by IS NULL AND batch_no IS NOT NULL "
    "ORDER BY version DESC LIMIT 1"
)


async def checks(connection: AsyncConnection, run: int | None, directory: Path) -> list[Check]:
    """Both of them; the second once there is a version."""
    found = [_durable(directory)]
    row = (await connection.execute(_NEWEST, {"run": run})).one_or_none() if run is not None else None
    if row is not None:
        found.append(_same(row.version, Path(row.path), row.manifest_sha))
    return found


def _durable(directory: Path) -> Check:
    name = "shared directory"
    try:
        probe = write_probe(directory)
        (directory / probe).unlink()
    except OSError as error:
        return Check(name, False, f"{directory} takes no file: {error}", MOUNT)
    return Check(name, True, f"{directory} takes a file and syncs it")


def _same(version: int, path: Path, sha: str) -> Check:
    name = f"shared directory, version {version}"
    try:
        found = hashlib.sha256((path / "manifest.json").read_bytes()).hexdigest()
    except OSError as error:
        return Check(
            name,
            False,
            f"{path} cannot be read here ({error.strerror}): this host does not see what the trainer wrote",
            MOUNT,
        )
    if found != sha:
        return Check(name, False, f"{path} is not what was published (sha256 {found[:12]}…)", MOUNT)
    return Check(name, True, f"{path} is what was published")


def write_probe(directory: Path) -> str:
    """The name of a new file that says who wrote it, fsynced. OSError."""
    name = f".probe-{secrets.token_hex(8)}"
    write_atomically(directory / name, socket.gethostname().encode(), sync=True)
    return name


def read_probe(directory: Path, name: str) -> Check:
    """Whether this host sees the file that another one wrote; removes it then."""
    file = directory / Path(name).name
    try:
        wrote = file.read_text()
        file.unlink()
    except OSError as error:
        return Check(
            "shared directory",
            False,
            f"{file} is not here ({error.strerror}): it is another directory",
            MOUNT,
        )
    return Check("shared directory", True, f"{directory} has what {wrote} wrote")
