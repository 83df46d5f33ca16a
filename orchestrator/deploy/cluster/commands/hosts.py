"""Hosts by systemd or compose, and Slurm's job: processes that go, move or restart are drained first."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from orchestrator.contracts.processes import WORKERS, ProcessRole
from orchestrator.deploy.cluster.commands.step import (
    JOB,
    CommandPaths,
    CommandStep,
    drains,
    forgets,
    urls_of,
)
from orchestrator.deploy.cluster.placement import PlacedProcess, placed
from orchestrator.deploy.cluster.render.bare import unit_of
from orchestrator.deploy.cluster.render.compose import OWN
from orchestrator.deploy.cluster.scale import Change


class Hosts(ABC):
    """The common part of the targets with hosts."""

    target: str

    def __init__(self, change: Change, site: CommandPaths) -> None:
        self.change, self.site = change, site

    def on(self, host: str, command: str) -> tuple[str, ...]:
        """The command line that runs `command` on a host."""
        return ("ssh", self.change.after.machines[host].address, command)

    @property
    def place(self) -> str:
        """The directory of rendered files on another host."""
        return f"penstock-{self.change.after.name}"

    def put(self, host: str) -> Iterator[CommandStep]:
        """The new files on a host."""
        yield CommandStep(
            f"copy the files to {host}",
            (
                "rsync",
                "-rp",  # with the modes of the files, whatever the umask over there
                "--delete",
                f"{self.site.out}/",
                f"{self.change.after.machines[host].address}:{self.place}/",
            ),
        )

    @abstractmethod
    def stop(self, host: str, units: Sequence[str]) -> CommandStep:
        """End units on a host. They are not started again."""

    @abstractmethod
    def start(self, host: str, units: Sequence[str]) -> Iterator[CommandStep]:
        """Start units on a host."""

    @abstractmethod
    def restart(self, process: PlacedProcess) -> CommandStep:
        """Restart a process with the files that are there now."""


class Systemd(Hosts):
    target = "systemd"

    def _units(self, units: Sequence[str]) -> str:
        return " ".join(f"penstock-{self.change.after.name}-{unit}.service" for unit in units)

    def put(self, host: str) -> Iterator[CommandStep]:
        yield from super().put(host)
        settings = f"/etc/penstock/{self.change.after.name}/penstock.toml"
        yield CommandStep(
            f"install the units on {host}",
            self.on(
                host,
                f"cd {self.place} && sudo install -D -m 0644 penstock.toml {settings} && sudo install -m 0644 hosts/{host}/*.service "
                f"hosts/{host}/*.target /etc/systemd/system/ && sudo systemctl daemon-reload",
            ),
        )

    def stop(self, host: str, units: Sequence[str]) -> CommandStep:
        unit_names = self._units(units)
        files = " ".join(f"/etc/systemd/system/{unit}" for unit in unit_names.split())
        return CommandStep(
            f"stop on {host}: {', '.join(units)}",
            self.on(host, f"sudo systemctl disable --now {unit_names} && sudo rm {files}"),
        )

    def start(self, host: str, units: Sequence[str]) -> Iterator[CommandStep]:
        target = f"penstock-{self.change.after.name}.target"
        yield CommandStep(
            f"start on {host}: {', '.join(units)}",
            self.on(host, f"sudo systemctl enable --now {target} {self._units(units)}"),
        )

    def restart(self, process: PlacedProcess) -> CommandStep:
        return CommandStep(
            f"{unit_of(process)} restarts with the new settings",
            self.on(process.host, f"sudo systemctl restart {self._units([unit_of(process)])}"),
        )


class ComposeHosts(Hosts):
    target = "compose"

    def run(self, host: str, what: str) -> tuple[str, ...]:
        """`docker compose` with the machine's file."""
        return self.on(host, f"cd {self.place}/hosts/{host} && docker compose {what}")

    def stop(self, host: str, units: Sequence[str]) -> CommandStep:
        # By the project's name, which the files give it: the new files do not contain the removed services, and the old ones may be elsewhere.
        project = f"penstock-{self.change.before.name}"
        removal = f"docker compose --project-name {project} rm --stop --force {' '.join(units)}"
        return CommandStep(f"stop on {host}: {', '.join(units)}", self.on(host, removal))

    def start(self, host: str, units: Sequence[str]) -> Iterator[CommandStep]:
        if any(not unit.startswith("rollout-server-") for unit in units):  # those keep no state
            arguments = f"run --rm -T {OWN}"
            yield CommandStep(f"set the owner of what {host} stores", self.run(host, arguments))
        yield CommandStep(
            f"start on {host}: {', '.join(units)}",
            self.run(host, f"up --detach --no-deps {' '.join(units)}"),
        )

    def restart(self, process: PlacedProcess) -> CommandStep:
        unit = unit_of(process)
        return CommandStep(
            f"{unit} restarts with the new settings",
            self.run(process.host, f"up --detach --no-deps --force-recreate {unit}"),
        )


