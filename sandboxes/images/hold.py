"""Process 1 of a sandbox on an image: `cat` and `env` of this machine, with their own loader and libraries, since the image may lack them.

They are bound read-only below `INSIDE`. The loader runs them by its name, so they need nothing of the image.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from pathlib import Path

from sandboxes.base import SandboxError

INSIDE = "/run/penstock-init"
_FOUND = re.compile(r"^\s*(?:(\S+) => )?(/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)
_ASK_S = 20.0


@functools.lru_cache(maxsize=1)
def hold() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(the command of process 1, bubblewrap's options that bind what it needs). SandboxError if this machine's programs cannot be read."""
    loader: tuple[str, ...] = ()
    files: dict[str, str] = {}
    for name in ("env", "cat"):
        path = shutil.which(name, path="/usr/bin:/bin")
        if path is None:
            raise SandboxError(f"{name} is not installed: apt-get install coreutils")
        files[name] = str(Path(path).resolve())
        listed = subprocess.run(["ldd", path], capture_output=True, text=True, timeout=_ASK_S)
        for short, library in _FOUND.findall(listed.stdout) if listed.returncode == 0 else ():
            files[short or Path(library).name] = library
            if not short:
                loader = (f"{INSIDE}/{Path(library).name}", "--library-path", INSIDE)
    command = (*loader, f"{INSIDE}/env", "--ignore-signal=CHLD", *loader, f"{INSIDE}/cat", "/etc/hosts", "-")
    binds = [word for name, path in files.items() for word in ("--ro-bind", path, f"{INSIDE}/{name}")]
    return command, tuple(binds)
