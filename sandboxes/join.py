"""How a program enters the namespaces of an existing sandbox: through the joiner, a small process per owner of sandboxes.

    owner ── request: a task and descriptors ──▶ joiner ── forks ──▶ gate ── setns, forks ──▶ the program
    owner ◀── its pidfd, then its exit status ────────────────────── gate

A fork of the joiner takes a millisecond, and inherits neither memory nor descriptors of its owner. The *gate* stays in this
machine's pid namespace. No program can see, signal or trace it, and none has a descriptor by which its exit status could be forged. Until its
exec, the program's own process cannot be inspected either (`confine.hide`).

Without control groups a *warden* runs between gate and program. It is a process inside that the kernel makes the parent of the program's orphans, so
that background processes of different programs can be distinguished. A program may end its warden (they have the same user), but gains
nothing: its own exit code is lost, and its remaining processes belong only to the sandbox, which ends them.

The joiner ends with its owner, because the owner holds the last other end of the socket.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import errno
import gc
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from sandboxes import image_mount, seccomp, user_namespace
from sandboxes.base import Limits, SandboxError
from sandboxes.inside import confine
from sandboxes.machine import fault
from sandboxes.users import Range

_MAX_FDS = 16
_UNSTARTED = "cannot start the process that puts programs into sandboxes"
_PIECE = 4096
_END_S = 5.0
_PROGRAM, _MOUNT, _USERS = b"p", b"m", b"u"
_NAMESPACE_S = 20.0
_SPARED = "500"  # oom_score_adj: killed first when the machine runs out of memory
_HOME = str(Path(__file__).resolve().parents[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedProgram:
    """A program to run. `uid`: the sandbox's user on this machine, -1: the owner's own. `ids`: in a range of users, its uid, gid and further groups
    inside; None: the namespace has one user. `warden`: see above."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    uid: int
    ids: tuple[int, int, tuple[int, ...]] | None = None
    limits: Limits
    warden: bool


class _Joiner:
    """The living joiner of this process."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._socket, peer_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with peer_end:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-m", "sandboxes.join"],
                stdin=peer_end.fileno(),
                stdout=subprocess.DEVNULL,
                cwd="/",
                env={"PYTHONPATH": _HOME},
                start_new_session=True,
            )

    @property
    def holds(self) -> bool:
        return self._owner == os.getpid() and self._process.poll() is None

    def send(self, kind: bytes, fds: Sequence[int]) -> None:
        socket.send_fds(self._socket, [kind], list(fds))

    def close(self) -> None:
        self._socket.close()
        if self._owner == os.getpid():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)


_joiner: _Joiner | None = None
_lock = threading.Lock()


def join(
    entry: JoinedProgram, process: int, streams: Sequence[int], cgroup_fds: Sequence[int]
) -> socket.socket:
    """Start a program in the namespaces of `process` (a pidfd), with `streams` as its stdin, stdout and stderr, in the control groups of
    `cgroup_fds`. The caller keeps all of these descriptors. Returns the line on which its gate reports.

    `SandboxError` if the joiner cannot be started.
    """
    calls = seccomp.program()
    own_end = _request(
        _PROGRAM,
        asdict(entry) | {"calls": None if calls is None else calls.hex()},
        (process, *streams, *cgroup_fds),
    )
    own_end.setblocking(False)
    return own_end


def mount(task: Mapping[str, Any]) -> socket.socket:
    """Mount the file system of a sandbox on an image, as image_mount.py describes. Returns the line for its `answer`. The mounts that need a
    process live until it is closed. `SandboxError` if the joiner cannot be started."""
    return _request(_MOUNT, task, ())


def namespace(users: Range) -> int:
    """A user namespace in which `users` stand for users of its own, and which is closed to further user namespaces: a descriptor of the caller's.
    Only for root. `SandboxError` if the kernel refuses."""
    with _request(_USERS, {"maps": users.maps()}, ()) as line:
        line.settimeout(_NAMESPACE_S)
        message, fds = answer(line)
    if len(fds) == 1:
        return fds[0]
    raise SandboxError(f"no range of users can be made here: {message.get('failed', 'its maker has ended')}")


def answer(line: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The only report on a blocking line, with its descriptors; ({}, []) if there is none."""
    try:
        data, fds = _receive(line, _PIECE, 3)
    except (ConnectionError, TimeoutError):
        return {}, []
    return (json.loads(data), fds) if data else ({}, [])


def _request(kind: bytes, request: Mapping[str, Any], given: Sequence[int]) -> socket.socket:
    """Send a request and descriptors to the joiner. Returns our end of the line on which the answer comes."""
    global _joiner
    own_end, peer_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    task = -1
    try:
        task = os.memfd_create("task", os.MFD_CLOEXEC)
        with open(task, "wb", closefd=False) as file:
            file.write(json.dumps(request).encode())
        os.lseek(task, 0, os.SEEK_SET)
        fds = (peer_end.fileno(), task, *given)
        with _lock:
            for last in (False, True):  # it may die between the check and the write
                try:
                    if _joiner is None or not _joiner.holds:
                        _dismiss()
                        _joiner = _Joiner()
                    _joiner.send(kind, fds)
                    break
                except OSError as error:
                    if last:
                        raise fault(error, f"{_UNSTARTED}: {error}") from error
    except BaseException:
        own_end.close()
        raise
    finally:
        peer_end.close()
        if task >= 0:
            os.close(task)
    return own_end


def begin() -> None:
    """Start a joiner in advance, so that the first program need not wait for it."""
    global _joiner
    with _lock:
        if _joiner is None or not _joiner.holds:
            _dismiss()
            try:
                _joiner = _Joiner()
            except OSError as error:
                raise fault(error, f"{_UNSTARTED}: {error}") from error


