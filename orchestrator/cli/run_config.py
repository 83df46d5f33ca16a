"""The effective configuration of a run, for commands that act on a run or show it: the run's stored one, with the process keys of the file."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import typer

from orchestrator.cli.hints import carried
from orchestrator.cli.terminal import plain
from orchestrator.contracts.errors import PenstockError
from orchestrator.settings.config import (
    Config,
    describe_ignored,
    effective,
    ignored,
)

OF_TASKS = ("sandbox", "tasks")
"""The sections that commands which read tasks take from the run."""
OF_PUBLISHING = (*OF_TASKS, "rollout.scaffolds")


@dataclass(frozen=True, slots=True)
class RecordedConfig:
    """`stored`: the configuration in the run's row (`StoredRun.config`); None: the run does not exist yet, or cannot be read, with the reason in
    `unknown`."""

    stored: dict[str, Any] | None
    unknown: str | None = None

    def config(self, own: Config) -> Config:
        """The effective configuration; if the run does not exist yet, the file's, with which it would start."""
        return own if self.stored is None else effective(self.stored, own)

    def notes(self, own: Config, parts: Sequence[str] = OF_TASKS) -> list[str]:
        """Notes on sections and dotted keys of the file: those that the run ignores, or that this is unknown."""
        if self.unknown is not None:
            sections = ", ".join(
                f"[{name}]" for name in dict.fromkeys(part.partition(".")[0] for part in parts)
            )
            return [f"{sections}: the values of the file are used, the run's own may differ: {self.unknown}"]
        ignored_keys = [] if self.stored is None else ignored(self.stored, own)
        named = [key for key in ignored_keys if f"{key}.".startswith(tuple(f"{part}." for part in parts))]
        return [describe_ignored(named)] if named else []


def recorded(config: Config) -> RecordedConfig:
    """Read the run's configuration from the data pool, if a database is configured."""
    return anyio.run(_recorded, config)


async def _recorded(config: Config) -> RecordedConfig:
    from orchestrator.pool.engine import Role
    from orchestrator.pool.opened import opened
    from orchestrator.pool.runs import find_run

    url = config.services.database_url
    if not url:
        return RecordedConfig(None)
    try:
        async with (
            opened(url, Role.READER, name="penstock-config") as engine,
            engine.connect() as connection,
        ):
            run = await find_run(connection, config.run.name)
    except PenstockError as error:
        return RecordedConfig(None, str(error))
    return RecordedConfig(None if run is None else run.config)


def differences(own: Config, found: RecordedConfig) -> list[str]:
    """A sentence for each key with different values in the run and the file."""
    if found.stored is None:
        return []
    run_values, file_values = found.config(own).to_json(), own.to_json()
    return [
        f"run {own.run.name!r} keeps {key} = {_value(run_values, key)}, and not the file's {_value(file_values, key)}"
        for key in ignored(found.stored, own)
    ]


def _value(sections: dict[str, Any], key: str) -> str:
    section, _, name = key.partition(".")
    return json.dumps(sections[section][name], ensure_ascii=False)


def print_notes(sentences: Sequence[str]) -> None:
    """Print on standard error, one line each."""
    for sentence in sentences:
        typer.echo(plain(f"penstock: {carried(sentence)}"), err=True)
