"""Runs a program of the agent's during grading: `python3 -I "$PENSTOCK_UNTRUSTED" SECONDS PROGRAM [ARGUMENT...]`.

It is placed into the verifier's sandbox next to the tests. The tests and the programs they run share a user, so without this the agent's program
could write the reward, read the expected values, or kill the script that judges it. Here it can only

- read the system, the work directory (all of it, also where the current directory is one within) and the files of the task's environment in $HOME
  and $TMPDIR; see a minimal environment, and only entries of /proc that reveal nothing about processes;
- write to the current directory and below, without creating links, pipes and sockets, and to its own $HOME and $TMPDIR. These start empty and are
  deleted afterwards, as are its files in /dev/shm: in the judge's directories, the judge's next program would find planted files;
- read the standard input that its command was given, also by /dev/stdin, but no file that the judge has read in part, and no other descriptor of
  the judge's;
- signal, inspect and limit processes that it started itself;
- use resources within `held.budget`: memory, CPU and wall time, files and their bytes, output, processes. All runs of a verification share them.
  Files count where it can write: those of the judge elsewhere in the work directory neither count nor are removed.

    judge ── this process: forwards output, watches, ends ── warden: ends all of it at once ── the program, which reaches neither of the two

The kernel's Landlock confines it (signals from Linux 6.12 on). When it ends, or after SECONDS, its remaining processes are killed. The exit code is
the program's; 124 after SECONDS or when the time for programs is up; 137 if it was killed or used up another limit, which standard error
names; 125 if nothing ran: this kernel has no Landlock, $TMPDIR has no room, or the current directory is that of the rewards, is in a copy of the
tests in $TMPDIR that $TEST_DIR names, or holds the judge's $HOME or $TMPDIR.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import select
import signal
import stat
import sys
import time
from types import FrameType
from typing import NoReturn

_HERE = os.path.dirname(os.path.realpath(__file__))
if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.path.insert(0, _HERE)

from orchestrator.tasks.held import confine, files, resource_usage  # noqa: E402 - after the path
from orchestrator.tasks.held.budget import HeldBudget, Ledger  # noqa: E402
from sandboxes import nameless  # noqa: E402

TIMED_OUT, UNHELD, KILLED = 124, 125, 137
LIMITS_FILE = "limits"
"""Name of the limits file, next to this file."""
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt")
_PROC = ("cpuinfo", "meminfo", "stat", "loadavg", "uptime", "version", "filesystems", "sys")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_POLL_INTERVAL_S, _SHARE = 0.02, 10
"""Seconds between two looks, or this multiple of the last look's duration if that is longer."""
_DISK_S = 0.05
_PIPE = 4096  # a writable pipe accepts this much at once
_CHUNK = 1 << 16


class _Pump:
    """Forwards the program's output. Once our end of its pipe is closed, the program cannot write any more."""

    def __init__(self, source: int, target: int) -> None:
        self.source, self.target = source, target
        self.held = b""
        self.bytes = 0

    @property
    def over(self) -> bool:
        return self.source < 0 and not self.held

    def waits(self, poll: select.poll) -> None:
        if self.held:
            poll.register(self.target, select.POLLOUT)
        elif self.source >= 0:
            poll.register(self.source, select.POLLIN)

    def move(self, ready: set[int], most: int) -> bool:
        """One step. False: the output exceeds `most` bytes, and the rest is dropped."""
        if self.held and self.target in ready:
            try:
                self.held = self.held[os.write(self.target, self.held[:_PIPE]) :]
            except OSError:  # the judge has stopped reading
                self.close()
                self.held = b""
        elif not self.held and self.source in ready:
            data = os.read(self.source, _CHUNK)
            self.held = data[: max(0, most)]
            self.bytes += len(data)
            if not data or len(data) > most:
                self.close()
            return len(data) <= most
        return True

    def close(self) -> None:
        if self.source >= 0:
            os.close(self.source)
            self.source = -1