def _dismiss() -> None:
    global _joiner
    if _joiner is not None:
        _joiner.close()
        _joiner = None


atexit.register(_dismiss)


def main() -> None:
    requests = socket.socket(fileno=0)
    confine.rise()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    while True:
        data, fds = _receive(requests, 1, _MAX_FDS)
        if not data:
            return
        with contextlib.suppress(OSError):  # no process could be created: the end of the line reports it
            if os.fork() == 0:
                if data in (_MOUNT, _USERS):
                    _make(data, *fds)
                _gate(*fds)
        for fd in fds:
            os.close(fd)


def _make(kind: bytes, line: int, task: int) -> NoReturn:
    reports = socket.socket(fileno=line)
    try:
        os.close(0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with open(task, "rb") as file:
            request = json.load(file)
        if kind == _MOUNT:
            fds, daemons = image_mount.mounted(request)
        else:
            fds, daemons = [user_namespace.closed(request["maps"])], []
        _say(reports, {}, *fds)
        if daemons:
            image_mount.serve(reports, daemons)
    except BaseException as error:  # noqa: BLE001 - as for the gate
        with contextlib.suppress(OSError):
            _say(reports, {"failed": str(error), "errno": getattr(error, "errno", None) or 0})
    finally:
        os._exit(0)


def _gate(
    line: int, task: int, process: int, stdin: int, stdout: int, stderr: int, *cgroup_fds: int
) -> NoReturn:
    reports = socket.socket(fileno=line)
    try:
        os.close(0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with open(task, "rb") as file:
            request = json.load(file)
        with contextlib.suppress(PermissionError):  # it is higher, and only a privileged process may lower it
            Path("/proc/self/oom_score_adj").write_text(_SPARED)
        if request["ids"] is None:
            _become(request["uid"], request["uid"], [])
        confine.hide()
        confine.join(process)
        if request["ids"] is not None:  # known in the namespace of its range alone
            _become(*request["ids"])
            confine.hide()
        streams = (stdin, stdout, stderr)
        begin = _warden if request["warden"] else _program
        if (pid := os.fork()) == 0:
            begin(request, reports, streams, cgroup_fds)
        for fd in (*streams, *cgroup_fds, process):
            os.close(fd)
        _say(reports, {"pid": pid}, os.pidfd_open(pid))
        _, status, used = os.wait4(pid, 0)
        key = "gone" if request["warden"] else "status"
        _say(reports, {key: status, "cpu": used.ru_utime + used.ru_stime})
    except BaseException as error:  # noqa: BLE001 - a process of its own, whose only voice is the line
        with contextlib.suppress(OSError):
            _say(reports, {"failed": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(0)


def _become(uid: int, gid: int, groups: list[int]) -> None:
    """Become this user. -1: stay who we are."""
    if uid >= 0:
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)


def _warden(
    request: dict[str, Any], reports: socket.socket, streams: tuple[int, ...], cgroup_fds: tuple[int, ...]
) -> NoReturn:
    try:
        confine.adopt_orphans()
        confine.renounce()
        child = os.fork()
        if child == 0:
            _program(request, reports, streams, cgroup_fds)
        for fd in streams:
            os.close(fd)
        os.chdir("/")
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == child:
                used = resource.getrusage(resource.RUSAGE_CHILDREN)  # also of orphans that have ended
                _say(reports, {"status": status, "cpu": used.ru_utime + used.ru_stime})
    except ChildProcessError:
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - as for the gate
        with contextlib.suppress(OSError):
            _say(reports, {"failed": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(1)


def _program(
    request: dict[str, Any], reports: socket.socket, streams: tuple[int, ...], cgroup_fds: tuple[int, ...]
) -> NoReturn:
    code = 126
    try:
        for group_fd in cgroup_fds:
            os.write(group_fd, b"0")
        os.setsid()
        for target, fd in enumerate(streams):
            os.dup2(fd, target)
        confine.settle()
        confine.limit(request["limits"], alone=not cgroup_fds)
        confine.renounce()
        confine.filter_calls(None if request["calls"] is None else bytes.fromhex(request["calls"]))
    except BaseException as error:  # noqa: BLE001 - as for the gate
        with contextlib.suppress(OSError):
            _say(reports, {"failed": f"{type(error).__name__}: {error}"})
        os._exit(code)
    try:
        code, reason = confine.replace(request["argv"], request["env"], request["cwd"])
        os.write(2, f"cannot run {request['argv'][0][:200]}: {reason}\n".encode(errors="replace"))
    finally:
        os._exit(code)


def _say(line: socket.socket, message: dict[str, Any], *fds: int) -> None:
    data = json.dumps(message).encode()[:_PIECE]
    try:
        socket.send_fds(line, [data], list(fds))
    except BrokenPipeError:  # the reader is gone
        return
    finally:
        for fd in fds:
            os.close(fd)


def _receive(line: socket.socket, most: int, most_fds: int) -> tuple[bytes, list[int]]:
    """One message and its descriptors. No descriptor survives an exec (`socket.recv_fds` does not set its flags so)."""
    found = array.array("i")
    control_size = socket.CMSG_LEN(most_fds * found.itemsize)
    data, control, _, _ = line.recvmsg(most, control_size, socket.MSG_CMSG_CLOEXEC)
    for level, kind, payload in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(payload[: len(payload) - len(payload) % found.itemsize])
    return data, list(found)


def next_report(line: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next report on a readable line, with its descriptors; None at the end of the line."""
    try:
        data, fds = _receive(line, _PIECE, 1)
    except OSError as error:
        if error.errno == errno.ECONNRESET:
            return None
        raise
    return (json.loads(data), fds) if data else None


if __name__ == "__main__":
    main()
