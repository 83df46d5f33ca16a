"""python -m trainer.transport --path CHECKPOINT --name GROUP --receivers N: send one checkpoint's weights to one rollout server.

Its first line on stdout is JSON: the port at which receivers join, and the tensors in order, in parts of at most --part-bytes. It then
waits for the receivers and sends. Exit status 0: all was sent; 1: one sentence on stderr. The parent process ends it by closing its stdin.
"""

import argparse
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.contracts.numbers import INT2, INT8, option, real, whole


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.transport", description="Send a checkpoint's weights."
    )
    parser.add_argument("--path", required=True, type=Path, help="directory of the checkpoint")
    parser.add_argument("--name", required=True, help="name of the process group")
    parser.add_argument(
        "--receivers",
        required=True,
        type=option(whole, least=1, most=INT2),
        help="ranks of the rollout server",
    )
    parser.add_argument(
        "--address", default="127.0.0.1", help="of this machine, as the rollout server reaches it"
    )
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument(
        "--part-bytes", type=option(whole, least=1, most=INT8), default=2**30, help="most bytes of one part"
    )
    parser.add_argument(
        "--timeout",
        type=option(real, least=0.001, most=1e6),
        default=600.0,
        help="seconds that a member may be silent",
    )
    return parser


def described(path: Path) -> Iterator[tuple[str, str, list[int], int]]:
    """Name, dtype as torch calls it, shape and bytes of every tensor, in the order of sending. Raises ValueError."""
    from safetensors import safe_open

    from trainer.model_directory import inspect_directory

    for file in inspect_directory(path).weight_files:
        try:
            with safe_open(str(file), framework="pt") as shard:
                for name in shard.keys():  # noqa: SIM118  not a mapping
                    tensor = shard.get_tensor(name)  # mapped, not read
                    yield name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), tensor.nbytes
        except Exception as error:
            raise ValueError(f"{file} cannot be read as safetensors: {error}") from error


def parts(tensors: Iterator[tuple[str, str, list[int], int]], most: int) -> list[dict[str, list[Any]]]:
    """The tensors in order, in parts of at most `most` bytes, unless one tensor has more."""
    groups: list[dict[str, list[Any]]] = []
    size = most + 1
    for name, dtype, shape, nbytes in tensors:
        if size + nbytes > most:
            groups.append({"names": [], "dtypes": [], "shapes": []})
            size = 0
        size += nbytes
        for key, value in zip(("names", "dtypes", "shapes"), (name, dtype, shape), strict=True):
            groups[-1][key].append(value)
    return groups


def send(given: argparse.Namespace) -> None:
    """Announce, wait for the receivers, send. Raises ValueError, RuntimeError and OSError."""
    import torch
    from safetensors import safe_open

    from trainer.model_directory import inspect_directory
    from trainer.transport.group import TransferGroup, listen

    if given.backend == "nccl" and not torch.cuda.is_available():
        raise ValueError(
            "NCCL sends from a GPU and this machine has none: let the servers read the directory"
        )
    groups = parts(described(given.path), given.part_bytes)
    store = listen(given.address, given.timeout)
    print(json.dumps({"port": store.port, "parts": groups}), flush=True)
    group = TransferGroup(
        store,
        given.name,
        rank=0,
        size=given.receivers + 1,
        backend=given.backend,
        address=given.address,
        timeout_s=given.timeout,
    )
    for file in inspect_directory(given.path).weight_files:
        with safe_open(str(file), framework="pt") as shard:
            for name in shard.keys():  # noqa: SIM118  not a mapping
                group.broadcast(shard.get_tensor(name).contiguous().to(group.device))


def main() -> int:
    """Exit status 0 or 1."""
    arguments = options().parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sent = threading.Event()
    ending = threading.Thread(target=_end_with_stdin, args=(sent,), daemon=True)
    ending.start()
    try:
        send(arguments)
    except (ValueError, RuntimeError, OSError) as error:
        print(str(error).partition("\n")[0], file=sys.stderr)
        return 1
    sent.set()
    ending.join()  # the receivers' store is in this process
    return 0


def _end_with_stdin(sent: threading.Event) -> None:
    """End this process when its stdin closes: the parent process is gone, or does not need it any more."""
    os.read(0, 1)
    os._exit(0 if sent.is_set() else 1)


if __name__ == "__main__":
    sys.exit(main())
