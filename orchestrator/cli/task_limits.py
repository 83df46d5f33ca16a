"""Whose sandboxes, size limits and scaffolds count for tasks that are only read: those of a run, if one is named, else the defaults."""

from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.deploy.home import Home
from orchestrator.settings.sandbox import SandboxSection

if TYPE_CHECKING:
    from orchestrator.tasks.bundle import BundleLimits


def counting(
    config: Path | None, overrides: tuple[str, ...] = ()
) -> "tuple[SandboxSection, BundleLimits, tuple[str, ...]]":
    """The sandboxes, the limits, and the scaffolds that a run draws (none without a run).

    Prints which keys of the file do not count, because the run keeps others. ValueError for overrides without a run."""
    from orchestrator.cli.run_config import print_notes, recorded
    from orchestrator.tasks.bundle import BundleLimits
    from orchestrator.tasks.unfit import drawn

    if config is None:
        if overrides:
            raise ValueError("--set changes keys of a run's configuration: name it with -c")
        return SandboxSection(), BundleLimits(), ()
    file_config = Home.at(config, overrides).config()
    run = recorded(file_config)
    print_notes(run.notes(file_config))
    counts = run.config(file_config)
    return counts.sandbox, BundleLimits.of(counts.tasks), drawn(counts.rollout.scaffolds)