class _Run:
    """One program, seen from outside. `here`: where it starts and may write. `own`: the directory that only it uses."""

    def __init__(self, budget: HeldBudget, ledger: Ledger, *, seconds: float, here: str, own: str) -> None:
        self._budget, self._ledger = budget, ledger
        self._deadline = time.monotonic() + seconds
        self._since_ns = os.stat(own).st_ctime_ns  # the clock of file systems lags behind others
        self._here, self._own = here, own
        self._warden = 0
        self._pumps: list[_Pump] = []
        self._look_at = time.monotonic() + _POLL_INTERVAL_S
        self._disk_at = self._look_at + _DISK_S
        self.breach = ""
        """The limit that the program used up; empty: none."""

    def held(self, argv: list[str], rules: confine.Rules, version: int) -> int:
        """Run the program until it ends or its budget does. Returns its exit code in the shell's form, once all its processes are dead."""
        same = os.path.sameopenfile(1, 2)
        pipes = [os.pipe() for _ in range(1 if same else 2)]
        alive_reader, alive_writer = os.pipe()
        confine.adopt_orphans()
        confine.hide()
        own_pid = os.getpid()
        self._warden = os.fork()
        if self._warden == 0:
            try:
                for fd in (alive_reader, *(source for source, _ in pipes)):
                    os.close(fd)
                _watch_over(own_pid, version, argv, self._place(rules), [pipes[0][1], pipes[-1][1]])
            finally:
                os._exit(UNHELD)
        for fd in (alive_writer, *(target for _, target in pipes)):
            os.close(fd)
        self._pumps = [_Pump(source, target) for target, (source, _) in enumerate(pipes, 1)]
        self._follow(alive_reader)
        os.close(alive_reader)
        code = _end_all(self._warden)
        self._warden = 0
        self._drain()
        if self._ledger.cpu_s + resource_usage.cpu_s([]) > self._budget.cpu_s:
            self._breaks("cpu")
        if self._over_disk():
            self._breaks("disk")
            files.shed(self._here, self._since_ns)
        if self.breach == "time":
            return TIMED_OUT
        return KILLED if self.breach else code

    def _place(self, rules: confine.Rules) -> tuple[confine.Rules, dict[int, float], dict[str, str], bool]:
        budget = self._budget
        bounds: dict[int, float] = {
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_FSIZE: budget.disk_bytes,
            resource.RLIMIT_CPU: max(0.0, budget.cpu_s - self._ledger.cpu_s) + 1,
            resource.RLIMIT_NOFILE: 4096,
            resource.RLIMIT_MSGQUEUE: 0,
        }
        if budget.private and budget.processes:
            bounds[resource.RLIMIT_NPROC] = budget.processes
        env = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        env |= {"HOME": f"{self._own}/home", "TMPDIR": f"{self._own}/tmp"}
        return rules, bounds, env, budget.private

    def _follow(self, alive: int) -> None:
        """Wait for the end of the warden, which ends with the program. End a program that uses up a limit."""
        while True:
            now = time.monotonic()
            if now >= self._deadline and not self.breach:
                self._strike("time")
            if self.breach:
                self.end()  # again: the warden may have only just started
            elif now >= self._look_at:
                self._look()
            poll = select.poll()
            poll.register(alive, select.POLLIN)
            for pump in self._pumps:
                pump.waits(poll)
            wait_s = 0.05 if self.breach else min(self._look_at, self._deadline) - time.monotonic()
            ready = {fd for fd, _ in poll.poll(max(0.0, wait_s) * 1000)}
            if alive in ready:
                return
            self._pass_on(ready)

    def _pass_on(self, ready: set[int]) -> None:
        for pump in self._pumps:
            remaining = self._budget.output_bytes - self._ledger.bytes - self.written()
            if not pump.move(ready, remaining) and not self.breach:
                self._strike("output")

    def written(self) -> int:
        return sum(pump.bytes for pump in self._pumps)

    def _drain(self) -> None:
        """Forward the rest of the pipes after all processes are dead, for as long as the judge may take to read it."""
        deadline = max(self._deadline, time.monotonic() + 1)
        while any(not pump.over for pump in self._pumps) and time.monotonic() < deadline:
            poll = select.poll()
            for pump in self._pumps:
                pump.waits(poll)
            self._pass_on({fd for fd, _ in poll.poll(100)})

    def _look(self) -> None:
        began = time.monotonic()
        budget = self._budget
        pids = self._pids()
        if self._ledger.cpu_s + resource_usage.cpu_s(pids) > budget.cpu_s:
            self._strike("cpu")
        elif resource_usage.memory(pids, budget.memory_bytes, shared=budget.private) > budget.memory_bytes:
            self._strike("memory")
        now = time.monotonic()
        self._look_at = now + max(_POLL_INTERVAL_S, _SHARE * (now - began))
        if now >= self._disk_at and not self.breach:
            if self._over_disk():
                self._strike("disk")
            self._disk_at = time.monotonic() + max(_DISK_S, _SHARE * (time.monotonic() - now))

    def _pids(self) -> list[int]:
        """The processes of the program. Orphans are our own children."""
        own_pid = os.getpid()
        return [pid for pid in resource_usage.family(own_pid) if pid not in (own_pid, self._warden)]

    def _over_disk(self) -> bool:
        used = files.FileUsage(self._budget.disk_bytes, self._budget.disk_files)
        # First: a file that loses its name in the meantime counts once. Its input is its judge's.
        held = nameless.Held(self._pids(), (self._here, self._own))
        used.bytes, used.files = held.on_disk(ignored=(0,))
        return used.add(self._here).add(self._own).over

    def _breaks(self, limit: str) -> None:
        if not self.breach:
            self.breach = limit
            if limit != "time":
                print(f"untrusted: the program used up its {limit}", file=sys.stderr, flush=True)

    def _strike(self, limit: str) -> None:
        """Have the warden end the whole program."""
        self._breaks(limit)
        self.end()

    def end(self) -> None:
        """End the program. A no-op once it is over."""
        if self._warden:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._warden, signal.SIGTERM)

    def ended(self) -> None:
        """Ensure, after any outcome, that no process of the program is alive."""
        if self._warden:
            self.end()
            _end_all(self._warden)
            self._warden = 0


