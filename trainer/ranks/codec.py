"""The samples of a batch as bytes, for ranks without the data pool: msgspec, arrays as raw memory, no pickle.

Each branch is sent once, parents first, so a batch takes the bytes of its unique tokens. The fields are those of the dataclasses: a new field
is sent without a change here if it is a number, a text, an array or None.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import msgspec
import numpy as np

from orchestrator.trajectory.branch import Branch
from trainer.batch import BatchPart
from trainer.samples import Sample


class Array(msgspec.Struct, tag="array"):
    """A numpy array: its dtype as numpy writes it, its shape, its bytes in C order."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


Value = None | bool | int | float | str | Array
Row = dict[str, Value]


class Samples(msgspec.Struct, tag="samples"):
    """`branches[i]["parent"]` is an index below i, −1 for none; `samples[part][i]["tokens"]` is an index into the branches."""

    branches: list[Row]
    samples: list[list[Row]]


def parts_to_bytes(parts: Sequence[BatchPart]) -> bytes:
    """The samples of each train step, without the rollouts, which only reports need."""
    places: dict[Branch, int] = {}
    branches: list[Row] = []
    samples = [
        [_row(sample, tokens=_put(sample.tokens, places, branches)) for sample in part.samples]
        for part in parts
    ]
    return msgspec.msgpack.encode(Samples(branches, samples))


def parts_from_bytes(data: bytes) -> list[BatchPart]:
    """The inverse, without rollouts. Raises msgspec.DecodeError or ValueError for other data."""
    message = msgspec.msgpack.decode(data, type=Samples)
    branches: list[Branch] = []
    for row in message.branches:
        values = _values(row)
        parent = values.pop("parent")
        branches.append(Branch(parent=None if parent < 0 else branches[parent], **values))
    return [
        BatchPart(
            [Sample(tokens=branches[values.pop("tokens")], **values) for values in map(_values, rows)],
            [],
        )
        for rows in message.samples
    ]


def _put(branch: Branch, places: dict[Branch, int], rows: list[Row]) -> int:
    """The index of a branch. Adds it and its ancestors that are missing."""
    missing: list[Branch] = []
    ancestor: Branch | None = branch
    while ancestor is not None and ancestor not in places:
        missing.append(ancestor)
        ancestor = ancestor.parent
    for added in reversed(missing):
        places[added] = len(rows)
        rows.append(_row(added, parent=-1 if added.parent is None else places[added.parent]))
    return places[branch]


def _row(record: Any, **instead: int) -> Row:
    return {
        field.name: instead[field.name] if field.name in instead else _value(getattr(record, field.name))
        for field in fields(record)
        if field.init
    }


def _value(value: Any) -> Value:
    if isinstance(value, np.ndarray):
        return Array(value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes())
    assert value is None or isinstance(value, bool | int | float | str), f"{type(value)} has no bytes"
    return value


def _values(row: Mapping[str, Value]) -> dict[str, Any]:
    return {
        name: np.frombuffer(value.data, np.dtype(value.dtype)).reshape(value.shape)
        if isinstance(value, Array)
        else value
        for name, value in row.items()
    }
