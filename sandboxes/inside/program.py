"""One program in a pod, and the process that is responsible for it: `python3 -IS FILE program`, started by the supervisor, as root.

The result is reported when the program's own process (the foreground) has ended. Processes that it left running in the background remain monitored
until they are dead or the supervisor orders their end.
Every descendant of the program stays a descendant of this process: the kernel makes it the parent of orphans, and no program has the
right to end it. It reads its task and then orders as frames from stdin, and writes output, use and the result as frames to stdout.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import struct
import sys
import termios
import time
from pathlib import Path
from typing import Any

from sandboxes import nameless, tree
from sandboxes.inside import confine
from sandboxes.inside.frames import Reader, frame

POLL_INTERVAL_S = 0.25
_FLOOD = 16
_DIE_S = 10.0
_FRESH_S = 0.05
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Stat:
    """A line of /proc/PID/stat."""

    def __init__(self, pid: int) -> None:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        self.state, self.parent = fields[0], int(fields[1])
        self.cpu_s = sum(map(int, fields[11:15])) / _TICKS
        self.resident = int(fields[21]) * _PAGE


def processes() -> dict[int, Stat]:
    """Every process in this pod's container."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                found[int(name)] = Stat(int(name))
    return found


def below(pid: int, by_pid: dict[int, Stat]) -> list[int]:
    """Descendants of `pid` that are not zombies."""
    children: dict[int, list[int]] = {}
    for each, stat in by_pid.items():
        children.setdefault(stat.parent, []).append(each)
    found = list(children.get(pid, ()))
    for each in found:  # grows during the loop
        found += children.get(each, ())
    return [each for each in found if by_pid[each].state not in "ZX"]


