"""Traces of a reference solution that the tests do not see: files outside of the work directory, and running processes.

The tests run in a fresh sandbox. Where they give such a solution 0, this is why, or may be. Agents leave such things, too (settings, caches), so only
the solution is looked at.
"""

from collections.abc import Collection, Sequence
from typing import Final

from orchestrator.contracts.events import ArtifactFile
from orchestrator.contracts.states import Left
from orchestrator.runner.collect import LIST_S
from orchestrator.tasks.artifacts import SHOWN_PATH
from orchestrator.tasks.collected import ArtifactSource
from sandboxes.base import HOME, Provider, Sandbox, SandboxError

MAX_PATHS: Final = 20
_BYTES: Final = MAX_PATHS * 4096  # as many paths of the greatest length
OUTSIDE: Final = "lies outside of the work directory"
ENDED: Final = "still ran, was ended"
_FILES: Final = (
    f'for place in "$@"; do find "$place" -type f -print0 2>/dev/null | head -c {_BYTES}; printf "\\0"; done'
)
_PROCESSES: Final = (
    'for one in /proc/[0-9]*; do case "$one" in /proc/1|/proc/$$|/proc/$PPID) continue ;; esac; '
    '[ -O "$one" ] && { tr "\\0" " " <"$one/cmdline"; printf "\\0"; } 2>/dev/null; done; exit 0'
)


async def left_elsewhere(
    provider: Provider, sandbox: Sandbox, seen: Collection[str], sources: Sequence[ArtifactSource]
) -> Sequence[ArtifactFile]:
    """At most `MAX_PATHS` of each, before the sandbox's processes are ended. `seen`: absolute paths that the tests get in any case, as what lies in
    `sources`. Nothing without isolation: other users' files and processes are not the solution's."""
    if not provider.isolated:
        return []
    try:
        places = [sandbox.path(HOME), sandbox.path("/tmp")]
        files = await sandbox.exec(["sh", "-c", _FILES, "sh", *places], timeout_s=LIST_S, cwd="/")
        processes = await sandbox.exec(["sh", "-c", _PROCESSES], timeout_s=LIST_S, cwd="/")
    except SandboxError:  # what the attempt left names it
        return []
    collected = tuple(f"{sandbox.path(source.source)}/" for source in sources if source.is_collected)
    paths = [
        path for path in _names(files.stdout) if path not in seen and not f"{path}/".startswith(collected)
    ][:MAX_PATHS]
    commands = [each for each in _names(processes.stdout) if each.strip()][:MAX_PATHS]
    return [_behind(path, OUTSIDE) for path in paths] + [_behind(each, ENDED) for each in commands]


def _behind(name: str, why: str) -> ArtifactFile:
    return ArtifactFile(path=name.strip()[:SHOWN_PATH], body=None, kind=Left.BEHIND, why=why)


def _names(output: bytes) -> list[str]:
    return [name for name in output.decode(errors="replace").split("\0") if name]
