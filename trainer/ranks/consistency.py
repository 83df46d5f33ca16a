"""Checks before the first collective that all ranks run the same code, libraries and arguments. Unequal code gives wrong gradients, not errors."""

import platform
from collections.abc import Sequence
from importlib.metadata import version

import msgspec

from orchestrator.pool.code_digest import digest_of

LIBRARIES = ("torch", "transformers", "safetensors", "numpy", "peft")


class Facts(msgspec.Struct, tag="facts", frozen=True, kw_only=True):
    """Facts about one rank: hex sha256 of its code, versions by library, its device type and its arguments."""

    code: str
    libraries: dict[str, str]
    device: str
    arguments: dict[str, str]


def facts(device: str, arguments: dict[str, str]) -> Facts:
    """The facts about this process."""
    libraries = {name: version(name) for name in LIBRARIES} | {"python": platform.python_version()}
    return Facts(code=code_digest(), libraries=libraries, device=device, arguments=arguments)


def code_digest() -> str:
    """Hex sha256 of the Python files of trainer and orchestrator; equal for a checkout and a wheel built from it."""
    return digest_of("orchestrator", "trainer")


def difference(ranks: Sequence[Facts]) -> str:
    """One sentence on the first rank that differs from rank 0; empty if none does."""
    reference = ranks[0]
    for rank, facts in enumerate(ranks):
        for name, expected in reference.libraries.items():
            if facts.libraries.get(name) != expected:
                return f"rank {rank} runs {name} {facts.libraries.get(name)}, rank 0 has {expected}: install the same versions for every rank"
        if facts.code != reference.code:
            return f"rank {rank} runs other code of Penstock than rank 0: install the same revision for every rank"
        if facts.device != reference.device:
            return f"rank {rank} computes on {facts.device}, rank 0 on {reference.device}: give every rank the same kind of device"
        for name, expected in reference.arguments.items():
            if facts.arguments.get(name) != expected:
                return (
                    f"rank {rank} was started with --{name} {facts.arguments.get(name)}, rank 0 with {expected}: "
                    "start every rank with the same arguments"
                )
    return ""
