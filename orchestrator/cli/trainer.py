"""penstock trainer: the trainer process of a run; penstock trainer verify: compares its computation with plain Hugging Face;
penstock trainer tree: the prefix tree of a train step as a picture."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from orchestrator.bus import subjects
from orchestrator.cli import tables
from orchestrator.cli.options import HERE, ConfigOption, JsonOption, SetOption, path
from orchestrator.cli.sft import torch_process
from orchestrator.deploy.home import Home
from orchestrator.runtime.unreachable import for_child
from orchestrator.settings.config import Config
from orchestrator.settings.timeouts import to_argument

app = typer.Typer(invoke_without_command=True)


@app.callback()
def trainer(
    context: typer.Context,
    config: ConfigOption = HERE,
    overrides: SetOption = None,
    train_steps: Annotated[
        int, typer.Option(min=0, help="Stop after this many train steps (0: until the run ends).")
    ] = 0,
    retry: Annotated[
        bool,
        typer.Option(
            help="Continue although the last batches were quarantined. For every start: penstock run retry."
        ),
    ] = False,
) -> None:
    """Run the trainer: it claims batches, trains and publishes versions: penstock trainer -c runs/first --train-steps 10"""
    if context.invoked_subcommand is not None:
        return
    home = Home.at(config, tuple(overrides or ()))
    resolved = home.connected()
    run = resolved.run.name
    arguments = ["--run", run, "--policies", str(home.policies), "--subject", subjects.policy(run)]
    target = home.target("trainer", resolved)
    arguments += ["--metrics", str(home.metrics("trainer")), "--metrics-target", str(target.file)]
    arguments += ["--metrics-host", target.host, "--metrics-port", str(target.port)]
    arguments += [
        "--no-progress-s",
        str(resolved.watchdog.no_progress_s),
        "--lag-s",
        str(resolved.watchdog.lag_s),
    ]
    arguments.append(f"--timeouts={to_argument(resolved.timeouts)}")
    arguments += _budget(resolved)
    if resolved.trainer.ranks > 1:
        arguments += ["--ranks", str(resolved.trainer.ranks)]
    if train_steps:
        arguments += ["--train-steps", str(train_steps)]
    if retry:
        arguments.append("--retry")
    url = for_child("DATABASE_URL", resolved.services.database_url)
    env = {**os.environ, "OMP_NUM_THREADS": "1", **url}
    # The process becomes the trainer: its signals and its exit status are the trainer's own.
    os.execve(sys.executable, [sys.executable, "-m", "trainer", *arguments], env)


@app.command()
def verify(
    batch: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of a closed or committed batch; the checkpoint that it was trained from must still be kept (trainer.keep_checkpoints).",
        ),
    ],
    config: ConfigOption = HERE,
    overrides: SetOption = None,
    dtype: Annotated[
        Literal["float64", "float32"], typer.Option(help="Data type of both computations.")
    ] = "float64",
    groups: Annotated[
        int, typer.Option(min=0, help="Only the first groups of each train step, this many (0: all).")
    ] = 0,
    bf16: Annotated[
        bool,
        typer.Option(
            "--bf16", help="Also how far bfloat16 moves the gradient from float32, merged and alone."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Recompute a stored batch at the weights that it was trained from, merged and one row per sample: penstock trainer verify --batch 3"""
    resolved = Home.at(config, tuple(overrides or ())).connected()
    arguments = ["--run", resolved.run.name, "--batch", str(batch), "--dtype", dtype, "--groups", str(groups)]
    arguments += _budget(resolved)
    if (tolerance := resolved.given_tolerance) is not None:
        arguments += ["--canary-tolerance", repr(tolerance)]
    arguments += ["--bf16"] if bf16 else []
    printed = torch_process(
        "trainer.verify", arguments, environment=for_child("DATABASE_URL", resolved.services.database_url)
    )
    report: dict[str, Any] = json.loads(printed.splitlines()[-1])
    if as_json:
        typer.echo(json.dumps(report))
    else:
        _show(report)
    if not report["ok"]:
        raise typer.Exit(1)


@app.command()
def tree(
    batch: Annotated[int, typer.Option(min=0, help="Number of a closed or committed batch.")],
    svg: Annotated[Path, typer.Option(help="The file to write.", parser=path)],
    config: ConfigOption = HERE,
    overrides: SetOption = None,
    train_step: Annotated[int, typer.Option(min=1, help="Which train step of the batch.")] = 1,
    groups: Annotated[
        int, typer.Option(min=0, help="Only the first groups of the train step, this many (0: all).")
    ] = 0,
) -> None:
    """Draw the merged prefix tree of a train step: penstock trainer tree --batch 3 --svg tree.svg"""
    resolved = Home.at(config, tuple(overrides or ())).connected()
    arguments = ["--run", resolved.run.name, "--batch", str(batch), "--svg", str(svg)]
    arguments += ["--train-step", str(train_step), "--groups", str(groups)]
    printed = torch_process(
        "trainer.picture", arguments, environment=for_child("DATABASE_URL", resolved.services.database_url)
    )
    typer.echo(printed.splitlines()[-1])


def _budget(config: Config) -> list[str]:
    """The budget of a forward pass as arguments."""
    return ["--pack-tokens", str(config.trainer.pack_tokens), "--pack-pairs", str(config.trainer.pack_pairs)]


def _show(report: dict[str, Any]) -> None:
    table = Table("", "merged, trainer", "vanilla, stored", "difference", "bound", "")
    for column in table.columns[1:5]:
        column.justify = "right"
    for check in report["checks"]:
        verdict = (
            "" if check["bound"] is None else "[green]ok[/green]" if check["ok"] else "[red]missed[/red]"
        )
        numbers = (check[key] for key in ("ours", "theirs", "difference", "bound"))
        table.add_row(check["name"], *map(_number, numbers), verdict)
    tables.print_table(table, markup=True)
    console = Console(soft_wrap=True)
    console.print(
        f"batch {report['batch']} of run {report['run']!r}, trained from version {report['version']}: {report['samples']} samples in "
        f"{report['train_steps']} train steps, {report['dtype']}, {report['seconds']} s",
        highlight=False,
        markup=False,
    )


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.6g}"
