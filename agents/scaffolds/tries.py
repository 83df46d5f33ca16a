"""Programs that need a package registry, run up to three times: as `ops/tries`, which is for scripts. Only the standard library."""

import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

Say = Callable[[str], object]
"""Takes what a person should see: that a further try follows, and the output of every try after the last one."""
WAITS: Final = "10 50"
"""Seconds between tries: the network may be away for a minute. `PENSTOCK_TRY_WAITS` replaces them."""
_MAX_LINES: Final = 100  # lines that are shown of one try
_HELPLESS: Final = re.compile(
    r"No space left on device|Disk quota exceeded|Read-only file system|Permission denied"
    r"|are unsatisfiable|Distribution not found at|code (ENOSPC|EDQUOT|EROFS|EACCES|EPERM|E404|ETARGET)"
)
"""Messages of npm and uv after which waiting does not help: no space, no permission, a package that does not exist."""


def run(argv: Sequence[str], place: Path, env: Mapping[str, str], say: Say) -> tuple[int, str]:
    """(exit status, output) of the last try. None follows a success, a signal, or where waiting does not help."""
    waits = _waits()
    outputs: list[str] = []
    while True:
        done = subprocess.run(
            argv,
            cwd=place,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        if done.returncode == 0:
            return 0, done.stdout
        outputs.append(done.stdout)
        count = f"try {len(outputs)} of {len(waits) + 1}"
        if len(outputs) > len(waits) or done.returncode < 0 or _HELPLESS.search(done.stdout):
            break
        wait_s = waits[len(outputs) - 1]
        say(f"{count} of {Path(argv[0]).name} failed, the next one follows in {wait_s:g} s")
        time.sleep(wait_s)
    for number, output in enumerate(outputs, 1):
        shown = "\n".join(output.rstrip().splitlines()[-_MAX_LINES:])
        say(f"output of try {number} of {len(waits) + 1}:\n{shown}")
    return done.returncode, done.stdout


def _waits() -> list[float]:
    text = os.environ.get("PENSTOCK_TRY_WAITS", WAITS)
    try:
        return [float(word) for word in text.split()]
    except ValueError:
        raise ValueError(f"PENSTOCK_TRY_WAITS is {text!r}: it takes seconds, for example '{WAITS}'") from None
