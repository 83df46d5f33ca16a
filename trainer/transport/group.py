"""The process group of one transfer. Rank 0 sends; the ranks of a rollout server are the others.

Both sides must look for each other under the same keys of the store. Those are what `torch.distributed` makes of a named group, as
SGLang does: NAME, then NAME/, then the device's kind.
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
"""What carries tensors, and the kind of device that they lie on."""


def listen(address: str, timeout_s: float) -> TCPStore:
    """The store at which ranks meet, on a free port of `address` (its `port`). Raises RuntimeError where it cannot listen."""
    return TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))


def connect(address: str, port: int, timeout_s: float) -> TCPStore:
    """The store of somebody else. Raises RuntimeError when nobody listens there within `timeout_s`."""
    return TCPStore(address, port, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))


class Group:
    """One member of a transfer's group. The constructor waits until all have joined. Raises RuntimeError after `timeout_s`."""

    def __init__(
        self, store: Store, name: str, rank: int, size: int, *, backend: str, address: str, timeout_s: float
    ) -> None:
        self._store = store  # it lives as long as the group
        self.device = torch.device(BACKENDS[backend])
        place = PrefixStore(f"{BACKENDS[backend]}/", PrefixStore(f"{name}/", PrefixStore(name, store)))
        timeout = timedelta(seconds=timeout_s)
        self._group = (
            _gloo(place, rank, size, address, timeout)
            if backend == "gloo"
            else _nccl(place, rank, size, timeout)
        )

    def broadcast(self, tensor: Tensor) -> None:
        """Rank 0's `tensor` to all, in place. Raises RuntimeError when another member is gone, or silent for the group's `timeout_s`."""
        options = BroadcastOptions()
        options.rootRank = 0
        self._group.broadcast([tensor], options).wait()


def _gloo(store: Store, rank: int, size: int, address: str, timeout: timedelta) -> Any:
    """On loopback where the store is, else on the interface that gloo finds ($GLOO_SOCKET_IFNAME)."""
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
