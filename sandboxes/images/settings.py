"""The settings of images."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sandboxes.images.store import ImageStore
from sandboxes.images.unpack import Bounds

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VARIABLE = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSettings:
    """`directory`: where images are kept; empty: images are off. `most_mb`, `most_files`: the size of one image, unpacked.

    `bases`: name in FROM → the image of the store that stands for it. `build_env`: variables that every RUN of a build sees, and the image
    does not keep. `build_files`: name → path on this machine, which RUN finds read-only at `/run/penstock-build/NAME`, and the image does not
    keep. `build_networks`: private networks that builds may reach. `build_s`, `build_mb`, `build_memory_mb`: the time, the disk space
    and, where control groups work, the memory that a build may take.
    """

    directory: str = ""
    most_mb: int = 32_768
    most_files: int = 1_000_000
    bases: Mapping[str, str] = field(default_factory=dict)
    build_env: Mapping[str, str] = field(default_factory=dict)
    build_files: Mapping[str, str] = field(default_factory=dict)
    build_networks: tuple[str, ...] = ()
    build_s: float = 1800.0
    build_mb: int = 32_768
    build_memory_mb: int = 16_384

    def __post_init__(self) -> None:
        for key in ("most_mb", "most_files", "build_s", "build_mb", "build_memory_mb"):
            if getattr(self, key) <= 0:
                raise ValueError(f"{key}: must be greater than 0, not {getattr(self, key)}")
        if self.directory and not Path(self.directory).is_absolute():
            raise ValueError(f"directory: must be an absolute path, not {self.directory!r}")
        for name, path in self.build_files.items():
            if not _NAME.fullmatch(name) or not path.startswith("/"):
                raise ValueError(
                    f"build_files: must map plain names to absolute paths, not {name!r} to {path!r}"
                )
        for network in self.build_networks:
            try:
                ipaddress.IPv4Network(network)
            except ValueError as error:
                raise ValueError(
                    f"build_networks: must hold networks such as 10.1.2.0/24, not {network!r}"
                ) from error
        for name, value in self.build_env.items():
            if not _VARIABLE.fullmatch(name) or "\n" in value:
                raise ValueError(f"build_env: must map names of variables to texts of one line, not {name!r}")

    def store(self) -> ImageStore | None:
        """The store; None where images are off."""
        if not self.directory:
            return None
        return ImageStore(Path(self.directory), Bounds(files=self.most_files, bytes=self.most_mb << 20))
