"""Scaffolds as a library user names them: a registered name, a path, or a class; and how a run's configuration names them."""

import inspect
import os
import tomllib
from pathlib import Path

import tomlkit
from scaffolds.base import ScaffoldKind
from scaffolds.declare import ATTRIBUTE
from scaffolds.find import find
from scaffolds.reference import is_path

from orchestrator.api.arguments import amount, place, words
from orchestrator.contracts.errors import ArgumentError, ConfigurationError
from orchestrator.contracts.quote import quoted
from orchestrator.deploy.embedded.identity import rewrite_atomically, write_atomically
from orchestrator.deploy.home import Home
from orchestrator.settings.config import load
from orchestrator.settings.rollout import RolloutSection
from sandboxes.text_files import toml_text

ScaffoldLike = str | Path | type
"""A scaffold: a registered name, a path (a directory with scaffold.toml, FILE.toml, FILE.py or FILE.py:CLASS), or a class with `@scaffold(…)`."""


def reference(scaffold: ScaffoldLike, argument: str = "scaffold") -> str:
    """The name of a scaffold in a configuration: a registered name, or an absolute path. ArgumentError for a class that runners cannot import, and
    for a value of another type."""
    if isinstance(scaffold, type):
        if ATTRIBUTE not in vars(scaffold):
            raise ArgumentError(
                argument,
                f"{scaffold.__name__} is not declared as a scaffold: decorate the class with `@scaffold(…)`",
            )
        if "." in scaffold.__qualname__:
            raise ArgumentError(
                argument,
                f"{scaffold.__qualname__} is defined inside a function or a class: move it to the top of its file, where runners find it",
            )
        return f"{Path(inspect.getfile(scaffold)).resolve()}:{scaffold.__name__}"
    if not isinstance(scaffold, str | Path):
        raise ArgumentError(argument, f"must be a name, a path or a class, not {quoted(scaffold)}")
    if isinstance(scaffold, Path) or is_path(scaffold):
        return str(place(argument, scaffold).resolve())
    return words(argument, scaffold)


def checked(argument: str, scaffold: ScaffoldLike) -> str:
    """As `reference`. ValueError, one sentence, if the scaffold cannot be loaded, or its program is not installed."""
    name = reference(scaffold, argument)
    found = find(name)
    if found.manifest.kind == ScaffoldKind.BLACK:
        found.black().binds()
    return name


def register_scaffold(config: str | Path, scaffold: ScaffoldLike, *, share: float = 0.0) -> str:
    """Add a scaffold to `rollout.scaffolds` of a run that was never started. Returns the name under which the run knows it.

    `config`: penstock.toml, or its directory; comments and order of the file stay. `share`: its share of the rollouts among the shares of all
    scaffolds; with 0 only tasks that ask for it use it. Raises ArgumentError for an argument that cannot be
    used, ValueError if the scaffold cannot be loaded, or the run was started: it keeps its scaffolds.
    """
    part = amount("share", share)
    file = place("config", config)
    name = checked("scaffold", scaffold)
    home = Home.at(file)
    run = load(home.file).run.name
    if home.run_model_file.exists() and home.run_model_file.read_text(encoding="utf-8").split("\n")[0] == run:
        raise ConfigurationError(
            f"run {quoted(run)} was started and keeps its scaffolds: choose a new run.name in {home.file}"
        )
    before = home.file.read_bytes()
    document = tomlkit.parse(toml_text(before, str(home.file)))
    rollout = document.setdefault("rollout", tomlkit.table())
    shares = rollout.setdefault("scaffolds", _defaults())
    shares[name] = part
    after = tomlkit.dumps(document)
    tomllib.loads(after)
    _replace(home.file, (after.replace("\n", "\r\n") if b"\r\n" in before else after).encode())
    return name


def _replace(file: Path, content: bytes) -> None:
    """Replace a configuration in one step, once `content` can be loaded. ValueError if it cannot: the file stays as it was."""
    draft = file.with_name(f".{file.name}.{os.getpid()}.draft")
    try:
        write_atomically(draft, content)  # only for its owner: it may have passwords
        load(draft)
    except ValueError as error:
        raise ConfigurationError(str(error).replace(str(draft), str(file))) from None
    finally:
        draft.unlink(missing_ok=True)
    rewrite_atomically(file, content)


def _defaults() -> tomlkit.items.InlineTable:
    table = tomlkit.inline_table()
    table.update(RolloutSection().scaffolds)
    return table
