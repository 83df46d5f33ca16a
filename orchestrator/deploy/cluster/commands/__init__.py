"""The commands for a change of counts on each target, in the order of execution. They are not run here.

The files come first: a manually changed directory is refused while all processes still run. Processes that go or restart are drained before
(`penstock drain --wait`), so that no work is done twice. If Kubernetes rolls processes that cannot be drained one by one, the cost is stated.
"""

from orchestrator.deploy.cluster.commands.hosts import (
    ComposeHere,
    ComposeHosts,
    Systemd,
    as_job,
    on_hosts,
)
from orchestrator.deploy.cluster.commands.kubernetes import on_kubernetes
from orchestrator.deploy.cluster.commands.step import CommandPaths, CommandStep
from orchestrator.deploy.cluster.render import Target, render
from orchestrator.deploy.cluster.scale import Change


def steps(change: Change, target: str, site: CommandPaths) -> list[CommandStep]:
    """All steps. ValueError, one sentence, for an unknown target or a topology that it cannot run; ConfigurationError for a change that it
    cannot make."""
    old, new = render(change.before, target), render(change.after, target)
    match target:
        case Target.KUBERNETES | Target.HELM:
            changed = [name for name, text in new.items() if old.get(name) != text]
            found = on_kubernetes(change, site, target, changed)
        case Target.SLURM:
            found = as_job(change, site)
        case Target.COMPOSE if len(change.after.machines) == 1:
            found = on_hosts(change, site, ComposeHere(change, site))
        case Target.COMPOSE:
            found = on_hosts(change, site, ComposeHosts(change, site))
        case _:
            found = on_hosts(change, site, Systemd(change, site))
    return [site.render(target), *found]
