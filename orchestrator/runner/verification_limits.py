"""The limits of a verification: those of the programs under test, which the policy wrote, and higher ones for the judge.

A program under test has the limits of the agent's sandbox (`[sandbox]`), over all its runs in one verification together. Its judge has head-room
above them, so a program cannot reach a limit of the sandbox. If the limit is reached anyway while a program runs, or just after, the program is
the cause: this counts as an answer, not as a failure of the platform. `PENSTOCK_SEED` is the same in every verification of one attempt.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks import untrusted
from orchestrator.tasks.environment import Environment
from orchestrator.tasks.held.budget import LEDGER
from orchestrator.tasks.reserved import START_UP
from orchestrator.tasks.verdict import UNTRUSTED_FILE
from sandboxes import nameless
from sandboxes.base import HOME, WORK, AnyFile, File, KilledBy, Limits, digest_of
from sandboxes.elsewhere import lies_elsewhere

SEED_VARIABLE: Final = "PENSTOCK_SEED"
SEED_FILE: Final = f"{UNTRUSTED_FILE.rpartition('/')[0]}/seed.sh"
"""The start-up file of bash (`BASH_ENV`): it seeds RANDOM in the test script and in every bash that it starts, each time with the same draws. It does
not hold the seed: a program under test may read it, and has no `PENSTOCK_SEED`."""
_SEEDS: Final = f"""RANDOM=${{{SEED_VARIABLE}-$RANDOM}}
case ${{PYTHONHASHSEED:-random}} in random) export PYTHONHASHSEED=${{{SEED_VARIABLE}-random}} ;; esac
"""
LEDGER_BYTES: Final = 4 << 20
MEMORY_MB: Final = 256
PROCESSES: Final = 64
EXTRA_PROCESSES: Final = 16
CPU_S: Final = 60.0
DISK_MB: Final = 128
OUTPUT_BYTES: Final = 4 << 20
PROGRAM_BYTES: Final = 1 << 20
PROGRAM_OUTPUT_BYTES: Final = 32 << 20
FILES: Final = 20_000
ATTRIBUTED_S: Final = 2.0
"""A limit reached within this many seconds of a program's end is attributed to the program: the sandbox looks a few times a second."""
_BLOCK = 4096
_OF_PROGRAMS = (KilledBy.MEMORY, KilledBy.CPU, KilledBy.DISK, KilledBy.OUTPUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationLimits:
    """The sandbox's limits, and the file from which `untrusted.py` reads the limits of its programs."""

    limits: Limits
    programs: File


def verification_limits(
    section: SandboxSection, timeout_s: float, environment: Environment, *, private: bool, tests_bytes: int
) -> VerificationLimits:
    """`private`: no other sandbox shares this one's /dev/shm."""
    placed = [
        (path, file.size)
        for path, file in environment.files.items()
        if path.startswith(f"{WORK}/") or lies_elsewhere(path)
    ]
    disk = (section.disk_mb << 20) + sum(size + 3 * _BLOCK for _, size in placed)
    if environment.build is not None:
        disk += section.disk_mb << 20  # upper bound for the work directory of an image
    files = FILES + 3 * len(placed)
    theirs = {
        "until_s": round(timeout_s - min(60.0, timeout_s / 5), 3),
        "cpu_s": section.cpu_s,
        "memory_bytes": section.memory_mb << 20,
        "disk_bytes": disk,
        "disk_files": files,
        "output_bytes": PROGRAM_OUTPUT_BYTES,
        "processes": section.processes + EXTRA_PROCESSES,
        "private": private,
        "home": _below(HOME, environment),
        "tmp": _below("/tmp", environment),
    }
    limits = Limits(
        memory_mb=section.memory_mb + MEMORY_MB,
        processes=section.processes + PROCESSES,
        cpu_s=float(section.cpu_s) + max(CPU_S, timeout_s),
        disk_mb=math.ceil((disk + tests_bytes) / (1 << 20)) + DISK_MB,
        disk_files=2 * files + FILES,
        wall_s=timeout_s,
        output_bytes=OUTPUT_BYTES,
    )
    return VerificationLimits(limits=limits, programs=File(json.dumps(theirs).encode()))


def _below(top: str, environment: Environment) -> list[str]:
    return sorted(path.removeprefix(f"{top}/") for path in environment.files if path.startswith(f"{top}/"))


def wrapper() -> dict[str, File]:
    """Files next to the tests: the program of `$PENSTOCK_UNTRUSTED` and its imports."""
    source = Path(untrusted.__file__)
    at = UNTRUSTED_FILE.rpartition("/")[0]
    held = sorted((source.parent / "held").glob("*.py"))
    files = {f"{at}/orchestrator/tasks/held/{path.name}": File(path.read_bytes()) for path in held}
    files[f"{at}/sandboxes/nameless.py"] = File(Path(nameless.__file__).read_bytes())
    packages = ("orchestrator", "orchestrator/tasks", "sandboxes")
    empty = {f"{at}/{package}/__init__.py": File(b"") for package in packages}
    return {UNTRUSTED_FILE: File(source.read_bytes()), **empty, **files}


def seed(run: str, rollout: int, attempt: int, tests: Mapping[str, AnyFile]) -> int:
    """From 0 to 2³¹ − 1: the same in every verification of this attempt by the same tests. Run and numbers can be guessed, but an agent does not have
    the tests, so it cannot compute the draws."""
    digest = hashlib.sha256(f"{run}:{rollout}:{attempt}".encode())
    for path, file in sorted(tests.items()):
        digest.update(hashlib.sha256(path.encode()).digest() + digest_of(file))
    return int.from_bytes(digest.digest()[:4], "big") >> 1


def draws(seed: int) -> tuple[dict[str, str], dict[str, File]]:
    """Variables and files that make a test script repeat its draws. A PYTHONHASHSEED of the task stays, unless it asks for any value."""
    return {SEED_VARIABLE: str(seed), START_UP: SEED_FILE}, {SEED_FILE: File(_SEEDS.encode())}


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """The ledger's record of the programs under test. `breach`: the first limit that one used up, None if none did. `running`: one was running when
    the script ended. `at_s`: when the newest started or ended, in seconds after the script's start."""

    count: int = 0
    breach: str | None = None
    running: bool = False
    at_s: float = 0.0

    def blamed(self, killed_by: KilledBy, wall_s: float) -> str | None:
        """Why the programs caused this end of the script; None: they did not."""
        if killed_by not in _OF_PROGRAMS or not self.count:
            return None
        if self.breach is not None:
            return f"a program under test used up its {self.breach}"
        if self.running:
            return f"a program under test ran when the sandbox reached its limit ({killed_by.value})"
        if wall_s - self.at_s < ATTRIBUTED_S:
            return (
                f"a program under test had just ended when the sandbox reached its limit ({killed_by.value})"
            )
        return None


def programs(ledger: str | None) -> Programs:
    """Parse the ledger's text (None: there is none)."""
    found, open_ = Programs(), set[str]()
    for words in map(str.split, (ledger or "").splitlines()):
        if len(words) == 3 and words[0] == "begin":
            open_.add(words[1])
            found = replace(found, count=found.count + 1, at_s=float(words[2]))
        elif len(words) == 6 and words[0] == "end":
            open_.discard(words[1])
            breach = found.breach or words[5].replace("-", "") or None
            found = replace(found, at_s=float(words[2]), breach=breach)
    return replace(found, running=bool(open_))


def names_programs(tests: Mapping[str, AnyFile], variable: str) -> bool:
    """Whether a file of the tests mentions `variable`. Large files are data, not programs."""
    return any(variable.encode() in file.data for file in tests.values() if file.size <= PROGRAM_BYTES)


LEDGER_FILE: Final = f"/logs/{LEDGER}"
