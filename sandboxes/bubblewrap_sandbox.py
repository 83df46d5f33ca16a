"""One sandbox by bubblewrap: its session and its mounts.

The chain of a session's start, all in one process until bubblewrap forks (about 7 ms in all):
`sh` (joins its control group, sets rlimits) → `nsenter` (on an image only: the namespace of its mounts) → `setpriv` (as root only: becomes the
sandbox's own user, without capabilities) → `bwrap` (namespaces, mounts, system call filter; dies with us, and the sandbox with it) → process 1.
The joiner (join.py) starts every program inside, with the same filter, user and limits. It needs Linux 5.8.

Options reach bubblewrap through a memory file: other users can read command lines.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio

from sandboxes import cgroups, holder, join, moves, seccomp, tree
from sandboxes.base import (
    GATEWAY_SOCKET,
    PLACED,
    WRITABLE,
    ArtifactLimits,
    Artifacts,
    SandboxSpec,
)
from sandboxes.bubblewrap_program import BubblewrapProgram
from sandboxes.directory import DirectorySandbox, host_name, ulimits
from sandboxes.disk_full import making
from sandboxes.etc import ETC_FILES
from sandboxes.join import JoinedProgram
from sandboxes.machine import fault
from sandboxes.procfs import MARKER
from sandboxes.program import ProgramBounds
from sandboxes.session import Session
from sandboxes.spawned import Launch
from sandboxes.tools import bwrap
from sandboxes.users import AGENT_UID, ROOT, Account, Range, own

_NAMESPACES = [
    *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--unshare-cgroup"),
    *("--hostname", "sandbox", "--die-with-parent", "--as-pid-1", "--new-session", "--clearenv"),
    *("--cap-drop", "ALL"),
]
SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("/etc/alternatives", "/etc/ld.so.cache")
_WITH_SOURCE = ("--bind", "--ro-bind", "--ro-bind-try", "--ro-bind-data", "--symlink")
SOCKET_DIRECTORY = "/run/penstock-host"


class BubblewrapSandbox(DirectorySandbox):
    """One sandbox, and its session after the first program has started."""

    def __init__(
        self,
        root: Path,
        spec: SandboxSpec,
        hierarchies: cgroups.Hierarchies | None,
        *,
        own_user: bool,
        users: Range | None = None,
    ) -> None:
        account = Account(name=ROOT, uid=0, gid=0) if users is None and own(spec.user) == 0 else None
        super().__init__(root, spec, hierarchies, own_user=own_user, users=users, account=account)
        self._session: Session | None = None
        self._namespace = -1
        self._beginning = anyio.Lock()
        self._parts = itertools.count(1)

    def path(self, inside: str) -> str:
        return moves.moved(inside, self.work)

    async def prepare(self) -> None:
        async with self._beginning:
            if self._session is not None:
                self._session.check()
                if not self._session.ending:
                    return
            await self.end_session()
            self._session = self._begin()
            await self._session.ready()

    async def changed(self, limits: ArtifactLimits | None = None) -> Artifacts:
        if self._session is not None:
            self._session.check()
        return await super().changed(limits)

    async def end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with anyio.CancelScope(shield=True):
                await session.end()

    def _begin(self) -> Session:
        system = self.system_options()
        holder_fd = holder.descriptor()
        laid = [*holder.options(holder_fd), *system, *self._places()]
        options = [*self._user_options(), *_NAMESPACES, *_ways(laid), *laid, "--chdir", "/"]
        encoded = b"".join(os.fsencode(option) + b"\0" for option in options)
        status_read, status_write = os.pipe2(os.O_CLOEXEC)
        args_fd = os.memfd_create("bwrap-args")
        with open(args_fd, "wb", closefd=False) as args:
            args.write(encoded)
        os.lseek(args_fd, 0, os.SEEK_SET)
        command = [bwrap(), "--args", str(args_fd), "--json-status-fd", str(status_write)]
        filters = [] if (calls := seccomp.program()) is None else [seccomp.descriptor(calls)]
        for fd in filters:
            command += ["--seccomp", str(fd)]
        chain = [
            "/bin/sh",
            "-c",
            self._script(),
            "sh",
            *self.enter(),
            *self._become(),
            *command,
            "--",
            holder.INSIDE,
        ]
        session_env = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin", MARKER: self.id}
        launch = Launch(argv=chain, env=session_env, pass_fds=(args_fd, status_write, holder_fd, *filters))
        try:
            return Session(launch, status_read, self.cgroup)
        except OSError as error:
            raise fault(error, f"cannot start bubblewrap: {error}") from error

    def launch(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        bounds: ProgramBounds,
        stdin: bytes | None,
    ) -> BubblewrapProgram:
        for text in (*argv, *env, *env.values(), cwd):
            if b"\0" in os.fsencode(text):
                raise ValueError("embedded null byte")
        assert self._session is not None
        limits = self.limits
        warden = self.cgroup is None
        ids = None if self.users is None else self.users.account.ids
        entry = JoinedProgram(
            argv=argv, env=env, cwd=cwd, uid=self.uid, ids=ids, limits=limits, warden=warden
        )
        part = None if self.cgroup is None else self.cgroup.part(str(next(self._parts)))
        try:
            return BubblewrapProgram(entry, bounds, stdin=stdin, session=self._session, part=part)
        except BaseException:
            if part is not None:
                part.remove()
            raise

    def living(self) -> list[int]:
        session_pids = [] if self._session is None else self._session.living()
        return [*super().living(), *session_pids]

    def _script(self) -> str:
        attach = self.cgroup.session_script() if self.cgroup else ""
        # Killed first when the machine runs out of memory. With CAP_SYS_RESOURCE this also removes the right to lower the score again.
        spared = "{ echo 500 >/proc/self/oom_score_adj; } 2>/dev/null; umask 022; "
        return f'{attach}{spared}{ulimits(self.limits, alone=self.cgroup is None)}exec "$@"'

    def _become(self) -> list[str]:
        if self.uid < 0:
            return []
        if self._namespace >= 0:  # as its root, which bubblewrap leaves without capabilities inside
            return ["nsenter", f"--user=/proc/{os.getpid()}/fd/{self._namespace}", "--"]
        user = [f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"]
        return ["setpriv", *user, "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--"]

    def _user_options(self) -> list[str]:
        """Bubblewrap's options for the user namespace: one user in a new one, or none where a range was made for it."""
        if self.users is not None:
            return []
        uid = str(AGENT_UID if self.account is None else self.account.uid)
        return ["--unshare-user", "--disable-userns", "--uid", uid, "--gid", uid]

    def enter(self) -> Sequence[str]:
        """The command that enters the namespaces of the sandbox's mounts, if they have their own."""
        return ()

    def writable(self) -> list[tuple[str, str]]:
        """(path as bubblewrap finds it, path inside) of the directories that programs may write."""
        files = self.directory / "files"
        return [(str(files / host_name(inside)), self.path(inside)) for inside in WRITABLE]

    def system_options(self) -> list[str]:
        """Bubblewrap's options for the system around the sandbox's own places: this machine's."""
        options = ["--ro-bind", "/usr", "/usr", *_system_options()]
        options += ["--ro-bind", f"{self.directory}/etc", "/etc"]
        for path in _ETC:
            options += ["--ro-bind-try", path, path]
        return options

    def _places(self) -> list[str]:
        options = ["--proc", "/proc", "--dev", "/dev"]
        options += ["--size", str(self.limits.memory_mb << 20), "--perms", "1777", "--tmpfs", "/dev/shm"]
        for outside, inside in self.writable():
            options += ["--bind", outside, inside]
        for inside in moves.placed(self.work):  # running programs must see files that are placed later
            options += ["--ro-bind", str(self.directory / "files" / host_name(inside)), inside]
        for bound, inside in self.spec.binds.items():
            options += ["--ro-bind", str(bound.resolve()), inside]
        if (socket := self.spec.gateway_socket) is not None:
            options += ["--ro-bind", str(socket.parent.resolve()), SOCKET_DIRECTORY]
            options += ["--symlink", f"{SOCKET_DIRECTORY}/{socket.name}", GATEWAY_SOCKET]
        return [*options, "--remount-ro", "/dev", "--remount-ro", "/"]

    def _create(self) -> None:
        if self.users is not None:
            self._namespace = join.namespace(self.users)
        super()._create()
        etc = self.directory / "etc"
        with making(self._root):
            for inside in PLACED:
                if not (host_path := self.directory / "files" / host_name(inside)).is_dir():
                    self._make(host_path)
            for directory in (etc, etc / "alternatives"):
                tree.make_passable(directory, 0o755)
            for name, text in ETC_FILES.items():
                (etc / name).write_text(text)
                (etc / name).chmod(0o644)
            for path in _ETC[1:]:  # mount points for files must exist in a read-only directory
                (etc / Path(path).name).touch()

    def _remove(self) -> None:
        namespace, self._namespace = self._namespace, -1
        if namespace >= 0:
            os.close(namespace)
        super()._remove()


def _ways(laid: Sequence[str]) -> list[str]:
    """Options that make the directories above every place of `laid`, open to all users. Bubblewrap itself makes them for its own user alone."""
    places = {laid[at + 2] for at, word in enumerate(laid) if word in _WITH_SOURCE}
    places |= {
        laid[at + 1] for at, word in enumerate(laid) if word in ("--dir", "--proc", "--dev", "--tmpfs")
    }
    above = {str(parent) for place in places for parent in Path(place).parents} - {"/"}
    return [word for path in sorted(above) for word in ("--perms", "0755", "--dir", path)]


def _system_options() -> list[str]:
    options: list[str] = []
    for path in map(Path, SYSTEM):
        if path.is_symlink():
            options += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            options += ["--ro-bind", str(path), str(path)]
    return options
