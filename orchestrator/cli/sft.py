"""penstock sft: record demonstrations, export recorded trajectories, train on them."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
import anyio.to_thread
import typer

from orchestrator.cli.bar import busy, progress
from orchestrator.cli.options import HERE, ConfigOption, JsonOption, SetOption, path
from orchestrator.contracts.errors import PenstockError
from orchestrator.contracts.numbers import real
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.states import Purpose
from orchestrator.deploy.home import Home
from orchestrator.runtime.output_place import file_to_write
from orchestrator.runtime.unreachable import for_child

app = typer.Typer(no_args_is_help=True)

OutOption = Annotated[
    Path, typer.Option("--out", help="File of demonstrations to write (safetensors).", parser=path)
]


@app.command()
def record(
    out: OutOption,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="How many demonstrations.")] = 4000,
    seed: Annotated[int, typer.Option(help="Seed of tasks, skills and choices.")] = 0,
    scaffold: Annotated[
        str, typer.Option(help="Shares of scaffolds, such as shell=0.85,mini-swe-agent=0.15.")
    ] = "shell=1",
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", help="Record on this running stack (default: one of its own).", parser=path
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            help="Model directory of the tokenizer of its own stack (default: a new random policy).",
            parser=path,
        ),
    ] = None,
    slots: Annotated[int, typer.Option(min=1, help="Concurrent rollouts of its own stack.")] = 16,
    sandbox: Annotated[str, typer.Option(help="Sandbox provider of its own stack.")] = "bubblewrap",
    as_json: JsonOption = False,
) -> None:
    """Play scripted demonstrations of the built-in suite through the gateway and export them: penstock sft record --out demos.st"""
    file_to_write("--out", out)
    running = None  # check everything that can be wrong before drawing demonstrations and starting a stack
    if config is not None:
        running = Home.at(config)
        running.connected()
    else:
        from orchestrator.deploy.preflight import check_model
        from orchestrator.runtime import plugins

        plugins.load("sandboxes", sandbox)
        if model is not None:
            check_model(model)
    from orchestrator.recording import connected, label_of, with_own_stack
    from orchestrator.tasks.suite.record import demonstrations

    chosen_tasks = demonstrations(count, seed, read_shares(scaffold))
    label = label_of(chosen_tasks)

    async def work(home: Home) -> dict[str, object]:
        with progress("record") as tick:
            async with connected(home) as studio:
                done = await studio.record(chosen_tasks, label, lambda so_far: tick(so_far.ended, count))
        filter_options = ["--label", label, "--purpose", Purpose.RECORD]
        exported = await anyio.to_thread.run_sync(export_from, home, out, filter_options)
        return {
            "seconds": round(done.seconds, 1),
            "meant_to_succeed": done.good / done.count,
            "not_scored": done.count - done.progress.scored,
            **exported,
        }

    with tempfile.TemporaryDirectory(prefix="penstock-policy-") as scratch:
        if running is not None:
            summary = anyio.run(partial(work, running))
        else:
            if model is None:
                model = Path(scratch) / "policy"
                torch_process("trainer.policy", ["--out", str(model), "--seed", "0"])
            verify_slots = max(2, slots // 2)
            summary = anyio.run(
                partial(with_own_stack, model, work, slots=slots, verify_slots=verify_slots, sandbox=sandbox)
            )
    if as_json:
        typer.echo(json.dumps(summary))
    else:
        typer.echo(
            f"{summary['demonstrations']} demonstrations of {summary['rollouts']} rollouts in {summary['seconds']} s, "
            f"{summary['success']:.1%} successful, {summary['tokens']} tokens ({summary['action_tokens']} sampled) "
            f"in {out} ({summary['bytes']} bytes); {summary['not_scored']} were not scored"
        )


@app.command()
def export(
    out: OutOption,
    config: ConfigOption = HERE,
    overrides: SetOption = None,
    label: Annotated[
        str | None, typer.Option(help='Only tasks that were submitted under this label; "": without one.')
    ] = None,
    purpose: Annotated[str | None, typer.Option(help="Only train, eval or record.")] = None,
    domain: Annotated[str | None, typer.Option(help="Only this domain.")] = None,
    scaffold: Annotated[str | None, typer.Option(help="Only this scaffold.")] = None,
    min_performance: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Only rollouts with at least this performance, in [0, 1]."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Export recorded trajectories from the data pool, for example for rejection sampling: penstock sft export --out good.st --min-performance 1"""
    given = {"--label": label, "--purpose": purpose, "--domain": domain, "--scaffold": scaffold}
    options = [part for option, value in given.items() if value is not None for part in (option, value)]
    if min_performance is not None:
        options += ["--min-performance", str(min_performance)]
    summary = export_from(Home.at(config, tuple(overrides or ())), out, options)
    if as_json:
        typer.echo(json.dumps(summary))
        return
    typer.echo(
        f"{summary['demonstrations']} demonstrations of {summary['rollouts']} judged rollouts, {summary['success']:.1%} successful "
        f"({summary['without_verdict']} more without a verdict), "
        f"{summary['tokens']} tokens ({summary['action_tokens']} sampled) in {out} ({summary['bytes']} bytes)"
    )


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False
)
def train(context: typer.Context) -> None:
    """Train a policy on a file of demonstrations: penstock sft train --corpus demos.st --model policy --out trained"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    os.execve(sys.executable, [sys.executable, "-m", "trainer.sft", *context.args], environment)


def read_shares(given: str) -> dict[str, float]:
    """`a=0.85,b=0.15` as numbers; `a` alone is a=1. Raises ValueError that names the malformed part."""
    shares: dict[str, float] = {}
    for part in given.split(","):
        name, separator, share = part.strip().partition("=")
        if name in shares:
            raise ValueError(f"--scaffold: {quoted(name)} has two shares: give it one")
        try:
            shares[name] = real(share, least=0) if separator else 1.0
        except ValueError as error:
            raise ValueError(
                f"--scaffold {quoted(part)} is not of the form name=share: the share {error}"
            ) from None
    return shares


def export_from(home: Home, out: Path, options: Sequence[str]) -> dict[str, object]:
    """Run the exporter on a run's data pool; return its result."""
    config = home.connected()
    arguments = ["--run", config.run.name, "--model", config.policy.model, "--out", str(out), *options]
    output = torch_process(
        "trainer.sft.export", arguments, environment=for_child("DATABASE_URL", config.services.database_url)
    )
    found: dict[str, object] = json.loads(output.splitlines()[-1])
    return found


def torch_process(module: str, arguments: Sequence[str], *, environment: dict[str, str] | None = None) -> str:
    """The output of `python -m module`. Raises PenstockError with its last line if it fails."""
    with busy(module):
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"python -m {module} failed and printed nothing"]
        raise PenstockError(lines[-1])
    return done.stdout
