"""Escape attempts, as programs that really try: the table of the escape suite (`escapes.py` runs it).

Each body is the body of a Python function. It returns if it got out, and raises `OSError` if it was refused. Any other end
is a mistake of the suite. `target` holds the targets that `escapes.host` has set up outside: ports, paths, pids.

`control` states that the same program must get out when it runs outside: an attempt that could not succeed anywhere proves nothing. Some do
so only as root (`ROOT`). Attempts that would harm the machine have no control (`NONE`), and instead name the errors that count as a refusal.
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

    ANYBODY = "outside, as any user"
    ROOT = "outside, as root"
    NONE = "nowhere that it may be tried"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One way out. `refusals`: the names of errors that refuse exactly this (empty: any)."""

    name: str
    body: str
    control: Control = Control.ANYBODY
    refusals: tuple[str, ...] = ()

    @property
    def program(self) -> str:
        """The source of the whole program; its only argument is the JSON of the targets."""
        lines = self.body.strip("\n").splitlines()
        return PRELUDE + "".join(f"    {line}\n" for line in lines) + EPILOGUE


_SYSTEM = ("EPERM", "ENOSYS")
"""The errors of the filter, or of a kernel without the call."""

NETWORK = (
    Attempt(name="tcp to a server of the host", body="ask(socket.SOCK_STREAM, ('127.0.0.1', target['tcp']))"),
    Attempt(
        name="dns, a datagram to a server of the host",
        body="ask(socket.SOCK_DGRAM, ('127.0.0.1', target['udp']))",
    ),
    Attempt(
        name="dns by the resolver of the system",
        body="try:\n    socket.getaddrinfo('example.com', 80)\n"
        "except socket.gaierror as error:\n    raise OSError(errno.ENETUNREACH, str(error))",
        control=Control.NONE,
    ),
    Attempt(
        name="the metadata service of a cloud, link-local",
        body="s = socket.socket()\ns.settimeout(3)\ns.connect(('169.254.169.254', 80))",
        control=Control.NONE,
        refusals=("ENETUNREACH",),
    ),
    Attempt(
        name="an address of the wide world",
        body="s = socket.socket()\ns.settimeout(3)\ns.connect(('192.0.2.1', 443))",
        control=Control.NONE,
        refusals=("ENETUNREACH",),
    ),
    Attempt(
        name="an abstract unix socket of the host",
        body="ask(socket.SOCK_STREAM, '\\0' + target['abstract'], socket.AF_UNIX)",
    ),
    Attempt(
        name="a unix socket of the host, as Postgres has one",
        body="ask(socket.SOCK_STREAM, target['unix'], socket.AF_UNIX)",
    ),
    Attempt(
        name="vsock, the line of a virtual machine to its host",
        body="socket.socket(40, socket.SOCK_STREAM).close()",
    ),
    Attempt(name="packets by hand", body="socket.socket(17, socket.SOCK_RAW).close()", control=Control.ROOT),
    Attempt(
        name="the kernel's ciphers, an old hole",
        body="socket.socket(38, socket.SOCK_SEQPACKET).close()",
        control=Control.NONE,
    ),
    Attempt(
        name="another interface",
        body="with open('/proc/net/dev') as f:\n"
        "    names = [line.split(':')[0].strip() for line in f.readlines()[2:]]\n"
        "if names == ['lo']:\n    raise OSError(errno.ENETUNREACH, 'alone')",
        control=Control.NONE,
    ),
    Attempt(
        name="configuring the network",
        body="s = socket.socket()\nfcntl.ioctl(s, 0x8914, struct.pack('16sh14x', b'lo', 0))",
        control=Control.NONE,
        refusals=("EPERM",),
    ),
)

