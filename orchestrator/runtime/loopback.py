"""Names by which only programs of this machine call it. A page of another site whose DNS leads here comes with the name of that site."""

import ipaddress


def host_name(host: str) -> str:
    """The host of a Host header, in lower case, without its port, a dot at its end and the brackets of IPv6."""
    name = host.rpartition(":")[0] if host.count(":") == 1 or "]:" in host else host
    return name.strip("[]").lower().removesuffix(".")


def is_loopback(name: str) -> bool:
    """Whether a host name is `localhost` or a loopback address."""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
