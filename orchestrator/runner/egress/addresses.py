"""Which addresses may be reached: public ones that are not this machine's own. Addresses that hold another address count as that one."""

import errno
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from itertools import zip_longest
from typing import Final

from orchestrator.contracts.hosts import Address

_UNICAST: Final = IPv6Network("2000::/3")
"""All other IPv6 addresses are loopback, private, link-local, multicast, compatible with IPv4, or not assigned."""
_NAT64: Final = IPv6Network("64:ff9b::/96")
_CLOSED: Final = tuple(
    ip_network(network)
    for network in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
        "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24",
        "203.0.113.0/24", "224.0.0.0/3",
        "2001::/23", "2001:db8::/32", "3fff::/20",
    )
)  # fmt: skip
"""IANA's special-purpose registries of IPv4 and IPv6: private, shared (CGNAT), loopback, link-local (with metadata services), documentation,
benchmarks, relays, multicast and reserved addresses, and Teredo. The standard library's own list differs by version."""


def not_public(address: Address) -> str | None:
    """Why an address is not one of the public internet, as the end of a sentence; None: it is."""
    inner = _inner(address)
    if inner is not None:
        return None if not_public(inner) is None else f"{address} stands for {inner}, which is not public"
    if any(address.version == network.version and address in network for network in _CLOSED):
        return f"{address} is not public"
    if isinstance(address, IPv6Address) and address not in _UNICAST:
        return f"{address} is not public"
    if not address.is_global or address.is_multicast:
        return f"{address} is not public"
    return None


def _inner(address: Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address stands for: mapped, 6to4 or NAT64."""
    if not isinstance(address, IPv6Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.sixtofour


def is_ours(address: Address) -> bool:
    """Whether an address belongs to this machine, whose services listen there. OSError if the machine is out of descriptors or memory."""
    family = socket.AF_INET6 if isinstance(address, IPv6Address) else socket.AF_INET
    try:
        probe = socket.socket(family, socket.SOCK_DGRAM)
    except OSError as error:
        if error.errno != errno.EAFNOSUPPORT:  # else the address might be ours
            raise
        return False  # a machine without IPv6 has no such address
    with probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


def parsed(text: str) -> Address:
    """An address as the resolver gives it, which may have a zone."""
    return ip_address(text.partition("%")[0])


def in_turns(addresses: Sequence[Address]) -> list[Address]:
    """IPv6 and IPv4 by turns, beginning with the kind of the first (RFC 8305): a kind that leads nowhere does not take every attempt."""
    first = [each for each in addresses if each.version == addresses[0].version]
    others = [each for each in addresses if each.version != addresses[0].version]
    return [each for pair in zip_longest(first, others) for each in pair if each is not None]