FILES = (
    Attempt(name="the password hashes of the host", body="open('/etc/shadow').read()", control=Control.ROOT),
    Attempt(name="a file of the host", body="open(target['file']).read()"),
    Attempt(name="the home of the sandbox's owner", body="os.listdir(target['home']) or gone('empty')"),
    Attempt(
        name="a file through the root of process 1",
        body="open('/proc/1/root' + target['file']).read()",
        control=Control.NONE,
    ),
    Attempt(
        name="a file through the root, directory or descriptors of any process",
        body="for pid in [p for p in os.listdir('/proc') if p.isdigit()]:\n"
        "    for way in ('root' + target['file'], 'cwd' + target['file']):\n"
        "        try:\n"
        "            return open(f'/proc/{pid}/{way}').read()\n"
        "        except OSError:\n"
        "            pass\n"
        "gone('nowhere')",
        control=Control.ROOT,
    ),
    Attempt(
        name="a descriptor that was left open",
        body="for fd in range(3, 4096):\n"
        "    try:\n        os.fstat(fd)\n        return\n    except OSError:\n        pass\n"
        "gone('none')",
        control=Control.NONE,
        refusals=("ENOENT",),
    ),
    Attempt(
        name="the environment of a process of the host",
        body="open(f\"/proc/{target['pid']}/environ\", 'rb').read()",
    ),
    Attempt(
        name="a hard link to a file of the host", body="os.link(target['file'], target['file'] + '.link')"
    ),
    Attempt(
        name="writing anywhere but in the sandbox's own places",
        body="mine = ('/app', '/tmp', '/logs', '/home/agent', '/dev/shm', '/dev/pts', '/dev/mqueue', '/proc', *target['places'])\n"
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
        control=Control.ROOT,
    ),
    Attempt(
        name="writing into a directory of the host",
        body="open(target['directory'] + '/planted', 'w').write('x')",
    ),
    Attempt(
        name="a place to keep data in the read-only system",
        body="open('/usr/lib/planted', 'w')",
        control=Control.NONE,
        refusals=("EROFS",),
    ),
    Attempt(
        name="changing the settings of the kernel",
        body="open('/proc/sys/kernel/panic', 'r+').write('0')",
        control=Control.NONE,
    ),
    Attempt(
        name="a program that the kernel runs at a crash",
        body="open('/proc/sys/kernel/core_pattern', 'w')",
        control=Control.NONE,
    ),
    Attempt(
        name="a program that the kernel runs for a module",
        body="open('/proc/sys/kernel/modprobe', 'w')",
        control=Control.NONE,
    ),
    Attempt(
        name="the keys of the machine's console",
        body="open('/proc/sysrq-trigger', 'w')",
        control=Control.NONE,
    ),
    Attempt(
        name="a control group with a program at its release",
        body="for path in ('/sys/fs/cgroup', '/sys/fs/cgroup/memory', '/sys/fs/cgroup/unified'):\n"
        "    if os.path.isdir(path):\n"
        "        return open(path + '/cgroup.procs', 'w').write('0')\n"
        "gone('no control groups here')",
        control=Control.ROOT,
    ),
    Attempt(name="the hardware through /sys", body="os.listdir('/sys/class/net') or gone('empty')"),
)

DEVICES = (
    Attempt(name="the memory of the machine", body="open('/dev/mem', 'rb')", control=Control.NONE),
    Attempt(name="the kernel's log", body="open('/dev/kmsg')", control=Control.NONE),
    Attempt(
        name="the kernel's log by its call",
        body="syscall('syslog', 2, ctypes.create_string_buffer(9), 8)",
        control=Control.NONE,
        refusals=_SYSTEM,
    ),
    Attempt(
        name="a device that should not be there",
        body="known = {'console', 'core', 'fd', 'full', 'mqueue', 'null', 'ptmx', 'pts', 'random', 'shm', 'stderr', 'stdin', 'stdout', 'tty',\n"
        "         'urandom', 'zero'}\n"
        "if set(os.listdir('/dev')) <= known:\n    gone('only the usual ones')",
        control=Control.NONE,
    ),
    Attempt(
        name="a device made by hand",
        body="os.mknod(target['own'] + '/null', 0o600 | stat.S_IFBLK, os.makedev(8, 0))",
        control=Control.NONE,
        refusals=("EPERM",),
    ),
    Attempt(name="a loop device", body="open('/dev/loop-control', 'r+b')", control=Control.NONE),
    Attempt(name="a file system of one's own making", body="open('/dev/fuse', 'r+b')", control=Control.NONE),
    Attempt(
        name="input into the terminal of the process that started it",
        body="for fd in range(256):\n"
        "    try:\n        fcntl.ioctl(fd, 0x5412, b'x')\n        return\n    except OSError:\n        pass\n"
        "fcntl.ioctl(os.open('/dev/tty', os.O_RDWR), 0x5412, b'x')",
        control=Control.NONE,
    ),
    Attempt(
        name="input into a terminal at all",
        body="one, other = pty.openpty()\nfcntl.ioctl(other, 0x5412, b'x')",
        control=Control.ROOT,
        refusals=("EPERM",),
    ),
)