class ComposeHere(ComposeHosts):
    """One machine: this one."""

    def on(self, host: str, command: str) -> tuple[str, ...]:
        return tuple(command.split())

    def put(self, host: str) -> Iterator[CommandStep]:
        yield from ()

    def run(self, host: str, what: str) -> tuple[str, ...]:
        return ("docker", "compose", "--file", f"{self.site.out}/compose.yaml", *what.split())


def on_hosts(change: Change, site: CommandPaths, target: Hosts) -> Iterator[CommandStep]:
    """Processes that move all end before any of them starts elsewhere: they take each other's ports and GPUs. The first rollout server never moves,
    so gateways that are drained later find one that answers."""
    urls = urls_of(change.before, target.target)
    moved = [old for old, _ in change.moved]
    for process in change.goes:
        yield from drains(site, process, urls, "--wait")
    # These may be all rollout servers except those for evaluations: then calls are held until they are back.
    for process in moved:
        yield from drains(
            site, process, urls, "--wait", *(["--yes"] if process.role == ProcessRole.ROLLOUT_SERVER else [])
        )
    for host, units in _by_host([*change.goes, *moved]).items():
        yield target.stop(host, units)
    added = [*(new for _, new in change.moved), *change.comes]
    new_names = {each.name for each in added}
    restarted = [
        each for each in placed(change.after) if each.role in change.readers and each.name not in new_names
    ]
    used_hosts = {each.host for each in placed(change.after)}
    # Hosts that only lose a process get files, too: with the old ones the removed process would start again.
    for host in dict.fromkeys(each.host for each in [*added, *restarted, *change.goes, *moved]):
        if host in used_hosts:
            yield from target.put(host)
    for host, units in _by_host(added).items():
        yield from target.start(host, units)
    addresses = set(urls_of(change.after, target.target).values())  # the new addresses of moved servers
    at_once = [each for each in change.goes if urls.get(each.name) in addresses]
    yield from forgets(site, [*moved, *at_once], urls)
    for process in restarted:
        yield from drains(site, process, urls, "--wait")
        yield target.restart(process)
    yield from forgets(site, (each for each in change.goes if each not in at_once), urls)


def _by_host(found: Sequence[PlacedProcess]) -> dict[str, list[str]]:
    units: dict[str, list[str]] = {}
    for process in found:
        units.setdefault(process.host, []).append(unit_of(process))
    return units


def as_job(change: Change, site: CommandPaths) -> Iterator[CommandStep]:
    """A job keeps its original nodes and steps, so another job replaces it. Its journals are on its nodes, and are lost with them."""
    workers = [each for each in placed(change.before) if each.role in WORKERS]
    for process in [*workers, *(each for each in placed(change.before) if each.role == ProcessRole.GATEWAY)]:
        yield from drains(site, process, {}, "--wait")
    yield CommandStep(
        f"JOB is the number of the job {change.before.name}, which must not be requeued",
        ("scontrol", "update", f"JobId={JOB}", "Requeue=0"),
    )
    yield CommandStep("end the job in order", ("scancel", JOB))
    script = f"{site.out}/{change.after.name}.sbatch"
    yield CommandStep("queue the next job behind it", ("sbatch", f"--dependency=afterany:{JOB}", script))
