"""`[sandbox.container]` …: what people write of the sandbox providers that have settings of their own.

The fields and their defaults are those of the provider's settings, which check the values as well; what is wrong is said with its key.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from orchestrator.course import Section
from sandboxes.container.settings import ContainerSettings
from sandboxes.kubernetes.settings import KubernetesSettings


class ContainerSection(Section):
    """podman or docker. `engine`: one of the two, or a path to it. `image`: where tasks without a Dockerfile run; it needs sh, and python3 where a
    scaffold does. `runtime`: an OCI runtime, such as runsc for gVisor. `cpus`: cores per program, 0: all. `global_options` follow the
    engine's name, `run_options` and `build_options` its `run` and `build`."""

    engine: str = "podman"
    image: str = ""
    runtime: str = ""
    cpus: Annotated[float, Field(ge=0)] = 0.0
    global_options: tuple[str, ...] = ()
    run_options: tuple[str, ...] = ()
    build_options: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _settings(self) -> Self:
        ContainerSettings(**self.model_dump())
        return self


class KubernetesSection(Section):
    """Pods of a cluster (ops/guides/cluster-sandboxes.md). `api_server`, `token_file`, `ca_file`, `namespace`: empty, those of the pod that
    runners run in. `image`: where programs run; it needs sh and python3 (3.11). `runtime_class`: a RuntimeClass such as gvisor.
    `user_namespaces`: needs nodes that have them. `gateway`: host:port of the gateway for sandboxes; empty: as runners know it, else through
    the API server. `cpu`: cores per sandbox. `memory_headroom_mb`: what a pod may use above `memory_mb`. `baked`: paths of agent programs that
    the image has; others are copied into each pod, up to `copy_mb`. `ttl_s`: a pod without its owner is gone after that. `start_s`: how long a
    pod may take to start. `active_s`: when the cluster itself ends a pod, whoever owns it."""

    image: str = ""
    namespace: str = ""
    api_server: str = ""
    token_file: str = ""
    ca_file: str = ""
    runtime_class: str = ""
    user_namespaces: bool = False
    gateway: str = ""
    cpu: float = 1.0
    memory_headroom_mb: Annotated[int, Field(ge=32)] = 128
    copy_mb: Annotated[int, Field(ge=0)] = 64
    baked: tuple[str, ...] = ()
    node_selector: Mapping[str, str] = Field(default_factory=dict)
    image_pull_secrets: tuple[str, ...] = ()
    labels: Mapping[str, str] = Field(default_factory=dict)
    ttl_s: float = 60.0
    start_s: float = 300.0
    active_s: float = 86_400.0

    @model_validator(mode="after")
    def _settings(self) -> Self:
        KubernetesSettings(**self.model_dump())
        return self


def tables(section: Any) -> dict[str, dict[str, Any]]:
    """Provider → its settings, of `[sandbox]`."""
    return {name: getattr(section, name).model_dump() for name in ("container", "kubernetes")}
