"""penstock cluster: a run on more than one machine, from one topology."""

from pathlib import Path
from typing import Annotated

import anyio
import typer

from orchestrator.cli.options import HERE, ConfigOption, SetOption, path
from orchestrator.contracts.errors import ConfigurationError, PenstockError

app = typer.Typer(no_args_is_help=True)

TopologyArgument = Annotated[
    Path, typer.Argument(help="The topology: a TOML file (ops/cluster/topology.toml).", parser=path)
]
TargetOption = Annotated[
    str, typer.Option("--target", "-t", help="kubernetes, helm, slurm, systemd or compose.")
]


@app.command()
def render(
    topology: TopologyArgument,
    target: TargetOption,
    out: Annotated[Path, typer.Option("--out", "-o", help="The directory to write.", parser=path)],
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite files that were not rendered or were changed since.")
    ] = False,
) -> None:
    """Write the files that start a topology on other machines: penstock cluster render topology.toml --target kubernetes --out cluster"""
    from orchestrator.deploy.cluster.reading import load
    from orchestrator.deploy.cluster.render import render as rendered
    from orchestrator.deploy.cluster.write import write

    files = rendered(load(topology), target)
    written = write(files, out, force=force)
    typer.echo(f"{len(written)} files in {out}; begin with its README.md")


@app.command()
def check(
    what: Annotated[
        Path,
        typer.Argument(
            help="A topology, or a directory of Kubernetes objects (rendered or not).", parser=path
        ),
    ],
    kubernetes: Annotated[
        list[str] | None,
        typer.Option(
            help="Version whose API server must accept the objects. Repeatable; default: three of them."
        ),
    ] = None,
    rules: Annotated[bool, typer.Option("--rules", help="Also print the rules.")] = False,
) -> None:
    """Check a topology, or objects against Kubernetes's schemas and our rules: penstock cluster check cluster"""
    if what.suffix == ".toml":
        if kubernetes or rules:
            raise ConfigurationError(
                f"{what} is a topology: --kubernetes and --rules belong to a directory of Kubernetes objects"
            )
        from orchestrator.deploy.cluster.placement import placed
        from orchestrator.deploy.cluster.reading import load

        found = load(what)
        processes = placed(found)
        hosts = {process.host for process in processes}
        typer.echo(
            f"{what}: {len(processes)} processes on {len(hosts)} host{'s' if len(hosts) > 1 else ''} hold together"
        )
        return
    from orchestrator.deploy.cluster.policy import RULES, broken, sentence
    from orchestrator.deploy.cluster.read_objects import read_objects
    from orchestrator.deploy.cluster.validate import VERSIONS, unfit

    objects = read_objects(what)
    if rules:
        for name in RULES:
            typer.echo(f"{name}: {sentence(name)}")
    versions = [version if version.count(".") == 2 else f"{version}.0" for version in kubernetes or VERSIONS]
    findings = unfit(objects, versions) or broken(objects)  # the rules need objects of the right form
    for finding in findings:
        typer.echo(finding)
    if findings:
        raise typer.Exit(1)
    typer.echo(
        f"{what}: {len(objects)} objects, taken by Kubernetes {', '.join(versions)}; {len(RULES)} rules hold"
    )


@app.command()
def wait(
    config: ConfigOption = HERE,
    overrides: SetOption = None,
    run: Annotated[
        bool, typer.Option("--run", help="Also wait for the run, which the first orchestrator creates.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0, help="Fail with exit status 1 after this many seconds.")
    ] = 600.0,
) -> None:
    """Wait until the data pool has this code's schema, before a process starts on another machine: penstock cluster wait -c . --run"""
    from orchestrator.deploy.cluster.wait import wait as waited
    from orchestrator.deploy.home import Home
    from orchestrator.pool.engine import NO_WAITING_HELPS

    resolved = Home.at(config, tuple(overrides or ())).reading()

    async def work() -> None:
        await waited(resolved, run=run, timeout_s=timeout)

    try:
        anyio.run(work, backend_options={"use_uvloop": True})
    except NO_WAITING_HELPS:
        raise
    except PenstockError as error:
        raise PenstockError(f"waited {timeout:g} s, and {error}") from None
