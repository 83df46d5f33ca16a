"""Findings of shellcheck, if it is installed: only rules that are traps here and that our own rules do not cover."""

import json
import shutil
import subprocess
from typing import Final

from orchestrator.tasks.traps.rules import Rule, Trap, lines_of

RULES: Final = ("SC2038", "SC2045", "SC2053", "SC2156", "SC2254")
TIMEOUT_S: Final = 30.0


def shellcheck_traps(file: str, text: str) -> list[Trap]:
    """No findings without shellcheck, or if it gives no answer."""
    program = shutil.which("shellcheck")
    if program is None:
        return []
    command = [program, "--norc", "--shell=bash", "--format=json", f"--include={','.join(RULES)}", "-"]
    try:
        result = subprocess.run(
            command, input=text.encode(errors="replace"), capture_output=True, timeout=TIMEOUT_S
        )
        found = json.loads(result.stdout or b"[]")
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return []
    lines = lines_of(text)
    return [
        Trap(
            rule=Rule.SHELLCHECK,
            file=file,
            line=finding["line"],
            text=lines[finding["line"]].strip() if finding["line"] < len(lines) else "",
            note=f"SC{finding['code']}: {finding['message']}",
        )
        for finding in found
    ]