PROCESSES = (
    Attempt(name="a signal to a process of the host", body="os.kill(target['pid'], 0)"),
    Attempt(
        name="a signal to every process",
        body="signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork() == 0:\n    os.kill(-1, signal.SIGTERM)\n    os._exit(0)\nos.wait()\nos.kill(target['pid'], 0)",
        control=Control.NONE,
        refusals=("ESRCH",),
    ),
    Attempt(
        name="tracing another process",
        body="child = os.fork()\nif child == 0:\n    time.sleep(60)\n    os._exit(0)\n"
        "try:\n    syscall('ptrace', 16, child, 0, 0)\nfinally:\n    os.kill(child, 9)\n    os.waitpid(child, 0)",
        control=Control.ANYBODY,
        refusals=_SYSTEM,
    ),
    Attempt(
        name="reading the memory of another process",
        body="child = os.fork()\nif child == 0:\n    time.sleep(60)\n    os._exit(0)\n"
        "data = ctypes.create_string_buffer(b'secret')\n"
        "there = struct.pack('QQ', ctypes.addressof(data), 6)\n"
        "got = ctypes.create_string_buffer(6)\n"
        "here = struct.pack('QQ', ctypes.addressof(got), 6)\n"
        "try:\n    syscall('process_vm_readv', child, here, 1, there, 1, 0)\n"
        "finally:\n    os.kill(child, 9)\n    os.waitpid(child, 0)",
        control=Control.ANYBODY,
        refusals=_SYSTEM,
    ),
    Attempt(
        name="shared memory of the host",
        body="libc.shmget(target['shm'], 1, 0) >= 0 or gone('no such segment')",
    ),
    Attempt(
        name="keys of the host's keyrings",
        body="syscall('keyctl', 1, 0)",
        control=Control.NONE,
        refusals=_SYSTEM,
    ),
    Attempt(
        name="a key of one's own, kept by the kernel",
        body="syscall('add_key', b'user', b'penstock-escape', b'x', 1, -2)",
        control=Control.NONE,
        refusals=_SYSTEM,
    ),
    Attempt(
        name="more rights by a program that has them",
        body="if libc.prctl(39, 0, 0, 0, 0) == 1:\n"
        "    raise OSError(errno.EPERM, 'set-user-id has no effect')",
        control=Control.NONE,
        refusals=("EPERM",),
    ),
    Attempt(
        name="becoming root", body="os.setresuid(0, 0, 0)", control=Control.ROOT, refusals=("EPERM", "EINVAL")
    ),
    Attempt(
        name="more rights than the last ones that were dropped",
        body="header, data = struct.pack('Ii', 0x20080522, 0), struct.pack('6I', *(0xFFFFFFFF, 0xFFFFFFFF, 0) * 2)\n"
        "libc.capset(header, data) == 0 or gone('refused')\n",
        control=Control.NONE,
    ),
    Attempt(
        name="a higher priority",
        body="os.setpriority(os.PRIO_PROCESS, 0, -5)",
        control=Control.ROOT,
        refusals=("EACCES", "EPERM"),
    ),
    Attempt(
        name="a processor to oneself",
        body="os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
        control=Control.ROOT,
        refusals=("EPERM",),
    ),
    Attempt(
        name="higher limits than were set",
        body="soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))\n"
        "try:\n    resource.setrlimit(resource.RLIMIT_NOFILE, (hard + 1, hard + 1))\n"
        "except ValueError as error:\n    raise OSError(errno.EPERM, str(error))",
        control=Control.NONE,
        refusals=("EPERM",),
    ),
    Attempt(
        name="all descriptors of the machine",
        body="held = []\nwhile len(held) < 20_000:\n    held.append(os.open('/dev/null', os.O_RDONLY))",
        control=Control.NONE,
        refusals=("EMFILE",),
    ),
    Attempt(
        name="all sockets of the machine",
        body="held = []\nwhile len(held) < 20_000:\n    held += socket.socketpair()",
        control=Control.NONE,
        refusals=("EMFILE",),
    ),
)