def _watch_over(
    parent: int,
    version: int,
    argv: list[str],
    place: tuple[confine.Rules, dict[int, float], dict[str, str], bool],
    output: list[int],
) -> NoReturn:
    """The warden: a confinement around the program's own, so that it can end the whole program at once and the program cannot end the warden."""
    scoped = version >= confine.SCOPED_SIGNALS
    program = 0

    def kill_all(_signal: int, _frame: FrameType | None) -> None:
        _kill_below(scoped, program)
        os._exit(KILLED)

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.setsid()
    confine.gain_nothing()
    if scoped:
        confine.scope_signals()
    signal.signal(signal.SIGTERM, kill_all)
    confine.warned_of_death(signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(KILLED)
    program = os.fork()
    if program == 0:
        _become(argv, place, output)
    for fd in output:
        with contextlib.suppress(OSError):  # both may be the same descriptor
            os.close(fd)
    _, status = os.waitpid(program, 0)
    _kill_below(scoped, 0)
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


def _kill_below(scoped: bool, program: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if scoped:
            # Everything in this confinement but us, at once: a fork bomb cannot outrun it.
            os.kill(-1, signal.SIGKILL)
        elif program:
            os.kill(program, signal.SIGKILL)


def _become(
    argv: list[str], place: tuple[confine.Rules, dict[int, float], dict[str, str], bool], output: list[int]
) -> NoReturn:
    rules, bounds, env, private = place
    message, code = "", 127
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(output[0], 1)
        os.dup2(output[1], 2)
        highest = max(map(int, os.listdir("/proc/self/fd")))
        rules.enter()
        os.closerange(3, highest + 1)
        confine.limit(bounds)
        confine.filter_calls(private, rules.version)
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        message = f"untrusted: {argv[0]}: {error.strerror}\n"
    except ValueError as error:
        message = f"untrusted: {argv[0]!r}: {error}\n"
    finally:
        with contextlib.suppress(OSError):
            os.write(2, message.encode(errors="replace"))
        os._exit(code)


def _end_all(warden: int) -> int:
    """Kill every descendant: children first, then the processes orphaned by that, until none is left. Returns the warden's exit code."""
    code, deadline = KILLED, time.monotonic() + 2
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            children = [int(pid) for pid in file.read().split()]
        for pid in children:
            # The warden ends by itself, and gives the exit code.
            if pid != warden or time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == warden:
                    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
                if pid == 0:
                    break
            time.sleep(0.001)
        except ChildProcessError:
            return code


def _shared(budget: HeldBudget) -> list[tuple[str, int]]:
    """Terminals and shared memory, if they hold nothing of the judge's and are not shared with other sandboxes."""
    if not budget.private:
        return []
    found = []
    with contextlib.suppress(OSError):
        if not os.listdir(resource_usage.SHM):
            found.append((resource_usage.SHM, confine.SHARED))
    with contextlib.suppress(OSError):
        if not any(name.isdigit() for name in os.listdir("/dev/pts")):
            found += [("/dev/pts", confine.DEVICE), ("/dev/ptmx", confine.DEVICE)]
    return found


def _given(top: str, given: list[str]) -> list[tuple[str, int]]:
    """The files of the task's environment below `top`, readable, and their directories, listable. A name that leads elsewhere is left out."""
    given = [path for path in given if all(part not in ("", ".", "..") for part in path.split("/"))]
    directories = {os.path.dirname(path) for path in given}
    return [
        *((os.path.join(top, path), confine.READ) for path in given),
        *((os.path.join(top, path), confine.LIST) for path in directories),
    ]


def _input() -> list[tuple[str, int]]:
    """The file on standard input, which the program can read in any case: it may open it again, by a name such as /dev/stdin."""
    readable = fcntl.fcntl(0, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY
    return [("/proc/self/fd/0", confine.INPUT)] if readable and stat.S_ISREG(os.fstat(0).st_mode) else []


def _run(argv: list[str], seconds: float, here: str, work: str, home: str, temporary: str, logs: str) -> int:
    """`here`: the current directory, where the program may write. `work`: what it may read, `here` or a directory above."""
    budget = HeldBudget(os.path.join(_HERE, LIMITS_FILE))
    ledger = Ledger(logs)
    if budget.until_s:
        seconds = min(seconds, budget.until_s - ledger.age_s())
    if seconds <= 0:
        print("untrusted: the time for programs is up", file=sys.stderr)
        return TIMED_OUT
    own = f"{temporary}/untrusted-{os.urandom(8).hex()}"
    try:
        for path in (own, f"{own}/home", f"{own}/tmp"):
            os.mkdir(path, 0o700)
    except OSError as error:
        print(f"untrusted: no room for a program in {temporary} ({error.strerror})", file=sys.stderr)
        return UNHELD
    shared = _shared(budget)
    try:
        version = confine.version()
        rules = confine.Rules(
            version,
            [
                *((path, confine.READ) for path in _SYSTEM),
                *((f"/proc/{name}", confine.READ) for name in _PROC),
                *((f"/dev/{name}", confine.DEVICE) for name in _DEVICES),
                *_given(home, budget.home),
                *_given(temporary, budget.tmp),
                *shared,
                *_input(),
                *((path, confine.OWN) for path in (f"{own}/home", f"{own}/tmp")),
                (work, confine.READ),
                (here, confine.WORK),
            ],
        )
    except OSError as error:
        for path in (f"{own}/home", f"{own}/tmp", own):
            os.rmdir(path)
        print(f"untrusted: this kernel has no Landlock ({error.strerror})", file=sys.stderr)
        return UNHELD
    objects = set(confine.shared_objects()) if budget.private else set()
    known = {(kind, number) for kind, number, _ in objects}
    modes = files.Modes([home, temporary, logs], [work, here], own)
    run = _Run(budget, ledger, seconds=seconds, here=here, own=own)
    ledger.note_start()
    try:
        return run.held(argv, rules, version)
    finally:
        run.ended()
        modes.restore()
        if any(path == resource_usage.SHM for path, _ in shared):
            files.clear(resource_usage.SHM)
        if budget.private:
            for kind, number, _ in confine.shared_objects():
                if (kind, number) not in known:
                    confine.remove_shared(kind, number)
        files.clear(own)
        with contextlib.suppress(OSError):
            os.rmdir(own)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        ledger.note_end(used.ru_utime + used.ru_stime, run.written(), run.breach)


def main() -> int:
    seconds, argv = float(sys.argv[1]), sys.argv[2:]
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:  # closed by the judge; the next file would get its number
            os.open(os.devnull, os.O_RDWR)
    if stat.S_ISREG(os.fstat(0).st_mode) and os.lseek(0, 0, os.SEEK_CUR) > 0:
        # `while read … done < cases`: a program that got the rest would read the expected values, and its judge would miss these cases.
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
    logs = os.path.realpath(os.environ.get("PENSTOCK_LOGS", "/logs"))
    here, home, temporary = map(os.path.realpath, (os.getcwd(), os.environ["HOME"], os.environ["TMPDIR"]))
    work = _work(here, home, temporary, logs)
    if not work:
        print(f"untrusted: call it from the work directory, not from {here}", file=sys.stderr)
        return UNHELD
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _ends)
    return _run(argv, seconds, here, work, home, temporary, logs)


def _work(here: str, home: str, temporary: str, logs: str) -> str:
    """The directory that a program started in `here` reads: the whole work directory if `here` lies in it, otherwise `here`. Empty: there it
    would reach its judge's files."""
    tests = os.path.dirname(_HERE)
    if any(_within(tests, place) or _within(place, tests) for place in (here, home, temporary)):
        return ""
    copy = os.path.realpath(os.environ.get("TEST_DIR") or tests)
    if copy != temporary and _within(copy, temporary) and _within(here, copy):
        return ""  # the tests' own copy of their files
    if _within(here, logs) and not _within(here, os.path.join(logs, "artifacts")):
        return ""
    top = _named(here, os.path.join(os.path.dirname(tests), "app"))
    kept = (tests, home, temporary, logs)
    return next(
        (each for each in (top, here) if each and not any(_within(place, each) for place in kept)), ""
    )


def _named(path: str, directory: str) -> str:
    """The part of `path` that leads to `directory`, which may have two names (an image's work directory is also /app); empty: it leads elsewhere."""
    while path != directory:
        with contextlib.suppress(OSError):
            if os.path.samefile(path, directory):
                break
        if path == os.path.dirname(path):
            return ""
        path = os.path.dirname(path)
    return path


def _within(path: str, directory: str) -> bool:
    return bool(_named(path, directory))


def _ends(number: int, _frame: FrameType | None) -> NoReturn:
    """The judge sent a signal: exit through the usual clean-up, which ends the program."""
    for other in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
