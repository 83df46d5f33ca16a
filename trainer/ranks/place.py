"""Where this process stands among the ranks of a trainer, and how ranks of one machine are started: knows no torch.

Under torchrun the environment says it ($RANK, $WORLD_SIZE, $MASTER_ADDR, $MASTER_PORT). `python -m trainer --ranks N` starts the others itself: it
forks them when the libraries are loaded, so N ranks cost the start of one. They listen on loopback alone, and they end when it ends,
however it ends: each waits for the end of a pipe that nobody else holds open.
"""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio

from orchestrator.contracts.errors import PenstockError

LOOK_S = 0.1
END_S = 3.0
NAMED_S = 1.0


class RankLost(PenstockError):
    """Another rank is dead or silent. What was not committed is trained again by the next start."""


@dataclass(frozen=True, slots=True)
class Place:
    """Rank `rank` of `size`. `listener`: the open socket on which rank 0 of this machine alone is met; None: rendezvous is torchrun's."""

    rank: int
    size: int
    listener: int | None = None


def place_given(environment: Mapping[str, str]) -> Place | None:
    """Where torchrun put this process; None: it was not started as one of several. ValueError when that is not said in whole."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if "WORLD_SIZE" not in environment or environment["WORLD_SIZE"] == "1":
        return None
    missing = [name for name in names if name not in environment]
    if missing:
        raise ValueError(f"$WORLD_SIZE is set, but not ${missing[0]}: start ranks with torchrun, or unset it")
    rank, size = environment["RANK"], environment["WORLD_SIZE"]
    if not (rank.isdigit() and size.isdigit() and int(rank) < int(size)):
        raise ValueError(f"$RANK is {rank!r} and $WORLD_SIZE {size!r}: there is no such rank")
    return Place(int(rank), int(size))


@dataclass(slots=True)
class Followers:
    """The other ranks of this machine, children of rank 0."""

    size: int
    pipe: int  # its end is theirs
    ranks: dict[int, int] = field(default_factory=dict)  # by process id, while they live
    lost: str = ""  # what became of the first that died before its time

    def look(self) -> str:
        """What became of the first rank that died; empty: all live, or ended as told."""
        for pid, rank in list(self.ranks.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if not done:
                continue
            del self.ranks[pid]
            code = os.waitstatus_to_exitcode(status)
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
            if code and not self.lost:
                self.lost = f"rank {rank} of {self.size} {how}"
        return self.lost

    def named(self) -> str:
        """The same, for a loss that showed in a collective: the death of a process is seen a moment later. Empty: it is none of these."""
        deadline = time.monotonic() + NAMED_S
        while not self.look() and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        return sentence(self.lost) if self.lost else ""

    async def watch(self) -> None:
        """Raise RankLost as soon as one dies."""
        while not self.look():
            await anyio.sleep(LOOK_S)
        raise RankLost(sentence(self.lost))

    def end(self) -> None:
        """Tell them to end, and see to it that they do."""
        with contextlib.suppress(BrokenPipeError):  # all are gone
            os.write(self.pipe, b"." * self.size)
        os.close(self.pipe)
        deadline = time.monotonic() + END_S
        while self.ranks and time.monotonic() < deadline:
            self.look()
            time.sleep(0.01)
        for pid in self.ranks:
            os.kill(pid, signal.SIGKILL)
        for pid in list(self.ranks):
            os.waitpid(pid, 0)
        self.ranks.clear()


def sentence(what: str) -> str:
    """What people read of a rank that was lost."""
    return f"{what}, so the trainer ends; nothing was saved over, and its next start goes on from the last commit"


def fork(size: int) -> tuple[Place, Followers | None]:
    """Start ranks 1 … size − 1 as copies of this process, which becomes rank 0. Returns in each of them. Raises OSError.

    Call it when everything slow is imported and before there is a thread, an event loop or a connection.
    """
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(size)
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(listener.getsockname()[1]), WORLD_SIZE=str(size), RANK="0"
    )
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    ends, pipe = os.pipe()
    followers = Followers(size, pipe)
    for rank in range(1, size):
        pid = os.fork()
        if pid == 0:
            os.close(pipe)
            listener.close()
            os.environ["RANK"] = str(rank)
            # Who stops the trainer tells the whole process group; rank 0 obeys, and the others end with it.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            threading.Thread(target=_end_with, args=(ends, rank), daemon=True).start()
            return Place(rank, size), None
        followers.ranks[pid] = rank
    os.close(ends)
    return Place(0, size, listener.detach()), followers


def _end_with(pipe: int, rank: int) -> None:
    """End this process when rank 0 says so, or is gone without a word."""
    told = os.read(pipe, 1)
    if not told:
        with contextlib.suppress(OSError):
            os.write(2, f"trainer: rank {rank}: {sentence('rank 0 is gone')}\n".encode())
    os._exit(0 if told else 1)
