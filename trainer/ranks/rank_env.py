"""This process's rank, and the start of the other ranks on one machine. Does not import torch.

Under torchrun the rank is in the environment ($RANK, $WORLD_SIZE, $MASTER_ADDR, $MASTER_PORT). `python -m trainer --ranks N` starts the others
itself: it forks them after the libraries are loaded, so N ranks cost the start of one. They listen only on loopback. They always end with
rank 0: each waits for the end of a pipe that only rank 0 holds open.
"""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import anyio

from orchestrator.contracts.errors import PenstockError
from orchestrator.contracts.numbers import whole

POLL_INTERVAL_S = 0.1
END_S = 3.0
NAMED_S = 1.0
_last_word = threading.Lock()


class RankLost(PenstockError):
    """Another rank is dead or silent. After the next start, uncommitted batches are trained again."""


@dataclass(frozen=True, slots=True)
class Place:
    """Rank `rank` of `size`. `listener`: the open socket at which the forked ranks meet rank 0. None: on the others, and under torchrun."""

    rank: int
    size: int
    listener: int | None = None


def place_given(environment: Mapping[str, str]) -> Place | None:
    """The place that torchrun gave this process; None: it is the only one. Raises ValueError if the environment is incomplete or invalid."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if "WORLD_SIZE" not in environment or environment["WORLD_SIZE"] == "1":
        return None
    missing = [name for name in names if name not in environment]
    if missing:
        raise ValueError(f"$WORLD_SIZE is set, but not ${missing[0]}: start ranks with torchrun, or unset it")
    rank, size = environment["RANK"], environment["WORLD_SIZE"]
    try:
        return Place(whole(rank, most=whole(size, least=1) - 1), int(size))
    except ValueError:
        raise ValueError(f"$RANK is {rank!r} and $WORLD_SIZE {size!r}: that rank does not exist") from None


@dataclass(slots=True, kw_only=True)
class Followers:
    """The other ranks of this machine, children of rank 0."""

    size: int
    pipe: int  # the write end; the followers hold the read end
    ranks: dict[int, int] = field(default_factory=dict)  # by process id, while they live
    lost: str = ""  # how the first rank that died early ended

    def poll(self) -> str:
        """How the first rank that died early ended; empty: all live, or ended as ordered."""
        for pid, rank in list(self.ranks.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if not done:
                continue
            del self.ranks[pid]
            code = os.waitstatus_to_exitcode(status)
            ending = f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
            if code and not self.lost:
                self.lost = f"rank {rank} of {self.size} {ending}"
        return self.lost

    def named(self) -> str:
        """Like `poll`, after a collective failed: the death of a process shows a moment later. Returns a sentence; empty: none of these died."""
        deadline = time.monotonic() + NAMED_S
        while not self.poll() and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
        return sentence(self.lost) if self.lost else ""

    async def watch(self) -> None:
        """Raise RankLost as soon as one dies."""
        while not self.poll():
            await anyio.sleep(POLL_INTERVAL_S)
        raise RankLost(sentence(self.lost))

    def end(self) -> None:
        """Order them to end; kill those that do not."""
        with contextlib.suppress(BrokenPipeError):  # all are gone
            os.write(self.pipe, b"." * self.size)
        os.close(self.pipe)
        deadline = time.monotonic() + END_S
        while self.ranks and time.monotonic() < deadline:
            self.poll()
            time.sleep(0.01)
        for pid in self.ranks:
            os.kill(pid, signal.SIGKILL)
        for pid in list(self.ranks):
            os.waitpid(pid, 0)
        self.ranks.clear()


def sentence(what: str) -> str:
    """The message for people about a lost rank."""
    return f"{what}, so the trainer ends; nothing was saved over, and its next start goes on from the last commit"


def fork(size: int) -> tuple[Place, Followers | None]:
    """Start ranks 1 … size − 1 as copies of this process, which becomes rank 0. Returns in each of them. Raises OSError.

    Call it after the slow imports and before there is a thread, an event loop or a connection.
    """
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(size)
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(listener.getsockname()[1]), WORLD_SIZE=str(size), RANK="0"
    )
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    ends, pipe = os.pipe()
    followers = Followers(size=size, pipe=pipe)
    for rank in range(1, size):
        pid = os.fork()
        if pid == 0:
            os.close(pipe)
            listener.close()
            os.environ["RANK"] = str(rank)
            # A signal to the process group reaches every rank; rank 0 handles it, and the others end with rank 0.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            threading.Thread(target=_end_with, args=(ends, rank), daemon=True).start()
            return Place(rank, size), None
        followers.ranks[pid] = rank
    os.close(ends)
    return Place(0, size, listener.detach()), followers


def end_now(status: int, why: str = "") -> NoReturn:
    """End this process, with one sentence on stderr if `why` is one. Of several threads that notice the end, only the first one speaks."""
    _last_word.acquire()  # kept: the others wait here until the process has ended
    if why:
        with contextlib.suppress(OSError):
            os.write(2, f"trainer: {why}\n".encode())
    os._exit(status)


def _end_with(pipe: int, rank: int) -> None:
    """End this process when rank 0 orders it, or is gone without an order."""
    message = os.read(pipe, 1)
    end_now(0 if message else 1, "" if message else f"rank {rank}: {sentence('rank 0 is gone')}")
