"""Attempts to get out, as programs that really try: the table of the escape suite (`escapes.py` runs it).

Each body is the body of a Python function. It returns if it got out, and raises `OSError` where it was refused; anything else it may end
with is a mistake of the suite. `target` holds what `escapes.Host` has put up outside: ports, paths, numbers of processes.

`control` says that the same program must get out when it runs outside: an attempt that could not succeed anywhere proves nothing. Some do
so as root alone (`ROOT`); those that would harm the machine have no control (`NONE`), and instead name the errors that count as a refusal.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

PRELUDE = """
import ctypes, errno, fcntl, json, os, pty, resource, signal, socket, stat, struct, subprocess, sys, time
target = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

def syscall(name, *arguments):
    if name not in target["numbers"]:
        raise OSError(errno.ENOSYS, "no such call here")
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(target["numbers"][name], *wide)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result

def ask(kind, address, family=socket.AF_INET):
    with socket.socket(family, kind) as s:
        s.settimeout(5)
        s.connect(address)
        if kind == socket.SOCK_DGRAM:
            s.send(b"?")
        if s.recv(9) != b"secret":
            raise AssertionError("another server")

def gone(message):
    raise OSError(errno.ENOENT, message)

def attempt():
"""
EPILOGUE = """
try:
    attempt()
except OSError as error:
    print("refused", errno.errorcode.get(error.errno, type(error).__name__))
else:
    print("out")
"""


class Control(enum.Enum):
    """Where the same program gets out."""

    ANYBODY = "outside, whoever runs it"
    ROOT = "outside, as root"
    NONE = "nowhere that it may be tried"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One way out. `refusals`: the names of errors that are a refusal of exactly this (empty: any)."""

    name: str
    body: str
    control: Control = Control.ANYBODY
    refusals: tuple[str, ...] = ()

    @property
    def program(self) -> str:
        """The source of the whole program; its only argument is the targets as JSON."""
        lines = self.body.strip("\n").splitlines()
        return PRELUDE + "".join(f"    {line}\n" for line in lines) + EPILOGUE


_SYSTEM = ("EPERM", "ENOSYS")
"""What the filter, or a kernel without the call, answers."""

NETWORK = (
    Attempt("tcp to a server of the host", "ask(socket.SOCK_STREAM, ('127.0.0.1', target['tcp']))"),
    Attempt(
        "dns, a datagram to a server of the host", "ask(socket.SOCK_DGRAM, ('127.0.0.1', target['udp']))"
    ),
    Attempt(
        "dns by the resolver of the system",
        "try:\n    socket.getaddrinfo('example.com', 80)\n"
        "except socket.gaierror as error:\n    raise OSError(errno.ENETUNREACH, str(error))",
        Control.NONE,
    ),
    Attempt(
        "the metadata service of a cloud, link-local",
        "s = socket.socket()\ns.settimeout(3)\ns.connect(('169.254.169.254', 80))",
        Control.NONE,
        ("ENETUNREACH",),
    ),
    Attempt(
        "an address of the wide world",
        "s = socket.socket()\ns.settimeout(3)\ns.connect(('192.0.2.1', 443))",
        Control.NONE,
        ("ENETUNREACH",),
    ),
    Attempt(
        "an abstract unix socket of the host",
        "ask(socket.SOCK_STREAM, '\\0' + target['abstract'], socket.AF_UNIX)",
    ),
    Attempt(
        "a unix socket of the host, as Postgres has one",
        "ask(socket.SOCK_STREAM, target['unix'], socket.AF_UNIX)",
    ),
    Attempt(
        "vsock, the line of a virtual machine to its host", "socket.socket(40, socket.SOCK_STREAM).close()"
    ),
    Attempt("packets by hand", "socket.socket(17, socket.SOCK_RAW).close()", Control.ROOT),
    Attempt(
        "the kernel's ciphers, an old hole", "socket.socket(38, socket.SOCK_SEQPACKET).close()", Control.NONE
    ),
    Attempt(
        "another interface",
        "with open('/proc/net/dev') as f:\n"
        "    names = [line.split(':')[0].strip() for line in f.readlines()[2:]]\n"
        "if names == ['lo']:\n    raise OSError(errno.ENETUNREACH, 'alone')",
        Control.NONE,
    ),
    Attempt(
        "configuring the network",
        "s = socket.socket()\nfcntl.ioctl(s, 0x8914, struct.pack('16sh14x', b'lo', 0))",
        Control.NONE,
        ("EPERM",),
    ),
)

