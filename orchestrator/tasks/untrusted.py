"""Runs a program of the agent's while its work is graded: `python3 -I "$PENSTOCK_UNTRUSTED" SECONDS PROGRAM [ARGUMENT...]`.

Placed into the verifier's sandbox beside the tests; nothing here is imported by Penstock. The tests and what they run share a user, so
without this the agent's program could write the reward, read what is expected, or kill the script that judges it. Here it can only

- read the system, the work directory and its judge's $HOME and $TMPDIR, write to the work directory, see a minimal environment;
- write to a $HOME and a $TMPDIR of its own, empty at first and gone afterwards: in its judge's, whatever the judge runs next would find what it
  planted there (a usercustomize.py, a .bashrc);
- signal and look into processes that it started itself.

The kernel's Landlock holds it (signals from Linux 6.12 on). When it ends, or after SECONDS, whatever it left running is killed. The exit
code is the program's, 124 after SECONDS, 137 if it was killed; 125 if nothing was run: this kernel has no Landlock, $TMPDIR has no room, or
the judge's $HOME or $TMPDIR lies in the directory that it is called from.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TIMED_OUT, UNHELD = 124, 125
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PATH_BENEATH = 1
_READ = 0b1101  # execute, read a file, list a directory
_FILE_ONLY = (
    0b0111 | 1 << 14 | 1 << 15
)  # what makes sense for a file: the two above, write, truncate, device control
_ALL = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_NEWEST = (1 << 16) - 1
_SCOPES = 0b11  # abstract sockets, signals
_SCOPED_SIGNALS = 6
_SET_NO_NEW_PRIVS, _SET_CHILD_SUBREAPER, _SET_DUMPABLE = 38, 36, 4
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/proc")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _call(number: int, *arguments: int | bytes) -> int:
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result: int = _libc.syscall(number, *wide)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def ruleset(version: int, readable: list[Path], writable: list[Path]) -> int:
    """A Landlock ruleset as a descriptor; `version` is the kernel's, from 1."""
    handled = _ALL.get(version, _NEWEST)
    scopes = _SCOPES if version >= _SCOPED_SIGNALS else 0
    attributes = struct.pack("<QQQ", handled, 0, scopes)[
        : 24 if version >= _SCOPED_SIGNALS else 16 if version >= 4 else 8
    ]
    rules = _call(_CREATE_RULESET, attributes, len(attributes), 0)
    for path, rights in [
        *((p, _READ) for p in (*map(Path, _SYSTEM), *readable)),
        (Path("/dev"), handled),
        *((p, handled) for p in writable),
    ]:
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        allowed = rights & handled & (_NEWEST if path.is_dir() else _FILE_ONLY)
        _call(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("<Qi", allowed, place), 0)
        os.close(place)
    return rules


def main() -> int:
    seconds, argv = float(sys.argv[1]), sys.argv[2:]
    tests = Path(__file__).resolve().parents[1]
    work, home, temporary = (
        Path(os.path.realpath(p)) for p in (os.getcwd(), os.environ["HOME"], os.environ["TMPDIR"])
    )
    apart = not any(tests == p or p in tests.parents or tests in p.parents for p in (work, home, temporary))
    if not apart or any(p == work or work in p.parents for p in (home, temporary)):
        print(f"untrusted: call it from the work directory, not from {work}", file=sys.stderr)
        return UNHELD
    try:
        own = Path(tempfile.mkdtemp(prefix="untrusted-", dir=temporary))
    except OSError as error:
        print(f"untrusted: no room for a program in {temporary} ({error.strerror})", file=sys.stderr)
        return UNHELD
    try:
        return _held(argv, seconds, work, own, [home, temporary])
    finally:
        with contextlib.suppress(RecursionError):  # of a program that dug deep
            shutil.rmtree(own, ignore_errors=True)


def _held(argv: list[str], seconds: float, work: Path, own: Path, readable: list[Path]) -> int:
    """Run it where it may write to `work` and `own` alone; its exit code, when everything of it is dead."""
    places = {"HOME": own / "home", "TMPDIR": own / "tmp"}
    for place in places.values():
        place.mkdir()
    try:
        version = _call(_CREATE_RULESET, 0, 0, 1)
        rules = ruleset(version, readable, [work, *places.values()])
    except OSError as error:
        print(f"untrusted: this kernel has no Landlock ({error})", file=sys.stderr)
        return UNHELD
    _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what is forgotten becomes our child
    _libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0)  # nobody reads our environment
    warden = os.fork()
    if warden == 0:
        os.setsid()
        _libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _call(_RESTRICT_SELF, rules, 0)
        code = _run(argv, seconds, places)
        if version >= _SCOPED_SIGNALS:
            with contextlib.suppress(ProcessLookupError):
                os.kill(
                    -1, signal.SIGKILL
                )  # everybody within this confinement but us, at once: no bomb outruns it
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(warden, 0)[1])
    _end_all()
    return 128 - code if code < 0 else code


def _run(argv: list[str], seconds: float, places: dict[str, Path]) -> int:
    """The program to its end or for so long: its exit code as the shell has it."""
    env = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    env |= {name: str(place) for name, place in places.items()}
    try:
        code = subprocess.Popen(argv, env=env).wait(seconds)
    except subprocess.TimeoutExpired:
        return TIMED_OUT
    except OSError as error:
        print(f"untrusted: {argv[0]}: {error.strerror}", file=sys.stderr)
        return 127
    return 128 - code if code < 0 else code


def _end_all() -> None:
    """Kill every descendant: children first, then what became ours by that, until nobody is left."""
    while True:
        mine = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        for pid in mine:
            os.kill(int(pid), signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
            time.sleep(0.001)
        except ChildProcessError:
            return


if __name__ == "__main__":
    sys.exit(main())
