"""penstock metrics: the Prometheus targets of a run's processes."""

import json

import typer

from orchestrator.cli.options import HERE, ConfigOption
from orchestrator.deploy.home import Home
from orchestrator.runtime.metrics import entry, targets

app = typer.Typer()


@app.callback()
def metrics() -> None:
    """Metrics of a run's processes: penstock metrics targets -c runs/first"""


@app.command("targets")
def show(config: ConfigOption = HERE) -> None:
    """Print where each process of this machine serves metrics, in the format of file_sd: penstock metrics targets -c runs/first > targets.json

    Rollout servers that the configuration names are included: SGLang answers if it was started with --enable-metrics.
    """
    home = Home.at(config)
    found = targets(home.layout.run)
    resolved = home.config()
    for number, url in enumerate(resolved.servers.urls, 1):
        address = url.partition("://")[2].rstrip("/")
        found.append(entry(address, resolved.run.name, f"rollout-server-{number}"))
    typer.echo(json.dumps(found, indent=2))
