"""Names of hosts in one spelling, and lists of them: what a task may reach, and what a run lets tasks ask for.

A list holds exact names, `*.suffix` (every name below the suffix at any depth, not the suffix itself) and single addresses.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

import idna

from orchestrator.contracts.quote import quoted

Address = IPv4Address | IPv6Address

_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_NUMBER: Final = re.compile(r"\d+|0x[0-9a-f]*", re.ASCII)
_MAX_LENGTH: Final = 253


def host_of(text: str, *, labels: int = 2) -> str | Address:
    """A host in the one spelling that is compared: lower case, A-labels, no trailing dot; or an address. ValueError, the end of a sentence, for
    anything else: URLs, ports, and addresses in spellings that programs read differently (decimal, octal, hexadecimal, shortened, with a zone).
    `labels`: parts that a name has at least."""
    bare = text.removeprefix("[").removesuffix("]") if text.startswith("[") and text.endswith("]") else text
    if ":" in bare:
        return _address(bare, text)
    if not text.isascii():
        try:
            text = idna.encode(text, uts46=True).decode("ascii")
        except (idna.IDNAError, UnicodeError):
            raise ValueError(f"{quoted(text)} is not the name of a host") from None
    name = text.lower().removesuffix(".")
    parts = name.split(".")
    if _NUMBER.fullmatch(parts[-1]):
        return _address(name, text)
    if len(name) > _MAX_LENGTH or not all(_LABEL.fullmatch(part) for part in parts):
        raise ValueError(f"{quoted(text)} is not the name of a host")
    if len(parts) < labels:
        raise ValueError(f"{quoted(text)} has no domain: write the whole name of a host")
    return name


def _address(plain: str, text: str) -> Address:
    try:
        found = ip_address(plain)
    except ValueError:
        found = None
    if found is None or "%" in plain:
        raise ValueError(f"{quoted(text)} is not an address in its usual spelling")
    return found


def _entry(entry: str) -> str | Address:
    return host_of(entry[2:], labels=1) if entry.startswith("*.") else host_of(entry)


@dataclass(frozen=True, slots=True)
class HostList:
    """Hosts by their names, suffixes (with a leading dot) and addresses. Made by `of`."""

    names: frozenset[str]
    suffixes: frozenset[str]
    addresses: frozenset[Address]

    @classmethod
    def of(cls, entries: Iterable[str]) -> "HostList":
        """ValueError names the first entry that is none."""
        names, suffixes, addresses = set(), set(), set()
        for entry in entries:
            host = _entry(entry)
            if not isinstance(host, str):
                if entry.startswith("*."):
                    raise ValueError(f"{quoted(entry)} is a wildcard of an address: write a name after *.")
                addresses.add(host)
            elif entry.startswith("*."):
                suffixes.add(f".{host}")
            else:
                names.add(host)
        return cls(frozenset(names), frozenset(suffixes), frozenset(addresses))

    def allows(self, host: str | Address) -> bool:
        """Whether a host (`host_of`) is in the list."""
        if not isinstance(host, str):
            return host in self.addresses
        return host in self.names or self._below(host)

    def _below(self, host: str) -> bool:
        return any(host[at:] in self.suffixes for at in range(1, len(host)) if host[at] == ".")

    def beyond(self, entries: Iterable[str]) -> str | None:
        """The first of a valid list's entries that allows a host which this list does not; None: it allows them all."""
        for entry in entries:
            host = _entry(entry)
            covered = (
                f".{host}" in self.suffixes or self._below(str(host))
                if entry.startswith("*.")
                else self.allows(host)
            )
            if not covered:
                return entry
        return None
