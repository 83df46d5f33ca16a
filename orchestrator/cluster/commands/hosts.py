"""Hosts by systemd or compose, and Slurm's job: who goes, moves or begins anew is drained first."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from orchestrator.cluster.commands.step import JOB, Site, Step, drains, forgets, urls_of
from orchestrator.cluster.placement import Process, placed
from orchestrator.cluster.render.bare import unit_of
from orchestrator.cluster.render.compose import OWN
from orchestrator.cluster.scale import Change


class Hosts(ABC):
    """What the targets with hosts have in common."""

    target: str

    def __init__(self, change: Change, site: Site) -> None:
        self.change, self.site = change, site

    def on(self, host: str, command: str) -> tuple[str, ...]:
        """How a command gets there."""
        return ("ssh", self.change.after.machines[host].address, command)

    @property
    def place(self) -> str:
        """The directory of rendered files on another host."""
        return f"penstock-{self.change.after.name}"

    def put(self, host: str) -> Iterator[Step]:
        """The new files on a host."""
        yield Step(
            f"the files go to {host}",
            (
                "rsync",
                "-r",
                "--delete",
                f"{self.site.out}/",
                f"{self.change.after.machines[host].address}:{self.place}/",
            ),
        )

    @abstractmethod
    def stop(self, host: str, units: Sequence[str]) -> Step:
        """They end there, and are not started again."""

    @abstractmethod
    def start(self, host: str, units: Sequence[str]) -> Iterator[Step]:
        """They begin there."""

    @abstractmethod
    def restart(self, process: Process) -> Step:
        """It begins anew, with the files that are there now."""


class Systemd(Hosts):
    target = "systemd"

    def _units(self, units: Sequence[str]) -> str:
        return " ".join(f"penstock-{self.change.after.name}-{unit}.service" for unit in units)

    def put(self, host: str) -> Iterator[Step]:
        yield from super().put(host)
        settings = f"/etc/penstock/{self.change.after.name}/penstock.toml"
        yield Step(
            "and where systemd reads them",
            self.on(
                host,
                f"cd {self.place} && sudo install -D -m 0644 penstock.toml {settings} && sudo install -m 0644 hosts/{host}/*.service "
                f"hosts/{host}/*.target /etc/systemd/system/ && sudo systemctl daemon-reload",
            ),
        )

    def stop(self, host: str, units: Sequence[str]) -> Step:
        whole = self._units(units)
        files = " ".join(f"/etc/systemd/system/{unit}" for unit in whole.split())
        return Step(
            f"end on {host}: {', '.join(units)}",
            self.on(host, f"sudo systemctl disable --now {whole} && sudo rm {files}"),
        )

    def start(self, host: str, units: Sequence[str]) -> Iterator[Step]:
        target = f"penstock-{self.change.after.name}.target"
        yield Step(
            f"begin on {host}: {', '.join(units)}",
            self.on(host, f"sudo systemctl enable --now {target} {self._units(units)}"),
        )

    def restart(self, process: Process) -> Step:
        return Step(
            f"{unit_of(process)} begins anew, with the new settings",
            self.on(process.host, f"sudo systemctl restart {self._units([unit_of(process)])}"),
        )


class Compose(Hosts):
    target = "compose"

    def run(self, host: str, what: str) -> tuple[str, ...]:
        """`docker compose` with that machine's file."""
        return self.on(host, f"cd {self.place}/hosts/{host} && docker compose {what}")

    def stop(self, host: str, units: Sequence[str]) -> Step:
        # By the project's name, which the files give it: the new ones do not know who goes, and others may lie elsewhere.
        project = f"penstock-{self.change.before.name}"
        ends = f"docker compose --project-name {project} rm --stop --force {' '.join(units)}"
        return Step(f"end on {host}: {', '.join(units)}", self.on(host, ends))

    def start(self, host: str, units: Sequence[str]) -> Iterator[Step]:
        if any(not unit.startswith("rollout-server-") for unit in units):  # which keep nothing
            what = f"run --rm -T {OWN}"
            yield Step(f"what is kept on {host} is their user's", self.run(host, what))
        yield Step(
            f"begin on {host}: {', '.join(units)}",
            self.run(host, f"up --detach --no-deps {' '.join(units)}"),
        )

    def restart(self, process: Process) -> Step:
        unit = unit_of(process)
        return Step(
            f"{unit} begins anew, with the new settings",
            self.run(process.host, f"up --detach --no-deps --force-recreate {unit}"),
        )


class ComposeHere(Compose):
    """One machine: this one."""

    def on(self, host: str, command: str) -> tuple[str, ...]:
        return tuple(command.split())

    def put(self, host: str) -> Iterator[Step]:
        yield from ()

    def run(self, host: str, what: str) -> tuple[str, ...]:
        return ("docker", "compose", "--file", f"{self.site.out}/compose.yaml", *what.split())


def on_hosts(change: Change, site: Site, target: Hosts) -> Iterator[Step]:
    """Those that move end before any of them begins elsewhere: they take each other's ports and GPUs. The first rollout server never does, so
    gateways that are drained later find one that answers."""
    urls = urls_of(change.before, target.target)
    moved = [old for old, _ in change.moved]
    for process in change.goes:
        yield from drains(site, process, urls, "--wait")
    for process in moved:  # all rollout servers but those kept for evaluations, it may be: then calls are held until they are back
        yield from drains(
            site, process, urls, "--wait", *(["--yes"] if process.role == "rollout-server" else [])
        )
    for host, units in _by_host([*change.goes, *moved]).items():
        yield target.stop(host, units)
    comes = [*(new for _, new in change.moved), *change.comes]
    fresh = {each.name for each in comes}
    again = [each for each in placed(change.after) if each.role in change.readers and each.name not in fresh]
    lives = {each.host for each in placed(change.after)}
    # Those that only lose somebody, too: by their old files whoever is gone would start again.
    for host in dict.fromkeys(each.host for each in [*comes, *again, *change.goes, *moved]):
        if host in lives:
            yield from target.put(host)
    for host, units in _by_host(comes).items():
        yield from target.start(host, units)
    taken = set(urls_of(change.after, target.target).values())  # where one that moved answers now
    at_once = [each for each in change.goes if urls.get(each.name) in taken]
    yield from forgets(site, [*moved, *at_once], urls)
    for process in again:
        yield from drains(site, process, urls, "--wait")
        yield target.restart(process)
    yield from forgets(site, (each for each in change.goes if each not in at_once), urls)


def _by_host(found: Sequence[Process]) -> dict[str, list[str]]:
    made: dict[str, list[str]] = {}
    for process in found:
        made.setdefault(process.host, []).append(unit_of(process))
    return made


def as_job(change: Change, site: Site) -> Iterator[Step]:
    """A job has the nodes and steps that it began with, so another one takes its place. Its journals lie on its nodes, and go with them."""
    workers = [each for each in placed(change.before) if each.role in ("runner", "verifier")]
    for process in [*workers, *(each for each in placed(change.before) if each.role == "gateway")]:
        yield from drains(site, process, {}, "--wait")
    yield Step(
        f"JOB is the number of the job {change.before.name}, which is not to begin again",
        ("scontrol", "update", f"JobId={JOB}", "Requeue=0"),
    )
    yield Step("it ends in order", ("scancel", JOB))
    script = f"{site.out}/{change.after.name}.sbatch"
    yield Step("the next one begins when it has ended", ("sbatch", f"--dependency=afterany:{JOB}", script))
