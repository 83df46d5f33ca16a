"""Which failures of training may be the fault of a batch's content, and how they are described.

| raised | fault | the batch |
|---|---|---|
| BadBatch | its content | is quarantined at once |
| PenstockError, a lost rank, errors of a disk, of Postgres, of a GPU and its memory | platform, configuration | is trained at the next start |
| anything else, values that Postgres refuses | perhaps its content | is tried again, and quarantined after MAX_FAILURES |

A GPU without memory is a matter of configuration: `trainer.pack_tokens` bounds a pass and changes no result, so no batch has to be lost.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from sqlalchemy.exc import DBAPIError, StatementError

from orchestrator.contracts.errors import PenstockError
from orchestrator.contracts.quote import cut
from orchestrator.pool.transact import DRIVER_ERRORS, broken_client, of_content, sentence

_MAX_CHARACTERS = 300
_OF_MACHINE = (
    "CUDA error",
    "CUBLAS_STATUS",
    "cuDNN error",
    "CUDNN_STATUS",
    "NCCL error",
    "can't start new thread",
)
_OF_HOST = "DefaultCPUAllocator"  # PyTorch's own, which raises no MemoryError
_BY_CONTENT = "device-side assert"  # a CUDA error by an index out of range


class NoMemory(PenstockError):
    """The GPU has no memory for a pass, or for the learner."""


class RankFailed(PenstockError):
    """Training failed on some rank alone, perhaps because of the batch's content. The ranks cannot go on together: they start again."""


def of_platform(error: BaseException) -> bool:
    """Whether something else than the batch's content is at fault for certain."""
    if of_content(error) or broken_client(error):
        return False
    if isinstance(error, StatementError) and not isinstance(error, DBAPIError):
        return False  # a value that the client cannot send
    if isinstance(error, (PenstockError, torch.OutOfMemoryError, *DRIVER_ERRORS)) or not isinstance(
        error, Exception
    ):
        return True
    return any(map(_of_machine, _causes(error)))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _of_machine(error: BaseException) -> bool:
    text = str(error)
    named = isinstance(error, RuntimeError) and any(word in text for word in _OF_MACHINE)
    return isinstance(error, (OSError, torch.OutOfMemoryError)) or (named and _BY_CONTENT not in text)


def described(error: BaseException) -> str:
    """The error in one line, for people."""
    text = sentence(error) if isinstance(error, DBAPIError) else str(error).partition("\n")[0]
    return f"{type(error).__name__}: {cut(text, _MAX_CHARACTERS)}" if text else type(error).__name__


def no_memory(batch_no: int) -> NoMemory:
    """The sentence for people about a GPU without memory."""
    return NoMemory(
        f"the GPU has no memory left for batch {batch_no}: lower trainer.pack_tokens and trainer.pack_pairs, which change no result, or end "
        "other programs on that GPU; then start the trainer again, and it trains the same batch"
    )


@contextmanager
def loading() -> Iterator[None]:
    """The load of a learner in place of one to which nothing refers any more: first its memory is freed. Raises NoMemory."""
    gc.collect()  # a model is part of cycles of references
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            pass
        elif isinstance(error, MemoryError) or _OF_HOST in str(error):
            raise NoMemory(
                "this host has no memory left to load the weights and the optimizer's moments: end other programs on it, or raise its memory limit; "
                "then start the trainer again, and it goes on from the last commit"
            ) from error
        else:
            raise
        raise NoMemory(
            "the GPU has no memory left to load the weights and the optimizer's moments: end other programs on that GPU, or spread the "
            "trainer over more GPUs (trainer.ranks); then start it again, and it goes on from the last commit"
        ) from error
