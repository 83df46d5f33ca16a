"""The side services of a sandbox: a container for each, next to the sandbox's own.

All have the network of one more container, the *holder*, which has only a loopback: they reach each other and the sandbox there by their names, and
nothing else. They also have the holder's process numbers. Process 1 of the holder is that of every session (session.py): it ends with the owner, and
with it the kernel ends every process of every service, also after kill -9.

The engine's client runs each service in the foreground. It reports the end, and hands on the output; the end of that is kept.
A service that ends after the sandbox was opened stays ended, as in compose without `restart`.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.abc

from sandboxes import tree
from sandboxes.base import SERVICE_START_S, Limits, SandboxError, ServiceHealth, ServiceState, SideService
from sandboxes.container.engine import ContainerEngine, ContainerRun, Mount, ServiceRun
from sandboxes.container.session import INSIDE, MARK, ContainerSession
from sandboxes.ending import ended_by, tasks_ended_by

_OUTPUT = 2000
"""Bytes of a service's newest output that are kept for sentences."""
_END_S = 20.0
_SOON_S = 0.1
_LATE_S = 0.5
"""A check in a container that ends may fail this long before the client reports the end."""
_NOT_RUN = 127
"""The exit code of a service whose client cannot be run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The containers of a sandbox's services, as the sandbox knows them. `holder`: as that of its own session; it is given the network of no
    other."""

    directory: Path
    holder: ContainerRun
    hosts: Mount
    limits: Limits
    labels: Mapping[str, str]
    marks: Mapping[str, str]
    owner: tuple[int, int] | None
    env: Mapping[str, str]


def hosts_line(services: Sequence[SideService]) -> str:
    """The line of /etc/hosts for the sandbox and its services; empty without services."""
    names = [name for each in services for name in (each.name, *each.names)]
    return f"127.0.0.1 main {' '.join(names)}\n" if names else ""


@asynccontextmanager
async def running_services(
    engine: ContainerEngine, placement: Placement, services: Sequence[SideService], images: Mapping[str, str]
) -> AsyncIterator[SideServices]:
    """Start the services and wait until each is healthy; they are gone when the block ends. `images`: name → image. SandboxError names the service
    that ended, or did not become healthy, and quotes its output."""
    directory = placement.directory / "holder"
    tree.make_passable(directory)
    holder = ContainerSession(
        engine, placement.holder.name, directory=directory / "session", owner=placement.owner
    )
    found = SideServices(
        engine,
        placement,
        holder=holder,
        services=[_Service(spec=each) for each in services],
        images=images,
    )

    async def remove() -> None:
        async with ended_by(holder.end):
            await found.remove()

    async with ended_by(remove):
        await holder.begin(placement.holder, placement.env)
        async with tasks_ended_by(found.end, cancelled=True) as tasks:
            await found.start(tasks)
            yield found


@dataclass(slots=True, kw_only=True)
class _Service:
    """A service and how far it is. `output`: the newest of it; `exit_code`: None while it runs; `launched`: its client runs, or did."""

    spec: SideService
    output: bytearray = field(default_factory=bytearray)
    exit_code: int | None = None
    launched: bool = False
    started: anyio.Event = field(default_factory=anyio.Event)
    healthy: anyio.Event = field(default_factory=anyio.Event)
    ended: anyio.Event = field(default_factory=anyio.Event)

    def failed(self, how: str) -> SandboxError:
        tail = _shown(self.output, 500)
        ending = f"; its output ends with: {tail}" if tail else "; it wrote nothing"
        return SandboxError(f"the service {self.spec.name} {how}{ending}")

    def ended_early(self) -> SandboxError:
        return self.failed(f"ended with exit code {self.exit_code} before the sandbox was ready")


