"""The code that runs inside a pod: a supervisor (process 1), and one process per program. It is shipped as one file and needs only Python 3.11
there. See supervisor.py for the picture."""

from __future__ import annotations

import functools
import io
import zipfile
from pathlib import Path

_MODULES = (
    *(
        "__init__",
        "base",
        "tree",
        "artifacts",
        "elsewhere",
        "lost_properties",
        "machine",
        "nameless",
        "paths",
        "procfs",
        "seccomp",
    ),
    *(
        "inside/__init__",
        "inside/frames",
        "inside/supervisor",
        "inside/program",
        "inside/confine",
        "inside/pipe",
    ),
)
_MAIN = "import sys\nfrom importlib import import_module\nimport_module(f'sandboxes.inside.{sys.argv[1]}').main()\n"
_WHEN = (1980, 1, 1, 0, 0, 0)


@functools.cache
def bundle() -> bytes:
    """The file: `python3 -IS FILE supervisor|program|pipe`. Equal sources give equal bytes."""
    packed = io.BytesIO()
    root = Path(__file__).resolve().parents[1]
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("__main__.py", _WHEN), _MAIN)
        for name in _MODULES:
            entry = zipfile.ZipInfo(f"sandboxes/{name}.py", _WHEN)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, (root / f"{name}.py").read_bytes())
    return packed.getvalue()
