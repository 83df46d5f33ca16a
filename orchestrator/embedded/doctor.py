"""What this machine lacks, each with the command that gives it. Changes nothing."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.embedded.nats_server import find_nats
from orchestrator.embedded.ports import LOOPBACK, free_port
from orchestrator.embedded.postgres_binaries import find_binaries
from orchestrator.embedded.service_user import service_user

GIB = 1024**3
_NEEDED_DISK, _NEEDED_MEMORY, _NEEDED_SHM, _NEEDED_FILES = 5 * GIB, 4 * GIB, 64 * 1024**2, 4096


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `fix` is empty when there is nothing to do."""

    name: str
    ok: bool
    detail: str
    fix: str = ""


def checks(directory: Path | None = None) -> list[Check]:
    """Every check, in the order in which people should read them. `directory` is where runs are kept (default: the current one)."""
    place = directory if directory is not None else Path.cwd()
    return [
        _python(),
        _bubblewrap(),
        _service("PostgreSQL", "DATABASE_URL", _postgres),
        _service("NATS", "NATS_URL", _nats),
        _disk(place),
        _memory(),
        _shared_memory(),
        _files(),
        _ports(),
    ]


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    ok = sys.version_info >= (3, 11)
    return Check("Python", ok, version, "" if ok else "install Python >= 3.11, then run ops/setup again")


def _bubblewrap() -> Check:
    """Present, and allowed to make the namespaces that a sandbox needs."""
    program = shutil.which("bwrap")
    without = "; until then only --sandbox local works, WITHOUT isolation"
    if program is None:
        return Check("bubblewrap", False, "bwrap is not on PATH", "apt-get install bubblewrap" + without)
    argv = [
        program,
        "--unshare-all",
        "--die-with-parent",
        "--ro-bind",
        "/",
        "/",
        "--dev",
        "/dev",
        "--proc",
        "/proc",
        "true",
    ]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(
            "bubblewrap", False, f"{program} does not run: {error}", "apt-get install --reinstall bubblewrap"
        )
    if done.returncode != 0:
        fix = "allow user namespaces: sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000"
        if Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").exists():
            fix = "allow user namespaces: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
        return Check(
            "bubblewrap", False, f"{program} cannot make a sandbox: {done.stderr.strip()}", fix + without
        )
    return Check("bubblewrap", True, f"{program} makes sandboxes")


def _service(name: str, variable: str, embedded: Callable[[], str]) -> Check:
    """A configured service is taken as it is (it is checked when it is used); an embedded one needs its programs."""
    if os.environ.get(variable):
        return Check(name, True, f"{variable} names a server; none is started here")
    try:
        return Check(name, True, embedded())
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        return Check(name, False, problem, fix)


def _postgres() -> str:
    user = service_user()
    binaries = find_binaries()
    version = ".".join(map(str, binaries.version))
    return f"{version} in {binaries.directory}" + (f", as user {user}" if user is not None else "")


def _nats() -> str:
    binary = find_nats()
    return f"{'.'.join(map(str, binary.version))} in {binary.path}"


def _disk(place: Path) -> Check:
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    detail = f"{free / GIB:.1f} GiB free at {place}"
    return Check("disk", free >= _NEEDED_DISK, detail, _at_least(free, _NEEDED_DISK, "free some space there"))


def _memory() -> Check:
    """What the machine or its control group allows, whichever is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(path).read_text()))
        except (OSError, ValueError):  # no such control group, or `max`
            continue
    fix = _at_least(total, _NEEDED_MEMORY, "use a machine with more memory, or fewer rollout slots")
    return Check("memory", total >= _NEEDED_MEMORY, f"{total / GIB:.1f} GiB", fix)


def _shared_memory() -> Check:
    try:
        size = shutil.disk_usage("/dev/shm").total
    except OSError:
        return Check("/dev/shm", False, "missing", "mount -t tmpfs tmpfs /dev/shm")
    fix = _at_least(size, _NEEDED_SHM, "mount -o remount,size=1G /dev/shm")
    return Check("/dev/shm", size >= _NEEDED_SHM, f"{size / GIB:.1f} GiB", fix)


def _files() -> Check:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    ok = limit == resource.RLIM_INFINITY or limit >= _NEEDED_FILES
    detail = "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
    return Check("open files", ok, detail, "" if ok else f"ulimit -n {_NEEDED_FILES}")


def _ports() -> Check:
    try:
        free_port()
    except ValueError as error:
        return Check("ports", False, str(error), "bring up the loopback interface: ip link set lo up")
    return Check("ports", True, f"free ports on {LOOPBACK}")


def _at_least(have: int, needed: int, fix: str) -> str:
    return "" if have >= needed else f"{fix} ({needed / GIB:.2g} GiB needed)"