FILES = (
    Attempt("the password hashes of the host", "open('/etc/shadow').read()", Control.ROOT),
    Attempt("a file of the host", "open(target['file']).read()"),
    Attempt("the home of the sandbox's owner", "os.listdir(target['home']) or gone('empty')"),
    Attempt(
        "a file through the root of process 1", "open('/proc/1/root' + target['file']).read()", Control.NONE
    ),
    Attempt(
        "a file through the root, directory or descriptors of any process",
        "for pid in [p for p in os.listdir('/proc') if p.isdigit()]:\n"
        "    for way in ('root' + target['file'], 'cwd' + target['file']):\n"
        "        try:\n"
        "            return open(f'/proc/{pid}/{way}').read()\n"
        "        except OSError:\n"
        "            pass\n"
        "gone('nowhere')",
        Control.ROOT,
    ),
    Attempt(
        "a descriptor that was left open",
        "for fd in range(3, 4096):\n"
        "    try:\n        os.fstat(fd)\n        return\n    except OSError:\n        pass\n"
        "gone('none')",
        Control.NONE,
        ("ENOENT",),
    ),
    Attempt(
        "the environment of a process of the host", "open(f\"/proc/{target['pid']}/environ\", 'rb').read()"
    ),
    Attempt("a hard link to a file of the host", "os.link(target['file'], target['file'] + '.link')"),
    Attempt(
        "writing anywhere but in the sandbox's own places",
        "mine = ('/app', '/tmp', '/logs', '/home/agent', '/dev/shm', '/dev/pts', '/dev/mqueue', '/proc')\n"
        "places = {line.split()[4] for line in open('/proc/self/mountinfo')}\n"
        "for place in [p for p in places if os.path.isdir(p) and os.access(p, os.R_OK)]:\n"
        "    places |= {entry.path for entry in os.scandir(place) if entry.is_dir(follow_symlinks=False)}\n"
        "for place in places:\n"
        "    try:\n"
        "        if not place.startswith(mine):\n"
        "            os.close(os.open(place + '/escape', os.O_CREAT | os.O_WRONLY))\n"
        "            return os.unlink(place + '/escape')\n"
        "    except OSError:\n"
        "        pass\n"
        "raise OSError(errno.EROFS, 'nowhere')",
        Control.ROOT,
    ),
    Attempt("writing into a directory of the host", "open(target['directory'] + '/planted', 'w').write('x')"),
    Attempt(
        "a place to keep data in the read-only system",
        "open('/usr/lib/planted', 'w')",
        Control.NONE,
        ("EROFS",),
    ),
    Attempt(
        "changing the settings of the kernel", "open('/proc/sys/kernel/panic', 'r+').write('0')", Control.NONE
    ),
    Attempt(
        "a program that the kernel runs at a crash",
        "open('/proc/sys/kernel/core_pattern', 'w')",
        Control.NONE,
    ),
    Attempt(
        "a program that the kernel runs for a module", "open('/proc/sys/kernel/modprobe', 'w')", Control.NONE
    ),
    Attempt("the keys of the machine's console", "open('/proc/sysrq-trigger', 'w')", Control.NONE),
    Attempt(
        "a control group with a program at its release",
        "for path in ('/sys/fs/cgroup', '/sys/fs/cgroup/memory', '/sys/fs/cgroup/unified'):\n"
        "    if os.path.isdir(path):\n"
        "        return open(path + '/cgroup.procs', 'w').write('0')\n"
        "gone('no control groups here')",
        Control.ROOT,
    ),
    Attempt("the hardware through /sys", "os.listdir('/sys/class/net') or gone('empty')"),
)

