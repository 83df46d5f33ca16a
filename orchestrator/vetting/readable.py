"""Everything that an agent can read in its sandbox: the files around its work and the variables of its programs."""

from dataclasses import replace
from typing import Final

from orchestrator.contracts.quote import quoted
from orchestrator.probing import ProbeRun
from orchestrator.runner.healthcheck import until_healthy
from orchestrator.runner.open_sandbox import open_sandbox
from orchestrator.runner.worker import sandbox_limits
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.environment import Environment, builds_where_needed
from orchestrator.tasks.settings import Healthcheck
from orchestrator.tasks.vetting.conditions import FAKETIME
from orchestrator.tasks.vetting.leaks import SHOWN_FILES, Readable
from orchestrator.vetting.collecting import FILE_BYTES, PACK_BYTES, SCRIPT, members, most
from sandboxes.base import DEFAULT_ENV, HOME, PLACED, WORK, KilledBy, Provider, Sandbox
from sandboxes.paths import parents

PLACES: Final = (WORK, HOME, "/tmp", "/logs", *PLACED)
ROUND_BYTES: Final = 64 << 20
"""Of files that are sent at once, with room for the head of the largest one."""
MAX_BYTES: Final = 512 << 20
"""Of all files together. The control does not hold if the places of the work alone have more; of an image's other directories, such as an
environment of Python, the rest goes unread, with a note."""
SECONDS: Final = 120.0
"""Of one round."""
_ROOM: Final = 1 << 20
_LESS: Final = (
    "let fewer files be readable: remove caches, archives and data that the work does not need from the image"
)


async def readable(
    run: ProbeRun, provider: Provider, section: SandboxSection, check: Healthcheck | None = None
) -> tuple[Readable, str, str]:
    """The files that a new agent can read, once `check` has succeeded; the path of libfaketime inside, empty without it; a note on what was not
    read, empty for all. InfraFailure if `check` fails."""
    limits = replace(sandbox_limits(section, SECONDS), output_bytes=ROUND_BYTES + _ROOM)
    spec = run.pristine.spec(run.pristine.files, limits)
    images = provider.containers and (spec.build is not None or not builds_where_needed(provider))
    images = images or bool(getattr(provider, "own_system", False))
    async with open_sandbox(provider, spec) as sandbox:
        if check is not None:
            await until_healthy(sandbox, check)
        faketime = await _first_of(sandbox, FAKETIME)
        variables = await _variables(sandbox)
        work = await _work(sandbox, run.pristine.work_dir)
        files, unread, beyond = await _files(sandbox, images=images)
    placed = {path: file.data for path, file in run.pristine.files.items() if file.size <= most(path)}
    note, remedy = beyond, _LESS if unread else ""
    if images and not files:
        unread, remedy = "no file of its image could be read: it has neither GNU tar nor wc and head", ""
    elif not files and placed:
        note, unread = "only the files of environment/ were searched: the sandbox sent none", ""
    given = {name: value for name, value in variables.items() if DEFAULT_ENV.get(name) != value}
    shown = Readable(
        files=placed | files,
        variables=given | dict(run.pristine.env),
        entries=_entries(run.pristine),
        unread=unread,
        remedy=remedy,
        work=work,
    )
    return shown, faketime, "; ".join(filter(None, (note, large_note(run.pristine))))


def large_note(pristine: Environment) -> str:
    """A sentence on placed files that are too large to be searched; empty: none is."""
    large = [path for path, file in pristine.files.items() if file.size > most(path)]
    if not large:
        return ""
    names = ", ".join(map(quoted, large[:SHOWN_FILES])) + (" …" if len(large) > SHOWN_FILES else "")
    return (
        f"files above {FILE_BYTES >> 20} MB (packs of git: {PACK_BYTES >> 20} MB) were not searched: {names}"
    )


def _entries(pristine: Environment) -> dict[str, str]:
    """The links of an environment with their targets, and its empty directories with nothing."""
    full = {above for path in (*pristine.files, *pristine.links) for above in parents(path)}
    empty = {path: "" for path in (*pristine.directories, *pristine.modes) if path not in full}
    return empty | dict(pristine.links)


async def _files(sandbox: Sandbox, *, images: bool) -> tuple[dict[str, bytes], str, str]:
    """The files that a sandbox sends, in as many rounds as they need; why some are not among them, empty: all are; a note where only files of an
    image's other directories are not, which come last."""
    root = sandbox.path("/app").removesuffix("/app")
    places = tuple(map(sandbox.path, PLACES))
    files: dict[str, bytes] = {}
    left, after = MAX_BYTES, ""
    while True:
        words = (SCRIPT, "bash", root, str(int(images)), str(ROUND_BYTES + _ROOM), after, *places)
        sent = await sandbox.exec(["bash", "-c", *words], timeout_s=SECONDS)
        found = members(sent.stdout, root)
        fresh = found.keys() - files.keys()
        files |= found
        left -= sum(len(found[path]) for path in fresh)
        if sent.killed_by is not KilledBy.NONE:
            return files, f"only the files that could be read in {SECONDS:.0f} s were searched", ""
        if len(sent.stdout) < ROUND_BYTES + _ROOM and not sent.truncated:
            return files, "", ""
        if left <= 0:
            part = f"only {MAX_BYTES >> 20} MB of its readable files were searched"
            last = next(reversed(found), "")
            if last and not any(last == place or last.startswith(f"{place}/") for place in PLACES):
                return files, "", f"{part}, all of those around the work among them"
            return files, part, ""
        after = next((root + path for path in reversed(found) if _is_text(path)), "")
        if not fresh or not after:
            return (
                files,
                "only some of its readable files were searched: the sandbox did not send the others",
                "",
            )


def _is_text(path: str) -> bool:
    """Whether a path can be the argument of a program in each kind of sandbox."""
    return not any("\ud800" <= each <= "\udfff" for each in path)


async def _variables(sandbox: Sandbox) -> dict[str, str]:
    result = await sandbox.exec(["env", "-0"])
    pairs = (item.partition("=") for item in result.stdout.decode(errors="replace").split("\0") if item)
    return {name: value for name, _, value in pairs}


async def _work(sandbox: Sandbox, begins: str) -> str:
    """The work directory as its programs name it; `/app` where none answers. `begins`: where the task lets them begin, `/app` or below it."""
    root = sandbox.path("/app").removesuffix("/app")
    result = await sandbox.exec(["sh", "-c", "pwd -P && printf ."])
    named = result.stdout.decode(errors="replace").removesuffix("\n.").removeprefix(root)
    return named.removesuffix(begins.removeprefix(WORK)).rstrip("/") or WORK


async def _first_of(sandbox: Sandbox, paths: tuple[str, ...]) -> str:
    script = 'for p in "$@"; do [ -f "$p" ] && { printf %s "$p"; exit; }; done'
    return (await sandbox.exec(["sh", "-c", script, "sh", *paths])).stdout.decode(errors="replace")
