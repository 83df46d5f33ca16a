"""Writes rendered files to a disk: all or none, never over files that another program or person wrote."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from orchestrator.contracts.errors import ConfigurationError

MARK = ".penstock-render"
"""Name of a file in a rendered directory: the digest of each file, as it was written."""
PROGRAMS = (".sh", ".sbatch")


def write(files: Mapping[str, str], directory: Path, *, force: bool = False) -> list[Path]:
    """Make `directory` hold these files, and none of an earlier render. Returns their paths.

    Raises ConfigurationError, and changes nothing, if the directory was not rendered, or a file in it was changed by hand
    since: `force` overwrites both, and does not touch files with other names.
    """
    written = _before(directory)
    if not force:
        if written is None and directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ConfigurationError(
                f"{directory} was not written by `penstock cluster render`: choose another --out, or write over it with --force"
            )
        changed = [
            name for name, digest in (written or {}).items() if _digest(directory / name) not in ("", digest)
        ]
        if changed:
            raise ConfigurationError(
                f"{directory / changed[0]} was changed since it was rendered: keep it elsewhere, or write over it with --force"
            )
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".penstock-render-") as temporary:
        new = Path(temporary)  # a full disk is found before anything is replaced
        for name, text in files.items():
            file = new / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            file.chmod(0o755 if name.endswith(PROGRAMS) else 0o644)
        for name in set(written or {}) - set(files):
            (directory / name).unlink(missing_ok=True)
        for name in files:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(new / name, directory / name)
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sorted(files.items())}
    (directory / MARK).write_text(json.dumps(digests, indent=1) + "\n", encoding="utf-8")
    return [directory / name for name in files]


def _before(directory: Path) -> dict[str, str] | None:
    try:
        found: dict[str, str] = json.loads((directory / MARK).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{directory / MARK} cannot be read: {error}") from None
    return found


def _digest(file: Path) -> str:
    """Empty: the file does not exist."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except FileNotFoundError:
        return ""