class SideServices:
    """The running services of one sandbox."""

    def __init__(
        self,
        engine: ContainerEngine,
        placement: Placement,
        *,
        holder: ContainerSession,
        services: Sequence[_Service],
        images: Mapping[str, str],
    ) -> None:
        self._engine = engine
        self._placement = placement
        self._holder = holder
        self._services = {each.spec.name: each for each in services}
        self._images = images

    @property
    def holder(self) -> str:
        """The container whose network they have."""
        return self._holder.name

    def check(self) -> None:
        """SandboxError if something has ended them all. A program in one of them can do that."""
        if not self._holder.alive:
            raise SandboxError("the network of a sandbox's side services was ended")

    async def start(self, background: anyio.abc.TaskGroup) -> None:
        """Start all, each after those that it waits for. Returns when each that has a check is healthy. `background`: where their clients run."""
        failure: SandboxError | None = None

        async def begin(service: _Service, scope: anyio.CancelScope) -> None:
            nonlocal failure
            try:
                await self._begin(service, background)
            except SandboxError as error:
                failure = failure or error
                scope.cancel()

        async with anyio.create_task_group() as starting:
            for service in self._services.values():
                starting.start_soon(begin, service, starting.cancel_scope)
        failure = failure or next(
            (each.ended_early() for each in self._services.values() if each.ended.is_set()), None
        )
        if failure is not None:
            raise failure

    async def _begin(self, service: _Service, background: anyio.abc.TaskGroup) -> None:
        for name, state in service.spec.after.items():
            other = self._services[name]
            await (other.healthy if state is ServiceState.HEALTHY else other.started).wait()
        service.launched = True
        background.start_soon(self._run, service)
        await self._until_started(service)
        service.started.set()
        if (check := service.spec.health) is not None:
            await self._until_healthy(service, check)
        service.healthy.set()

    def _container(self, service: _Service) -> str:
        number = list(self._services).index(service.spec.name) + 1
        return f"{self._holder.name}-{number}"

    async def _run(self, service: _Service) -> None:
        """The client of a service, to its end."""
        placed, name = self._placement, self._container(service)
        run = ServiceRun(
            name=name,
            image=self._images[service.spec.name],
            shares=self._holder.name,
            service=service.spec,
            limits=placed.limits,
            hosts=placed.hosts,
            labels=placed.labels,
            marks={**placed.marks, MARK: name},
            seccomp=placed.holder.seccomp,
        )
        try:
            async with await anyio.open_process(
                [*self._engine.command, *self._engine.serve(run)],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.STDOUT,
                env=placed.env,
                cwd=placed.directory,
                start_new_session=True,
            ) as process:
                assert process.stdout is not None
                async for part in process.stdout:
                    service.output += part
                    del service.output[:-_OUTPUT]
                service.exit_code = await process.wait()
        except OSError as error:
            service.output += str(error).encode()
            service.exit_code = _NOT_RUN
        service.ended.set()

    async def _until_started(self, service: _Service) -> None:
        deadline = time.monotonic() + SERVICE_START_S
        while time.monotonic() < deadline:
            if service.ended.is_set():
                raise service.ended_early()
            words = ("container", "inspect", "--format={{.State.Running}}", self._container(service))
            result = await self._engine.call(*words, env=self._placement.env)
            if result.stdout.strip() == b"true":
                return
            await self._pause(service, _SOON_S)
        raise service.failed(
            f"was not started by {self._engine.settings.engine} within {SERVICE_START_S:g} s"
        )

    async def _until_healthy(self, service: _Service, check: ServiceHealth) -> None:
        counts_from = time.monotonic() + max(check.start_period_s, check.interval_s)
        failures = 0
        while True:
            counts = time.monotonic() >= counts_from
            how = await self._checked(service, check)
            if service.ended.is_set():
                raise service.ended_early()
            if how is None:
                return
            failures += counts
            if failures >= check.retries:
                await self._pause(service, _LATE_S)
                if service.ended.is_set():
                    raise service.ended_early()
                raise service.failed(
                    f"did not become healthy: its health check failed {failures} times in a row, the last one {how}"
                )
            often = min(check.interval_s, check.start_interval_s)
            await self._pause(service, check.interval_s if counts else often)

    async def _checked(self, service: _Service, check: ServiceHealth) -> str | None:
        """How one run of a health check failed; None: it did not."""
        words = ("exec", self._container(service), *check.argv)
        try:
            with anyio.fail_after(check.timeout_s):
                result = await self._engine.call(
                    *words, env=self._placement.env, timeout_s=2 * check.timeout_s
                )
        except TimeoutError:
            return f"did not end within {check.timeout_s:g} s"
        if result.returncode == 0:
            return None
        tail = _shown(result.stdout + result.stderr, 300)
        return f"ended with exit code {result.returncode}{f' ({tail})' if tail else ''}"

    @staticmethod
    async def _pause(service: _Service, pause_s: float) -> None:
        """Wait, at most until the service has ended."""
        with anyio.move_on_after(max(pause_s, _SOON_S)):
            await service.ended.wait()

    async def end(self) -> None:
        """End all: with process 1 of the holder, the kernel ends theirs. Returns when their clients know, also those that are about to start one."""
        await self._holder.kill()
        with contextlib.suppress(TimeoutError), anyio.fail_after(_END_S):
            for each in self._services.values():
                if each.launched:
                    await each.ended.wait()

    async def remove(self) -> None:
        """Remove what a client was kept from removing itself."""
        await self._engine.remove(*map(self._container, self._services.values()))


def _shown(output: bytes | bytearray, most: int) -> str:
    """The end of a program's output in one line, without control characters."""
    text = output.decode(errors="replace")
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())[-most:]


def holder_mounts(directory: Path) -> list[Mount]:
    """The pipes of the holder's process 1."""
    return [Mount(directory / "holder", INSIDE)]
