"""`[sandbox]`."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from orchestrator.contracts.hosts import HostList
from orchestrator.contracts.network import Grant
from orchestrator.contracts.numbers import INT4
from orchestrator.settings.curriculum import Positive
from orchestrator.settings.providers import ContainerSection, ImagesSection, KubernetesSection
from orchestrator.settings.scope import PROCESS
from orchestrator.settings.section import Section


class SandboxSection(Section):
    """The provider and the limits of one sandbox.

    The limits bound one sandbox and reserve nothing: all slots together may be allowed more than the machine has."""

    provider: Annotated[str, PROCESS] = "bubblewrap"
    """Where tool calls run: bubblewrap, container, kubernetes, local, or an entry point of penstock.sandboxes."""
    base_images: tuple[str, ...] = (
        "debian:12",
        "debian:12-slim",
        "debian:bookworm",
        "debian:bookworm-slim",
        "python:3.11",
        "python:3.11-slim",
        "python:3.11-bookworm",
        "python:3.11-slim-bookworm",
    )
    """Base images that a Dockerfile may name where no image is built; this machine's system replaces them."""
    memory_mb: Positive = 4096
    """Megabytes of memory of one sandbox, unless its task asks for other ones."""
    max_memory_mb: Annotated[int, Field(ge=0, le=INT4, strict=True)] = 0
    """The most megabytes of memory that a task may ask for; below sandbox.memory_mb: that many."""
    processes: Positive = 512
    """Processes of one sandbox at a time."""
    cpu_s: Positive = 14_400
    """CPU seconds of one program of a sandbox with its descendants."""
    disk_mb: Positive = 10_240
    """Megabytes on disk of one sandbox, unless its task asks for other ones."""
    max_disk_mb: Annotated[int, Field(ge=0, le=INT4, strict=True)] = 0
    """The most megabytes on disk that a task may ask for; below sandbox.disk_mb: that many."""
    artifact_mb: Positive = 256
    """Megabytes of all files that an attempt may leave for its tests."""
    artifact_file_mb: Positive = 64
    """Megabytes of one such file."""
    artifact_files: Positive = 20_000
    """Files, links, directories and deletions that an attempt may leave."""
    egress: Grant = Grant.NONE
    """Network access that tasks may ask for, through a logging proxy: none, allow_list (the hosts that they name) or public (all public hosts)."""
    egress_hosts: tuple[str, ...] = ()
    """With egress = "allow_list": the hosts that tasks may name, such as files.example.org or *.example.org; empty: any."""
    egress_mb: Positive = 4096
    """Megabytes that the programs of one sandbox may send and receive through that proxy."""
    container: Annotated[ContainerSection, PROCESS] = ContainerSection()
    """Settings of the provider `container`."""
    images: Annotated[ImagesSection, PROCESS] = ImagesSection()
    """Images of the provider `bubblewrap`."""
    kubernetes: Annotated[KubernetesSection, PROCESS] = KubernetesSection()
    """Settings of the provider `kubernetes`."""

    @model_validator(mode="after")
    def _hosts(self) -> Self:
        try:
            HostList.of(self.egress_hosts)
        except ValueError as error:
            raise ValueError(f"egress_hosts: {error}") from None
        if self.egress_hosts and self.egress is not Grant.ALLOW_LIST:
            raise ValueError(
                f'egress_hosts bounds allow-lists, and egress is "{self.egress}": write egress = "allow_list", or remove egress_hosts'
            )
        return self
