"""penstock scale: change the number of runners, gateways or rollout servers of a run on more than one machine."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from orchestrator.cli.options import HERE, ConfigOption, JsonOption, path
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.deploy.embedded.identity import rewrite_atomically
from orchestrator.deploy.home import Home
from sandboxes.text_files import read_toml, toml_text

if TYPE_CHECKING:
    from orchestrator.deploy.cluster.commands.step import CommandStep
    from orchestrator.deploy.cluster.scale import Change

ON_KUBERNETES = ("kubernetes", "helm")


def register(app: typer.Typer) -> None:
    """Add this command to the root."""
    app.command()(scale)


def scale(
    topology: Annotated[
        Path, typer.Argument(help="The topology: a TOML file (ops/cluster/topology.toml).", parser=path)
    ],
    counts: Annotated[
        list[str],
        typer.Argument(
            metavar="ROLE=N…",
            help="gateways, orchestrators, runners, verifiers, servers (rollout servers); of several pools runners.POOL=4; with KEDA runners=2..8.",
        ),
    ],
    target: Annotated[
        str,
        typer.Option(
            "--target", "-t", help="kubernetes, helm, slurm, systemd or compose: how the run is deployed."
        ),
    ] = "",
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The directory that was rendered for the target.", parser=path)
    ] = Path("cluster"),
    write: Annotated[
        bool,
        typer.Option(
            "--write",
            help="Write the counts into the topology. Without this option nothing is changed, and the script refuses to run.",
        ),
    ] = False,
    config: ConfigOption = HERE,
    as_json: JsonOption = False,
) -> None:
    """Show what other counts change and the commands that make the change. A removed process is drained first. The output is one shell script.
    Impossible counts are refused before anything is written."""
    from orchestrator.deploy.cluster.commands import steps
    from orchestrator.deploy.cluster.commands.kubernetes import runner_pools
    from orchestrator.deploy.cluster.commands.step import CommandPaths, scripted
    from orchestrator.deploy.cluster.edit import edited
    from orchestrator.deploy.cluster.scale import change, numbers

    if config != HERE:
        Home.at(config).config()  # the printed script names it
    try:
        text, raw = toml_text(topology.read_bytes(), str(topology)), read_toml(topology)
    except OSError as error:
        raise ConfigurationError(f"{topology}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    changed = change(raw, counts, str(topology))
    if target in ON_KUBERNETES:
        changed = changed.apart()
    written = edited(text, numbers(changed.counts))
    found: list[CommandStep] = []
    if target:
        pools = runner_pools(changed) if target in ON_KUBERNETES else []
        hosts = anyio.run(_living, Home.at(config), pools) if pools else {}
        found = steps(
            changed,
            target,
            CommandPaths(topology=str(topology), out=str(out), home=str(config), living=hosts),
        )
    if write:
        try:
            rewrite_atomically(topology, written.encode())
        except OSError as error:
            raise ConfigurationError(f"{topology}: {error.strerror}; the new counts are not in it") from None
    if as_json:
        typer.echo(json.dumps(_as_json(changed, found, write)))
        return
    for line in _summary(changed, topology, write):
        typer.echo(f"# {line}")
    if target:
        refused = (
            f"{topology} has the old counts, and these commands render it: run penstock scale with --write"
        )
        typer.echo(scripted(found, "" if write else refused), nl=False)
    else:
        typer.echo("# how it is done: --target kubernetes, helm, slurm, systemd or compose")


async def _living(home: Home, names: Sequence[str]) -> dict[str, list[str]]:
    """Hosts of the living runners, by runner name; draining ones first."""
    from orchestrator.cli.reading import reading
    from orchestrator.pool.heartbeats import present

    config = home.reading()
    async with reading(config, "scale") as reader:
        found = await reader.ask(lambda connection: present(connection, reader.run.run_id))
    running = sorted(
        (each for each in found if not each.stopped and each.silent_s <= config.watchdog.no_progress_s),
        key=lambda each: (not each.draining, each.host),
    )
    return {name: [each.host for each in running if each.process == name] for name in names}


def _summary(changed: "Change", topology: Path, written: bool) -> list[str]:
    from orchestrator.deploy.cluster.scale import window_sentences

    lines = [count.sentence for count in changed.counts]
    lines += window_sentences(changed)
    lines += [setting.sentence for setting in changed.settings]
    for verb, processes in (("comes", changed.comes), ("goes", changed.goes)):
        lines += [f"{verb}: {_where(each)}" for each in processes]
    lines += [f"moves: {_where(old)} → {_where(new)}" for old, new in changed.moved]
    if written:
        lines.append(f"{topology} has the new counts")
    else:
        lines.append(f"{topology} is as it was: --write changes it, and without the commands do nothing")
    return lines


def _where(process: Any) -> str:
    ports = ", ".join(f"{purpose} {port}" for purpose, port in process.ports.items())
    gpus = f"GPUs {' '.join(map(str, process.gpus))}" if process.gpus else ""
    about = "; ".join(part for part in (ports, gpus) if part)
    node = f" node {process.node}" if process.node else ""
    return f"{process.name}{node}" + (f" on {process.host} ({about})" if process.host else "")


def _as_json(changed: "Change", found: Sequence["CommandStep"], written: bool) -> Mapping[str, Any]:
    from orchestrator.deploy.cluster.edit import spelt

    def shown(process: Any) -> dict[str, Any]:
        return {
            "name": process.name,
            "role": process.role,
            "host": process.host,
            "node": process.node,
            "ports": dict(process.ports),
            "gpus": list(process.gpus),
        }

    old, new = changed.bridges
    return {
        "counts": [
            {"key": spelt(each.key), "before": each.before, "after": each.after} for each in changed.counts
        ],
        "window": {
            "slots": [old.slots, new.slots],
            "verify_slots": [old.verify_slots, new.verify_slots],
            "n": new.capacity,
            "places": new.places,
            "w": new.window,
            "reach": new.reach,
            "needed": [old.needed, new.needed],
        },
        "settings": [
            {"key": each.key, "before": each.before, "after": each.after, "read_by": list(each.read_by)}
            for each in changed.settings
        ],
        "comes": [shown(each) for each in changed.comes],
        "goes": [shown(each) for each in changed.goes],
        "moves": [{"from": shown(before), "to": shown(after)} for before, after in changed.moved],
        "steps": [{"why": each.why, "argv": list(each.argv), "shell": each.shell} for each in found],
        "written": written,
    }