DEVICES = (
    Attempt("the memory of the machine", "open('/dev/mem', 'rb')", Control.NONE),
    Attempt("the kernel's log", "open('/dev/kmsg')", Control.NONE),
    Attempt("the kernel's log by its call", "syscall('syslog', 2, ctypes.create_string_buffer(9), 8)", Control.NONE, _SYSTEM),
    Attempt("a device that should not be there",
        "known = {'console', 'core', 'fd', 'full', 'mqueue', 'null', 'ptmx', 'pts', 'random', 'shm', 'stderr', 'stdin', 'stdout', 'tty',\n"
        "         'urandom', 'zero'}\n"
        "if set(os.listdir('/dev')) <= known:\n    gone('only those that everybody has')",
        Control.NONE,
    ),
    Attempt("a device made by hand", "os.mknod(target['own'] + '/null', 0o600 | stat.S_IFBLK, os.makedev(8, 0))", Control.NONE, ("EPERM",)),
    Attempt("a loop device", "open('/dev/loop-control', 'r+b')", Control.NONE),
    Attempt("a file system of one's own making", "open('/dev/fuse', 'r+b')", Control.NONE),
    Attempt(
        "input into the terminal of whoever started it",
        "for fd in range(256):\n"
        "    try:\n        fcntl.ioctl(fd, 0x5412, b'x')\n        return\n    except OSError:\n        pass\n"
        "fcntl.ioctl(os.open('/dev/tty', os.O_RDWR), 0x5412, b'x')",
        Control.NONE,
    ),
    Attempt(
        "input into a terminal at all",
        "one, other = pty.openpty()\nfcntl.ioctl(other, 0x5412, b'x')",
        Control.ROOT,
        ("EPERM",),
    ),
)  # fmt: skip

PROCESSES = (
    Attempt("a signal to a process of the host", "os.kill(target['pid'], 0)"),
    Attempt(
        "a signal to everybody",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork() == 0:\n    os.kill(-1, signal.SIGTERM)\n    os._exit(0)\nos.wait()\nos.kill(target['pid'], 0)",
        Control.NONE,
        ("ESRCH",),
    ),
    Attempt(
        "tracing another process",
        "child = os.fork()\nif child == 0:\n    time.sleep(60)\n    os._exit(0)\n"
        "try:\n    syscall('ptrace', 16, child, 0, 0)\nfinally:\n    os.kill(child, 9)\n    os.waitpid(child, 0)",
        Control.ANYBODY,
        _SYSTEM,
    ),
    Attempt(
        "reading the memory of another process",
        "child = os.fork()\nif child == 0:\n    time.sleep(60)\n    os._exit(0)\n"
        "data = ctypes.create_string_buffer(b'secret')\n"
        "there = struct.pack('QQ', ctypes.addressof(data), 6)\n"
        "got = ctypes.create_string_buffer(6)\n"
        "here = struct.pack('QQ', ctypes.addressof(got), 6)\n"
        "try:\n    syscall('process_vm_readv', child, here, 1, there, 1, 0)\n"
        "finally:\n    os.kill(child, 9)\n    os.waitpid(child, 0)",
        Control.ANYBODY,
        _SYSTEM,
    ),
    Attempt("shared memory of the host", "libc.shmget(target['shm'], 1, 0) >= 0 or gone('no such segment')"),
    Attempt("keys of the host's keyrings", "syscall('keyctl', 1, 0)", Control.NONE, _SYSTEM),
    Attempt(
        "a key of one's own, kept by the kernel",
        "syscall('add_key', b'user', b'penstock-escape', b'x', 1, -2)",
        Control.NONE,
        _SYSTEM,
    ),
    Attempt(
        "more rights by a program that has them",
        "if libc.prctl(39, 0, 0, 0, 0) == 1:\n"
        "    raise OSError(errno.EPERM, 'set-user-id has no effect')",
        Control.NONE,
        ("EPERM",),
    ),
    Attempt("becoming root", "os.setresuid(0, 0, 0)", Control.ROOT, ("EPERM", "EINVAL")),
    Attempt(
        "more rights than the last ones that were dropped",
        "header, data = struct.pack('Ii', 0x20080522, 0), struct.pack('6I', *(0xFFFFFFFF, 0xFFFFFFFF, 0) * 2)\n"
        "libc.capset(header, data) == 0 or gone('refused')\n",
        Control.NONE,
    ),
    Attempt("a higher priority", "os.setpriority(os.PRIO_PROCESS, 0, -5)", Control.ROOT, ("EACCES", "EPERM")),
    Attempt("a processor to oneself", "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))", Control.ROOT, ("EPERM",)),
    Attempt(
        "higher limits than were set",
        "soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))\n"
        "try:\n    resource.setrlimit(resource.RLIMIT_NOFILE, (hard + 1, hard + 1))\n"
        "except ValueError as error:\n    raise OSError(errno.EPERM, str(error))",
        Control.NONE,
        ("EPERM",),
    ),
    Attempt(
        "all descriptors of the machine",
        "held = []\nwhile len(held) < 20_000:\n    held.append(os.open('/dev/null', os.O_RDONLY))",
        Control.NONE,
        ("EMFILE",),
    ),
    Attempt(
        "all sockets of the machine",
        "held = []\nwhile len(held) < 20_000:\n    held += socket.socketpair()",
        Control.NONE,
        ("EMFILE",),
    ),
)  # fmt: skip

