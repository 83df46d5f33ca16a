"""The place that an option names for a result, made and checked before the work whose result it gets."""

import tempfile
from pathlib import Path

from orchestrator.contracts.quote import quoted


def directory_to_write(option: str, out: Path) -> None:
    """Make the directory `out` and write a file there, which is removed. ValueError, one sentence, names `option`."""
    _try(option, out, out, "a directory")


def file_to_write(option: str, out: Path) -> None:
    """Make the directory of the file `out` and write another file there, which is removed. ValueError, one sentence, names `option`."""
    if out.is_dir():
        raise ValueError(f"{option} {quoted(str(out))} is a directory: name a file")
    _try(option, out, out.parent, "a file")


def _try(option: str, out: Path, directory: Path, what: str) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix=".penstock-", dir=directory):
            pass
    except OSError as error:
        raise ValueError(
            f"{option} {quoted(str(out))} cannot be written ({error.strerror}): name {what} that can"
        ) from None
