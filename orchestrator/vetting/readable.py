"""Everything that an agent can read in its sandbox: the files around its work and the variables of its programs."""

import io
import tarfile
from dataclasses import replace
from typing import Final

from orchestrator.probing import ProbeRun
from orchestrator.runner.healthcheck import until_healthy
from orchestrator.runner.open_sandbox import open_sandbox
from orchestrator.runner.worker import sandbox_limits
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.environment import builds_where_needed
from orchestrator.tasks.settings import Healthcheck
from orchestrator.tasks.vetting.conditions import FAKETIME
from orchestrator.tasks.vetting.leaks import Readable
from sandboxes.base import DEFAULT_ENV, HOME, PLACED, WORK, Provider, Sandbox

PLACES: Final = (WORK, HOME, "/tmp", "/logs", *PLACED)
OF_IMAGES: Final = (
    "/root",
    "/home",
    "/opt",
    "/srv",
    "/mnt",
    "/media",
    "/etc",
    "/var",
    "/usr/local",
    "/usr/src",
)
"""Searched besides where a sandbox shows an image's files and not this machine's."""
MOST_BYTES: Final = 64 << 20
"""Of all files together; a finding about more is out of reach, and the report says so."""
FILE_BYTES: Final = 8 << 20
PACK_BYTES: Final = 64 << 20
"""Of a pack of a git repository, which holds its history."""
SECONDS: Final = 120.0
_COLLECT: Final = (
    'find "$@" -xdev -type f \\( -size -16384 -o -name "*.pack" -size -131072 \\) -print0 2>/dev/null'
    " | tar -cf - --null -T - --ignore-failed-read 2>/dev/null"
)


async def readable(
    run: ProbeRun, provider: Provider, section: SandboxSection, check: Healthcheck | None = None
) -> tuple[Readable, str, str]:
    """What a new agent can read, once `check` has succeeded; the path of libfaketime inside, empty without it; a note on what was not read, empty for
    all. InfraFailure if `check` fails."""
    limits = replace(sandbox_limits(section, SECONDS), output_bytes=MOST_BYTES)
    spec = run.pristine.spec(run.pristine.files, limits)
    images = provider.containers and (spec.build is not None or not builds_where_needed(provider))
    places = PLACES + (OF_IMAGES if images or getattr(provider, "own_system", False) else ())
    async with open_sandbox(provider, spec) as sandbox:
        if check is not None:
            await until_healthy(sandbox, check)
        faketime = await _first_of(sandbox, FAKETIME)
        variables = await _variables(sandbox)
        found = await sandbox.exec(
            ["sh", "-c", _COLLECT, "sh", *map(sandbox.path, places)],
            timeout_s=SECONDS,
        )
        root = sandbox.path("/app").removesuffix("/app")
    placed = {path: file.data for path, file in run.pristine.files.items() if file.size <= _most(path)}
    files, note = _members(found.stdout, root)
    if not files and placed:
        note = "the sandbox has no tar: only the files of environment/ were searched"
    elif found.truncated:
        note = f"only {MOST_BYTES >> 20} MB of files were searched"
    given = {name: value for name, value in variables.items() if DEFAULT_ENV.get(name) != value}
    return Readable(files=placed | files, variables=given | dict(run.pristine.env)), faketime, note


def _most(path: str) -> int:
    return PACK_BYTES if path.endswith(".pack") else FILE_BYTES


def _members(tar: bytes, root: str) -> tuple[dict[str, bytes], str]:
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(tar), mode="r|") as archive:
            for member in archive:
                file = (
                    archive.extractfile(member)
                    if member.isreg() and member.size <= _most(member.name)
                    else None
                )
                if file is not None:
                    found["/" + member.name.lstrip("/").removeprefix(root.lstrip("/")).lstrip("/")] = (
                        file.read()
                    )
    except (tarfile.TarError, EOFError):
        pass  # cut at the limit of output, or empty
    return found, ""


async def _variables(sandbox: Sandbox) -> dict[str, str]:
    result = await sandbox.exec(["env", "-0"])
    pairs = (item.partition("=") for item in result.stdout.decode(errors="replace").split("\0") if item)
    return {name: value for name, _, value in pairs}


async def _first_of(sandbox: Sandbox, paths: tuple[str, ...]) -> str:
    script = 'for p in "$@"; do [ -f "$p" ] && { printf %s "$p"; exit; }; done'
    return (await sandbox.exec(["sh", "-c", script, "sh", *paths])).stdout.decode(errors="replace")
