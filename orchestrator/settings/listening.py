"""Addresses that processes listen on."""

from typing import Annotated, Final

from pydantic import AfterValidator, ValidationInfo

from orchestrator.contracts.hosts import host_of
from orchestrator.settings.scope import is_stored

_EVERY: Final = (
    "write 127.0.0.1, an address or a name of this machine, or 0.0.0.0 for every address that it has"
)


def _listening(host: str, info: ValidationInfo) -> str:
    if is_stored(info):
        return host
    if not host:
        raise ValueError(f"an empty host would listen on every address of this machine: {_EVERY}")
    try:
        return str(host_of(host, labels=1))
    except ValueError as error:
        raise ValueError(f"{error}: {_EVERY}, without http:// and without a port") from None


ListenHost = Annotated[str, AfterValidator(_listening)]
"""One address or name, in the spelling that `host_of` gives."""
