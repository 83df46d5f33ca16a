"""safetensors files whose header lies about what follows: every reader refuses them in one sentence that names the file."""

import json
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer.benchmarks.random_model import write_random_model
from trainer.model import load_model
from trainer.model_directory import inspect_directory
from trainer.serving.dense import _read
from trainer.sft.corpus import FORMAT, Demonstrations
from trainer.transport.__main__ import described


def tensor(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def file(header: object, data: bytes = bytes(16), length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


LIES = {
    "no bytes": b"",
    "half a length": b"\x01\x02",
    "a length of 2^63": file({"a": tensor(0, 16, [4])}, length=1 << 63),
    "a length of 4 GiB": file({"a": tensor(0, 16, [4])}, length=1 << 32),
    "a length beyond the file": file({"a": tensor(0, 16, [4])}, length=10_000),
    "no JSON": file(b"not JSON"),
    "JSON that is nested deeply": file(b'{"a":' + b"[" * 200_000),
    "a list": file([1, 2]),
    "offsets that overlap": file({"a": tensor(0, 16, [4]), "b": tensor(8, 16, [2])}),
    "offsets with a hole": file({"a": tensor(0, 4, [1]), "b": tensor(8, 16, [2])}),
    "offsets beyond the file": file({"a": tensor(0, 1 << 40, [1 << 38])}),
    "offsets that go back": file({"a": tensor(16, 0, [4])}),
    "offsets below zero": file({"a": tensor(-16, 0, [4])}),
    "a shape that overflows": file({"a": tensor(0, 16, [1 << 33, 1 << 33])}),
    "a shape of another size": file({"a": tensor(0, 16, [5])}),
    "a type that is none": file({"a": tensor(0, 16, [4], "F33")}),
    "bytes behind the last tensor": file({"a": tensor(0, 8, [2])}),
}


def demonstrations(place: Path, content: bytes) -> object:
    (place / "demonstrations.safetensors").write_bytes(content)
    return Demonstrations.load(place / "demonstrations.safetensors", tokenizer="t")


def served(place: Path, content: bytes) -> object:
    (place / "model.safetensors").write_bytes(content)
    return _read(inspect_directory(place))


def sent(place: Path, content: bytes) -> object:
    (place / "model.safetensors").write_bytes(content)
    return list(described(place))


def trained(place: Path, content: bytes) -> object:
    (place / "model.safetensors").write_bytes(content)
    return load_model(place, backend=None)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(
        tmp_path_factory.mktemp("model"), hidden=32, layers=1, heads=1, kv_heads=1, mlp=32
    )


@pytest.mark.parametrize("read", [demonstrations, served, sent, trained])
@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_refused_in_one_sentence(
    place: Path, read: Callable[[Path, bytes], object], lie: str
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=str(place)) as refused:
        read(place, LIES[lie])
    assert "\n" not in str(refused.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 512 << 10, (
        "KiB: no header is believed"
    )


@pytest.mark.parametrize(
    "arrays",
    [
        {"ids": tensor(0, 4, [2], "U16")},
        {"ids": tensor(0, 4, [2], "U16"), "action": tensor(4, 6, [2], "U8"), "other": tensor(6, 22, [2], "I64")},
        {"ids": tensor(0, 4, [2], "I16"), "action": tensor(4, 6, [2], "U8"), "offsets": tensor(6, 22, [2], "I64")},
        {"ids": tensor(0, 4, [2], "U16"), "action": tensor(4, 6, [2], "U8"), "offsets": tensor(6, 22, [2], "F64")},
        {"ids": tensor(0, 4, [1, 2], "U16"), "action": tensor(4, 6, [2], "U8"), "offsets": tensor(6, 22, [2], "I64")},
        {"ids": tensor(0, 4, [2], "U16"), "action": tensor(4, 6, [2], "U8"), "offsets": tensor(6, 22, [2], "I64")},
    ],
)  # fmt: skip
def test_a_file_of_demonstrations_with_other_arrays_is_refused(
    tmp_path: Path, arrays: dict[str, Any]
) -> None:
    header = {"__metadata__": {"format": FORMAT, "tokenizer": "t"}, **arrays}
    size = max(each["data_offsets"][1] for each in arrays.values())
    with pytest.raises(ValueError, match=r"demonstrations.*remake the file"):
        demonstrations(tmp_path, file(header, bytes(size)))