class Task:
    """A running program."""

    def __init__(self, task: dict[str, Any], stdin: bytes) -> None:
        self.limits: dict[str, Any] = task["limits"]
        self.uid: int = task["uid"]
        self.keep: int = self.limits["output_bytes"]
        self.writable = [Path(path) for path in task["writable"]]
        self.began = time.monotonic()
        self.deadline = self.began + task["timeout_s"]
        self.totals = [0, 0]
        self.reason = "none"
        self.cpu_seen = 0.0
        self.cpu_reported_at = 0.0
        self.reaped_cpu_s = 0.0
        self.status: int | None = None
        self.lasting: bool = task.get("background", True)
        self.over = False  # the foreground has ended and its result is reported; the rest is still monitored
        self.stdin = memoryview(stdin)
        confine.adopt_orphans()
        self.start(task)

    def start(self, task: dict[str, Any]) -> None:
        out, err, failure, stdin = (os.pipe() for _ in range(4))
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            for fd, target in ((stdin[0], 0), (out[1], 1), (err[1], 2)):
                os.dup2(fd, target)
            signal.set_wakeup_fd(-1)
            confine.execute(task["argv"], task["env"], task["cwd"], self.uid, self.limits, failure[1])
        for fd in (out[1], err[1], failure[1], stdin[0]):
            os.close(fd)
        self.failure = b""
        while data := os.read(failure[0], 4096):  # closes when the program starts
            self.failure += data
        os.close(failure[0])
        self.outputs = {out[0]: 0, err[0]: 1}
        self.given = stdin[1]
        os.set_blocking(self.given, False)
        if not self.stdin:
            self.close_stdin()

    def close_stdin(self) -> None:
        if self.given >= 0:
            os.close(self.given)
            self.given = -1

    def feed(self) -> None:
        try:
            self.stdin = self.stdin[os.write(self.given, self.stdin[: 1 << 16]) :]
        except BlockingIOError:
            return
        except OSError:  # a program need not read its input
            self.stdin = memoryview(b"")
        if not self.stdin:
            self.close_stdin()

    def output(self, fd: int) -> None:
        stream = self.outputs[fd]
        data = os.read(fd, 1 << 16)
        if not data:
            os.close(fd)
            del self.outputs[fd]
            return
        if time.monotonic() > self.cpu_reported_at + _FRESH_S:
            self.use(processes())
        forwarded = data[: max(0, self.keep - self.totals[stream])]
        self.totals[stream] += len(data)
        if self.over:  # output of the background: it counts, and is dropped
            forwarded = b""
        if forwarded:
            say({"out" if stream == 0 else "err": len(forwarded)}, forwarded)
        if self.totals[stream] > _FLOOD * self.keep:
            self.end("output")

    def end(self, reason: str, grace_s: float = 0.0) -> None:
        """End the whole tree, including the background. `grace_s`: send SIGTERM first and wait up to this long."""
        if self.over or (self.reason == "none" and self.status is None):
            if not self.over:
                self.reason = reason
            if grace_s:
                self.ask(grace_s)
            self.kill()

    def ask(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        for pid in below(os.getpid(), processes()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        while not self.reap() and time.monotonic() < deadline:
            time.sleep(0.01)

    def kill(self) -> None:
        """Stop all processes before ending any, so that a fork bomb cannot outrun us. Repeat until none is left."""
        deadline = time.monotonic() + _DIE_S
        while True:
            stopped: set[int] = set()
            while running := set(below(os.getpid(), processes())) - stopped:
                for pid in running:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGSTOP)
                stopped |= running
            for pid in stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self.reap() or time.monotonic() > deadline:
                return
            time.sleep(0.002)

    def reap(self) -> bool:
        """Collect the dead. True if no children are left."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            self.reaped_cpu_s += used.ru_utime + used.ru_stime
            if pid == self.pid:
                self.status = os.waitstatus_to_exitcode(status)

    def check(self, scan: bool) -> None:
        """Measure its use, and end it if that exceeds a limit."""
        by_pid = processes()
        self.use(by_pid)
        if time.monotonic() >= self.deadline and not self.over:
            self.end("timeout")
        elif self.cpu_seen > self.limits["cpu_s"]:
            self.end("cpu")
        elif self.resident(by_pid) > self.limits["memory_mb"] << 20:
            self.end("memory")
        elif scan and self.full():
            self.end("disk")

    def use(self, by_pid: dict[int, Stat]) -> None:
        descendants = below(os.getpid(), by_pid)
        self.cpu_seen = max(self.cpu_seen, self.reaped_cpu_s + sum(by_pid[pid].cpu_s for pid in descendants))
        self.cpu_reported_at = time.monotonic()
        if not self.over:
            say({"cpu": self.cpu_seen})

    def resident(self, by_pid: dict[int, Stat]) -> int:
        """Resident bytes of all programs of the pod together. If they exceed the limit, it applies to each of them."""
        return sum(by_pid[pid].resident for pid in self.of_programs(by_pid))

    def of_programs(self, by_pid: dict[int, Stat]) -> list[int]:
        """The processes of all programs of the pod."""
        found = []
        for pid in by_pid:
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{pid}").st_uid == self.uid:
                    found.append(pid)
        return found

    def full(self) -> bool:
        return self.measure().over

    def disk_exhausted(self, code: int) -> bool:
        """Whether the disk is full, or just filled by a command of a shell that ended with the exit code of SIGXFSZ."""
        used = self.measure()
        return used.over or (code == 128 + signal.SIGXFSZ and used.at_limit)

    def measure(self) -> tree.TreeUsage:
        pids = self.of_programs(processes())
        with confine.looking_as(self.uid):  # first: a file that loses its name in the meantime counts once
            size, files = nameless.Held(pids, self.writable).on_disk()
        used = tree.TreeUsage(
            most_bytes=int(self.limits["disk_mb"]) << 20,
            most_files=int(self.limits["disk_files"]),
            bytes=size,
            files=files,
        )
        for path in self.writable:
            used.add(path)
        return used

    def result(self) -> dict[str, Any]:
        assert self.status is not None
        wall_s = time.monotonic() - self.began
        code = self.status  # negative: the signal that ended it
        cpu_s = max(self.cpu_seen, self.reaped_cpu_s)
        if self.reason == "none" and not self.failure:
            if code == -signal.SIGXCPU or cpu_s > self.limits["cpu_s"]:
                self.reason = "cpu"
            elif code == -signal.SIGXFSZ or self.disk_exhausted(code):
                self.reason = "disk"
        truncated = any(total > self.keep for total in self.totals)
        code = -signal.SIGKILL if self.reason != "none" else code
        return {
            "code": 128 - code if code < 0 else code,
            "signal": max(0, -self.status),
            "killed_by": self.reason,
            "truncated": truncated,
            "wall_s": wall_s,
            "cpu_s": cpu_s,
        }


def say(message: dict[str, Any], body: bytes = b"") -> None:
    data = frame(message, body)
    while data:
        data = data[os.write(1, data) :]


def main() -> None:
    reader = Reader()
    orders: list[tuple[dict[str, Any], bytes]] = []
    while not orders:
        data = os.read(0, 1 << 16)
        if not data:
            sys.exit("no task")
        orders += reader.feed(data)
    wakeup_read, wakeup_write = os.pipe()
    for fd in (wakeup_read, wakeup_write):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    task = Task(*orders[0])
    if task.failure:
        code, _, reason = task.failure.decode(errors="replace").partition(" ")
        text = f"cannot run: {reason}\n".encode()
        say({"err": len(text)}, text)
        task.kill()
        say({"result": {**task.result(), "code": int(code), "signal": 0}})
        return
    for order, _ in orders[1:]:  # it came together with the task
        task.end(order["kill"], order.get("grace_s", 0.0))
    serve(task, reader, wakeup_read)  # the foreground
    if task.reason != "none" or not task.lasting:
        task.kill()
    drain(task)
    result = task.result()
    if task.reason != "none":  # its background ends with it
        task.kill()
    task.use(processes())
    task.over = True
    say({"result": result})
    if not task.reap():
        serve(task, reader, wakeup_read)  # the background


def serve(task: Task, reader: Reader, woken: int) -> None:
    """Serve until the foreground has ended. After that (`task.over`), until every descendant is dead."""
    next_check, next_scan = time.monotonic() + POLL_INTERVAL_S, 0.0
    while True:
        now = time.monotonic()
        wait_s = max(0.0, (next_check if task.over else min(next_check, task.deadline)) - now)
        inputs = [task.given] if task.given >= 0 else []
        try:
            ready, writable, _ = select.select([0, woken, *task.outputs], inputs, [], wait_s)
        except OSError as error:
            if error.errno != errno.EINTR:
                raise
            continue
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 4096)
            task.reap()
        for fd in [fd for fd in ready if fd in task.outputs]:
            task.output(fd)
        if writable:
            task.feed()
        if 0 in ready:
            data = os.read(0, 1 << 16)
            if not data:  # the supervisor is gone
                task.end("caller")
            for order, _ in reader.feed(data):
                task.end(order["kill"], order.get("grace_s", 0.0))
        if task.reap() if task.over else task.status is not None:
            return
        if (now := time.monotonic()) >= (next_check if task.over else min(next_check, task.deadline)):
            task.check(scan=now >= next_scan)
            if now >= next_scan:  # large trees are scanned less often: at most a tenth of the time
                next_scan = time.monotonic() + 9 * (time.monotonic() - now)
            next_check = time.monotonic() + POLL_INTERVAL_S


def drain(task: Task) -> None:
    """Read the bytes that are in the pipes now, and no more: the background may write without end."""
    pending = {fd: fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4) for fd in task.outputs}
    end_totals = {
        fd: struct.unpack("i", size)[0] + task.totals[task.outputs[fd]] for fd, size in pending.items()
    }
    for fd, end in end_totals.items():
        stream = task.outputs[fd]
        while fd in task.outputs and task.totals[stream] < end:
            task.output(fd)
