"""penstock scaffold: new, check, list, install."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from scaffolds import programs
from scaffolds.base import Manifest
from scaffolds.find import find, known

from orchestrator.cli import scaffold_new, shell_completion, tables, terminal
from orchestrator.cli.bar import busy
from orchestrator.cli.options import JsonOption, path
from orchestrator.contracts.choices import LogLevel
from orchestrator.runtime.log import configure

app = typer.Typer(no_args_is_help=True)
SILENCE_S, TIMEOUT_S = 12.0, 180.0  # a keep-alive comes at least every 10 s


@app.command()
def new(
    directory: Annotated[
        Path, typer.Argument(help="Where to write it; its name becomes the scaffold's.", parser=path)
    ],
    kind: Annotated[
        str, typer.Option(help=f"{', '.join(scaffold_new.KINDS)}: what to write.")
    ] = scaffold_new.KINDS[0],
) -> None:
    """Write a working scaffold to start from: penstock scaffold new my-agent --kind manifest"""
    for written in scaffold_new.write(directory, kind):
        typer.echo(str(written))
    typer.echo(
        f"try it with: penstock scaffold check {shlex.quote(scaffold_new.reference(directory, kind))}",
        err=True,
    )


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """Show the registered scaffolds, and whether their programs are installed."""
    rows = list(_rows())
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table("name", "kind", "wire", "version", "program")
    for row in rows:
        table.add_row(row["name"], row["kind"], row["wire"], row["version"], row["program"])
    tables.print_table(table)


def _rows() -> Iterator[dict[str, str]]:
    for name in known():
        try:
            manifest = find(name).manifest
        except (ValueError, ImportError) as error:
            yield {
                "name": name,
                "kind": "?",
                "wire": "?",
                "version": "?",
                "program": f"cannot be loaded: {error}",
            }
            continue
        yield {
            "name": name,
            "kind": f"{manifest.kind}-box",
            "wire": manifest.wire,
            "version": manifest.version,
            "program": _program(name, manifest),
        }


def _program(name: str, manifest: Manifest) -> str:
    if manifest.program is None:
        return "none needed"
    state = programs.state_of(manifest.program)
    return state if state is programs.InstallState.INSTALLED else f"{state}: penstock scaffold install {name}"


@app.command()
def install(
    names: Annotated[
        list[str],
        typer.Argument(help="Scaffolds, by name or path.", autocompletion=shell_completion.scaffolds),
    ],
    accept_licence: Annotated[
        bool, typer.Option("--accept-licence", help="You have read and accept the program's own terms.")
    ] = False,
) -> None:
    """Install the pinned programs of scaffolds, separate from everything else: penstock scaffold install opencode codex"""
    for name in names:
        program = find(name).manifest.program
        if program is None:
            typer.echo(f"{name}: needs no program")
            continue
        with busy(f"install {name}"):
            new = programs.install(program, accept_licence=accept_licence, say=_say)
        if new:
            typer.echo(f"{name}: installed in {programs.place_of(program)}")
        else:
            typer.echo(f"{name}: is installed")


def _say(text: str) -> None:
    typer.echo(terminal.plain(text), err=True)


@app.command()
def check(
    name: Annotated[
        str,
        typer.Argument(
            help="A registered name, a directory with scaffold.toml, or module:Class.",
            autocompletion=shell_completion.scaffolds,
        ),
    ],
    only: Annotated[str, typer.Option(help="Comma-separated questions (default: all).")] = "",
    silence_s: Annotated[
        float, typer.Option(min=0, help="How long the policy is silent once, in seconds.")
    ] = SILENCE_S,
    timeout_s: Annotated[float, typer.Option(min=1, help="The limit of one attempt.")] = TIMEOUT_S,
    provider: Annotated[str, typer.Option(help="The sandbox provider.")] = "bubblewrap",
    as_json: JsonOption = False,
) -> None:
    """Check a scaffold against a scripted policy and against failures: penstock scaffold check opencode"""
    from orchestrator.runtime import plugins
    from orchestrator.scaffold_check.run import check as run
    from orchestrator.scaffold_check.scenarios import Finding

    plugins.load("sandboxes", provider)  # before services start
    configure("penstock", level=LogLevel.CRITICAL)  # failures here are deliberate
    found: list[Finding] = []
    err = Console(stderr=True)

    def show_finding(finding: Finding) -> None:
        found.append(finding)
        if not as_json and err.is_terminal:
            err.print(Text.assemble((f"{finding.verdict:5}", "dim"), f" {finding.question}"), highlight=False)

    async def work() -> bool:
        chosen = tuple(part.strip() for part in only.split(",")) if only else ()
        return await run(
            name, show_finding, only=chosen, silence_s=silence_s, timeout_s=timeout_s, provider=provider
        )

    passed = anyio.run(work, backend_options={"use_uvloop": True})
    if as_json:
        findings = [{"question": f.question, "verdict": f.verdict, "detail": f.detail} for f in found]
        typer.echo(json.dumps({"scaffold": name, "passed": passed, "findings": findings}, indent=2))
    else:
        table = Table("question", "", "what was seen", title=f"{name}: {'passes' if passed else 'FAILS'}")
        for finding in found:
            table.add_row(finding.question, finding.verdict, finding.detail)
        tables.print_table(table)
    if not passed:
        raise typer.Exit(1)
