"""Runs a program that builds an image, shut off from this machine: `python -m sandboxes.images.cage`, with a JSON object on standard input.

    owner ── cage (gives out users, and runs slirp4netns) ── A: the users, and the network ── B: bubblewrap ── the program, as root of B

*A* is a user namespace with a range of subordinate ids, for root too: no user of a build is a user of this machine. It owns the network, whose only
way out is slirp4netns, without this machine's loopback and without private and link-local addresses. *B* is a user namespace below it, whose root has
no say over that network. Bubblewrap makes new namespaces of every other kind, with this machine's `/usr` and the bound directories as the only files.

All of it ends with the owner. Exit status: the program's, 128 and a number if that signal ended it; 125 if the cage itself failed, which says why
on standard error.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from sandboxes.inside.confine import libc

_NEWNS, _NEWUSER, _NEWNET = 0x0002_0000, 0x1000_0000, 0x4000_0000
_REC, _PRIVATE, _BIND = 0x4000, 0x4_0000, 0x1000
_PDEATHSIG, _DUMPABLE = 1, 4
RANGE = 65_536
FAILED = 125
CLOSED = (
    *("10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"),
    *("198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4"),
)
"""Addresses that a build does not reach, besides this machine's own. The network of slirp4netns itself, 10.0.2.0/24, is more specific."""
RESOLVER = "10.0.2.3"
_PLACE = Path("/mnt")
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("/etc/alternatives", "/etc/ld.so.cache")


class CageError(Exception):
    """Signals that the cage cannot be made here."""


def main() -> int:
    task: dict[str, Any] = json.load(sys.stdin)
    libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    try:
        return _outer(task)
    except (OSError, CageError, subprocess.SubprocessError) as error:
        print(f"a build cannot be shut off from this machine: {error}", file=sys.stderr)
        return FAILED


def _outer(task: dict[str, Any]) -> int:
    is_root = os.geteuid() == 0
    task["closed"] = [*CLOSED, *_own_addresses()] if task["network"] else []
    if is_root:  # before the users change: they cannot pass through closed directories
        _must(libc.unshare(_NEWNS))
        _bind(task["binds"])
    from_a, to_outer = os.pipe()
    from_outer, to_a = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(lambda: _a(task, to_outer, from_outer, bind=not is_root))
    os.close(to_outer)
    os.close(from_outer)
    network = None
    try:
        if os.read(from_a, 1):
            _give_users(pid, task["first"], task["users"])
            if task["network"]:
                network = _network(pid)
            os.write(to_a, b".")
        os.close(to_a)
        return _code(os.waitpid(pid, 0)[1])
    finally:
        if network is not None:
            network.kill()
            network.wait()


def _give_users(pid: int, first: int, count: int) -> None:
    """Users 0 to `count` of namespace A are those from `first` on of this machine; without root's rights, user 0 is ourselves."""
    if os.geteuid() == 0:
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{pid}/{name}").write_text(f"0 {first} {count}")
        return
    for program, own in (("newuidmap", os.geteuid()), ("newgidmap", os.getegid())):
        if shutil.which(program) is None:
            raise CageError(f"{program} is not installed: apt-get install uidmap")
        command = [program, str(pid), "0", str(own), "1", "1", str(first), str(count - 1)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            raise CageError(
                f"{program}: {result.stderr.strip()} (add a range for this user to /etc/subuid and /etc/subgid)"
            )


def _network(pid: int) -> subprocess.Popen[bytes]:
    """Give namespace A the network, without this machine's own addresses."""
    if shutil.which("slirp4netns") is None:
        raise CageError("slirp4netns is not installed: apt-get install slirp4netns")
    ready, made = os.pipe()
    leash, _ = os.pipe()  # its other end closes with this process, however that ends
    command = [
        "slirp4netns",
        "--configure",
        "--mtu=65520",
        "--disable-host-loopback",
        "--enable-sandbox",
        "--enable-seccomp",
        f"--ready-fd={made}",
        f"--exit-fd={leash}",
        str(pid),
        "tap0",
    ]
    network = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=(made, leash),
        preexec_fn=lambda: libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
    )
    os.close(made)
    os.close(leash)
    if not os.read(ready, 1):
        network.wait()
        assert network.stderr is not None
        raise CageError(f"slirp4netns: {network.stderr.read(500).decode(errors='replace').strip()}")
    os.close(ready)
    return network


