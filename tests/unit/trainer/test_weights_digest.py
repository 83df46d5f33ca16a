"""The digest of weights is of tensors, not of files; a header that lies is one sentence."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from orchestrator.runtime.weights_digest import weights_digest

A, B = torch.arange(6.0).reshape(2, 3), torch.ones(4, dtype=torch.bfloat16)


def saved(directory: Path, **files: dict[str, torch.Tensor]) -> list[Path]:
    directory.mkdir()
    paths = [directory / f"{name}.safetensors" for name in files]
    for path, tensors in zip(paths, files.values(), strict=True):
        save_file(tensors, path, metadata={"format": "pt", "of": path.name})
    return paths


def test_the_same_tensors_have_one_digest_in_any_files_and_any_order(tmp_path: Path) -> None:
    whole = weights_digest(saved(tmp_path / "whole", model={"a": A, "b": B}))
    shards = saved(tmp_path / "shards", one={"b": B}, two={"a": A})
    assert weights_digest(shards) == weights_digest(reversed(shards)) == whole
    assert len(whole) == 64


@pytest.mark.parametrize(
    "other",
    [
        {"a": A + 1e-3, "b": B},
        {"a": A.reshape(3, 2), "b": B},
        {"a": A.to(torch.float64), "b": B},
        {"c": A, "b": B},
        {"a": A},
        {"a": A, "b": B, "c": torch.zeros(0)},
    ],
    ids=["a value", "a shape", "a type", "a name", "one fewer", "one more"],
)
def test_another_tensor_has_another_digest(tmp_path: Path, other: dict[str, torch.Tensor]) -> None:
    one = weights_digest(saved(tmp_path / "one", model={"a": A, "b": B}))
    assert weights_digest(saved(tmp_path / "other", model=other)) != one


HEADERS = {
    "longer than the file": (2**40).to_bytes(8, "little") + b"{}",
    "cut": b"\x02",
    "no JSON": (2).to_bytes(8, "little") + b"{]",
    "no object": (2).to_bytes(8, "little") + b"[]",
    "nested": (20_005).to_bytes(8, "little") + b'{"a":' + b"[" * 20_000,
    "no text": (6).to_bytes(8, "little") + b'{"\xff":0}'[:6],
}
LIES = {
    "beyond the end": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
    "backwards": {"dtype": "F32", "shape": [1], "data_offsets": [8, 4]},
    "before the data": {"dtype": "F32", "shape": [1], "data_offsets": [-8, 0]},
    "no numbers": {"dtype": "F32", "shape": [1], "data_offsets": ["0", "4"]},
    "too few": {"dtype": "F32", "shape": [1], "data_offsets": [0]},
}


@pytest.mark.parametrize("name", [*HEADERS, *LIES])
def test_a_header_that_lies_is_one_sentence_that_names_the_file(tmp_path: Path, name: str) -> None:
    file = tmp_path / "model.safetensors"
    if name in HEADERS:
        file.write_bytes(HEADERS[name])
    else:
        header = json.dumps({"a": LIES[name]}).encode()
        file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(ValueError, match=r"model\.safetensors") as raised:
        weights_digest([file])
    assert "\n" not in str(raised.value)
