"""The names of processor architectures, as images use them."""

from __future__ import annotations

import platform
from typing import Final

_NAMES: Final = {"x86_64": "amd64", "aarch64": "arm64", "i686": "386", "armv7l": "arm"}
_SPELLINGS: Final = {**_NAMES, "x86-64": "amd64", "i386": "386", "armhf": "arm"}
"""Other spellings by authors of the names that images use."""
MACHINES: Final = {"amd64": 62, "arm64": 183, "386": 3, "arm": 40, "ppc64le": 21, "s390x": 22, "riscv64": 243}
"""Architecture → its number in the header of an ELF file."""


def machine() -> str:
    """This machine's architecture, by the name that images use: amd64, arm64."""
    return _NAMES.get(platform.machine(), platform.machine())


def platform_variables() -> dict[str, str]:
    """The variables that a builder sets itself."""
    own = {"PLATFORM": f"linux/{machine()}", "OS": "linux", "ARCH": machine(), "VARIANT": ""}
    return {f"{side}{name}": value for side in ("BUILD", "TARGET") for name, value in own.items()}


def spelled(architecture: str) -> str:
    """The name that images use for an architecture in any usual spelling.

    >>> spelled("x86_64"), spelled("aarch64"), spelled("s390x")
    ('amd64', 'arm64', 's390x')
    """
    return _SPELLINGS.get(architecture.lower(), architecture.lower())


def is_here(platform: str) -> bool:
    """Whether a platform as authors write it is this machine's: `linux/amd64`, `linux/x86_64`, `amd64`, `linux`, with or without a variant."""
    system, slash, rest = platform.partition("/")
    if not slash:
        return system.lower() == "linux" or spelled(system) == machine()
    return system.lower() == "linux" and spelled(rest.partition("/")[0]) == machine()
