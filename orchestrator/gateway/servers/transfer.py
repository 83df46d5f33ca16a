"""Weights from process to process, for servers that cannot see the trainer's directory or read it slowly.

The gateway that owns a server starts a sender (`python -m trainer.transport`). The sender reads the published checkpoint here and broadcasts it
to the server's ranks: SGLang's `init_weights_update_group`, `begin_weight_update`, `update_weights_from_distributed`, `end_weight_update`,
`destroy_weights_update_group`. The process starts and the server joins before the pause, so calls are held only during the transfer.
No tensor passes through the gateway.
"""

import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import msgspec
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from orchestrator.gateway.servers.client import (
    RequestRefused,
    RolloutServerClient,
    RolloutServerError,
    WeightUpdateRefused,
)
from orchestrator.settings.timeouts import timeouts

PART_BYTES = 2**30
"""A server holds a part in addition to its own weights until it has applied it."""

LINE_BYTES = 64 * 2**20  # names, dtypes and shapes of every tensor: some 100 bytes each


class TransferFailed(Exception):
    """Weights could not be sent; the message is one sentence. `always`: later transfers to this server will fail too."""

    def __init__(self, message: str, *, always: bool = False) -> None:
        super().__init__(message)
        self.always = always


class _Announced(msgspec.Struct):
    port: int
    parts: list[dict[str, list[Any]]]


class Sender:
    """A started sender whose group the server has joined."""

    def __init__(
        self, client: RolloutServerClient, *, group: str, parts: list[dict[str, list[Any]]], process: Process
    ) -> None:
        self._client = client
        self.group = group
        self.parts = parts
        self._process = process

    async def end(self) -> None:
        """End the sender's process. It sends nothing after that."""
        await _end(self._process)

    async def deliver(self, version: str, *, timeout: float) -> None:
        """Let the paused server receive every part, the last as `version`. Raises TransferFailed, WeightUpdateRefused and other
        RolloutServerErrors; the server may then have some of the weights."""
        last = len(self.parts) - 1
        await self._begin()
        try:
            for at, part in enumerate(self.parts):
                if self._process.returncode is not None:
                    raise TransferFailed("the sender ended before it had sent all")
                await self._client.receive_weights(
                    self.group, part, version if at == last else None, flush_cache=at == last, timeout=timeout
                )
        except BaseException:
            with anyio.CancelScope(shield=True), suppress(RolloutServerError):
                await self._client.end_transfer()
            raise
        await self._client.end_transfer()

    async def _begin(self) -> None:
        try:
            await self._client.begin_transfer()
        except WeightUpdateRefused:  # a gateway that died may have left one open
            await self._client.end_transfer()
            await self._client.begin_transfer()


@asynccontextmanager
async def sending(
    client: RolloutServerClient, path: str, *, address: str, within: float, part_bytes: int = PART_BYTES
) -> AsyncIterator[Sender]:
    """Start a sender of the checkpoint at `path` and let the server join it, within `within` seconds. `address`: of this machine, as the
    server reaches it. Raises TransferFailed. The sender always ends with the context."""
    info = await client.server_info()
    ranks, backend = info.tp_size, "gloo" if info.device == "cpu" else "nccl"
    if info.dp_size != 1:
        raise TransferFailed(
            "the server has several data-parallel replicas, and SGLang sends to one", always=True
        )
    if info.pp_size != 1:
        raise TransferFailed(
            "the server has several pipeline stages, and a sender needs one: start it with --pp-size 1",
            always=True,
        )
    group = f"penstock-{uuid.uuid4().hex[:12]}"
    command = [sys.executable, "-m", "trainer.transport", "--path", path, "--name", group]
    command += [
        "--receivers",
        str(ranks),
        "--address",
        address,
        "--backend",
        backend,
        "--timeout",
        str(within),
    ]
    command += ["--part-bytes", str(part_bytes)]
    try:
        process = await anyio.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:  # no descriptors, processes or memory are left for the moment
        raise TransferFailed(f"the sender does not start: {error.strerror or error}") from error
    joined = False
    try:
        with anyio.move_on_after(within) as scope:
            announced = await _announced(process)
        if scope.cancelled_caught:
            raise TransferFailed(f"the sender does not start within {within:g} s")
        try:
            await client.join_transfer(
                group, address, announced.port, ranks=ranks, backend=backend, timeout=within
            )
        except RolloutServerError as error:
            unknown = isinstance(error, RequestRefused) and error.status in (404, 405)
            raise TransferFailed(f"the server does not join: {error.message}", always=unknown) from error
        joined = True
        yield Sender(client, group=group, parts=announced.parts, process=process)
    finally:
        with anyio.CancelScope(shield=True):
            if joined:
                with (
                    anyio.move_on_after(timeouts().sender_end_s),
                    suppress(RolloutServerError),
                ):  # it may have left on its own
                    await client.leave_transfer(group)
            await _end(process)


async def _announced(process: Process) -> _Announced:
    """The sender's first line. Raises TransferFailed with the sender's error message if it ends instead."""
    assert process.stdout is not None and process.stderr is not None
    try:
        line = await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", LINE_BYTES)
        return msgspec.json.decode(line, type=_Announced)
    except (anyio.IncompleteRead, anyio.EndOfStream):
        with suppress(anyio.EndOfStream):
            complaint = (await process.stderr.receive(4096)).decode(errors="replace").strip()
            if complaint:
                raise TransferFailed(f"the sender does not start: {complaint.splitlines()[-1]}") from None
        raise TransferFailed("the sender ended without a word") from None
    except msgspec.MsgspecError as error:
        raise TransferFailed(f"the sender's first line is not to be understood: {error}") from error


async def _end(process: Process) -> None:
    """Close its stdin, which ends it; kill it if it does not."""
    assert process.stdin is not None
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        await process.stdin.aclose()
    with anyio.move_on_after(timeouts().sender_end_s):
        await process.wait()
    if process.returncode is None:
        process.kill()
    await process.aclose()
