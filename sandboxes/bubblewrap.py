"""The default provider: bubblewrap, with every namespace of its own and no network.

The chain of one program, all in one process until bubblewrap forks (about 7 ms in all):
`sh` (joins the control group, sets rlimits) → `setpriv` (as root only: becomes the sandbox's own user, without
capabilities) → `bwrap` (namespaces, mounts, system call filter; dies with us, and the sandbox with it) → the program.

Options reach bubblewrap through a memory file: the environment inside holds tokens, and other users can read
command lines.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio.to_thread

from sandboxes import cgroups, seccomp
from sandboxes.base import GATEWAY_SOCKET, PLACED, WRITABLE, Sandbox, SandboxError, SandboxFull, SandboxSpec
from sandboxes.bubblewrap_program import BubblewrapProgram
from sandboxes.directory import DirectorySandbox, host_name, refuse_build, ulimits
from sandboxes.heir import appoint
from sandboxes.owner import prepare_root
from sandboxes.procfs import MARKER
from sandboxes.program import Bounds, Launch
from sandboxes.reap import default_root, reap
from sandboxes.room import making

_NAMESPACES = [
    *("--unshare-user", "--disable-userns", "--unshare-pid", "--unshare-ipc", "--unshare-uts"),
    *("--unshare-net", "--unshare-cgroup", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox"),
    *("--die-with-parent", "--new-session", "--clearenv"),
]
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime")
ETC_FILES = {
    "passwd": "root:x:0:0::/:/usr/sbin/nologin\nagent:x:1000:1000::/home/agent:/bin/sh\n",
    "group": "root:x:0:\nagent:x:1000:\n",
    "hosts": "127.0.0.1 localhost sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_TAKEN = (
    *WRITABLE,
    *PLACED,
    *_SYSTEM,
    "/usr",
    "/etc",
    "/proc",
    "/dev",
    "/run/penstock",
    "/run/penstock-host",
)
SOCKET_DIRECTORY = "/run/penstock-host"


class BubblewrapProvider:
    """Sandboxes by bubblewrap. `root`: where they live, a path that unprivileged users can pass through.

    `use_cgroups=False` forces the fallback (rlimits and a watch over /proc) that is otherwise taken only where
    no control groups can be made: memory is then limited by looking, and processes per program.
    """

    name = "bubblewrap"
    isolated = True
    containers = False

    def __init__(self, root: Path | None = None, *, use_cgroups: bool = True) -> None:
        self._root = root or default_root()
        self._use_cgroups = use_cgroups
        self._hierarchies: cgroups.Hierarchies | None = None
        self._ready = False

    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        return self._open(spec)

    @asynccontextmanager
    async def _open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        refuse_build(spec)
        check_spec(spec)
        if not self._ready:
            await anyio.to_thread.run_sync(self._prepare)
        appoint(self._root)
        sandbox = BubblewrapSandbox(self._root, spec, self._hierarchies, own_user=os.geteuid() == 0)
        async with sandbox.opened():
            yield sandbox

    def _prepare(self) -> None:
        """Once: find the tools, take over from dead owners, see what control groups there are."""
        if missing := _missing_tools():
            raise SandboxError(" ".join(missing))
        with making(self._root):
            prepare_root(self._root)
            if os.geteuid() == 0:
                _require_reachable(self._root, "the directory for sandboxes")
            reap(self._root)
        self._hierarchies = cgroups.detect() if self._use_cgroups else None
        self._ready = True

    async def problems(self) -> tuple[str, ...]:
        if missing := _missing_tools():
            return missing
        try:
            async with self.open(SandboxSpec()) as sandbox:
                result = await sandbox.exec(["true"], timeout_s=20)
        except SandboxFull:
            raise
        except (SandboxError, ValueError) as error:
            return (f"{error}.",)
        return () if result.ok else (f"`true` ends with exit code {result.exit_code} in a sandbox.",)


class BubblewrapSandbox(DirectorySandbox):
    """One sandbox; a bubblewrap of its own for every program."""

    def path(self, inside: str) -> str:
        return inside

    def launch(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str, bounds: Bounds, stdin: bytes | None
    ) -> BubblewrapProgram:
        options = [*_NAMESPACES, *self._mounts(), "--chdir", cwd]
        for key, value in env.items():
            options += ["--setenv", key, value]
        encoded = b"".join(os.fsencode(option) + b"\0" for option in options)
        if encoded.count(b"\0") != len(options):
            raise ValueError("embedded null byte")
        status_read, status_write = os.pipe2(os.O_CLOEXEC)
        args_fd = os.memfd_create("bwrap-args")
        with open(args_fd, "wb", closefd=False) as args:
            args.write(encoded)
        os.lseek(args_fd, 0, os.SEEK_SET)
        bwrap = ["bwrap", "--args", str(args_fd), "--json-status-fd", str(status_write)]
        filters = [] if (calls := seccomp.program()) is None else [seccomp.descriptor(calls)]
        for fd in filters:
            bwrap += ["--seccomp", str(fd)]
        bwrap.append("--")
        chain = ["/bin/sh", "-c", self._script(), "sh", *self._become(), *bwrap, *self._confine(), *argv]
        own_env = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin", MARKER: self.id}
        launch = Launch(chain, own_env, pass_fds=(args_fd, status_write, *filters))
        return BubblewrapProgram(launch, bounds, stdin, status_read)

    def _script(self) -> str:
        attach = self.cgroup.attach_script() if self.cgroup else ""
        # First to go when the machine runs out of memory; with CAP_SYS_RESOURCE this also takes the right to lower it again.
        spared = "echo 500 >/proc/self/oom_score_adj; "
        return f'{attach}{spared}{ulimits(self.limits, alone=self.cgroup is None)}exec "$@"'

    def _become(self) -> list[str]:
        if self.uid < 0:
            return []
        user = [f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"]
        return ["setpriv", *user, "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--"]

    def _confine(self) -> list[str]:
        # Inside, because the kernel counts per user namespace: outside, all our user's processes would count.
        return [] if self.cgroup else ["prlimit", f"--nproc={self.limits.processes}", "--"]

    def _mounts(self) -> list[str]:
        files = self.directory / "files"
        options = ["--ro-bind", "/usr", "/usr", *_system_options()]
        options += ["--ro-bind", f"{self.directory}/etc", "/etc"]
        for path in _ETC:
            options += ["--ro-bind-try", path, path]
        options += ["--proc", "/proc", "--dev", "/dev"]
        options += ["--size", str(self.limits.memory_mb << 20), "--tmpfs", "/dev/shm"]
        for inside in WRITABLE:
            options += ["--bind", str(files / host_name(inside)), inside]
        for inside in PLACED:
            options += ["--ro-bind-try", str(files / host_name(inside)), inside]
        for outside, inside in self.spec.binds.items():
            options += ["--ro-bind", str(outside.resolve()), inside]
        if (socket := self.spec.gateway_socket) is not None:
            options += ["--ro-bind", str(socket.parent.resolve()), SOCKET_DIRECTORY]
            options += ["--symlink", f"{SOCKET_DIRECTORY}/{socket.name}", GATEWAY_SOCKET]
        return [*options, "--remount-ro", "/dev", "--remount-ro", "/"]

    def _create(self) -> None:
        super()._create()
        etc = self.directory / "etc"
        with making(self._root):
            etc.mkdir()
            etc.chmod(0o755)
            (etc / "alternatives").mkdir()
            for name, text in ETC_FILES.items():
                (etc / name).write_text(text)
                (etc / name).chmod(0o644)
            for path in _ETC[1:]:  # mount points for files must exist in a read-only directory
                (etc / Path(path).name).touch()


def _system_options() -> list[str]:
    options: list[str] = []
    for path in map(Path, _SYSTEM):
        if path.is_symlink():
            options += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            options += ["--ro-bind", str(path), str(path)]
    return options


def _missing_tools() -> tuple[str, ...]:
    packages = {"bwrap": "bubblewrap", "setpriv": "util-linux", "prlimit": "util-linux"}
    return tuple(
        f"{tool} is not installed: apt-get install {package}, or choose the sandbox `local` for development."
        for tool, package in packages.items()
        if shutil.which(tool) is None
    )


def check_spec(spec: SandboxSpec) -> None:
    """`ValueError` for what the caller got wrong, before anything is made."""
    for outside, inside in spec.binds.items():
        if os.path.normpath(inside) != inside or not inside.startswith("/") or _overlaps(inside):
            raise ValueError(
                f"cannot bind {outside} at {inside!r}: choose a free absolute path such as /opt/name"
            )
        _require_reachable(outside, "a path bound into a sandbox")
    socket = spec.gateway_socket
    if socket is None:
        return
    if not socket.exists() or not stat.S_ISSOCK(socket.stat().st_mode):
        raise ValueError(f"{socket} is not a Unix socket: start the gateway first")
    _require_reachable(socket, "the gateway's socket")
    if socket.stat().st_mode & 0o006 != 0o006 and os.geteuid() == 0:
        raise ValueError(f"{socket} must have mode 0666: sandbox users connect to it")
    if others := sorted(set(os.listdir(socket.parent)) - {socket.name}):
        raise ValueError(
            f"the gateway's socket must be alone in its directory, {socket.parent} holds {others[0]}"
        )


def _overlaps(inside: str) -> bool:
    return inside == "/" or any(
        inside == taken or inside.startswith(f"{taken}/") or taken.startswith(f"{inside}/")
        for taken in _TAKEN
    )


def _require_reachable(path: Path, what: str) -> None:
    """Root's sandboxes run as users without rights: every directory on the way must let everybody through."""
    real = path.resolve()
    if not real.exists():
        raise ValueError(f"{what} does not exist: {path}")
    if os.geteuid() != 0:
        return
    for parent in real.parents:
        if not parent.stat().st_mode & 0o001:
            raise ValueError(
                f"{what}, {path}, lies below {parent}, which lets no unprivileged user through:"
                f" move it, or chmod o+x {parent}"
            )