def _a(task: dict[str, Any], to_outer: int, from_outer: int, *, bind: bool) -> NoReturn:
    libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _must(libc.unshare(_NEWUSER | _NEWNET | (_NEWNS if bind else 0)))
    os.write(to_outer, b".")
    if not os.read(from_outer, 1):
        os._exit(FAILED)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    os.setgroups([])
    libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # again: another user forgets it
    libc.prctl(_DUMPABLE, 1, 0, 0, 0)  # otherwise only this machine's root could give users to its children
    if bind:
        _bind(task["binds"])
    _ip("link", "set", "lo", "up")
    for closed in task["closed"]:
        _ip("route", "replace", "unreachable", closed)
    for opened in task["opened"] if task["network"] else ():
        _ip("route", "replace", opened, "via", "10.0.2.2")
    pid = os.fork()
    if pid == 0:
        _child(lambda: _b(task))
    os._exit(_relay(pid, task["users"]))


def _relay(pid: int, users: int) -> int:
    """Give namespace B the same users, and return its exit status."""
    os.kill(pid, 0)
    while (status := os.waitpid(pid, os.WUNTRACED))[1] and os.WIFSTOPPED(status[1]):
        for name in ("uid_map", "gid_map"):
            # In two parts, as A has them where its user 0 is an ordinary user.
            Path(f"/proc/{pid}/{name}").write_text(f"0 0 1\n1 1 {users - 1}")
        os.kill(pid, signal.SIGCONT)
    return _code(status[1])


def _code(status: int) -> int:
    """An exit status as shells give it: 128 and the number of the signal for a program that one ended."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _b(task: dict[str, Any]) -> NoReturn:
    libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _must(libc.unshare(_NEWUSER))
    os.kill(os.getpid(), signal.SIGSTOP)  # until A has given out the users
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    command = [task["bwrap"], *_options(task), "--", *task["argv"]]
    os.execvpe(command[0], command, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **task["env"]})


def _options(task: dict[str, Any]) -> list[str]:
    options = [
        "--unshare-pid",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
        "--hostname",
        "build",
        "--die-with-parent",
        "--as-pid-1",
        "--new-session",
    ]
    options += ["--cap-add", "ALL", "--ro-bind", "/usr", "/usr"]
    for path in map(Path, _SYSTEM):
        if path.is_symlink():
            options += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            options += ["--ro-bind", str(path), str(path)]
    options += [
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--dir",
        "/sys",
        "--dir",
        "/run",
        "--dir",
        "/tmp",
        "--dir",
        "/var/tmp",
    ]
    for number, (_, inside, read_only) in enumerate(task["binds"]):
        options += ["--ro-bind" if read_only else "--bind", str(_PLACE / str(number)), inside]
    for name in _ETC:  # after the directory in which they lie
        options += ["--ro-bind-try", name, name]
    return [*options, "--chdir", "/"]


def _bind(binds: Sequence[Sequence[Any]]) -> None:
    """Mount each bound path at a place that every user may enter."""
    _must(libc.mount(b"none", b"/", None, _REC | _PRIVATE, None))
    _must(libc.mount(b"none", os.fsencode(_PLACE), b"tmpfs", 0, b"mode=755"))
    for number, (outside, _, _) in enumerate(binds):
        place = _PLACE / str(number)
        if Path(outside).is_dir():
            place.mkdir()
        else:
            place.touch()
        _must(libc.mount(os.fsencode(outside), os.fsencode(place), None, _BIND | _REC, None))


def _own_addresses() -> list[str]:
    """This machine's own IPv4 addresses without its loopback: programs here may listen on them."""
    listed = json.loads(_ip("-json", "-4", "address", "show"))
    found = [
        address["local"] for each in listed for address in each.get("addr_info", ()) if "local" in address
    ]
    return [address for address in found if not address.startswith("127.")]


def _ip(*words: str) -> str:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    result = subprocess.run(["ip", *words], capture_output=True, text=True, env=environment)
    if result.returncode:
        raise CageError(f"ip {' '.join(words)}: {result.stderr.strip()}")
    return result.stdout


def _child(body: Any) -> NoReturn:
    try:
        body()
    except BaseException as error:  # noqa: BLE001 - a process of its own, which says why and ends
        print(f"a build cannot be shut off from this machine: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(FAILED)


def _must(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    sys.exit(main())
