"""For development only: programs run as ourselves, in a directory, with nothing between them and this machine.

The contract holds as far as it can without isolation. What does not hold:

- The network, and the host's files and processes, can be reached. The number of processes is not limited.
- A program that clears its environment and leaves its session may outlive its `exec`, and its owner.
- Places such as `/app` lie elsewhere: whole arguments, variables and directories that begin with one are
  rewritten, but not what is inside a script (`Sandbox.path` tells).
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import time
import warnings
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread

from sandboxes import procfs
from sandboxes.base import GATEWAY_SOCKET, PLACED, WRITABLE, Sandbox, SandboxError, SandboxSpec
from sandboxes.directory import DirectorySandbox, host_name, refuse_build, ulimits
from sandboxes.heir import appoint
from sandboxes.owner import prepare_root
from sandboxes.procfs import MARKER
from sandboxes.program import Bounds, Launch, Program
from sandboxes.reap import default_root, reap
from sandboxes.room import making

_DIE_S = 5.0
_PROGRAM = "PENSTOCK_PROGRAM"
"""Environment variable that tells apart the programs of one sandbox that run side by side."""


class NoIsolationWarning(UserWarning):
    """Signals that programs run with all the rights of this process."""


class LocalProvider:
    """Sandboxes that isolate nothing. Says so once per provider, by `warnings`."""

    name = "local"
    isolated = False
    containers = False

    def __init__(self, root: Path | None = None) -> None:
        self._root = root or default_root()
        self._warned = self._ready = False

    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        return self._open(spec)

    @asynccontextmanager
    async def _open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        refuse_build(spec)
        if not self._warned:
            self._warned = True
            warnings.warn(
                "the sandbox `local` does not isolate: programs run with your rights, files and network."
                " Use it for development only, and `bubblewrap` for anything a model writes.",
                NoIsolationWarning,
                stacklevel=3,
            )
        if not self._ready:  # whoever comes while it is prepared prepares it too
            await anyio.to_thread.run_sync(self._prepare)
        appoint(self._root)
        sandbox = LocalSandbox(self._root, spec, None, own_user=False)
        async with sandbox.opened():
            yield sandbox

    def _prepare(self) -> None:
        with making(self._root):
            prepare_root(self._root)
            reap(self._root)
        self._ready = True

    async def problems(self) -> tuple[str, ...]:
        return () if shutil.which("sh") else ("sh is not installed: apt-get install dash.",)


class LocalSandbox(DirectorySandbox):
    """A directory, and programs that are asked to stay in it."""

    def path(self, inside: str) -> str:
        """Where `inside` lies on this machine. What lies there already stays, so that mapping twice is harmless."""
        socket = self.spec.gateway_socket
        if inside == GATEWAY_SOCKET and socket is not None:
            return str(socket.absolute())
        mapped = (self.directory, *self.spec.binds, *(() if socket is None else (socket,)))
        if any(Path(inside).is_relative_to(place.absolute()) for place in mapped):
            return inside
        for directory in (*WRITABLE, *PLACED):
            if inside == directory or inside.startswith(f"{directory}/"):
                return f"{self.directory}/files/{host_name(directory)}{inside.removeprefix(directory)}"
        for outside, bound in self.spec.binds.items():
            if inside == bound or inside.startswith(f"{bound}/"):
                return f"{outside.absolute()}{inside.removeprefix(bound)}"
        return inside

    def launch(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str, bounds: Bounds, stdin: bytes | None
    ) -> Program:
        script = f'{ulimits(self.limits, alone=True)}cd -- "$1" || exit 126; shift; exec "$@"'
        # The kernel ends at least the first process with us.
        die = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
        command = [*die, "/bin/sh", "-c", script, "sh", self.path(cwd), *map(self.path, argv)]
        variables = {key: self.path(value) for key, value in env.items()} | {MARKER: self.id}
        variables[_PROGRAM] = secrets.token_hex(8)
        return LocalProgram(Launch(command, variables), bounds, stdin, variables[_PROGRAM])


class LocalProgram(Program):
    """A process group of ours, and whoever else carries the program's marker."""

    def __init__(self, launch: Launch, bounds: Bounds, stdin: bytes | None, marker: str) -> None:
        self._marker = marker
        super().__init__(launch, bounds, stdin)

    async def strike(self) -> None:
        procfs.kill(self.living())

    def _reap(self) -> None:
        # Before the number of the group, which is that of its dead leader, can be given to others.
        with suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        super()._reap()

    async def settle(self) -> None:
        deadline = time.monotonic() + _DIE_S
        while await anyio.to_thread.run_sync(lambda: procfs.kill(procfs.marked(_PROGRAM, self._marker))):
            if time.monotonic() > deadline:
                raise SandboxError(f"processes of program {self._marker} do not die")
            await anyio.sleep(0.005)

    def exit_code(self) -> int:
        code = self._popen.returncode
        return 128 - code if code < 0 else code

    def living(self) -> list[int]:
        return procfs.tree(self._popen.pid)
