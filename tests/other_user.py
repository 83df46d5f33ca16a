"""Our packages in a place that every user of the machine may read: the checkout and its environment may lie below a directory of mode 0700."""

import importlib.util
import shutil
from pathlib import Path

PACKAGES = ("sandboxes", "anyio", "sniffio", "idna", "typing_extensions")
"""`sandboxes`, and the packages that it and anyio import."""


def readable_packages(directory: Path) -> str:
    """Copy `sandboxes` and what it needs to a new `directory`. Returns the PYTHONPATH of another user's interpreter."""
    directory.mkdir()
    for name in PACKAGES:
        found = importlib.util.find_spec(name)
        assert found is not None and found.origin is not None, name
        origin = Path(found.origin)
        if found.submodule_search_locations is None:
            shutil.copyfile(origin, directory / origin.name)
        else:
            shutil.copytree(origin.parent, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (directory, *directory.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return str(directory)
