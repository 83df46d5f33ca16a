"""One program in a pod, and the process that answers for it: `python3 -IS FILE program`, started by the keeper, as root.

Every descendant of the program stays a descendant of this process, which the kernel makes the parent of orphans, and which no program has the
right to end. It reads its task and then orders as frames from stdin, and writes output, use and the result as frames to stdout.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

from sandboxes import tree
from sandboxes.inside import confine
from sandboxes.inside.frames import Reader, frame

LOOK_S = 0.25
_FLOOD = 16
_DIE_S = 10.0
_FRESH_S = 0.05
_CPU, _FSIZE = 128 + signal.SIGXCPU, 128 + signal.SIGXFSZ
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
    """Everybody in this pod's container."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                found[int(name)] = Stat(int(name))
    return found


def below(pid: int, everybody: dict[int, Stat]) -> list[int]:
    """Descendants of `pid` that are no zombies."""
    children: dict[int, list[int]] = {}
    for each, stat in everybody.items():
        children.setdefault(stat.parent, []).append(each)
    found = list(children.get(pid, ()))
    for each in found:  # grows while it is read
        found += children.get(each, ())
    return [each for each in found if everybody[each].state not in "ZX"]


class Task:
    """A running program."""

    def __init__(self, task: dict[str, Any], stdin: bytes) -> None:
        self.limits: dict[str, Any] = task["limits"]
        self.uid: int = task["uid"]
        self.keep: int = self.limits["output_bytes"]
        self.writable = [Path(place) for place in task["writable"]]
        self.began = time.monotonic()
        self.deadline = self.began + task["timeout_s"]
        self.totals = [0, 0]
        self.reason = "none"
        self.cpu_seen = 0.0
        self.told_cpu = 0.0
        self.reaped_cpu_s = 0.0
        self.status: int | None = None
        self.stdin = memoryview(stdin)
        confine.adopt_orphans()
        self.start(task)

    def start(self, task: dict[str, Any]) -> None:
        out, err, told, given = (os.pipe() for _ in range(4))
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            for fd, target in ((given[0], 0), (out[1], 1), (err[1], 2)):
                os.dup2(fd, target)
            signal.set_wakeup_fd(-1)
            for number in (
                signal.SIGCHLD,
                signal.SIGPIPE,
                signal.SIGXFSZ,
            ):  # Python ignores some, and what is ignored stays so
                signal.signal(number, signal.SIG_DFL)
            confine.execute(task["argv"], task["env"], task["cwd"], self.uid, self.limits, told[1])
        for fd in (out[1], err[1], told[1], given[0]):
            os.close(fd)
        self.failure = b""
        while data := os.read(told[0], 4096):  # closes as the program begins
            self.failure += data
        os.close(told[0])
        self.outputs = {out[0]: 0, err[0]: 1}
        self.given = given[1]
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
        which = self.outputs[fd]
        data = os.read(fd, 1 << 16)
        if not data:
            os.close(fd)
            del self.outputs[fd]
            return
        if time.monotonic() > self.told_cpu + _FRESH_S:
            self.use(processes())
        kept = data[: max(0, self.keep - self.totals[which])]
        self.totals[which] += len(data)
        say({"out" if which == 0 else "err": len(kept)}, kept)
        if self.totals[which] > _FLOOD * self.keep:
            self.end("output")

    def end(self, reason: str) -> None:
        if self.reason == "none" and self.status is None:
            self.reason = reason
            self.kill()

    def kill(self) -> None:
        """Stop everybody before anybody is ended, so that no bomb outruns us; until nobody is left."""
        deadline = time.monotonic() + _DIE_S
        while True:
            held: set[int] = set()
            while fresh := set(below(os.getpid(), processes())) - held:
                for pid in fresh:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGSTOP)
                held |= fresh
            for pid in held:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self.reap() or time.monotonic() > deadline:
                return
            time.sleep(0.002)

    def reap(self) -> bool:
        """Collect the dead. True if there are no children any more."""
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

    def look(self, scan: bool) -> None:
        """What it uses; ends it if that is too much."""
        everybody = processes()
        self.use(everybody)
        if time.monotonic() >= self.deadline:
            self.end("timeout")
        elif self.cpu_seen > self.limits["cpu_s"]:
            self.end("cpu")
        elif self.resident(everybody) > self.limits["memory_mb"] << 20:
            self.end("memory")
        elif scan and self.full():
            self.end("disk")

    def use(self, everybody: dict[int, Stat]) -> None:
        own = below(os.getpid(), everybody)
        self.cpu_seen = max(self.cpu_seen, self.reaped_cpu_s + sum(everybody[pid].cpu_s for pid in own))
        self.told_cpu = time.monotonic()
        say({"cpu": self.cpu_seen})

    def resident(self, everybody: dict[int, Stat]) -> int:
        """Of all programs of the pod together: whoever passes the limit meets every one of them."""
        total = 0
        for pid, stat in everybody.items():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{pid}").st_uid == self.uid:
                    total += stat.resident
        return total

    def full(self) -> bool:
        limits = self.limits
        size = files = 0
        for place in self.writable:
            used = tree.usage(place)
            size, files = size + used.bytes, files + used.files
            if used.too_deep:
                return True
        return size > int(limits["disk_mb"]) << 20 or files > int(limits["disk_files"])

    def result(self) -> dict[str, Any]:
        assert self.status is not None
        wall_s = time.monotonic() - self.began
        code = 128 - self.status if self.status < 0 else self.status
        cpu_s = max(self.cpu_seen, self.reaped_cpu_s)
        if self.reason == "none" and not self.failure:
            if code == _CPU or cpu_s > self.limits["cpu_s"]:
                self.reason = "cpu"
            elif code == _FSIZE or self.full():
                self.reason = "disk"
        truncated = any(total > self.keep for total in self.totals)
        code = 137 if self.reason != "none" else code
        return {
            "code": code,
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
    woken, wake = os.pipe()
    for fd in (woken, wake):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    task = Task(*orders[0])
    if task.failure:
        code, _, why = task.failure.decode(errors="replace").partition(" ")
        text = f"cannot run: {why}\n".encode()
        say({"err": len(text)}, text)
        task.kill()
        say({"result": {**task.result(), "code": int(code)}})
        return
    following = serve(task, reader, woken)
    if following:
        drain(task)
    say({"result": task.result()})


def serve(task: Task, reader: Reader, woken: int) -> bool:
    """Until the program has ended and everybody below is dead."""
    next_look, next_scan = time.monotonic() + LOOK_S, 0.0
    while True:
        now = time.monotonic()
        wait_s = max(0.0, min(next_look, task.deadline) - now)
        given = [task.given] if task.given >= 0 else []
        try:
            ready, writable, _ = select.select([0, woken, *task.outputs], given, [], wait_s)
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
            if not data:  # the keeper is gone
                task.end("caller")
            for order, _ in reader.feed(data):
                task.end(order["kill"])
        if task.status is not None:
            task.kill()
            return True
        if (now := time.monotonic()) >= min(next_look, task.deadline):
            task.look(scan=now >= next_scan)
            if now >= next_scan:  # large trees are scanned less often: never more than a tenth of the time
                next_scan = time.monotonic() + 9 * (time.monotonic() - now)
            next_look = time.monotonic() + LOOK_S


def drain(task: Task) -> None:
    """What is left in the pipes; everybody who could write to them is dead."""
    while task.outputs:
        ready, _, _ = select.select(list(task.outputs), [], [], 0)
        if not ready:
            return
        for fd in ready:
            task.output(fd)
