"""Tokenizer and chat template of a run: what makes ids of messages. Every version has a copy, so a change of the model's own is noticed.

Nothing else would notice it: the gateway renders with the files of `policy.model`, and ids of another template of the same size train as well.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.pool.policies import newest_version

FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "render.json",  # which chat format the weights speak: the gateway reads it
)
_TOKENIZERS = ("tokenizer.json", "tokenizer.model")


def check_chat_format(model: Path, copies: Mapping[str, str], run: str) -> None:
    """Raise ConfigurationError when a file of the directory `model` is not the run's: `copies` has the hex sha256 of a version's, by name.

    A directory that is not there, and a version without a tokenizer, say nothing.
    """
    if not model.is_dir() or not any(name in copies for name in _TOKENIZERS):
        return
    for name in FILES:
        file = model / name
        now = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None
        if now == copies.get(name):
            continue
        what = "is gone" if now is None else "is new" if name not in copies else "has changed"
        raise ConfigurationError(
            f"{file} {what} since run {run!r} began, and its tokens would mean something else: restore it, or begin another run"
        )


async def check_chat_format_of(connection: AsyncConnection, run_id: int, run: str, model: Path) -> None:
    """`check_chat_format` against the newest version, where there is one whose manifest can be read from here."""
    newest = await newest_version(connection, run_id)
    if newest is None:
        return
    try:
        files = json.loads((Path(newest.path) / "manifest.json").read_bytes())["files"]
        copies = {str(name): str(entry["sha256"]) for name, entry in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # another machine's disk; who loads the version says what is wrong with it
    check_chat_format(model, copies, run)
