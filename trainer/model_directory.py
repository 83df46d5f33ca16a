"""The metadata of a Hugging Face model directory, read before anything heavy is imported.

All faults of a directory that show without opening its weights are found here and reported in one sentence
(ValueError), so that a bad path costs milliseconds and never a started process.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDirectory:
    """`config` is the unchanged config.json; `eos_ids` combines config, generation config and tokenizer config."""

    path: Path
    config: Mapping[str, Any]
    architecture: str
    model_type: str
    vocab_size: int
    context_length: int
    eos_ids: frozenset[int]
    weight_files: tuple[Path, ...]


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object")
    return value


def _as_ids(value: Any) -> set[int]:
    """An `eos_token_id` entry is absent, one id or a list of ids."""
    if value is None:
        return set()
    return {int(token) for token in value} if isinstance(value, list) else {int(value)}


def _weight_files(path: Path) -> tuple[Path, ...]:
    index = path / "model.safetensors.index.json"
    if index.exists():
        weight_map = _read_object(index).get("weight_map")
        names: list[Any] = list(weight_map.values()) if isinstance(weight_map, dict) else [None]
        if not all(isinstance(name, str) and name == Path(name).name for name in names):
            raise ValueError(
                f"{index} has no weight_map from tensors to files next to it: save the model again"
            )
        files = tuple(path / name for name in sorted(set(names)))
    else:
        files = (path / "model.safetensors",)
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        raise ValueError(f"{path} lacks {', '.join(missing) or 'weights'}: only safetensors weights are read")
    return files


def inspect_directory(path: Path) -> ModelDirectory:
    """Read config.json and the files next to it. The tokenizer is not needed here: a weight update may come without one."""
    if not path.is_dir():
        raise ValueError(f"no model directory at {path}")
    if not (path / "config.json").is_file():
        raise ValueError(f"{path} is not a model directory: config.json is missing")
    config = _read_object(path / "config.json")
    text = config.get("text_config", config)
    architectures = config.get("architectures") or []
    if not architectures or not str(architectures[0]).endswith(("ForCausalLM", "LMHeadModel")):
        raise ValueError(
            f"{path}/config.json names no causal language model: architectures = {architectures}"
        )
    try:
        vocab_size = int(text["vocab_size"])
        context_length = int(text.get("max_position_embeddings") or text["n_positions"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path}/config.json lacks a usable vocab_size or max_position_embeddings"
        ) from error
    eos = _as_ids(text.get("eos_token_id")) | _as_ids(config.get("eos_token_id"))
    if (path / "generation_config.json").is_file():
        eos |= _as_ids(_read_object(path / "generation_config.json").get("eos_token_id"))
    return ModelDirectory(
        path=path,
        config=config,
        architecture=str(architectures[0]),
        model_type=str(config.get("model_type", "")),
        vocab_size=vocab_size,
        context_length=context_length,
        eos_ids=frozenset(eos),
        weight_files=_weight_files(path),
    )


def load_tokenizer(directory: ModelDirectory) -> tuple[Tokenizer, frozenset[int]]:
    """The tokenizer and the ids that end a generation (the directory's `eos_ids` and the tokenizer's own).

    Raises ValueError if there is none or if it makes ids that the model does not have. A model may have more ids: many pad their vocabulary."""
    file = directory.path / "tokenizer.json"
    if not file.is_file():
        raise ValueError(f"{directory.path} has no tokenizer.json: save the tokenizer next to the weights")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:
        raise ValueError(f"{file} is not a tokenizer: {error}") from error
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    if size > directory.vocab_size:
        raise ValueError(
            f"vocabulary mismatch in {directory.path}: the tokenizer has {size} tokens, "
            f"config.json says vocab_size = {directory.vocab_size}"
        )
    eos = set(directory.eos_ids)
    settings = directory.path / "tokenizer_config.json"
    if settings.is_file():
        token = _read_object(settings).get("eos_token")
        text = token.get("content") if isinstance(token, dict) else token
        found = tokenizer.token_to_id(text) if isinstance(text, str) else None
        if found is not None:
            eos.add(found)
    return tokenizer, frozenset(eos)


def changed_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Names of settings that both config.json files contain and that differ, without bookkeeping keys.

    A key that only one of them has is not a change: library versions differ in the defaults that they write."""
    ignored = {"transformers_version", "_name_or_path", "dtype", "torch_dtype", "use_cache"}
    ignored |= {"eos_token_id", "bos_token_id", "pad_token_id"}
    return sorted(key for key in (set(old) & set(new)) - ignored if old[key] != new[key])
