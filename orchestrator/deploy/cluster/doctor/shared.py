"""The directory of the policies: it stores files durably, and is the same one on other hosts.

The versions in the data pool are a probe for every host: a host that sees other files there, or none, reads another directory. Before
the first version, or to compare two hosts: `--write-probe` on one, `--read-probe` with its output on the other.
"""

import hashlib
import secrets
import socket
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.deploy.embedded.doctor import DoctorCheck
from orchestrator.deploy.embedded.identity import write_atomically
from orchestrator.queries.installation import newest_trained_version

MOUNT = "mount the same file system on every host, at the same path, and name it in policy.directory"


async def checks(connection: AsyncConnection, run: int | None, directory: Path) -> list[DoctorCheck]:
    """Both checks; the second only if a version exists."""
    found = [_durable(directory)]
    newest = await newest_trained_version(connection, run) if run is not None else None
    if newest is not None:
        found.append(_same(newest.version, newest.path, newest.manifest_sha))
    return found


def _durable(directory: Path) -> DoctorCheck:
    name = "shared directory"
    try:
        probe = write_probe(directory)
        (directory / probe).unlink()
    except OSError as error:
        return DoctorCheck(name=name, ok=False, detail=f"{directory} is not writable: {error}", fix=MOUNT)
    return DoctorCheck(name=name, ok=True, detail=f"{directory} takes a file and syncs it")


def _same(version: int, path: Path, sha: str) -> DoctorCheck:
    name = f"shared directory, version {version}"
    try:
        found = hashlib.sha256((path / "manifest.json").read_bytes()).hexdigest()
    except OSError as error:
        return DoctorCheck(
            name=name,
            ok=False,
            detail=f"{path} cannot be read here ({error.strerror}): this host does not see what the trainer wrote",
            fix=MOUNT,
        )
    if found != sha:
        return DoctorCheck(
            name=name, ok=False, detail=f"{path} is not what was published (sha256 {found[:12]}…)", fix=MOUNT
        )
    return DoctorCheck(name=name, ok=True, detail=f"{path} is what was published")


def write_probe(directory: Path) -> str:
    """The name of a new file that names its writer, fsynced. OSError."""
    name = f".probe-{secrets.token_hex(8)}"
    write_atomically(directory / name, socket.gethostname().encode(), mode=0o644, sync=True)
    return name


def read_probe(directory: Path, name: str) -> DoctorCheck:
    """Whether this host sees the file of another host; then removes it."""
    file = directory / Path(name).name
    try:
        content = file.read_text()
        file.unlink()
    except OSError as error:
        return DoctorCheck(
            name="shared directory",
            ok=False,
            detail=f"{file} is not here ({error.strerror}): it is another directory",
            fix=MOUNT,
        )
    return DoctorCheck(name="shared directory", ok=True, detail=f"{directory} has what {content} wrote")
