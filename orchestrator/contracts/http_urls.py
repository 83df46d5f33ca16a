"""Addresses of HTTP services that people write: one check for keys of the configuration and for options."""

from collections.abc import Iterable
from typing import Final
from urllib.parse import SplitResult, urlsplit

from orchestrator.contracts.quote import quoted

_MAX_LENGTH: Final = 2_000  # bytes: a row of an index in PostgreSQL holds 2,704
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def normal_url(url: str) -> str:
    """The one spelling of an HTTP service's URL: scheme and host in lower case, without the scheme's own port and a slash at the end.
    ValueError for an invalid port or an unclosed bracket.

    >>> normal_url("HTTP://Host:80/v1/"), normal_url("https://user@[FE80::1]:30000")
    ('http://host/v1', 'https://user@[fe80::1]:30000')
    """
    parts = urlsplit(url)
    login, at, _ = parts.netloc.rpartition("@")
    return f"{parts.scheme}://{login}{at}{_place(parts)}"


def one_spelling(url: str) -> str:
    """`normal_url`, or the text itself if it is not a URL: for rows that older code wrote.

    >>> one_spelling("HTTP://Host:80/v1/"), one_spelling("http://[")
    ('http://host/v1', 'http://[')
    """
    try:
        return normal_url(url)
    except ValueError:
        return url


def _place(parts: SplitResult) -> str:
    """Host, port and path, in one spelling."""
    host = parts.hostname or ""
    port = "" if parts.port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f":{parts.port}"
    return f"{f'[{host}]' if ':' in host else host}{port}{parts.path.rstrip('/')}"


def check_http_urls(urls: Iterable[str], what: str) -> None:
    """Raise ValueError for a URL that names no HTTP service, has parts that requests would not have, or names a service for the second time.
    `what`: the kind of service, for the sentence.

    >>> check_http_urls(["http://a:1", "https://a:1", "http://[::1]:2/prefix"], "a rollout server")
    >>> check_http_urls(["http://a:1", "HTTP://A:1/"], "a gateway")
    Traceback (most recent call last):
    ValueError: 'HTTP://A:1/' is named twice: name each server once
    >>> check_http_urls(["http://a", "http://a:80"], "a rollout server")
    Traceback (most recent call last):
    ValueError: 'http://a:80' is named twice: name each server once
    """
    found: set[tuple[str, str]] = set()
    for url in urls:
        try:
            parts = urlsplit(url)
            fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            fits = fits and url.isprintable() and " " not in url
        except ValueError:  # an invalid port, an unclosed bracket
            fits = False
        if not fits:
            raise ValueError(f"{quoted(url)} is not a URL of {what}: write http://host:port")
        if (size := max(len(url.encode()), len(normal_url(url).encode()))) > _MAX_LENGTH:
            raise ValueError(
                f"{quoted(url)} has {size:,} bytes, and a URL of {what} at most {_MAX_LENGTH:,}: shorten it"
            )
        if "?" in url or "#" in url:
            raise ValueError(
                f"{quoted(url)} has a ? or a #, and what follows it would not be sent: take it out"
            )
        place = (parts.scheme, _place(parts))
        if place in found:
            raise ValueError(f"{quoted(url)} is named twice: name each server once")
        found.add(place)
