"""The names of processor architectures, as images use them."""

from __future__ import annotations

import platform
from typing import Final

_NAMES: Final = {"x86_64": "amd64", "aarch64": "arm64", "i686": "386", "armv7l": "arm"}
MACHINES: Final = {"amd64": 62, "arm64": 183, "386": 3, "arm": 40, "ppc64le": 21, "s390x": 22, "riscv64": 243}
"""Architecture → its number in the header of an ELF file."""


def machine() -> str:
    """This machine's architecture, by the name that images use: amd64, arm64."""
    return _NAMES.get(platform.machine(), platform.machine())


def platform_variables() -> dict[str, str]:
    """The variables that a builder sets itself."""
    own = {"PLATFORM": f"linux/{machine()}", "OS": "linux", "ARCH": machine(), "VARIANT": ""}
    return {f"{side}{name}": value for side in ("BUILD", "TARGET") for name, value in own.items()}