KERNEL = (
    Attempt(
        name="setting the clock",
        body="time.clock_settime(time.CLOCK_REALTIME, time.time())",
        control=Control.NONE,
        refusals=_SYSTEM,
    ),
    Attempt(
        name="bending the clock",
        body="syscall('adjtimex', ctypes.create_string_buffer(512))",
        control=Control.ANYBODY,
        refusals=_SYSTEM,
    ),
    Attempt(
        name="mounting a file system",
        body="syscall('mount', b'none', target['own'].encode(), b'tmpfs', 0, 0)",
        control=Control.NONE,
        refusals=_SYSTEM,
    ),
    Attempt(
        name="mounting the system again, to be written",
        body="syscall('mount', 0, b'/usr', 0, 0x1020, 0)",
        control=Control.NONE,
        refusals=_SYSTEM,
    ),
    Attempt(
        name="mounting by the newer calls",
        body="syscall('fsopen', b'tmpfs', 0)",
        control=Control.ROOT,
        refusals=_SYSTEM,
    ),
    Attempt(
        name="taking a mount away, to see what lies below",
        body="syscall('umount2', b'/etc', 2)",
        control=Control.NONE,
        refusals=_SYSTEM,
    ),
    Attempt(
        name="another root, to climb out of",
        body="os.chroot(target['own'])\nfor _ in range(64):\n    os.chdir('..')\nos.chroot('.')",
        control=Control.NONE,
        refusals=_SYSTEM,
    ),
    Attempt(
        name="changing places with the root",
        body="syscall('pivot_root', b'/tmp', b'/tmp')",
        control=Control.NONE,
        refusals=_SYSTEM,
    ),
    Attempt(
        name="a user namespace, to be root in",
        body="syscall('unshare', 0x10000000)",
        control=Control.ANYBODY,
        refusals=_SYSTEM,
    ),
    Attempt(
        name="a mount namespace",
        body="syscall('unshare', 0x00020000)",
        control=Control.ROOT,
        refusals=_SYSTEM,
    ),
    Attempt(
        name="a process in new namespaces",
        body="pid = syscall('clone', 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)\n"
        "if pid == 0:\n    os._exit(0)\nos.waitpid(pid, 0)",
        control=Control.ANYBODY,
        refusals=_SYSTEM,
    ),
    Attempt(
        name="the same by the call that no filter can read",
        body="pid = syscall('clone3', struct.pack('11Q', 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0), 88)\n"
        "if pid == 0:\n    os._exit(0)\nos.waitpid(pid, 0)",
        control=Control.ANYBODY,
        refusals=_SYSTEM,
    ),
    Attempt(
        name="another namespace of the network",
        body="syscall('setns', os.open('/proc/self/ns/net', os.O_RDONLY), 0)",
        control=Control.ROOT,
        refusals=_SYSTEM,
    ),
    Attempt(
        name="a program in the kernel",
        body="syscall('bpf', 0, struct.pack('5I', 2, 4, 4, 1, 0), 20)",
        control=Control.ROOT,
        refusals=_SYSTEM,
    ),
    Attempt(
        name="counters of the processor",
        body="syscall('perf_event_open', struct.pack('IIQ', 1, 112, 0) + bytes(96), 0, -1, -1, 0)",
        control=Control.ROOT,
        refusals=_SYSTEM,
    ),
    Attempt(
        name="faults handled by a program",
        body="syscall('userfaultfd', 1)",
        control=Control.ANYBODY,
        refusals=_SYSTEM,
    ),
    Attempt(
        name="io_uring",
        body="syscall('io_uring_setup', 4, ctypes.create_string_buffer(120))",
        control=Control.ANYBODY,
        refusals=_SYSTEM,
    ),
    Attempt(
        name="files by their handles",
        body="syscall('open_by_handle_at', -100, ctypes.create_string_buffer(64), 0)",
        control=Control.NONE,
        refusals=_SYSTEM,
    ),
    Attempt(
        name="a kernel module",
        body="syscall('init_module', b'', 0, b'')",
        control=Control.NONE,
        refusals=_SYSTEM,
    ),
    Attempt(
        name="another kernel",
        body="syscall('kexec_load', 0, 0, 0, 0)",
        control=Control.NONE,
        refusals=_SYSTEM,
    ),
    Attempt(
        name="another name for the machine",
        body="syscall('sethostname', b'escaped', 7)",
        control=Control.NONE,
        refusals=_SYSTEM,
    ),
    Attempt(name="swap", body="syscall('swapon', b'/app/swap', 0)", control=Control.NONE, refusals=_SYSTEM),
    Attempt(
        name="looking at every user's files",
        body="syscall('fanotify_init', 0, 0)",
        control=Control.ROOT,
        refusals=_SYSTEM,
    ),
)

ATTEMPTS = (*NETWORK, *FILES, *DEVICES, *PROCESSES, *KERNEL)
