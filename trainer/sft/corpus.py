"""Demonstrations, and the file that holds them.

A demonstration is one conversation as the policy saw it: the ids of the last state and action of a recorded rollout, and for
every token whether the policy must produce it (an *action* token), receives it (a *state* token), or sampled it and must not learn it.

The file is safetensors (no pickle, readable from any language):

    ids      uint16[N]    all demonstrations, one after the other; uint32 if the vocabulary is larger
    action   uint8[N]     the token's role: 0 = state token, 1 = action token, 2 = sampled, not to be learned
    offsets  int64[D+1]   demonstration d is ids[offsets[d]:offsets[d+1]]

with the metadata `format` = "penstock-demonstrations-1" and `tokenizer` = sha256 of the tokenizer.json that made the ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

FORMAT: Final = "penstock-demonstrations-1"

Tokens = npt.NDArray[np.unsignedinteger[Any]]


class TokenRole(IntEnum):
    """The values of `Demonstrations.action`."""

    STATE = 0
    ACTION = 1
    UNLEARNED = 2  # sampled by the policy, in a step that is marked or cut


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Demonstrations:
    """D demonstrations with N tokens in all; arrays as in the file. `tokenizer` is the sha256 of its tokenizer.json.

    Raises ValueError if the arrays do not fit together.
    """

    ids: Tokens
    action: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]
    tokenizer: str

    def __post_init__(self) -> None:
        lengths = np.diff(self.offsets)
        ends_fit = len(self.offsets) > 1 and self.offsets[0] == 0 and self.offsets[-1] == len(self.ids)
        if (
            not ends_fit
            or (lengths < 2).any()
            or self.action.shape != self.ids.shape
            or (self.action > max(TokenRole)).any()
        ):
            raise ValueError("the arrays of the demonstrations do not fit together: remake the file")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> tuple[Tokens, npt.NDArray[np.uint8]]:
        """(ids, action) of one demonstration."""
        span = slice(self.offsets[index], self.offsets[index + 1])
        return self.ids[span], self.action[span]

    @classmethod
    def of(cls, samples: Iterable[tuple[Sequence[int], Sequence[int]]], *, tokenizer: str) -> Demonstrations:
        """From pairs (ids, action) of equal length; False is STATE, True is ACTION. Raises ValueError for an id that does not fit into 32 bits."""
        ids: list[int] = []
        action: list[int] = []
        offsets = [0]
        for tokens, produced in samples:
            ids += tokens
            action += produced
            offsets.append(len(ids))
        if ids and not 0 <= min(ids) <= max(ids) < 1 << 32:
            raise ValueError("token ids must lie between 0 and 2**32 - 1")
        width = np.uint16 if max(ids, default=0) < 1 << 16 else np.uint32
        return cls(
            ids=np.array(ids, width),
            action=np.array(action, np.uint8),
            offsets=np.array(offsets, np.int64),
            tokenizer=tokenizer,
        )

    def save(self, path: Path) -> None:
        save_file(
            {"ids": self.ids, "action": self.action, "offsets": self.offsets},
            path,
            metadata={"format": FORMAT, "tokenizer": self.tokenizer},
        )
        path.chmod(0o644)  # the library makes it 0600

    @classmethod
    def load(cls, path: Path, *, tokenizer: str) -> Demonstrations:
        """Read a file whose ids were made by `tokenizer`. Raises ValueError if it is not such a file, or another tokenizer made the ids."""
        if path.is_dir():
            raise ValueError(f"{path} is a directory: name the file of demonstrations in it")
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path} is not a file of demonstrations: {error}") from error
        if metadata.get("format") != FORMAT:
            raise ValueError(
                f"{path} is not a file of demonstrations (format {metadata.get('format')!r}, not {FORMAT!r})"
            )
        if metadata.get("tokenizer") != tokenizer:
            raise ValueError(
                f"{path} was made with another tokenizer than the model's: record the demonstrations again"
            )
        kinds = {name: (array.dtype.name, array.ndim) for name, array in arrays.items()}
        if not any(
            kinds == {"ids": (width, 1), "action": ("uint8", 1), "offsets": ("int64", 1)}
            for width in ("uint16", "uint32")
        ):
            raise ValueError(
                f"{path} is not a file of demonstrations: its arrays are {kinds}; remake the file"
            )
        return cls(ids=arrays["ids"], action=arrays["action"], offsets=arrays["offsets"], tokenizer=tokenizer)


def tokenizer_digest(model: Path) -> str:
    """sha256 of a model directory's tokenizer.json, hexadecimal."""
    path = model / "tokenizer.json"
    if not path.exists():
        raise ValueError(f"{model} has no tokenizer.json: demonstrations cannot be checked against it")
    return hashlib.sha256(path.read_bytes()).hexdigest()
