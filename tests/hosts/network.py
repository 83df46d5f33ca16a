"""Hosts of one machine: a network namespace each, with a host name and one address, all on one bridge that leads nowhere else.

    penhosts-PID-lan     the bridge
    penhosts-PID-NAME    a host: lo, and eth0 with an address of 10.231.0.0/24, which exists in these namespaces alone

The processes of a host end with the process that made it (the kernel sees to it) or by `remove`. The next session removes the leftovers of a
killed one.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio

from orchestrator.deploy.embedded.spawn import kill_group, reap, spawn
from tests.waiting import eventually_blocking

PREFIX = "penhosts-"
NAMES = Path("/run/netns")
NET = "10.231.0"
CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def ip(*arguments: str) -> str:
    """Run one command of iproute2; returns its output."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr.strip()}"
    return done.stdout


@dataclass(slots=True, kw_only=True)
class Host:
    """One host. `processes`: the processes started on it, by name."""

    name: str
    namespace: str
    address: str
    lan: str
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str],
        cwd: Path | None = None,
        user: str | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a program on this host, under its host name. Root's own, unless `user` is named."""
        become = (
            ("setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--pdeathsig=KILL")
            if user
            else ()
        )
        process = spawn(self._here([*become, *argv]), log=log, env=env, cwd=cwd)
        self.processes[name] = process
        return process

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on this host to its end, under its host name."""
        return subprocess.run(
            self._here(argv), env=env, cwd=cwd, capture_output=True, text=True, timeout=timeout_s
        )

    def _here(self, argv: Sequence[str]) -> list[str]:
        """The prefix of a command line that runs on this host."""
        inside = ["nsenter", f"--net={NAMES / self.namespace}", "--", "unshare", "--uts", "--"]
        return [*inside, "sh", "-c", 'hostname "$0" && exec "$@"', self.name, *argv]

    def kill(self, name: str) -> None:
        """SIGKILL to one process and to its group."""
        process = self.processes.pop(name)
        kill_group(process)
        process.wait(30)

    async def ends(self, process: subprocess.Popen[bytes], patience_s: float) -> int:
        """The exit status of a process that ends by itself."""
        with anyio.fail_after(patience_s):
            return await reap(process)

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM, patience_s: float = 30.0) -> int:
        """Request the end of one process; returns its exit status."""
        process = self.processes.pop(name)
        os.kill(process.pid, number)
        return process.wait(patience_s)

    def alive(self, name: str) -> bool:
        process = self.processes.get(name)
        return process is not None and process.poll() is None

    def cut_off(self) -> None:
        """Pull the plug: no traffic passes in either direction, and no peer is notified."""
        ip("-n", self.lan, "link", "set", f"v-{self.name}", "down")

    def plug_in(self) -> None:
        ip("-n", self.lan, "link", "set", f"v-{self.name}", "up")


class Network:
    """The hosts of one session."""

    def __init__(self) -> None:
        self._prefix = f"{PREFIX}{os.getpid()}-"
        self.hosts: dict[str, Host] = {}
        self._lan = f"{self._prefix}lan"
        ip("netns", "add", self._lan)
        ip("-n", self._lan, "link", "add", "lan", "type", "bridge")
        ip("-n", self._lan, "link", "set", "lan", "up")

    def add(self, name: str) -> Host:
        """A new host. `name`: at most 13 characters."""
        host = Host(
            name=name,
            namespace=f"{self._prefix}{name}",
            address=f"{NET}.{len(self.hosts) + 2}",
            lan=self._lan,
        )
        ip("netns", "add", host.namespace)
        ip("-n", host.namespace, "link", "set", "lo", "up")
        ip("-n", self._lan, "link", "add", f"v-{name}", "type", "veth", "peer", "name", "eth0", "netns", host.namespace)  # fmt: skip
        ip("-n", self._lan, "link", "set", f"v-{name}", "master", "lan", "up")
        ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
        ip("-n", host.namespace, "link", "set", "eth0", "up")
        self.hosts[name] = host
        return host

    def remove(self) -> None:
        """End every process in the namespaces, and remove them."""
        for host in self.hosts.values():
            for name in list(host.processes):
                host.kill(name)
        remove(self._prefix)


def remove(prefix: str) -> None:
    """Remove namespaces by the beginning of their names, and SIGKILL the processes still in them: only ours are in there."""
    for namespace in sorted(path.name for path in NAMES.glob(f"{prefix}*")):
        with suppress(TimeoutError):
            eventually_blocking(partial(_is_empty, namespace), within_s=1.0, every_s=0.05)
        ip("netns", "del", namespace)


def _is_empty(namespace: str) -> bool:
    """Whether no process but this one is in it. Those that are get SIGKILL."""
    inside = [int(pid) for pid in ip("netns", "pids", namespace).split() if int(pid) != os.getpid()]
    for pid in inside:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return not inside


def remove_leftovers() -> None:
    """Remove the leftovers of killed sessions: the process id of each is in the name."""
    for owner in {path.name.removeprefix(PREFIX).partition("-")[0] for path in NAMES.glob(f"{PREFIX}*")}:
        if not Path(f"/proc/{owner}").exists():
            print(f"removing what the killed session {owner} left", file=sys.stderr)
            remove(f"{PREFIX}{owner}-")


@contextmanager
def standing_on(host: Host) -> Iterator[None]:
    """This thread's sockets, and those of threads and processes that it starts, are the host's."""
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        _enter(NAMES / host.namespace)
        yield
    finally:
        _check(_libc.setns(here, CLONE_NEWNET))
        os.close(here)


def _enter(namespace: Path) -> None:
    descriptor = os.open(namespace, os.O_RDONLY)
    try:
        _check(_libc.setns(descriptor, CLONE_NEWNET))
    finally:
        os.close(descriptor)


def _check(done: int) -> None:
    if done:
        raise OSError(ctypes.get_errno(), "the network namespace cannot be entered")
