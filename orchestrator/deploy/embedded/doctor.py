"""Everything that this machine lacks, each with the command that installs it. Changes nothing."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import anyio
from scaffolds.programs import OLDEST_NODE

from orchestrator.deploy.embedded.configured import KNOWN, ask_nats, ask_postgres
from orchestrator.deploy.embedded.layout import RunLayout
from orchestrator.deploy.embedded.nats_server import find_nats, unusable_nats
from orchestrator.deploy.embedded.ports import LOOPBACK, free_port
from orchestrator.deploy.embedded.postgres_binaries import OLDEST_MAJOR, find_binaries
from orchestrator.deploy.embedded.service_sources import Source, Used, used
from orchestrator.deploy.embedded.service_user import service_user
from orchestrator.runtime.unreachable import named_url
from sandboxes.login import login_name
from sandboxes.tools import OLDEST_BWRAP, bwrap, older

GIB = 1024**3
_NEEDED_DISK, _NEEDED_MEMORY, _NEEDED_SHM, _NEEDED_FILES = 5 * GIB, 4 * GIB, 64 * 1024**2, 4096
_AS_ROOT = "as root (a container: --shm-size=1g)"


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorCheck:
    """One finding. `fix` is empty if it needs no action."""

    name: str
    ok: bool
    detail: str
    fix: str = ""


def checks(directory: Path | None = None, services: tuple[Used, Used] | None = None) -> list[DoctorCheck]:
    """Every check, in reading order. `directory` is where runs are kept (default: the current one), `services` are
    those of a run (default: those that the environment names)."""
    root = directory if directory is not None else Path.cwd()
    if services is None:
        services = used(
            RunLayout(root.absolute() / ".penstock"), named_url("DATABASE_URL"), named_url("NATS_URL")
        )
    return [
        _python(),
        _bubblewrap(),
        _service(services[0], _postgres, ask_postgres),
        _service(services[1], _nats, ask_nats),
        _disk(root),
        _memory(),
        _shared_memory(),
        _files(),
        _ports(),
        *_node(),
    ]


def _python() -> DoctorCheck:
    version = ".".join(map(str, sys.version_info[:3]))
    ok = sys.version_info >= (3, 11)
    return DoctorCheck(
        name="Python",
        ok=ok,
        detail=version,
        fix="" if ok else "install Python >= 3.11, then run ops/setup again",
    )


def _bubblewrap() -> DoctorCheck:
    """Bubblewrap is present, and allowed to create the namespaces that a sandbox needs."""
    fallback = "; until then only --sandbox local works, WITHOUT isolation"
    try:
        program = bwrap()
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        return DoctorCheck(name="bubblewrap", ok=False, detail=problem, fix=fix + fallback)
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
        completed = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return DoctorCheck(
            name="bubblewrap",
            ok=False,
            detail=f"{program} does not run: {error}",
            fix="apt-get install --reinstall bubblewrap",
        )
    if completed.returncode != 0:
        fix = "allow user namespaces: sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000"
        if Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").exists():
            fix = "allow user namespaces: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
        return DoctorCheck(
            name="bubblewrap",
            ok=False,
            detail=f"{program} cannot make a sandbox: {completed.stderr.strip()}",
            fix=fix + fallback,
        )
    return DoctorCheck(
        name="bubblewrap",
        ok=True,
        detail=f"{program} makes sandboxes" + _passed_over(older("bwrap", OLDEST_BWRAP)),
    )


def _service(service: Used, embedded: Callable[[], str], ask: Callable[[str], Awaitable[str]]) -> DoctorCheck:
    """A named service is queried, by the code that uses it. An embedded one needs its programs."""
    if service.source is not Source.EMBEDDED:
        try:
            return DoctorCheck(
                name=service.service,
                ok=True,
                detail=f"{anyio.run(ask, service.url)} ({service.source.value})",
            )
        except KNOWN as error:
            fix = (
                f"correct {service.variable} in the environment"
                if service.source is Source.ENVIRONMENT
                else "correct [services]"
            )
            return DoctorCheck(
                name=service.service, ok=False, detail=str(error), fix=f"{fix}, or do what the sentence says"
            )
    try:
        return DoctorCheck(name=service.service, ok=True, detail=embedded())
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        return DoctorCheck(name=service.service, ok=False, detail=problem, fix=fix)


def _postgres() -> str:
    user = service_user()
    binaries = find_binaries()
    version = ".".join(map(str, binaries.version))
    return (
        f"{version} in {binaries.directory}"
        + (f", as user {user}" if user is not None else "")
        + _passed_over(older("postgres", (OLDEST_MAJOR,)))
    )


def _nats() -> str:
    binary = find_nats()
    unusable = dict.fromkeys((*binary.passed_over, *unusable_nats()))
    return f"{'.'.join(map(str, binary.version))} in {binary.path}" + _passed_over(unusable)


def _node() -> list[DoctorCheck]:
    """A finding only if Node.js is too old: only agent programs from npm need it."""
    old = older("node", (OLDEST_NODE,))
    detail = (
        f"{', '.join(old)}; agent programs from npm need {OLDEST_NODE} or newer, and pass older ones over"
    )
    return [DoctorCheck(name="Node.js", ok=True, detail=detail)] if old else []


def _passed_over(unfit: Iterable[str]) -> str:
    listed = ", ".join(unfit)
    return f"; passed over: {listed}" if listed else ""


def _disk(place: Path) -> DoctorCheck:
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    detail = f"{free / GIB:.1f} GiB free at {place}"
    return DoctorCheck(
        name="disk",
        ok=free >= _NEEDED_DISK,
        detail=detail,
        fix=_at_least(free, _NEEDED_DISK, "free some space there"),
    )


def memory_bytes(root: Path = Path("/")) -> int:
    """The memory that the machine or a control group of this process allows, the smaller of the two. `root`: for tests."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    tree = root / "sys/fs/cgroup"
    limits = [tree / "memory.max", tree / "memory/memory.limit_in_bytes"]
    try:
        entries = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        entries = []
    for entry in entries:
        _, controllers, own = entry.split(":", 2)
        top, name = (tree, "memory.max") if not controllers else (tree / "memory", "memory.limit_in_bytes")
        if not controllers or "memory" in controllers.split(","):
            cgroup = top / own.lstrip("/")
            limits += [parent / name for parent in (cgroup, *cgroup.parents) if parent.is_relative_to(top)]
    for path in limits:
        try:
            total = min(total, int(path.read_text()))
        except (OSError, ValueError):  # the control group does not exist, or has no limit (`max`)
            continue
    return total


