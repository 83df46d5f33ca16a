"""How the ranks of one trainer find each other: facts are compared, then the process group is made, then rank 0 gives orders.

over the store (TCP, from rank 0)    facts, the configuration, orders: small, and waited for as long as it takes
over the process group               samples, gradients, parameters: whoever is silent for `clock.rank_silence_s` is lost
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

from orchestrator.config import Config
from orchestrator.contracts.errors import ConfigurationError
from trainer.ranks.meeting import Ranks
from trainer.ranks.place import Place, RankLost, sentence
from trainer.ranks.same import Facts, difference, facts

START_S = 600.0  # large libraries are loaded over a network
LOOK_S = 10.0


class Load(msgspec.Struct, tag="load"):
    """Stand on a published version. `version`: the number that it serves under."""

    path: str
    manifest_sha: str
    version: int


class Train(msgspec.Struct, tag="train"):
    """Train the batch that follows over the process group."""


class Save(msgspec.Struct, tag="save"):
    """Write a version; `digest` is the batch's, hex."""

    root: str
    version: int
    batch_no: int
    digest: str


class End(msgspec.Struct, tag="end"):
    """There is nothing more to do."""


Order = Load | Train | Save | End


class Orders:
    """What rank 0 tells the others, one after the other."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._number = 0

    def give(self, order: Order) -> None:
        self._store.set(f"order/{self._number}", msgspec.json.encode(order).decode())
        self._number += 1

    def next(self) -> Order:
        """Waits as long as it takes. Raises RankLost when rank 0 is gone."""
        key = f"order/{self._number}"
        self._number += 1
        while True:
            try:
                self._store.wait([key], timedelta(seconds=LOOK_S))
            except dist.DistStoreError:
                continue  # there was none yet
            except dist.DistError as error:
                raise RankLost(sentence("rank 0 is gone")) from error
            found: Order = msgspec.json.decode(self._store.get(key), type=Order)
            return found


@contextmanager
def leading(place: Place, config: Config, arguments: dict[str, str]) -> Iterator[tuple[Ranks, Orders]]:
    """Rank 0, from the meeting of all ranks to their end. Raises ConfigurationError when they differ, RankLost when one does not come."""
    store = _store(place)
    device = device_of(place)
    store.set("config", msgspec.json.encode(config.to_json()).decode())
    mine = facts(device.type, arguments)
    try:
        keys = [f"facts/{rank}" for rank in range(1, place.size)]
        store.wait(keys, timedelta(seconds=START_S))
        others = [msgspec.json.decode(store.get(key), type=Facts) for key in keys]
    except dist.DistError as error:
        raise RankLost(f"not all of {place.size} ranks came to the meeting within {START_S:.0f} s") from error
    verdict = difference([mine, *others])
    store.set("verdict", verdict)
    if verdict:
        raise ConfigurationError(verdict)
    orders = Orders(store)
    with _grouped(place, store, device, config.clock.rank_silence_s) as ranks:
        try:
            yield ranks, orders
        finally:
            with suppress(dist.DistError):
                orders.give(End())


@contextmanager
def following(place: Place, arguments: dict[str, str]) -> Iterator[tuple[Ranks, Orders, Config]]:
    """Any other rank, with the configuration that rank 0 read. Raises as `leading`."""
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
    with _grouped(place, store, device, config.clock.rank_silence_s) as ranks:
        yield ranks, Orders(store), config


def device_of(place: Place) -> torch.device:
    """A GPU of its own for each rank of a machine that has any, else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", place.rank)))


@contextmanager
def _grouped(place: Place, store: Store, device: torch.device, silence_s: float) -> Iterator[Ranks]:
    """The default process group, made and, unless an error ends it, unmade."""
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
    """The store that rank 0 holds: on the socket that is open already, else as torchrun says."""
    patience = timedelta(seconds=START_S)
    if place.listener is not None:
        own: Store = TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            place.size,
            True,
            patience,
            wait_for_workers=False,
            master_listen_fd=place.listener,
        )
        return own
    given: Store = next(rendezvous("env://", timeout=patience))[0]
    return given
