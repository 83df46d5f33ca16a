"""One OTLP/HTTP request: retried until the collector accepts or refuses it, or does not answer for too long."""

import http.client
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from urllib.parse import urlsplit

from orchestrator.contracts.errors import ArgumentError, ConfigurationError
from orchestrator.contracts.hosts import host_of
from orchestrator.contracts.quote import quoted
from orchestrator.runtime.backoff import backoff

AGAIN = frozenset({429, 502, 503, 504})  # as specified by OTLP/HTTP
TRIES = 6
FIRST_PAUSE_S = 0.25
ANSWER_S = 30.0
PATH = "/v1/traces"
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


def check_endpoint(endpoint: str) -> None:
    """Raises ArgumentError unless `endpoint` is a URL over HTTP, all of it sent. A login is not repeated: it may be a secret."""
    if "@" in re.split(r"[/?#]", endpoint.partition("://")[2])[0]:
        raise ArgumentError(
            "endpoint",
            "has a login before its @, which would not be sent: take it out, and give --header Authorization=…",
        )
    try:
        parts = urlsplit(endpoint)
        fits = bool(host_of(parts.hostname or "", labels=1)) and parts.port != 0
        fits = fits and parts.scheme in ("http", "https") and "#" not in endpoint
    except ValueError:  # an invalid host or port, an unclosed bracket
        fits = False
    if not (fits and endpoint.isascii() and endpoint.isprintable() and " " not in endpoint):
        raise ArgumentError(
            "endpoint", f"{quoted(endpoint)} is not a URL of a collector: write http://host:4318"
        )


def check_header(name: str, value: str) -> None:
    """Raises ArgumentError unless HTTP can carry the header. The value is not repeated: it may be a secret."""
    if not _NAME.fullmatch(name):
        raise ArgumentError("header", f"{quoted(name)} cannot name a header: write letters, digits or -")
    if not _VALUE.fullmatch(value):
        raise ArgumentError(
            "header",
            f"{quoted(name)}: the value holds a line end or a character that no header has: write printable ASCII",
        )


def post(endpoint: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    """The answer's body. Raises ConfigurationError, one sentence, if the collector refuses or cannot be reached."""
    check_endpoint(endpoint)
    parts = urlsplit(endpoint)
    url = endpoint if parts.path not in ("", "/") else parts._replace(path=PATH).geturl()
    request = urllib.request.Request(
        url, data=body, headers={"Content-Type": "application/x-protobuf", **headers}, method="POST"
    )
    for left, pause_s in zip(reversed(range(TRIES)), backoff(FIRST_PAUSE_S, ANSWER_S), strict=False):
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                detail = error.read(300).decode("utf-8", "replace").strip()
            if error.code not in AGAIN or not left:
                raise ConfigurationError(f"{url} answered {error.code} {error.reason}: {detail}") from error
        except (OSError, http.client.HTTPException) as error:
            if not left:
                raise ConfigurationError(
                    f"no collector accepts traces at {url} ({error}): start it and repeat the same command to continue"
                ) from error
        time.sleep(pause_s)
    raise AssertionError("the last try returned or raised")
