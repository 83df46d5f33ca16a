"""How a change of counts is done on each target: commands in the order in which they are run, none of which is run here.

The files come first: a directory that was changed by hand is refused while all still run. Who goes, and who begins anew, is drained before
(`penstock drain --wait`), so that nothing is done twice. What Kubernetes rolls by itself and cannot be drained one by one says what it costs.
"""

from orchestrator.cluster.commands.hosts import Compose, ComposeHere, Systemd, as_job, on_hosts
from orchestrator.cluster.commands.kubernetes import on_kubernetes
from orchestrator.cluster.commands.step import Site, Step
from orchestrator.cluster.render import render
from orchestrator.cluster.scale import Change


def steps(change: Change, target: str, site: Site) -> list[Step]:
    """All of them. ValueError, one sentence, for an unknown target or a topology that it cannot run; ConfigurationError for a change that it
    cannot bring."""
    old, new = render(change.before, target), render(change.after, target)
    match target:
        case "kubernetes" | "helm":
            differ = [name for name, text in new.items() if old.get(name) != text]
            found = on_kubernetes(change, site, target, differ)
        case "slurm":
            found = as_job(change, site)
        case "compose" if len(change.after.machines) == 1:
            found = on_hosts(change, site, ComposeHere(change, site))
        case "compose":
            found = on_hosts(change, site, Compose(change, site))
        case _:
            found = on_hosts(change, site, Systemd(change, site))
    return [site.render(target), *found]
