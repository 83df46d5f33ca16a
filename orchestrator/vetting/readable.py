"""Everything that an agent can read in its sandbox: the files around its work and the variables of its programs."""

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
from orchestrator.vetting.collecting import SCRIPT, members, most
from sandboxes.base import DEFAULT_ENV, HOME, PLACED, WORK, KilledBy, Provider, Sandbox

PLACES: Final = (WORK, HOME, "/tmp", "/logs", *PLACED)
MOST_BYTES: Final = 64 << 20
"""Of all files together; a finding about more is out of reach, and the report says so."""
SECONDS: Final = 120.0


async def readable(
    run: ProbeRun, provider: Provider, section: SandboxSection, check: Healthcheck | None = None
) -> tuple[Readable, str, str]:
    """The files that a new agent can read, once `check` has succeeded; the path of libfaketime inside, empty without it; a note on what was not
    read, empty for all. InfraFailure if `check` fails."""
    limits = replace(sandbox_limits(section, SECONDS), output_bytes=MOST_BYTES)
    spec = run.pristine.spec(run.pristine.files, limits)
    images = provider.containers and (spec.build is not None or not builds_where_needed(provider))
    images = images or bool(getattr(provider, "own_system", False))
    async with open_sandbox(provider, spec) as sandbox:
        if check is not None:
            await until_healthy(sandbox, check)
        faketime = await _first_of(sandbox, FAKETIME)
        variables = await _variables(sandbox)
        root = sandbox.path("/app").removesuffix("/app")
        found = await sandbox.exec(
            ["bash", "-c", SCRIPT, "bash", root, str(int(images)), *map(sandbox.path, PLACES)],
            timeout_s=SECONDS,
        )
    placed = {path: file.data for path, file in run.pristine.files.items() if file.size <= most(path)}
    files, note, unread = members(found.stdout, root), "", ""
    if images and not files:
        unread = "no file of its image could be read: it has neither GNU tar nor wc and head"
    elif not files and placed:
        note = "only the files of environment/ were searched: the sandbox sent none"
    elif found.truncated:
        note = f"only {MOST_BYTES >> 20} MB of files were searched"
    elif found.killed_by is not KilledBy.NONE:
        note = f"only what could be read in {SECONDS:.0f} s was searched"
    given = {name: value for name, value in variables.items() if DEFAULT_ENV.get(name) != value}
    shown = Readable(files=placed | files, variables=given | dict(run.pristine.env), unread=unread)
    return shown, faketime, note


async def _variables(sandbox: Sandbox) -> dict[str, str]:
    result = await sandbox.exec(["env", "-0"])
    pairs = (item.partition("=") for item in result.stdout.decode(errors="replace").split("\0") if item)
    return {name: value for name, _, value in pairs}


async def _first_of(sandbox: Sandbox, paths: tuple[str, ...]) -> str:
    script = 'for p in "$@"; do [ -f "$p" ] && { printf %s "$p"; exit; }; done'
    return (await sandbox.exec(["sh", "-c", script, "sh", *paths])).stdout.decode(errors="replace")
