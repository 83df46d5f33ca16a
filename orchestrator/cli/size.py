"""penstock size: the throughput of a topology for a workload, its bottleneck, and the resources that it needs."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from orchestrator.cli import tables
from orchestrator.cli.options import JsonOption, path
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.deploy.home import Home
from sandboxes.text_files import read_toml

if TYPE_CHECKING:
    from orchestrator.deploy.cluster.measured import Held
    from orchestrator.deploy.cluster.size import Plan, Sizing
    from orchestrator.deploy.cluster.workload import Workload


def register(app: typer.Typer) -> None:
    app.command()(size)


def size(
    topology: Annotated[
        Path | None,
        typer.Argument(
            help="The topology: a TOML file (default: that of the run of --from-run).", parser=path
        ),
    ] = None,
    workload: Annotated[
        Path | None,
        typer.Option("--workload", "-w", help="The measured or assumed workload: a TOML file.", parser=path),
    ] = None,
    from_run: Annotated[
        Path | None,
        typer.Option(
            help="Measure the workload of this run: its directory, or its penstock.toml.", parser=path
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Override a key of the workload (turns=12), or of the topology (runners.0.slots=64).",
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Write the workload that was used to a file for --workload.", parser=path),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Compare the prediction for the run of --from-run with its measurements."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Predict the bottleneck, the throughput and how many of everything a run needs: penstock size topology.toml --from-run runs/first"""
    from orchestrator.deploy.cluster.reading import EXAMPLES
    from orchestrator.deploy.cluster.reading import read as topology_of
    from orchestrator.deploy.cluster.size import plan_of
    from orchestrator.deploy.cluster.size import size as sized
    from orchestrator.deploy.cluster.workload import (
        changed,
        given,
        read,
        written,
    )
    from orchestrator.settings.assignments import key_of

    assignments = overrides or []
    of_work = [each for each in assignments if len(key_of(each, "--set")) == 1]
    of_plan = [each for each in assignments if each not in of_work]
    if from_run is None and (check or topology is None):
        raise ConfigurationError("name a topology, or a run with --from-run; --check needs the run")
    keys: dict[str, Any] = {}
    if topology is not None:
        try:
            keys = read_toml(topology)
        except OSError as error:
            raise ConfigurationError(
                f"{topology}: {error.strerror}; name a topology, such as one of {EXAMPLES}"
            ) from None
        except ValueError as error:
            raise ConfigurationError(f"{topology} cannot be read as TOML: {error}") from None
    raw: dict[str, Any] = {}
    plan: Plan | None = None
    held: list[Held] = []
    if from_run is not None:
        home = Home.at(from_run, tuple(of_plan) if topology is None else ())
        raw, plan, held = anyio.run(_measure, home, check)
    if workload is not None:
        raw |= read(workload)
    work = given(changed(raw, of_work), str(workload or from_run or topology))
    if topology is not None:
        plan = plan_of(topology_of(changed(keys, of_plan), str(topology)))
    assert plan is not None
    found = sized(plan, work)
    if save is not None:
        save.write_text(written(work), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(_as_json(work, plan, found, held), default=tables.as_json))
    else:
        _print(found, held)


async def _measure(home: Home, check: bool) -> tuple[dict[str, Any], "Plan", list["Held"]]:
    from dataclasses import replace

    from sqlalchemy.ext.asyncio import AsyncConnection

    from orchestrator.cli.reading import reading
    from orchestrator.deploy.cluster.measured import both_ways, span, workload
    from orchestrator.deploy.cluster.size import plan_of_config
    from orchestrator.settings.config import effective

    config = home.reading()
    async with reading(config, "size") as reader:
        ran = effective(reader.run.config, config)

        async def ask(connection: AsyncConnection) -> tuple["Workload", float]:
            return await workload(
                connection, reader.run.run_id, ran, await span(connection, reader.run.run_id)
            )

        async def hold(connection: AsyncConnection) -> list["Held"]:
            return await both_ways(connection, reader.run.run_id, ran)

        work, longest = await reader.ask(ask)
        held = await reader.ask(hold) if check else []
    return work.model_dump(), replace(plan_of_config(config), longest_over_mean=longest), held


def _as_json(work: "Workload", plan: "Plan", found: "Sizing", held: list["Held"]) -> dict[str, Any]:
    from orchestrator.deploy.cluster.workload import PRODUCT

    return {
        "workload": work.model_dump(),
        "plan": tables.finite(asdict(plan)),
        "sizing": tables.finite(asdict(found)),
        "held": [tables.finite(asdict(each)) for each in held],
        "product": {name: asdict(figure) for name, figure in PRODUCT.items()},
    }


def _print(found: "Sizing", held: list["Held"]) -> None:
    rows = [
        (
            stage.name + (" ← binds" if stage.name == found.binds else ""),
            3600 * stage.most,
            f"{100 * stage.utilisation:.0f} %",
            stage.why,
        )
        for stage in found.stages
    ]
    tables.print_rows(("stage", "groups/h at most", "at work", "because"), rows, upright=False)
    typer.echo()
    outage = "any" if math.isinf(found.outage_s) else f"{found.outage_s / 60:.3g} min"
    expected = [
        ("groups", f"{found.groups_h:.4g}/h, {found.trained_groups_h:.4g}/h of them train"),
        ("rollouts", f"{found.rollouts * 3600:.4g}/h, {found.rollout_s:.4g} s each in its slot"),
        ("completions", f"{found.completions:.4g}/s, {found.new_tokens:.4g} new tokens/s"),
        ("batches", f"one every {found.batch_s:.4g} s, {found.train_s:.4g} s of them in the trainer"),
        ("so that the queue does not bind", f"N ≥ {found.least_in_flight}, W ≥ {found.least_window}, S ≥ {found.least_staleness}"),
        ("staleness", f"{found.staleness:.2f} batches in the mean, {found.stalest} at most"),
        ("Postgres", f"{found.step_rows:.4g} step rows/s, {found.state_changes:.4g} state changes/s, {found.postgres_gb_day:.4g} GB/day"),
        ("journal of a gateway", f"{found.journal_mb_s:.3g} MB/s; outlasts {outage} without Postgres"),
        ("NATS", f"{found.nats_messages:.4g} messages/s"),
        ("checkpoints", f"{found.checkpoint_gb_h:.4g} GB/h written, {found.checkpoint_gb_s:.3g} GB/s read by rollout servers"),
        ("gateways", f"{found.gateways_needed} needed"),
    ]  # fmt: skip
    tables.print_rows(("expected", ""), expected, upright=False)
    if held:
        typer.echo()
        compared = [
            (each.name, each.predicted, each.measured, f"{100 * (each.ratio - 1):+.0f} %") for each in held
        ]
        tables.print_rows(("of this run", "predicted", "measured", "off by"), compared, upright=False)
    for warning in found.warnings:
        typer.echo(f"warning: {warning}")