KERNEL = (
    Attempt("setting the clock", "time.clock_settime(time.CLOCK_REALTIME, time.time())", Control.NONE, _SYSTEM),
    Attempt("bending the clock", "syscall('adjtimex', ctypes.create_string_buffer(512))", Control.ANYBODY, _SYSTEM),
    Attempt("mounting a file system", "syscall('mount', b'none', target['own'].encode(), b'tmpfs', 0, 0)", Control.NONE, _SYSTEM),
    Attempt("mounting the system again, to be written", "syscall('mount', 0, b'/usr', 0, 0x1020, 0)", Control.NONE, _SYSTEM),
    Attempt("mounting by the newer calls", "syscall('fsopen', b'tmpfs', 0)", Control.ROOT, _SYSTEM),
    Attempt("taking a mount away, to see what lies below", "syscall('umount2', b'/etc', 2)", Control.NONE, _SYSTEM),
    Attempt(
        "another root, to climb out of",
        "os.chroot(target['own'])\nfor _ in range(64):\n    os.chdir('..')\nos.chroot('.')",
        Control.NONE,
        _SYSTEM,
    ),
    Attempt("changing places with the root", "syscall('pivot_root', b'/tmp', b'/tmp')", Control.NONE, _SYSTEM),
    Attempt("a user namespace, to be root in", "syscall('unshare', 0x10000000)", Control.ANYBODY, _SYSTEM),
    Attempt("a mount namespace", "syscall('unshare', 0x00020000)", Control.ROOT, _SYSTEM),
    Attempt(
        "a process in new namespaces",
        "pid = syscall('clone', 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)\n"
        "if pid == 0:\n    os._exit(0)\nos.waitpid(pid, 0)",
        Control.ANYBODY,
        _SYSTEM,
    ),
    Attempt(
        "the same by the call that no filter can read",
        "pid = syscall('clone3', struct.pack('11Q', 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0), 88)\n"
        "if pid == 0:\n    os._exit(0)\nos.waitpid(pid, 0)",
        Control.ANYBODY,
        _SYSTEM,
    ),
    Attempt("another namespace of the network", "syscall('setns', os.open('/proc/self/ns/net', os.O_RDONLY), 0)", Control.ROOT, _SYSTEM),
    Attempt("a program in the kernel", "syscall('bpf', 0, struct.pack('5I', 2, 4, 4, 1, 0), 20)", Control.ROOT, _SYSTEM),
    Attempt(
        "counters of the processor",
        "syscall('perf_event_open', struct.pack('IIQ', 1, 112, 0) + bytes(96), 0, -1, -1, 0)",
        Control.ROOT,
        _SYSTEM,
    ),
    Attempt("faults handled by a program", "syscall('userfaultfd', 1)", Control.ANYBODY, _SYSTEM),
    Attempt("io_uring", "syscall('io_uring_setup', 4, ctypes.create_string_buffer(120))", Control.ANYBODY, _SYSTEM),
    Attempt("files by their handles", "syscall('open_by_handle_at', -100, ctypes.create_string_buffer(64), 0)", Control.NONE, _SYSTEM),
    Attempt("a kernel module", "syscall('init_module', b'', 0, b'')", Control.NONE, _SYSTEM),
    Attempt("another kernel", "syscall('kexec_load', 0, 0, 0, 0)", Control.NONE, _SYSTEM),
    Attempt("another name for the machine", "syscall('sethostname', b'escaped', 7)", Control.NONE, _SYSTEM),
    Attempt("swap", "syscall('swapon', b'/app/swap', 0)", Control.NONE, _SYSTEM),
    Attempt("looking at everybody's files", "syscall('fanotify_init', 0, 0)", Control.ROOT, _SYSTEM),
)  # fmt: skip

ATTEMPTS = (*NETWORK, *FILES, *DEVICES, *PROCESSES, *KERNEL)
