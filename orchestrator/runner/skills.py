"""`[environment].skills_dir`: the skills that a task brings, copied to where the scaffold's program reads them."""

from typing import Final

from orchestrator.contracts.errors import InfraFailure
from sandboxes.base import Sandbox

COPY_S: Final = 30.0
_COPY: Final = '[ -d "$1" ] || set -- "$3" "$2"; mkdir -p "$2" && cp -R "$1"/. "$2"'


async def copy_skills(sandbox: Sandbox, source: str, target: str) -> None:
    """Copy the directory `source` (relative to the work directory, or absolute) of a new sandbox into `target`. InfraFailure if it cannot be."""
    result = await sandbox.exec(
        [
            "sh",
            "-c",
            _COPY,
            "sh",
            sandbox.path(source) if source.startswith("/") else source,
            sandbox.path(target),
            source,  # of an image whose work directory is there
        ],
        timeout_s=COPY_S,
    )
    if not result.ok:
        complaint = result.stderr.decode(errors="replace").strip()[-300:]
        raise InfraFailure(f"task: [environment].skills_dir {source} cannot be copied: {complaint}")
