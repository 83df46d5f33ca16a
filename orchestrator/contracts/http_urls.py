"""Addresses of HTTP services that people write: one check for keys of the configuration and for options."""

from collections.abc import Iterable
from urllib.parse import urlsplit

from orchestrator.contracts.quote import quoted

_LONGEST = 2_000  # characters


def check_http_urls(urls: Iterable[str], what: str) -> None:
    """Raise ValueError for a URL that names no HTTP service, has parts that requests would not have, or names a service for the second time.
    `what`: the kind of service, for the sentence.

    >>> check_http_urls(["http://a:1", "https://a:1", "http://[::1]:2/prefix"], "a rollout server")
    >>> check_http_urls(["http://a:1", "HTTP://A:1/"], "a gateway")
    Traceback (most recent call last):
    ValueError: 'HTTP://A:1/' is named twice: name each server once
    """
    found: set[tuple[str, str, int | None, str]] = set()
    for url in urls:
        try:
            parts = urlsplit(url)
            fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            fits = fits and len(url) <= _LONGEST and url.isprintable() and " " not in url
        except ValueError:  # an invalid port, an unclosed bracket
            fits = False
        if not fits:
            raise ValueError(f"{quoted(url)} is not a URL of {what}: write http://host:port")
        if "?" in url or "#" in url:
            raise ValueError(
                f"{quoted(url)} has a ? or a #, and what follows it would not be sent: take it out"
            )
        place = (parts.scheme, str(parts.hostname), parts.port, parts.path.rstrip("/"))
        if place in found:
            raise ValueError(f"{quoted(url)} is named twice: name each server once")
        found.add(place)
