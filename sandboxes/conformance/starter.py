"""Starters of programs that have an odd state of their own: `python -m sandboxes.conformance.starter ODDITY MODULE:CLASS [IMAGE [USER]]`.

Takes the state, opens a sandbox and prints what a program finds in it as JSON: what starters have must not be seen.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Final

import anyio

from sandboxes.base import HOME, WORK, File, Provider, SandboxSpec
from sandboxes.beginning import parse_limits
from sandboxes.conformance.as_user import AsUser
from sandboxes.conformance.load import load
from sandboxes.conformance.on_image import OnImage

SCRIPT: Final = r"""
echo "umask $(umask)"
grep -E '^(Sig(Blk|Ign)|Seccomp|NoNewPrivs):' /proc/self/status
echo "machine $(uname -m)"
echo "niceness $(sed 's/.*) //' /proc/self/stat | cut -d' ' -f17)"
echo "terminal $(cut -d' ' -f7 /proc/self/stat)"
echo "session $(($(cut -d' ' -f6 /proc/self/stat) > 0))"
echo "scheduler $(sed 's/.*) //' /proc/self/stat | cut -d' ' -f39)"
printf descriptors; for fd in /proc/$$/fd/*; do if [ -L "$fd" ]; then printf ' %s' "${fd##*/}"; fi; done; echo
echo "input $(readlink /proc/$$/fd/0 | cut -d: -f1)"
echo "directory $(pwd -P)"
echo "zone $(date -d @0 +%Z%H)"
echo made > made; mkdir new; echo "made $(stat -c %a made new | tr '\n' ' ')"
echo "given $(stat -c %a "$1/given/file" "$1/given" "$1" "$2" | tr '\n' ' ')"
env | grep -vE '^(_|PWD|SHLVL|HOME|TMPDIR|PENSTOCK_[A-Z]*)=' | sort
cat /proc/self/limits
echo "timers $(cat /proc/self/timerslack_ns)"
"""
"""$1 is the work directory, $2 the home."""


async def observed(provider: Provider) -> dict[str, str]:
    """The state that a program finds, by name. ValueError if it cannot look."""
    spec = SandboxSpec(files={"/app/given/file": File(b"x")})
    async with provider.open(spec) as sandbox:
        places = (sandbox.path(WORK), sandbox.path(HOME))
        result = await sandbox.exec(["sh", "-c", SCRIPT, "sh", *places], timeout_s=30)
    text = result.stdout.decode(errors="replace")
    if not result.ok:
        raise ValueError(f"the program that looks ended with {result}")
    found = {name: " ".join(pair) for name, pair in parse_limits(text).items()}
    for line in text.splitlines():
        if not line.startswith(("Max ", "Limit ")):
            name, _, value = line.replace("=", " ", 1).replace(":", " ", 1).partition(" ")
            found[name] = value.strip().replace(places[0], WORK)
    return found


def _ignoring() -> None:
    for number in (
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGALRM,
        signal.SIGTTOU,
    ):
        signal.signal(number, signal.SIG_IGN)


def _environment() -> None:
    os.environ.update(
        LC_ALL="tr_TR.UTF-8", LANG="de_DE.ISO-8859-1", LANGUAGE="tr", TZ="Asia/Kathmandu", IFS="x", CDPATH="/", BASH_ENV="/nowhere", ENV="/nowhere",
        POSIXLY_CORRECT="1", PYTHONHASHSEED="7", PYTHONUTF8="0", UMASK="077", GREP_OPTIONS="-v", COLUMNS="20",
    )  # fmt: skip


def _descriptors() -> None:
    for fd in range(20, 40):
        os.dup2(os.open("/etc/hostname", os.O_RDONLY), fd, inheritable=True)


def _terminal() -> None:
    """With a controlling terminal: a child goes on, with our output, and we end as it does."""
    output = os.dup(1)
    pid, _ = os.forkpty()
    if pid:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os.dup2(output, 1)
    os.close(output)


def _elsewhere() -> None:
    gone = tempfile.mkdtemp()
    os.chdir(gone)
    os.rmdir(gone)


def _limits() -> None:
    for number, soft in (
        (resource.RLIMIT_NOFILE, 300),
        (resource.RLIMIT_STACK, 1 << 20),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 1 << 16),
        (resource.RLIMIT_SIGPENDING, 900),
        (resource.RLIMIT_MSGQUEUE, 4096),
        (resource.RLIMIT_FSIZE, 1 << 40),
        (resource.RLIMIT_CPU, 3600),
    ):
        resource.setrlimit(number, (soft, resource.getrlimit(number)[1]))


ODDITIES: Final[Mapping[str, Callable[[], object]]] = {
    "an ordinary one": lambda: None,
    "umask 077, as our systemd units": lambda: os.umask(0o077),
    "umask 0": lambda: os.umask(0),
    "signals ignored, as by nohup and in a script's background": _ignoring,
    "signals blocked": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2, 40}),
    "other limits": _limits,
    "another environment": _environment,
    "open descriptors": _descriptors,
    "no standard input": lambda: os.close(0),
    "a controlling terminal": _terminal,
    "a directory that is gone": _elsewhere,
    "a personality of 32 bits, as by setarch": lambda: ctypes.CDLL(None).personality(0x0008),
    "timers that are late, as by TimerSlackNSec of systemd": lambda: ctypes.CDLL(None).prctl(
        29, 100_000_000, 0, 0, 0
    ),
}
"""Starters by name. The first is the one that the others are compared with."""
OF_ROOT: Final[Mapping[str, Callable[[], object]]] = {
    "niceness 7": lambda: os.nice(7),
    "the class of idle programs": lambda: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)),
}
"""Others, whose state only a privileged process can undo."""


def main() -> None:
    oddity, reference, image, user = [*sys.argv[1:], "", ""][:4]
    {**ODDITIES, **OF_ROOT}[oddity]()
    provider = load(reference)
    provider = OnImage(provider, image) if image else provider
    found = anyio.run(observed, AsUser(provider, user) if user else provider)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
