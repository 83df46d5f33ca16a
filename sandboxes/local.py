"""For development only: programs run as our own user, in a directory, with no isolation from this machine.

The contract holds as far as it can without isolation. The exceptions:

- The network, and the host's files and processes, can be reached. The number of processes is not limited.
- Background processes are identified by an environment variable. A process that clears it may outlive its sandbox, and its owner.
- Programs of all sandboxes share ports, and can see each other.
- Directories such as `/app` are elsewhere: whole arguments, variables and directories that begin with one are
  rewritten, but not the text of a script (`Sandbox.path` gives the real path).
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
import warnings
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from sandboxes import procfs
from sandboxes.base import GATEWAY_SOCKET, PLACED, WRITABLE, Sandbox, SandboxError, SandboxSpec
from sandboxes.cleanup_daemon import ensure_running
from sandboxes.directory import DirectorySandbox, host_name, refuse_build
from sandboxes.disk_full import making
from sandboxes.owner import prepare_root
from sandboxes.procfs import MARKER
from sandboxes.program import ProgramBounds, SupervisedProgram
from sandboxes.reap import default_root, reap
from sandboxes.spawned import Launch, Spawned, entering
from sandboxes.users import AGENT, ROOT, refuse_user

_DIE_S = 5.0
_PROGRAM = "PENSTOCK_PROGRAM"
"""Environment variable that distinguishes programs of one sandbox that run at the same time."""


class NoIsolationWarning(UserWarning):
    """Signals that programs run with all the rights of this process."""


class LocalProvider:
    """Sandboxes without isolation. Warns once per provider, by `warnings`."""

    name = "local"
    isolated = False
    live_binds = True
    containers = False
    limits_cores = False

    def __init__(self, root: Path | None = None) -> None:
        self._root = root or default_root()
        self._warned = self._ready = False

    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        return self._open(spec)

    @asynccontextmanager
    async def _open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        refuse_build(spec)
        refuse_user(self, spec)
        if not self._warned:
            self._warned = True
            warnings.warn(
                "the sandbox `local` does not isolate: programs run with your rights, files and network."
                " Use it for development only, and `bubblewrap` for anything a model writes.",
                NoIsolationWarning,
                stacklevel=3,
            )
        if not self._ready:  # callers that arrive during the preparation prepare too
            await anyio.to_thread.run_sync(self._prepare)
        ensure_running(self._root)
        sandbox = LocalSandbox(self._root, spec, None, own_user=False)
        async with sandbox.opened():
            yield sandbox

    @classmethod
    def refuses_user(cls, user: str) -> str | None:
        """Why programs do not run as `user`, in one clause. None: they do."""
        if user in ("", AGENT, str(os.geteuid())) or (user == ROOT and os.geteuid() == 0):
            return None
        return f"sandboxes of the provider local run programs as uid {os.geteuid()} alone: name agent, or remove it"

    def _prepare(self) -> None:
        with making(self._root):
            prepare_root(self._root)
            reap(self._root)
        self._ready = True

    async def problems(self) -> tuple[str, ...]:
        return () if shutil.which("sh") else ("sh is not installed: apt-get install dash.",)


class LocalSandbox(DirectorySandbox):
    """A directory, and programs that are not forced to stay in it."""

    def path(self, inside: str) -> str:
        """The path of `inside` on this machine. A path that is mapped already stays the same, so that mapping twice is harmless."""
        socket = self.spec.gateway_socket
        if inside == GATEWAY_SOCKET and socket is not None:
            return str(socket.absolute())
        mapped = (self.directory, *self.spec.binds, *(() if socket is None else (socket,)))
        if any(Path(inside).is_relative_to(mapped_path.absolute()) for mapped_path in mapped):
            return inside
        for directory in (*WRITABLE, *PLACED):
            if inside == directory or inside.startswith(f"{directory}/"):
                return f"{self.directory}/files/{host_name(directory)}{inside.removeprefix(directory)}"
        for outside, bound in self.spec.binds.items():
            if inside == bound or inside.startswith(f"{bound}/"):
                return f"{outside.absolute()}{inside.removeprefix(bound)}"
        return inside

    def defaults(self) -> dict[str, str]:
        return {**super().defaults(), "TZ": "UTC"}  # this machine's /etc/localtime can be seen

    def launch(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        bounds: ProgramBounds,
        stdin: bytes | None,
    ) -> SupervisedProgram:
        variables = {key: self.path(value) for key, value in env.items()} | {MARKER: self.id}
        variables[_PROGRAM] = secrets.token_hex(8)
        command = [self.path(word) for word in argv]
        launch = entering(command, variables, cwd=self.path(cwd), limits=self.limits)
        return LocalProgram(launch, bounds, stdin, marker=variables[_PROGRAM])


class LocalProgram(Spawned):
    """Descendants of its first process, and all processes with the program's marker."""

    def __init__(self, launch: Launch, bounds: ProgramBounds, stdin: bytes | None, *, marker: str) -> None:
        self._marker = marker
        self._left: list[int] = []
        super().__init__(launch, bounds, stdin)

    async def strike(self) -> None:
        if self._popen.returncode is None:
            procfs.halt(lambda: procfs.tree(self._popen.pid))
        await anyio.to_thread.run_sync(self._kill_marked)

    def _kill_marked(self) -> int:
        return procfs.kill(procfs.marked(_PROGRAM, self._marker))

    async def settle(self) -> None:
        deadline = time.monotonic() + _DIE_S
        while await anyio.to_thread.run_sync(self._kill_marked):
            if time.monotonic() > deadline:
                raise SandboxError(f"processes of program {self._marker} do not die")
            await anyio.sleep(0.005)
        self._left = []

    async def lives(self) -> bool:
        self._left = await anyio.to_thread.run_sync(
            lambda: [pid for pid in procfs.marked(_PROGRAM, self._marker) if not procfs.ended(pid)]
        )
        return bool(self._left)

    async def survey(self) -> None:
        await self.lives()

    def exit_code(self) -> int:
        return int(self._popen.returncode)

    def living(self) -> list[int]:
        if self._popen.returncode is None:
            return procfs.tree(self._popen.pid)
        return [each for pid in self._left for each in procfs.tree(pid)]

    def used(self) -> float:
        return procfs.use(self.living())[0]
