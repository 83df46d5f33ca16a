"""`[sandbox.container]` …: the configuration of sandbox providers that have their own settings.

The fields and their defaults are those of the provider's settings, which check the values as well. An error names its key.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from orchestrator.contracts.numbers import INT4
from orchestrator.settings.scope import RUN
from orchestrator.settings.section import Section
from orchestrator.settings.timeouts import MAX_S
from sandboxes.container.settings import ContainerSettings
from sandboxes.images.settings import ImageSettings
from sandboxes.kubernetes.settings import KubernetesSettings


class ContainerSection(Section):
    """Sandboxes in containers of podman or docker."""

    engine: str = "podman"
    """podman or docker, or a path to one."""
    image: str = ""
    """The image in which tasks without a Dockerfile run; it needs sh, and python3 where a scaffold does."""
    runtime: str = ""
    """An OCI runtime, such as runsc for gVisor; empty: the engine's own."""
    cpus: Annotated[float, Field(ge=0)] = 0.0
    """Cores per program; 0: all."""
    global_options: tuple[str, ...] = ()
    """Options that follow the engine's name in each of its calls."""
    run_options: tuple[str, ...] = ()
    """Options that follow the engine's `run`."""
    build_options: tuple[str, ...] = ()
    """Options that follow the engine's `build`."""

    @model_validator(mode="after")
    def _settings(self) -> Self:
        ContainerSettings(**self.model_dump())
        return self


class ImagesSection(Section):
    """Images without a daemon, for the provider `bubblewrap` (ops/guides/images.md)."""

    directory: str = ""
    """Where images are kept, relative to this file, such as .penstock/images; empty: tasks that need an image are refused."""
    most_mb: Annotated[int, Field(ge=1, le=INT4)] = 32_768
    """Megabytes of one image, unpacked."""
    most_files: Annotated[int, Field(ge=1, le=INT4)] = 1_000_000
    """Files and directories of one image."""
    bases: Annotated[Mapping[str, str], RUN] = Field(default_factory=dict)
    """Name in FROM → the image that stands for it, such as "python:3.11" = "debian:12"; images record it."""
    build_env: Mapping[str, str] = Field(default_factory=dict)
    """Variables that every RUN of a build sees and no image keeps, such as PIP_INDEX_URL."""
    build_files: Mapping[str, str] = Field(default_factory=dict)
    """Name → path on this machine, which RUN finds at /run/penstock-build/NAME and no image keeps."""
    build_networks: tuple[str, ...] = ()
    """Private networks that builds may reach, such as 10.1.2.0/24; all others are closed to them."""
    build_s: Annotated[float, Field(gt=0, le=MAX_S)] = 1800.0
    """Seconds that a build may take."""
    build_mb: Annotated[int, Field(ge=1, le=INT4)] = 32_768
    """Megabytes of disk space that a build may take."""
    build_memory_mb: Annotated[int, Field(ge=1, le=INT4)] = 16_384
    """Megabytes of memory that a build may take, where control groups work."""

    @model_validator(mode="after")
    def _settings(self) -> Self:
        ImageSettings(**self.model_dump())
        return self


class KubernetesSection(Section):
    """Sandboxes in pods of a cluster (ops/guides/cluster-sandboxes.md)."""

    image: str = ""
    """The image in which programs run; it needs sh and python3 (3.11)."""
    namespace: str = ""
    """The namespace of the sandboxes' pods; empty: that of the runner's own pod."""
    api_server: str = ""
    """The https:// URL of the API server; empty: that of the cluster that the runner's pod runs in."""
    token_file: str = ""
    """The file with the token for the API server; empty: that of the pod's service account."""
    ca_file: str = ""
    """The file with the certificate authority of the API server; empty: that of the pod's service account."""
    runtime_class: str = ""
    """A RuntimeClass for the pods, such as gvisor or kata; empty: the cluster's own."""
    user_namespaces: bool = False
    """Whether pods get a user namespace of their own; nodes must support it."""
    gateway: str = ""
    """The host:port of the gateway as sandboxes reach it; empty: as runners know it, else through the API server."""
    cpu: float = 1.0
    """Cores per sandbox."""
    memory_headroom_mb: Annotated[int, Field(ge=32, le=INT4)] = 128
    """Megabytes that a pod may use above sandbox.memory_mb."""
    copy_mb: Annotated[int, Field(ge=0, le=INT4)] = 64
    """Megabytes of agent programs that may be copied into each pod."""
    baked: tuple[str, ...] = ()
    """Paths of agent programs that the image already has; others are copied into each pod."""
    node_selector: Mapping[str, str] = Field(default_factory=dict)
    """The labels that a node must have to run the pods."""
    image_pull_secrets: tuple[str, ...] = ()
    """The names of secrets with which the image is pulled."""
    labels: Mapping[str, str] = Field(default_factory=dict)
    """More labels of every pod."""
    ttl_s: Annotated[float, Field(le=MAX_S)] = 60.0
    """Seconds after which a pod without its owner ends."""
    start_s: Annotated[float, Field(le=MAX_S)] = 300.0
    """Seconds that a pod may take to start."""
    active_s: Annotated[float, Field(le=MAX_S)] = 86_400.0
    """Seconds after which the cluster itself ends a pod, whether its owner lives or not."""

    @model_validator(mode="after")
    def _settings(self) -> Self:
        KubernetesSettings(**self.model_dump())
        return self


def tables(section: Any) -> dict[str, dict[str, Any]]:
    """Provider → its settings, of `[sandbox]`."""
    return {
        name: getattr(section, key_of(name)).model_dump()
        for name in ("bubblewrap", "container", "kubernetes")
    }


def key_of(provider: str) -> str:
    """The key of a provider's settings below `[sandbox]`."""
    return "images" if provider == "bubblewrap" else provider
