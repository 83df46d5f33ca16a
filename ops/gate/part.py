"""Runs one command as a part of the gate: its output shown and kept, a limit, and an end of all that it started."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from ops.gate import results
from ops.gate.results import Result

MARK = "GATE_RUN"
"""The environment variable that the processes of a run inherit: `PID-START` of the gate that they belong to."""
TESTS_FAILED = 10  # ./ops/test: tests failed and nothing else did
GRACE_S = 20.0  # from SIGTERM to SIGKILL
LOW_BYTES = 1 << 30  # free disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a part ended. `seconds`: wall time; `trouble`: what went wrong besides failed tests, as a sentence; `left`: processes it left running."""

    name: str
    why: str
    seconds: float
    trouble: str
    tests: dict[str, Result]
    left: Sequence[str]

    @property
    def failed(self) -> list[Result]:
        return [result for result in self.tests.values() if result.failed]

    @property
    def skipped(self) -> list[Result]:
        return [result for result in self.tests.values() if result.skipped]

    @property
    def ran(self) -> int:
        """How many tests passed or failed."""
        return len(self.tests) - len(self.skipped)


def set_up(seconds: float) -> Ended:
    """The set-up of the environment, which `.ci/run` has made before."""
    return Ended(name="set-up", why="always", seconds=seconds, trouble="", tests={}, left=())


def run(
    name: str, why: str, command: Sequence[str], directory: Path, limit_s: float, *, has_tests: bool = False
) -> Ended:
    """Run a command from the current directory until it ends or `limit_s` seconds have passed.

    Its output goes to `directory/output.log` and to our own; its pytest reports to `directory`. Every process with our mark is ended after it.
    `has_tests`: at least one test must pass.
    """
    started = time.monotonic()
    print(f"\n===== {name} ({why}): {' '.join(command):.300}", flush=True)
    mine = mark_of(os.getpid())
    environment = {**os.environ, MARK: mine, "PENSTOCK_REPORTS": str(directory)}
    log = directory / "output.log"
    try:
        shutil.rmtree(directory, ignore_errors=True)  # of an earlier run
        directory.mkdir(parents=True)
        output, shown = log.open("wb"), log.open("rb")
    except OSError as problem:
        trouble = f"it did not run: {directory} cannot be written ({problem.strerror}); free some disk"
        return Ended(name=name, why=why, seconds=0.0, trouble=trouble, tests={}, left=())
    with output, shown:
        running = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )
        try:
            in_time = True
            while running.poll() is None and in_time:
                time.sleep(0.1)
                _show(shown.read())
                in_time = time.monotonic() - started < limit_s
        finally:  # its own processes too: of its limit, of Ctrl-C
            left = _end(_marked(mine))
            code = running.wait()
        _show(shown.read())
    tests = results.read(directory)
    remarks = [_end_of(code, None if in_time else limit_s, tests)]
    if in_time:
        remarks += results.incomplete(directory, tests)
    if has_tests and not any(remarks) and not any(result.passed for result in tests.values()):
        remarks.append(f"none of its tests passed ({sum(r.skipped for r in tests.values())} were skipped)")
    return Ended(
        name=name,
        why=why,
        seconds=time.monotonic() - started,
        trouble="; ".join(filter(None, [*remarks, *_around(log)])),
        tests=tests,
        left=left if in_time else (),
    )


def _end_of(code: int, limit_s: float | None, tests: dict[str, Result]) -> str:
    """Problems besides failed tests, as a sentence. `limit_s`: the limit that ended it, if one did."""
    if limit_s is not None:
        return f"it was still running after {limit_s:.0f} s and was ended"
    if code < 0:
        return f"it was killed by {signal.Signals(-code).name}"
    if code > 128 and code - 128 in {*signal.Signals}:
        return f"its shell was killed by {signal.Signals(code - 128).name}"
    if code == TESTS_FAILED and not any(result.failed for result in tests.values()):
        return "pytest failed without naming a test"
    if code not in (0, TESTS_FAILED):
        return f"it ended with status {code}, see its output"
    return ""


def _around(log: Path) -> list[str]:
    """Problems around a part, whatever its status: it printed nothing, the disk is full."""
    free = psutil.disk_usage(str(log.parent)).free
    silent = [] if log.stat().st_size else ["it printed nothing"]
    return [*silent, *([f"the disk is full ({free >> 20} MB are free)"] if free < LOW_BYTES else [])]


def _show(output: bytes) -> None:
    sys.stdout.buffer.write(output)
    sys.stdout.flush()


def end_leftovers() -> list[str]:
    """End the processes of gates that are dead (killed with -9); returns their names."""
    return _end([process for mark, process in _all_marked() if not _alive(mark)])


def mark_of(pid: int) -> str:
    """The mark of a gate: its process, and when that started, in clock ticks since the boot. Raises OSError if it does not exist."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return f"{pid}-{after_name[19]}"


def _alive(mark: str) -> bool:
    """Whether the gate of a mark runs; one in another form is not ours to judge."""
    pid, _, ticks = mark.partition("-")
    try:
        return not (pid.isdigit() and ticks.isdigit()) or mark_of(int(pid)) == mark
    except OSError:
        return False


def _marked(mark: str) -> list[psutil.Process]:
    return [process for found, process in _all_marked() if found == mark]


def _all_marked() -> list[tuple[str, psutil.Process]]:
    """Every process but ours that carries a mark; processes of others that may not be read carry none."""
    found = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(MARK)
            if mark and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append((mark, process))
        except (psutil.Error, OSError):
            continue
    return found


def _end(processes: Sequence[psutil.Process]) -> list[str]:
    """Terminate, then kill, exactly these; returns what they were."""
    names = []
    for process in processes:
        try:
            names.append(f"{process.name()} ({process.pid})")
            process.terminate()
        except psutil.Error:
            continue
    _, alive = psutil.wait_procs(list(processes), timeout=GRACE_S)
    for process in alive:
        try:
            process.kill()
        except psutil.Error:
            continue
    psutil.wait_procs(alive, timeout=GRACE_S)
    return names
