"""The meeting of one trainer's ranks: they compare facts, make the process group, then rank 0 gives orders.

over the store (TCP, from rank 0)    facts, the configuration, orders: small; ranks wait for orders without a limit
over the process group               samples, gradients, parameters: a rank that is silent for `timeouts.rank_silence_s` is lost
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.settings.config import Config
from trainer.ranks.consistency import Facts, difference, facts
from trainer.ranks.process_group import Ranks
from trainer.ranks.rank_env import Place, RankLost, sentence

START_S = 600.0  # loading large libraries over a network is slow
POLL_INTERVAL_S = 10.0


class LoadOrder(msgspec.Struct, tag="load"):
    """Load a published version. `version`: the number under which it is served."""

    path: str
    manifest_sha: str
    version: int


class Train(msgspec.Struct, tag="train"):
    """Train the batch that follows over the process group."""


class Save(msgspec.Struct, tag="save", kw_only=True):
    """Write a version; `digest` is the batch's, hex."""

    root: str
    version: int
    batch_no: int
    digest: str


class End(msgspec.Struct, tag="end"):
    """End: all work is done."""


Order = LoadOrder | Train | Save | End


class Orders:
    """The orders of rank 0 to the others, in sequence."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._number = 0

    def give(self, order: Order) -> None:
        self._store.set(f"order/{self._number}", msgspec.json.encode(order).decode())
        self._number += 1

    def fail(self, why: str) -> None:
        """Tell rank 0 why the present order failed on this rank. Nothing if rank 0 is gone."""
        with suppress(dist.DistError):
            self._store.set(f"failed/{self._number}", why)

    def failed(self) -> str | None:
        """Why the present order failed on another rank; None: none has reported one."""
        key = f"failed/{self._number}"
        try:
            return self._store.get(key).decode() if self._store.check([key]) else None
        except dist.DistError:
            return None

    def next(self) -> Order:
        """Wait for the next order, without a limit. Raises RankLost if rank 0 is gone."""
        key = f"order/{self._number}"
        self._number += 1
        while True:
            try:
                self._store.wait([key], timedelta(seconds=POLL_INTERVAL_S))
            except dist.DistStoreError:
                continue  # none yet
            except dist.DistError as error:
                raise RankLost(sentence("rank 0 is gone")) from error
            found: Order = msgspec.json.decode(self._store.get(key), type=Order)
            return found


@contextmanager
def leading(place: Place, config: Config, arguments: dict[str, str]) -> Iterator[tuple[Ranks, Orders]]:
    """Rank 0, from the meeting of all ranks to their end. Raises ConfigurationError if they differ, RankLost if one does not come."""
    store = _store(place)
    device = device_of(place)
    store.set("config", msgspec.json.encode(config.to_json()).decode())
    local_facts = facts(device.type, arguments)
    try:
        keys = [f"facts/{rank}" for rank in range(1, place.size)]
        store.wait(keys, timedelta(seconds=START_S))
        others = [msgspec.json.decode(store.get(key), type=Facts) for key in keys]
    except dist.DistError as error:
        raise RankLost(f"not all of {place.size} ranks came to the meeting within {START_S:.0f} s") from error
    verdict = difference([local_facts, *others])
    store.set("verdict", verdict)
    if verdict:
        raise ConfigurationError(verdict)
    orders = Orders(store)
    with _grouped(place, store, device, config.timeouts.rank_silence_s) as ranks:
        try:
            yield ranks, orders
        finally:
            with suppress(dist.DistError):
                orders.give(End())


@contextmanager
def following(place: Place, arguments: dict[str, str]) -> Iterator[tuple[Ranks, Orders, Config]]:
    """Any other rank, with the configuration that rank 0 read. Raises like `leading`."""
    store = _store(place)
    device = device_of(place)
    try:
        store.set(f"facts/{place.rank}", msgspec.json.encode(facts(device.type, arguments)).decode())
        store.wait(["config", "verdict"], timedelta(seconds=START_S))
        verdict = store.get("verdict").decode()
        config = Config.from_json(msgspec.json.decode(store.get("config")))
    except dist.DistError as error:
        raise RankLost("rank 0 ended before the ranks had met") from error
    if verdict:
        raise ConfigurationError(verdict)
    with _grouped(place, store, device, config.timeouts.rank_silence_s) as ranks:
        yield ranks, Orders(store), config


def device_of(place: Place) -> torch.device:
    """One GPU per rank on a machine with GPUs, otherwise the CPU. Without $LOCAL_RANK, every machine has the same number of ranks, one after the
    other, and one GPU for each."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local_rank = os.environ.get("LOCAL_RANK", place.rank % torch.cuda.device_count())
    return torch.device("cuda", int(local_rank))


@contextmanager
def _grouped(place: Place, store: Store, device: torch.device, silence_s: float) -> Iterator[Ranks]:
    """Make the default process group; destroy it at the end unless an error occurred."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    options: dict[str, Any] = {"device_id": device} if device.type == "cuda" else {}
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        store=PrefixStore("group", store),
        rank=place.rank,
        world_size=place.size,
        timeout=timedelta(seconds=silence_s),
        **options,
    )
    yield Ranks(place.rank, place.size, device)
    dist.destroy_process_group()


def _store(place: Place) -> Store:
    """Rank 0's store: on the socket that is already open, otherwise by torchrun's rendezvous."""
    patience = timedelta(seconds=START_S)
    if place.listener is not None:
        server: Store = TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            place.size,
            True,
            patience,
            wait_for_workers=False,
            master_listen_fd=place.listener,
        )
        return server
    store: Store = next(rendezvous("env://", timeout=patience))[0]
    return store
