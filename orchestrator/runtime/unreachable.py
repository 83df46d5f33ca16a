"""Where the address of a service comes from, and what a person reads when the service cannot be reached.

A URL goes through many hands as a text. The code that resolves it records its origin here (`remember`), and the code that fails to connect asks for
it (`advice`): a message then names the line to correct, not every line that might be meant.
"""

import json
import os
import shlex
import socket
from dataclasses import dataclass
from pathlib import Path

from orchestrator.runtime.environment import named

_SUFFIX = "_ORIGIN"  # of the variable that tells a child where the URL in its environment comes from


@dataclass(frozen=True, slots=True)
class AddressOrigin:
    """`source`: what names the address, as the subject of a sentence; `correct`: what to do if the address is wrong, as an order.
    `start`: what starts the service, as an order."""

    source: str
    correct: str
    start: str = "start it"

    def advice(self, *, away: bool = True) -> str:
        """The end of a sentence about a service that does not answer (`away`), or that refuses."""
        return f"{self.source} names it; {f'{self.start}, or ' if away else ''}{self.correct}"


@dataclass(frozen=True, slots=True)
class Embedded(AddressOrigin):
    """The service that `penstock up` starts for one directory."""

    def advice(self, *, away: bool = True) -> str:
        return f"it is the embedded one of {self.source}; {self.start if away else self.correct}"


_origins: dict[str, AddressOrigin] = {}


def remember(url: str, origin: AddressOrigin) -> str:
    """Record the origin of a URL; returns the URL. The latest origin counts."""
    if url:
        _origins[url] = origin
    return url


def origin_of(url: str) -> AddressOrigin | None:
    """The recorded origin. None: a caller in Python gave the URL."""
    return _origins.get(url)


def name_of(url: str, variable: str) -> str:
    """The name of the URL, as a person wrote it: `--set KEY`, a key of a file, or `variable` for the environment and for a caller in Python."""
    origin = _origins.get(url)
    return variable if origin is None or origin.source.startswith(f"{variable} ") else origin.source


def fix_of(url: str, variable: str) -> str:
    """The remedy for a service that does not answer, as an order."""
    origin = _origins.get(url)
    return f"start it, or correct {variable}" if origin is None else f"{origin.start}, or {origin.correct}"


def of_key(key: str, file: object) -> AddressOrigin:
    """The origin of a URL that a configuration file names."""
    return AddressOrigin(f"{key} of {file}", "correct that key")


def of_override(key: str) -> AddressOrigin:
    """The origin of a URL that `--set` names."""
    return AddressOrigin(f"--set {key}", "correct that option")


def of_directory(directory: Path) -> AddressOrigin:
    """The origin of the URL of an embedded service of the run in `directory`."""
    run = shlex.quote(str(directory))
    return Embedded(
        str(directory),
        f"stop and start the run: `penstock down -c {run}`, `penstock up -c {run}`",
        f"start the run: `penstock up -c {run}`",
    )


def of_variable(variable: str) -> AddressOrigin:
    """The origin of a URL that the environment names: in the variable, or in a file that the variable names."""
    if os.environ.get(variable, "").strip():
        if given := os.environ.get(variable + _SUFFIX):
            return _read(given)
        return AddressOrigin(f"{variable} in the environment", "correct or unset that variable")
    file = os.environ.get(f"{variable}_FILE", "")
    return AddressOrigin(
        f"the file {file}, which {variable}_FILE in the environment names,", "correct that file"
    )


def named_url(variable: str) -> str:
    """`environment.named` for a URL, with its origin recorded."""
    url = named(variable)
    return remember(url, of_variable(variable)) if url else ""


def for_child(variable: str, url: str) -> dict[str, str]:
    """The variables by which a child process gets `url` and its origin."""
    origin = _origins.get(url)
    if origin is None:
        return {variable: url}
    kind = isinstance(origin, Embedded)
    return {
        variable: url,
        variable + _SUFFIX: json.dumps([kind, origin.source, origin.correct, origin.start]),
    }


def _read(given: str) -> AddressOrigin:
    try:
        kind, source, correct, start = json.loads(given)
    except ValueError:
        kind, source, correct, start = False, given, "correct it", "start it"
    return (Embedded if kind else AddressOrigin)(str(source), str(correct), str(start))


def cause_of(error: BaseException) -> str | None:
    """Why the network, or this machine, did not reach an address, in a person's words. None: the error is of another kind."""
    text = str(error)
    if isinstance(error, (FileNotFoundError, ConnectionRefusedError)) or "Connect call failed" in text:
        return "nothing listens there"
    if isinstance(error, socket.gaierror):
        return "the name of its host is unknown"
    if isinstance(error, TimeoutError):
        return "it does not answer"
    if isinstance(error, (ConnectionError, EOFError)):
        return "it closes the connection"
    if isinstance(error, OSError):
        return error.strerror or text.partition("\n")[0]
    return None
