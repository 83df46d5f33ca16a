"""`[tasks]`."""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, model_validator

from orchestrator.contracts.ids import DOMAIN_RULE, is_domain
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.vetting import Level
from orchestrator.settings.curriculum import Positive
from orchestrator.settings.scope import PROCESS
from orchestrator.settings.section import Section


class TasksSection(Section):
    """Which tasks the run takes, how large they may be, and where their files are kept on this machine."""

    require: Level = Level.NONE
    """The level that `penstock tasks vet` must have given each task: none, well-formed, builds, controls-hold or vetted."""
    max_mb: Positive = 256
    """Megabytes of all files of one task."""
    max_file_mb: Positive = 64
    """Megabytes of one file of a task."""
    max_entries: Positive = 20_000
    """Files, links and directories of one task."""
    cache_dir: Annotated[str, PROCESS] = ""
    """Directory for the files of large tasks, for all processes of a machine; empty: penstock-blobs-<user> in that for temporary files."""
    cache_mb: Annotated[Positive, PROCESS] = 8192
    """Megabytes of that directory; files that were used within the last hour stay even above it."""
    domains: Mapping[str, str] = Field(default_factory=dict)
    """The domain of tasks that name none, by their [metadata].category; other tasks without a domain are of the domain general."""

    @model_validator(mode="after")
    def _names(self) -> Self:
        for category, domain in self.domains.items():
            if not is_domain(domain):
                raise ValueError(
                    f"domains.{quoted(category)}: {quoted(domain)} is not the name of a domain: use {DOMAIN_RULE}"
                )
        return self
