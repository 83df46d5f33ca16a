"""Weights that a sender broadcasts to this server (SGLang's `update_weights_from_distributed`), instead of a directory that it reads.

Within a session (`begin_weight_update` … `end_weight_update`) requests without a version only gather tensors. The request with a version
serves all gathered tensors as the new weights, or none. SGLang gets the same requests and applies each one at once.
"""

import asyncio
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from trainer.serving.protocol import Refusal

JOIN_S = 60.0  # to wait for an announced sender
SILENT_S = 600.0  # for a sender that hangs; a dead sender is noticed at once


@dataclass(frozen=True, slots=True)
class _Transfer:
    group: Any  # trainer.transport.group.TransferGroup: loads torch.distributed
    tensors: dict[str, Tensor] = field(default_factory=dict)


class Transfers:
    """The groups that this server is a member of, by name."""

    def __init__(self) -> None:
        self._open: dict[str, _Transfer] = {}
        self._session = False

    def open_session(self) -> None:
        """Open the session. Raises Refusal if one is open."""
        if self._session:
            raise Refusal("a weight-update session is already open; call end_weight_update() first")
        self._session = True

    def close_session(self) -> None:
        """Close the session; gathered tensors that are not served are dropped. Raises Refusal if none is open."""
        if not self._session:
            raise Refusal("no weight-update session is open; call begin_weight_update() first")
        self._session = False
        for transfer in self._open.values():
            transfer.tensors.clear()

    async def join(self, name: str, address: str, port: int, rank: int, size: int, backend: str) -> None:
        """Become `rank` of the `size` members that meet at address:port. Raises Refusal."""
        if name in self._open:
            raise Refusal(f"the group {name!r} exists already.")
        if backend != "gloo":
            raise Refusal(f"backend must be gloo on a CPU, got {backend!r}.")

        def joined() -> Any:
            from trainer.transport.group import TransferGroup, connect

            store = connect(address, port, JOIN_S)
            return TransferGroup(
                store, name, rank=rank, size=size, backend=backend, address=address, timeout_s=SILENT_S
            )

        try:
            self._open[name] = _Transfer(await asyncio.to_thread(joined))
        except RuntimeError as error:
            raise Refusal(
                f"the group {name!r} cannot be joined: {str(error).partition(chr(10))[0]}."
            ) from error

    async def receive(
        self, name: str, names: Sequence[str], dtypes: Sequence[str], shapes: Sequence[Sequence[int]]
    ) -> None:
        """Wait for the sender's next tensors. Raises Refusal; a failed transfer is dropped."""
        if not self._session:
            raise Refusal(
                "update_weights_from_distributed must run between begin_weight_update() and end_weight_update()"
            )
        transfer = self._open.get(name)
        if transfer is None:
            raise Refusal(f"group {name!r} does not exist: call /init_weights_update_group first.")
        if not len(names) == len(dtypes) == len(shapes):
            raise Refusal("names, dtypes and shapes must be of one length.")

        def received() -> None:
            for parameter, dtype, shape in zip(names, dtypes, shapes, strict=True):
                kind = getattr(torch, dtype, None)
                if not isinstance(kind, torch.dtype):
                    raise Refusal(f"{parameter} has dtype {dtype!r}, which torch does not have.")
                tensor = torch.empty(list(shape), dtype=kind)
                transfer.group.broadcast(tensor)
                transfer.tensors[parameter] = tensor

        try:
            await asyncio.to_thread(received)
        except (
            RuntimeError,
            Refusal,
        ) as error:  # drop the group: the sender's next tensors would be taken for others
            self._open.pop(name, None)
            if isinstance(error, Refusal):
                raise
            raise Refusal(f"the weights did not arrive: {str(error).partition(chr(10))[0]}.") from error

    async def written(self, name: str, config: Mapping[str, Any], place: Path) -> None:
        """Write the gathered tensors as a model directory with `config`. The weights are not checked here; the loader checks them. Raises OSError."""
        transfer = self._open[name]

        def write() -> None:
            (place / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
            save_file(transfer.tensors, place / "model.safetensors")
            transfer.tensors.clear()

        await asyncio.to_thread(write)

    def leave(self, name: str) -> bool:
        """Leave the group; returns whether it existed."""
        return self._open.pop(name, None) is not None


def place() -> "tempfile.TemporaryDirectory[str]":
    """A temporary directory for received weights, removed at the end of the context."""
    return tempfile.TemporaryDirectory(prefix="penstock-received-")
