"""Limits of a task's sandboxes: the run's, replaced by those that the task asks for, up to the run's maximum."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from orchestrator.contracts.quote import quoted
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.key_values import megabytes

_SIZES: Final = (
    ("memory_mb", "memory", "memory_mb", "max_memory_mb"),
    ("storage_mb", "storage", "disk_mb", "max_disk_mb"),
)
"""A key of `[environment]`, its older spelling, the run's limit and its maximum."""


def granted(section: SandboxSection, table: Mapping[str, Any]) -> SandboxSection:
    """`section` with the limits of a task (`table`: its `[environment]`). A task that was accepted under other limits gets at most the maximum."""
    changes = {}
    for key, older, limit, maximum in _SIZES:
        sizes = _sizes(table, key, older)
        if sizes:
            changes[limit] = min(next(iter(sizes.values())), _most(section, limit, maximum))
    return section.model_copy(update=changes)


def shortages(
    table: Mapping[str, Any], section: SandboxSection, name: str = "[environment]"
) -> Iterator[str]:
    """Resources for which the table `name` of a task requests more than a sandbox may have, as sentences. The table must be valid."""
    for key, older, limit, maximum in _SIZES:
        sizes = _sizes(table, key, older)
        if len(set(sizes.values())) > 1:
            yield f"task.toml: {name}.{key} and .{older} say different things: remove {older}"
        most = _most(section, limit, maximum)
        for key_name, size in sizes.items():
            if size > most:
                yield (
                    f"task.toml: {name}.{key_name} = {quoted(table[key_name])} is more than a sandbox of this run may have: "
                    f"lower it to {_as(most, older=key_name == older)}, or begin a new run with a larger sandbox.{maximum}"
                )
    cores = {
        "container": ("container.cpus", section.container.cpus),
        "kubernetes": ("kubernetes.cpu", section.kubernetes.cpu),
    }
    setting, has = cores.get(section.provider, ("", 0.0))
    if "cpus" in table and has and table["cpus"] > has:
        yield (
            f"task.toml: {name}.cpus = {table['cpus']} is more than a sandbox of this run has: "
            f"lower it to {has:g}, or raise sandbox.{setting} and start the run again"
        )


def _sizes(table: Mapping[str, Any], key: str, older: str) -> dict[str, int]:
    """The sizes that a task asks for, in MB, by the spelling of the key."""
    wanted = {name: table[name] for name in (key, older) if name in table}
    return {name: megabytes(size) if name == older else int(size) for name, size in wanted.items()}


def _most(section: SandboxSection, limit: str, maximum: str) -> int:
    return max(int(getattr(section, limit)), int(getattr(section, maximum)))


def _as(size: int, *, older: bool) -> str:
    """Megabytes in the format of the key."""
    return f'"{size}M"' if older else str(size)
