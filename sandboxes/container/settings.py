"""What a person decides about containers."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

VARIABLE = "PENSTOCK_SANDBOX_SETTINGS"
"""Names a JSON file, {"container": {…}, "kubernetes": {…}}, for providers that are made without arguments: by `python -m sandboxes.conformance`
and the owners it kills."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """`engine`: podman or docker, or a path that ends so. `image`: where tasks without a Dockerfile run; it needs sh, and python3 where a scaffold
    does. `runtime`: an OCI runtime such as runsc (gVisor); empty: the engine's own. `cpus`: cores per program, 0: all. `global_options`
    come after the engine's name, `run_options` and `build_options` after `run` and `build`."""

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


def from_environment(kind: type[T], table: str) -> T:
    """Settings from the file that `VARIABLE` names, the defaults without. ValueError names the key."""
    path = os.environ.get(VARIABLE, "")
    if not path:
        return kind()
    found: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8")).get(table, {})
    found = {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}
    try:
        return kind(**found)
    except TypeError as error:
        raise ValueError(f"{path}: {table}: {error}") from None
