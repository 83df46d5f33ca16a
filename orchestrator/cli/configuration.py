"""penstock config: the resolved configuration as JSON, or each key with its meaning and whether the file's or the run's value counts."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli import tables
from orchestrator.cli.options import HERE, JsonOption, SetOption, path
from orchestrator.cli.run_config import RecordedConfig, differences, print_notes, recorded
from orchestrator.contracts.quote import cut
from orchestrator.deploy.home import Home
from orchestrator.runtime.environment import named
from orchestrator.settings.assignments import table_of
from orchestrator.settings.config import FILE, Config
from orchestrator.settings.keys import Key, chosen, is_given, value_of
from orchestrator.settings.scope import Scope
from sandboxes.text_files import read_toml

SHOWN = 40  # characters of a value in the list of all keys
HIDDEN = "(not shown: it may hold a password)"


def config(
    keys: Annotated[
        list[str] | None, typer.Argument(help="Explain these keys or sections alone: trainer.lr, queue.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help=f"{FILE}, or its directory (default: here).", parser=path),
    ] = None,
    overrides: SetOption = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="List every key with its type, default, value, the value's origin, scope and meaning; long values are cut.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the resolved configuration of the file as JSON. Standard error lists what it names and this machine lacks, keys without effect,
    and the values that differ in its run, if it exists. With `--explain` or KEYS: the meaning and value of each key, and whether the file's or the
    run's value counts."""
    if explain or keys:
        _explain(keys or (), config, tuple(overrides or ()), as_json)
    else:
        _resolved(Home.at(config or HERE, tuple(overrides or ())).config())


def _resolved(own: Config) -> None:
    from orchestrator.deploy.no_effect import no_effect
    from orchestrator.deploy.preflight import check_config, missing
    from orchestrator.runtime.plugins import names

    check_config(own, names("scaffolds"))
    typer.echo(json.dumps(own.to_json(), indent=2))
    print_notes([*missing(own), *no_effect(own)])
    found = recorded(own)
    _say_unknown(found)
    print_notes(differences(own, found))


def _say_unknown(found: RecordedConfig) -> None:
    if found.unknown is not None:
        print_notes([f"whether the run keeps other values cannot be known now: {found.unknown}"])


class ValueOrigin(StrEnum):
    """Where the value that counts comes from. RUN: the run began with it. STARTED: the service that `penstock up` started by the file."""

    DEFAULT = "default"
    FILE = "file"
    SET = "--set"
    ENVIRONMENT = "environment"
    STARTED = "penstock up"
    RUN = "run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """The values of a key in a file and in its run. `own`: the file's configuration; None: without a file, defaults apply. `file`: the tables of
    the file, `overrides`: those of `--set`."""

    own: Config | None
    found: RecordedConfig
    file: Mapping[str, Any]
    overrides: Mapping[str, Any]

    def row(self, key: Key) -> dict[str, Any]:
        """One key with its value. `ignored`: the file's value if the run keeps another one; absent otherwise."""
        row: dict[str, Any] = {"key": key.name, "type": key.type, "default": key.default}
        if self.own is not None:
            file_value, effective_value = (
                value_of(each, key.name) for each in (self.own, self.found.config(self.own))
            )
            hidden = key.section == "services" and bool(effective_value)
            row["value"] = HIDDEN if hidden else effective_value
            row["from"] = self._origin(key, given=bool(effective_value))
            if key.scope is Scope.RUN and file_value != effective_value:
                row |= {"from": ValueOrigin.RUN, "ignored": file_value}
        return {**row, "scope": key.scope.value, "meaning": key.sentence}

    def _origin(self, key: Key, *, given: bool) -> ValueOrigin:
        """Where the file's configuration has a value from. `given`: there is one."""
        if is_given(self.overrides, key.name):
            return ValueOrigin.SET
        if is_given(self.file, key.name):
            return ValueOrigin.FILE
        if key.section == "services" and given:
            return (
                ValueOrigin.ENVIRONMENT
                if named(key.name.removeprefix("services.").upper())
                else ValueOrigin.STARTED
            )
        return ValueOrigin.DEFAULT


def _explain(
    wanted: Sequence[str], directory: Path | None, overrides: tuple[str, ...], as_json: bool
) -> None:
    explained = chosen(wanted)
    has_file = directory is not None or (HERE / FILE).exists() or bool(overrides)
    home = Home.at(directory or HERE, overrides) if has_file else None
    own = None if home is None else home.config()
    values = Values(
        own=own,
        found=RecordedConfig(None) if own is None else recorded(own),
        file={} if home is None else read_toml(home.file),
        overrides=table_of(overrides),
    )
    rows = [values.row(key) for key in explained]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        columns = [name for name in COLUMNS if any(name in row for row in rows)]
        most = None if wanted else SHOWN
        cells = [list(_cells(row, columns, most)) for row in rows]
        tables.print_rows([COLUMNS[name] for name in columns], cells)
    _say_unknown(values.found)


COLUMNS: Mapping[str, str] = {
    "key": "key",
    "type": "type",
    "default": "default",
    "value": "value",
    "from": "from",
    "ignored": "ignored in the file",
    "scope": "scope",
    "meaning": "meaning",
}


def _cells(row: Mapping[str, Any], columns: Sequence[str], most: int | None) -> Iterator[str]:
    """Text as is, other values as JSON; empty if the row has no value. Values are cut after `most` characters, or stay whole."""
    for name in columns:
        value = row.get(name, "")
        text = (
            value
            if isinstance(value, str)
            else ""
            if value is None
            else json.dumps(value, ensure_ascii=False)
        )
        yield text if most is None or name in ("key", "meaning") else cut(text, most)
