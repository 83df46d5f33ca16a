"""The settings of container sandboxes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSettings:
    """`engine`: podman or docker, or a path that ends so. `image`: the image of tasks without a Dockerfile; it needs sh, and python3 if a scaffold
    does. `runtime`: an OCI runtime such as runsc (gVisor); empty: the engine's own. `cpus`: cores per program, 0: all. `global_options`
    follow the engine's name, `run_options` and `build_options` follow `run` and `build`."""

    engine: str = "podman"
    image: str = ""
    runtime: str = ""
    cpus: float = 0.0
    global_options: tuple[str, ...] = ()
    run_options: tuple[str, ...] = ()
    build_options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.name not in ("podman", "docker"):
            raise ValueError(f"engine: must be podman or docker, or a path to one, not {self.engine!r}")

    @property
    def name(self) -> str:
        return Path(self.engine).name
