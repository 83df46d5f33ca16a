"""The settings of sandboxes on a cluster."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sandboxes.text_files import read_text

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PORT = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    """`api_server`, `token_file`, `ca_file`, `namespace`: empty, those of the pod that this runs in. `image`: the image of programs; it needs sh and
    python3 (3.11). `runtime_class`: a RuntimeClass such as gvisor or kata; empty: the cluster's own. `gateway`: host:port of the gateway for
    sandboxes, by TCP; empty: the spec's gateway address, else through the API server. `cpu`: cores per sandbox. `memory_headroom_mb`:
    memory of a pod above its programs' limit. `baked`: paths that the image contains and that are not copied into each pod; `copy_mb`: the
    largest copy. `ttl_s`: a pod without its owner is gone after this time; `start_s`: the longest time it may take to start; `active_s`: the
    cluster's own last resort. `labels`: more labels of every pod."""

    image: str = ""
    namespace: str = ""
    api_server: str = ""
    token_file: str = ""
    ca_file: str = ""
    runtime_class: str = ""
    user_namespaces: bool = False
    gateway: str = ""
    cpu: float = 1.0
    memory_headroom_mb: int = 128
    copy_mb: int = 64
    baked: tuple[str, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    image_pull_secrets: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    ttl_s: float = 60.0
    start_s: float = 300.0
    active_s: float = 86_400.0
    owner: str = "penstock"

    def __post_init__(self) -> None:
        for key in ("ttl_s", "start_s", "active_s", "cpu"):
            if getattr(self, key) <= 0:
                raise ValueError(f"{key}: must be above 0, not {getattr(self, key)}")
        if self.active_s < self.start_s:
            raise ValueError(
                f"active_s: {self.active_s:g} is less than start_s, {self.start_s:g}: no pod could ever be used"
            )
        if self.gateway and not _PORT.fullmatch(self.gateway.rpartition(":")[2]):
            raise ValueError(f"gateway: must be host:port, not {self.gateway!r}")
        if self.api_server and not self.api_server.startswith("https://"):
            raise ValueError(f"api_server: must begin with https://, not {self.api_server!r}")
        if set(self.labels) & {"penstock.dev/sandbox"}:
            raise ValueError("labels: penstock.dev/sandbox is taken")

    @property
    def server(self) -> str:
        """The API server's URL. ValueError outside a pod if none is named."""
        if self.api_server:
            return self.api_server.rstrip("/")
        host, port = (
            os.environ.get("KUBERNETES_SERVICE_HOST", ""),
            os.environ.get("KUBERNETES_SERVICE_PORT", "443"),
        )
        if not host:
            raise ValueError(
                "api_server: this process does not run in a pod, so name the API server, token_file, ca_file and namespace"
            )
        return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"

    @property
    def space(self) -> str:
        """The namespace. ValueError outside a pod if none is named."""
        if self.namespace:
            return self.namespace
        try:
            return (ACCOUNT / "namespace").read_text().strip()
        except OSError:
            raise ValueError(
                "namespace: this process does not run in a pod, so name the namespace of the sandboxes"
            ) from None

    def token(self) -> str:
        """Read on each use: the cluster changes it every hour."""
        path = Path(self.token_file) if self.token_file else ACCOUNT / "token"
        try:
            return read_text(path).strip()
        except (OSError, ValueError) as error:
            raise ValueError(f"token_file: cannot be read: {error}") from error

    @property
    def authority(self) -> str:
        return self.ca_file or str(ACCOUNT / "ca.crt")
