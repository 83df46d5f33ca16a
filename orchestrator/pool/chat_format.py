"""Tokenizer and chat template of a run: they turn messages into ids. Every version has a copy, so that a change in the model's files is noticed.

Nothing else would notice it: the gateway renders with the files of `policy.model`, and ids of another template of the same size train without
an error.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.quote import quoted
from orchestrator.pool.policy_versions import newest_version

FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "render.json",  # the chat format of the weights: the gateway reads it
)
_TOKENIZERS = ("tokenizer.json", "tokenizer.model")


def vocabulary(model: Path) -> int | None:
    """Size of the vocabulary of the model in the directory `model`; None if no config.json that gives it can be read there."""
    try:
        config = json.loads((model / "config.json").read_bytes())
        size = {**config, **config.get("text_config", {})}.get("vocab_size")
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return size if isinstance(size, int) else None


def check_chat_format(model: Path, copies: Mapping[str, str], run: str) -> None:
    """Raise ConfigurationError if a file of the directory `model` differs from the run's: `copies` has the hex sha256 of a version's files.

    A missing directory and a version without a tokenizer are not errors.
    """
    if not model.is_dir() or not any(name in copies for name in _TOKENIZERS):
        return
    for name in FILES:
        file = model / name
        digest = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None
        if digest == copies.get(name):
            continue
        change = "is gone" if digest is None else "is new" if name not in copies else "has changed"
        raise ConfigurationError(
            f"{file} {change} since run {quoted(run)} began, and its tokens would mean something else: restore it, or begin another run"
        )


async def check_chat_format_of(connection: AsyncConnection, run_id: int, run: str, model: Path) -> None:
    """`check_chat_format` against the newest version, if its manifest can be read from here."""
    newest = await newest_version(connection, run_id)
    if newest is None:
        return
    try:
        files = json.loads((Path(newest.path) / "manifest.json").read_bytes())["files"]
        copies = {str(name): str(entry["sha256"]) for name, entry in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # another machine's disk; the process that loads the version reports the error
    check_chat_format(model, copies, run)
