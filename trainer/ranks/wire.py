"""The samples of a batch as bytes, for ranks that know no data pool: msgspec, arrays as they lie in memory, no pickle.

Branches are sent once each, parents first, so a batch takes the bytes of its unique tokens. Fields are those of the dataclasses: one that is
added there travels without a word here, as long as it is a number, a text, an array or None.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import msgspec
import numpy as np

from orchestrator.contracts.branch import Branch
from trainer.batch import Part
from trainer.samples import Sample


class Array(msgspec.Struct, tag="array"):
    """A numpy array: its dtype as numpy writes it, its shape, its bytes in C order."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


Value = None | bool | int | float | str | Array
Row = dict[str, Value]


class Samples(msgspec.Struct, tag="samples"):
    """`branches[i]["parent"]` is a place before i, −1 for none; `samples[part][i]["tokens"]` a place among the branches."""

    branches: list[Row]
    samples: list[list[Row]]


def parts_to_bytes(parts: Sequence[Part]) -> bytes:
    """The samples of each train step; not what only reports need."""
    places: dict[Branch, int] = {}
    branches: list[Row] = []
    samples = [
        [_row(sample, tokens=_put(sample.tokens, places, branches)) for sample in part.samples]
        for part in parts
    ]
    return msgspec.msgpack.encode(Samples(branches, samples))


def parts_from_bytes(data: bytes) -> list[Part]:
    """The inverse, without rollouts. Raises msgspec.DecodeError or ValueError when it is something else."""
    message = msgspec.msgpack.decode(data, type=Samples)
    branches: list[Branch] = []
    for row in message.branches:
        values = _values(row)
        parent = values.pop("parent")
        branches.append(Branch(parent=None if parent < 0 else branches[parent], **values))
    return [
        Part(
            [Sample(tokens=branches[values.pop("tokens")], **values) for values in map(_values, rows)],
            [],
        )
        for rows in message.samples
    ]


def _put(branch: Branch, places: dict[Branch, int], rows: list[Row]) -> int:
    """The place of a branch, which is added with all above it that are not there yet."""
    missing: list[Branch] = []
    above: Branch | None = branch
    while above is not None and above not in places:
        missing.append(above)
        above = above.parent
    for one in reversed(missing):
        places[one] = len(rows)
        rows.append(_row(one, parent=-1 if one.parent is None else places[one.parent]))
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
