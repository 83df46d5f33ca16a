"""Do all ranks run the same? What must be equal, compared before the first collective: unequal code gives wrong gradients, not errors."""

import hashlib
import platform
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path

import msgspec

LIBRARIES = ("torch", "transformers", "safetensors", "numpy", "peft")
_PACKAGES = Path(__file__).resolve().parents[2]


class Facts(msgspec.Struct, tag="facts", frozen=True):
    """Of one rank: hex sha256 of its code, versions by library, its device type, and with what it was started."""

    code: str
    libraries: dict[str, str]
    device: str
    arguments: dict[str, str]


def facts(device: str, arguments: dict[str, str]) -> Facts:
    """Of this process."""
    libraries = {name: version(name) for name in LIBRARIES} | {"python": platform.python_version()}
    return Facts(code_digest(), libraries, device, arguments)


@cache
def code_digest() -> str:
    """Hex sha256 of the Python files of trainer and orchestrator as they lie there, with their names."""
    digest = hashlib.sha256()
    for package in ("orchestrator", "trainer"):
        for file in sorted((_PACKAGES / package).rglob("*.py")):
            content = file.read_bytes()
            digest.update(f"{file.relative_to(_PACKAGES).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def difference(ranks: Sequence[Facts]) -> str:
    """One sentence on the first rank that differs from rank 0; empty: none does."""
    first = ranks[0]
    for rank, other in enumerate(ranks):
        for name, ours in first.libraries.items():
            if other.libraries.get(name) != ours:
                return f"rank {rank} runs {name} {other.libraries.get(name)}, rank 0 has {ours}: install the same versions for every rank"
        if other.code != first.code:
            return f"rank {rank} runs other code of Penstock than rank 0: install the same revision for every rank"
        if other.device != first.device:
            return f"rank {rank} computes on {other.device}, rank 0 on {first.device}: give every rank the same kind of device"
        for name, ours in first.arguments.items():
            if other.arguments.get(name) != ours:
                return (
                    f"rank {rank} was started with --{name} {other.arguments.get(name)}, rank 0 with {ours}: "
                    "start every rank with the same arguments"
                )
    return ""