def _memory() -> DoctorCheck:
    total = memory_bytes()
    fix = _at_least(total, _NEEDED_MEMORY, "use a machine with more memory, or fewer rollout slots")
    return DoctorCheck(name="memory", ok=total >= _NEEDED_MEMORY, detail=f"{total / GIB:.1f} GiB", fix=fix)


def _shared_memory() -> DoctorCheck:
    try:
        size = shutil.disk_usage("/dev/shm").total
    except OSError:
        return DoctorCheck(
            name="/dev/shm", ok=False, detail="missing", fix=f"mount -t tmpfs tmpfs /dev/shm {_AS_ROOT}"
        )
    fix = _at_least(size, _NEEDED_SHM, f"mount -o remount,size=1G /dev/shm {_AS_ROOT}")
    return DoctorCheck(name="/dev/shm", ok=size >= _NEEDED_SHM, detail=f"{size / GIB:.1f} GiB", fix=fix)


def _files() -> DoctorCheck:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    ok = limit == resource.RLIM_INFINITY or limit >= _NEEDED_FILES
    detail = "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
    # This is the hard limit: a user cannot raise it by `ulimit`.
    name = login_name()
    fix = f'as root, write "{name} hard nofile {_NEEDED_FILES}" to /etc/security/limits.conf and log in again'
    fix += f" (a container: --ulimit nofile={_NEEDED_FILES}; a systemd unit: LimitNOFILE={_NEEDED_FILES})"
    return DoctorCheck(name="open files", ok=ok, detail=detail, fix="" if ok else fix)


def _ports() -> DoctorCheck:
    try:
        free_port()
    except ValueError as error:
        return DoctorCheck(
            name="ports",
            ok=False,
            detail=str(error),
            fix="bring up the loopback interface: ip link set lo up",
        )
    return DoctorCheck(name="ports", ok=True, detail=f"free ports on {LOOPBACK}")


def _at_least(have: int, needed: int, fix: str) -> str:
    return "" if have >= needed else f"{fix} ({needed / GIB:.2g} GiB needed)"
