"""The process group of one transfer. Rank 0 sends; the ranks of a rollout server are the others.

Both sides must use the same keys of the store. They are the keys that `torch.distributed` uses for a named group, as in
SGLang: NAME, then NAME/, then the device's kind.
"""

import ipaddress
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import (  # type: ignore[attr-defined]  # it exports them without saying so
    BroadcastOptions,
    PrefixStore,
    ProcessGroupGloo,
    Store,
    TCPStore,
)

BACKENDS = {"gloo": "cpu", "nccl": "cuda"}
"""The backend, and the kind of device that holds its tensors."""


def listen(address: str, timeout_s: float) -> TCPStore:
    """The store at which ranks meet, on a free port of `address` (its `port`). Raises RuntimeError if it cannot listen."""
    return TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))


def connect(address: str, port: int, timeout_s: float) -> TCPStore:
    """Another process's store. Raises RuntimeError if no process listens there within `timeout_s`."""
    return TCPStore(address, port, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))


class TransferGroup:
    """One member of a transfer's group. The constructor waits until all have joined. Raises RuntimeError after `timeout_s`."""

    def __init__(
        self, store: Store, name: str, *, rank: int, size: int, backend: str, address: str, timeout_s: float
    ) -> None:
        self._store = store  # it lives as long as the group
        self.device = torch.device(BACKENDS[backend])
        prefixed = PrefixStore(f"{BACKENDS[backend]}/", PrefixStore(f"{name}/", PrefixStore(name, store)))
        timeout = timedelta(seconds=timeout_s)
        self._group = (
            _gloo(prefixed, rank, size, address, timeout)
            if backend == "gloo"
            else _nccl(prefixed, rank, size, timeout)
        )

    def broadcast(self, tensor: Tensor) -> None:
        """Send rank 0's `tensor` to all, in place. Raises RuntimeError if another member is gone, or silent for the group's `timeout_s`."""
        options = BroadcastOptions()
        options.rootRank = 0
        self._group.broadcast([tensor], options).wait()


def _gloo(store: Store, rank: int, size: int, address: str, timeout: timedelta) -> Any:
    """A gloo group: on loopback if the store is there, otherwise on the interface that gloo finds ($GLOO_SOCKET_IFNAME)."""
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timeout
    device = (
        ProcessGroupGloo.create_device(hostname=address)
        if _loopback(address)
        else ProcessGroupGloo.create_default_device()
    )
    options._devices = [device]
    return ProcessGroupGloo(store, rank, size, options)


def _nccl(store: Store, rank: int, size: int, timeout: timedelta) -> Any:
    from torch.distributed import ProcessGroupNCCL  # not in every build

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    return ProcessGroupNCCL(store, rank, size, options)


def _loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
