"""penstock scale: refused before anything is written, or one script that drains each departing process before it ends, and changes nothing else."""

import errno
import json
import os
import re
import shutil
import stat
import subprocess
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from orchestrator.cli.main import app
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.deploy.cluster.commands import steps
from orchestrator.deploy.cluster.commands.kubernetes import runner_pools
from orchestrator.deploy.cluster.commands.step import CommandPaths, CommandStep, scripted
from orchestrator.deploy.cluster.edit import edited, with_counts
from orchestrator.deploy.cluster.objects import called, pods
from orchestrator.deploy.cluster.placement import placed
from orchestrator.deploy.cluster.reading import load
from orchestrator.deploy.cluster.render import Target, render
from orchestrator.deploy.cluster.scale import Change, change
from orchestrator.deploy.cluster.write import write
from tests.unit.cli.test_help import parse
from tests.unit.cluster.rendered import CLUSTER, parsed
from tests.unit.cluster.tools import wants

pytestmark = pytest.mark.tier("cluster")

SITE = CommandPaths(
    topology="mine.toml", out="out", home="run", living={"runner": ["pod-a", "pod-b", "pod-c"]}
)


def changed(example: str, *requested: str, **more: Any) -> Change:
    raw = tomllib.loads((CLUSTER / f"{example}.toml").read_text())
    for key, value in more.items():
        raw.setdefault(key, {}).update(value)
    return change(raw, requested, f"{example}.toml")


def argv(found: Sequence[CommandStep], *beginning: str) -> list[tuple[str, ...]]:
    return [step.argv for step in found if step.argv[: len(beginning)] == beginning]


@pytest.mark.parametrize(
    ("requested", "says"),
    [
        (("runners=6",), "runners[0]: max_replicas = 4 is less than replicas = 6"),
        (
            ("runners=3..6",),
            "config.queue: min(N, (S+1)·P) + W = min(56, 3·16) + 16 = 64 groups idle the trainer: runners hold 192 slots ÷ group_size 4 = 48 groups",
        ),
        (("servers=3",), "host gpu-1 has gpus = 8, but its processes need 6 (servers[0]) + 4 (trainer) = 10"),
        (("gateways=0",), "gateways.replicas: Input should be greater than or equal to 1"),
        (("gateways=2",), "has gateways=2 already: there is nothing to change"),
        (("gateways=3", "gateways=4"), "gateways.replicas is requested twice"),
        (("gateways=2..3",), "gateways is one pool with a fixed count"),
        (("servers=1..2",), "they are not scaled automatically"),
        (("trainer=2",), "trainer is not scaled: there is one trainer"),
        (("runner=2",), "unknown role 'runner'; known: gateways, orchestrators, runners, verifiers, servers"),
        (("runners.big=2",), "runners has no pool 'big'; known: default"),
        (("runners=two",), "'runners=two' is not a count"),
        (("runners=\u0663",), "is not a count"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence_and_nothing_is_written(
    tmp_path: Path, requested: tuple[str, ...], says: str
) -> None:
    file = tmp_path / "topology.toml"
    shutil.copy(CLUSTER / "topology.toml", file)
    result = CliRunner().invoke(app, ["scale", str(file), *requested, "--write", "-t", "systemd"])
    assert result.exit_code == 1 and result.stdout == ""
    assert isinstance(result.exception, ConfigurationError)
    assert says in str(result.exception) and "\n" not in str(result.exception)
    assert file.read_bytes() == (CLUSTER / "topology.toml").read_bytes()


def test_the_file_has_the_new_counts_and_all_else_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "topology.toml"
    shutil.copy(CLUSTER / "topology.toml", file)
    words = ["scale", str(file), "runners=1..3", "gateways=1", "verifiers=2", "--write"]
    result = CliRunner().invoke(app, words[:-1])
    assert result.exit_code == 0 and "is as it was: --write changes it" in result.stdout
    assert file.read_text() == (CLUSTER / "topology.toml").read_text()
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0 and "has the new counts" in result.stdout
    old, new = (CLUSTER / "topology.toml").read_text().splitlines(), file.read_text().splitlines()
    assert [line for line in new if line not in old] == [
        "replicas = 1",
        "replicas = 1",
        "max_replicas = 3                         # Kubernetes scales up to it by the work that waits",
    ]
    found = load(file)
    assert (found.runners[0].replicas, found.runners[0].max_replicas) == (1, 3)
    assert (found.gateways.replicas, found.verifiers[0].replicas) == (1, 2)


def test_a_disk_that_is_full_leaves_the_topology_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "topology.toml"
    shutil.copy(CLUSTER / "topology.toml", file)
    file.chmod(0o644)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("orchestrator.deploy.embedded.identity.boundary_sync", full)
        result = CliRunner().invoke(app, ["scale", str(file), "verifiers=2", "--write"])
    assert "No space left on device; the new counts are not in it" in str(result.exception)
    assert file.read_bytes() == (CLUSTER / "topology.toml").read_bytes()
    assert list(tmp_path.iterdir()) == [file]
    link = tmp_path / "link.toml"
    link.symlink_to(file)
    assert CliRunner().invoke(app, ["scale", str(link), "verifiers=2", "--write"]).exit_code == 0
    assert link.is_symlink() and load(file).verifiers[0].replicas == 2
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


@pytest.mark.parametrize(
    ("text", "key", "made"),
    [
        ("a = 1", ("gateways", None, "replicas"), "a = 1\n\n[gateways]\nreplicas = 3\n"),
        ("[gateways] # two\nport = 1\n", ("gateways", None, "replicas"), "[gateways] # two\nport = 1\nreplicas = 3\n"),
        (
            "[gateways]\nport = 1\n\n# who shows it\n[web]\nport = 2\n",
            ("gateways", None, "replicas"),
            "[gateways]\nport = 1\nreplicas = 3\n\n# who shows it\n[web]\nport = 2\n",
        ),
        ("a = 1\n[gateways]", ("gateways", None, "replicas"), "a = 1\n[gateways]\nreplicas = 3\n"),
        ("", ("runners", 0, "replicas"), "\n[[runners]]\nreplicas = 3\n"),
        (
            "[[runners]]\nreplicas = 1 # a\n[[runners]]\nreplicas=2\n[web]\nreplicas = 1\n",
            ("runners", 1, "replicas"),
            "[[runners]]\nreplicas = 1 # a\n[[runners]]\nreplicas=3\n[web]\nreplicas = 1\n",
        ),
        ("gateways = { replicas = 1_0 } # all\n", ("gateways", None, "replicas"), "gateways = { replicas = 3 } # all\n"),
        ("gateways.replicas = 2\n", ("gateways", None, "replicas"), "gateways.replicas = 3\n"),
        ("gateways.port = 2\n[web]\n", ("gateways", None, "replicas"), "gateways.port = 2\ngateways.replicas = 3\n[web]\n"),
        ('[gateways]\n"replicas"   = 2   # quoted\n', ("gateways", None, "replicas"), '[gateways]\n"replicas"   = 3   # quoted\n'),
        (
            "runners = [{ name = 'a' }, # one\n  { name = 'b', replicas = 1 }]\n",
            ("runners", 1, "replicas"),
            "runners = [{ name = 'a' }, # one\n  { name = 'b', replicas = 3 }]\n",
        ),
    ],
)  # fmt: skip
def test_a_number_is_changed_where_it_stands_or_put_where_it_belongs(text: str, key: Any, made: str) -> None:
    assert edited(text, {key: 3}) == made


def test_several_numbers_of_one_table_are_put_into_it() -> None:
    counts: dict[tuple[str, int | None, str], int] = {
        ("runners", 0, "replicas"): 1,
        ("runners", 0, "max_replicas"): 3,
        ("verifiers", 0, "replicas"): 2,
    }
    text = "[[runners]]\nname = 'a'  # all\n\n# below\n[web]\nport = 1\n"
    made = edited(text, counts)
    assert tomllib.loads(made) == with_counts(tomllib.loads(text), counts)
    assert made.startswith(
        "[[runners]]\nname = 'a'  # all\nreplicas = 1\nmax_replicas = 3\n\n# below\n[web]\nport = 1\n"
    )


CASES = [
    ("topology", "gateways=1", "servers=1", "orchestrators=1"),
    ("topology", "runners=1", "verifiers=3"),
    ("examples/nodes8", "runners=7", "gateways=3"),
    ("examples/nodes8", "servers=15"),
    ("examples/nodes4", "servers=3", "gateways=3"),
    ("examples/node8", "verifiers=5", "runners=1"),
    ("examples/laptop", "runners=2", "gateways=2"),
]


@pytest.mark.parametrize("target", Target)
@pytest.mark.parametrize("case", [CASES[0], CASES[-1]], ids=" ".join)
def test_every_command_of_ours_is_one_and_all_of_it_is_one_script(case: tuple[str, ...], target: str) -> None:
    found = steps(changed(*case), target, SITE)
    assert subprocess.run(["sh", "-n"], input=scripted(found).encode()).returncode == 0
    ours = argv(found, "penstock")
    assert ours
    for call in ours:
        parse(call[1:])


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_removed_units_are_stopped_new_ones_are_started_and_those_with_changed_text_or_settings_restart(
    case: tuple[str, ...],
) -> None:
    of = changed(*case)
    old, new = (
        {file: text for file, text in render(each, "systemd").items() if file.endswith(".service")}
        for each in (of.before, of.after)
    )
    found = steps(of, "systemd", SITE)
    by_verb = {
        verb: {unit for step in found for unit in _units(step, verb) if unit.endswith(".service")}
        for verb in ("disable --now", "enable --now", "restart")
    }
    units = {
        side: {Path(file).name: text for file, text in files.items()}
        for side, files in (("old", old), ("new", new))
    }
    gone, come = units["old"].keys() - units["new"].keys(), units["new"].keys() - units["old"].keys()
    differ = {
        unit for unit, text in units["new"].items() if unit in units["old"] and units["old"][unit] != text
    }
    assert gone <= by_verb["disable --now"] and come <= by_verb["enable --now"]
    assert by_verb["disable --now"] - gone == by_verb["enable --now"] - come  # those that move
    again = by_verb["restart"] | (by_verb["enable --now"] - come)
    assert differ <= again
    roles = {
        unit.removeprefix(f"penstock-{of.after.name}-").rpartition("-")[0] for unit in by_verb["restart"]
    }
    assert roles <= {*of.readers}


def _units(step: CommandStep, verb: str) -> list[str]:
    """The units in one command of systemctl."""
    line = step.argv[-1] if step.argv else ""
    return line.partition(f"systemctl {verb} ")[2].partition(" &&")[0].split()


@pytest.mark.parametrize("target", ["systemd", "compose"])
@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_a_process_that_goes_or_moves_is_drained_before(case: tuple[str, ...], target: str) -> None:
    of = changed(*case)
    lines = [step.shell for step in steps(of, target, SITE)]
    for name in {
        each.name
        for each in [*of.goes, *(old for old, _ in of.moved)]
        if each.role in ("runner", "verifier", "gateway")
    }:
        drains = next(at for at, line in enumerate(lines) if f"{name} -c run --wait" in line)
        ends = next(
            at
            for at, line in enumerate(lines)
            if name in line and ("disable --now" in line or "rm --stop" in line)
        )
        assert drains < ends
    for at, line in enumerate(lines):
        unit = next(
            (
                each
                for each in (line.split("'")[-2:-1] or [line])
                if "restart" in line or "--force-recreate" in line
            ),
            "",
        )
        name = (
            unit.split()[-1].removeprefix(f"penstock-{of.after.name}-").removesuffix(".service")
            if unit
            else ""
        )
        if name.startswith(("runner", "verifier", "gateway")):
            assert f"{name} -c run --wait" in lines[at - 1]


@pytest.mark.parametrize("case", [CASES[0], CASES[5]], ids=" ".join)  # two machines, and one
def test_with_compose_nothing_ends_by_a_file_that_may_be_elsewhere_or_not_know_it_any_more(
    case: tuple[str, ...],
) -> None:
    of = changed(*case)
    ends = [step.shell for step in steps(of, "compose", SITE) if "rm --stop" in step.shell]
    (project,) = {
        yaml.safe_load(text)["name"]
        for name, text in render(of.before, "compose").items()
        if name.endswith("compose.yaml")
    }
    assert len(ends) == len({each.host for each in [*of.goes, *(old for old, _ in of.moved)]})
    for line in ends:
        assert f"docker compose --project-name {project} rm --stop --force" in line
        assert "cd " not in line and "--file" not in line


def test_a_host_that_only_loses_processes_has_the_new_files_before_anybody_starts_them_again() -> None:
    of = changed("examples/nodes8", "verifiers=1")
    assert of.goes and not (of.comes or of.moved or of.readers)
    loses = {of.before.machines[each.host].address for each in of.goes}
    lives = {each.host for each in placed(of.after)}
    assert {each.host for each in of.goes} <= lives
    for target in ("systemd", "compose"):
        put = [call[-1].partition(":") for call in argv(steps(of, target, SITE), "rsync")]
        assert {address for address, _, _ in put} == loses
    (place,) = {place for _, _, place in put}
    assert f"`{place}hosts/HOST`" in render(of.after, "compose")["README.md"]  # where a person starts


@wants("rsync")
@pytest.mark.parametrize("target", ["systemd", "compose"])
def test_copied_files_can_be_read_by_the_user_of_the_containers_whatever_the_umask_of_a_host(
    target: str, tmp_path: Path
) -> None:
    of = changed("examples/nodes8", "verifiers=1")
    rendered, home, shell = tmp_path / "out", tmp_path / "home", tmp_path / "ssh"
    write(render(of.after, target), rendered)
    (rendered / "mine").write_text("a secret\n")
    (rendered / "mine").chmod(0o600)
    home.mkdir()
    shell.write_text(f'#!/bin/sh\nshift; umask 077; cd {home}; exec "$@"\n')
    shell.chmod(0o755)
    put = argv(steps(of, target, replace(SITE, out=str(rendered))), "rsync")[0]
    subprocess.run(put, env={"PATH": os.environ["PATH"], "RSYNC_RSH": str(shell)}, check=True)
    (copied,) = home.iterdir()
    modes = {name: (copied / name).stat().st_mode & 0o777 for name in [*render(of.after, target), "mine"]}
    assert modes.pop("mine") == 0o600 and set(modes.values()) == {0o644}


def test_on_kubernetes_only_the_readers_of_a_changed_setting_restart() -> None:
    for requested, readers in (
        ("runners=2..3", {"orchestrator", "web"}),
        ("verifiers=3", set()),
        ("servers=3", {"gateway"}),
        ("gateways=3", {"runner"}),
        ("orchestrators=3", set()),
    ):
        of = changed("examples/nodes4", requested)
        old, new = (
            {called(pod.of): pod for pod in pods(parsed(dict(render(each, "kubernetes"))))}
            for each in (of.before, of.after)
        )
        assert (
            {pod.component for name, pod in new.items() if pod.template != old[name].template}
            == readers
            == {*of.readers}
        )


def test_on_kubernetes_the_pods_of_a_deployment_that_go_are_drained_and_marked_before_there_are_fewer() -> (
    None
):
    of = changed("examples/nodes8", "runners=1", kubernetes={"autoscaling": False}).apart()
    assert runner_pools(of) == ["runner"]
    files, *found = steps(of, "kubernetes", SITE)
    assert files.argv[:3] == ("penstock", "cluster", "render")
    assert [step.argv[:4] for step in found[:4]] == [
        ("penstock", "drain", "runner", "runner@pod-a"),
        ("kubectl", "-n", "penstock", "annotate"),
        ("penstock", "drain", "runner", "runner@pod-b"),
        ("kubectl", "-n", "penstock", "annotate"),
    ]
    assert found[1].argv[-3:] == ("pod-a", "controller.kubernetes.io/pod-deletion-cost=-1000", "--overwrite")
    (applied,) = argv(found, "kubectl", "-n", "penstock", "apply")
    assert applied[4:] == (
        "-f",
        "out/10-settings.yaml",
        "-f",
        "out/41-orchestrators.yaml",
        "-f",
        "out/43-runners.yaml",
        "-f",
        "out/45-web.yaml",
    )


def test_on_kubernetes_gateways_restart_one_by_one_each_drained_before() -> None:
    found = steps(changed("examples/nodes4", "servers=3", "gateways=1").apart(), "kubernetes", SITE)
    about = [
        step.argv[3]
        if step.argv[0] == "penstock"
        else re.sub(r".*(partition)\W+(\d).*", r"\1 \2", step.argv[-1])
        for step in found
        if step.argv[:2] == ("penstock", "drain") or "patch" in step.argv
    ]
    server = "http://nodes4-rollout-server-default-3.nodes4-rollout-server-default.penstock.svc:30000"
    assert about == [
        server,
        "gateway@nodes4-gateway-1",
        "partition 1",
        "gateway@nodes4-gateway-0",
        "partition 0",
        server,
    ]
    assert found[-1].argv[-1] == "--undo"  # a later process at its address works


@pytest.mark.parametrize(
    ("requested", "says"),
    [
        ("runners=2..0", r"runners\[0\]\.max_replicas: 4 → 0 makes KEDA cease to scale them"),
        ("verifiers=2..3", r"verifiers\[0\]\.max_replicas: 0 → 3 makes KEDA begin to scale them"),
    ],
)
def test_keda_begins_and_ceases_to_scale_a_pool_by_helm_alone(requested: str, says: str) -> None:
    of = changed("examples/nodes4", requested).apart()
    with pytest.raises(ConfigurationError, match=says) as refused:
        steps(of, "kubernetes", SITE)
    assert "\n" not in str(refused.value)
    assert argv(steps(of, "helm", SITE), "helm")
    assert steps(changed("examples/nodes4", requested, kubernetes={"autoscaling": False}), "kubernetes", SITE)


def test_a_pool_that_keda_scales_is_left_to_it() -> None:
    of = changed("examples/nodes4", "runners=1..4").apart()
    assert runner_pools(of) == []
    found = steps(of, "kubernetes", SITE)
    assert argv(found, "penstock", "drain") == []
    assert argv(found, "kubectl") == [("kubectl", "-n", "penstock", "apply", "-f", "out/50-scaling.yaml")]
    assert any("KEDA ends and begins runners" in step.why for step in found)


def test_rollout_servers_that_move_work_again_before_a_gateway_is_drained_and_the_first_stays() -> None:
    raw = tomllib.loads((CLUSTER / "examples/node8.toml").read_text())
    (pool,) = raw["servers"]
    raw["servers"] = [{**pool, "name": "one", "replicas": 1}, {**pool, "name": "two", "replicas": 2}]
    of = change(raw, ["servers.one=2"], "file")
    assert [old.name for old, _ in of.moved if old.role == "rollout-server"] == [
        "rollout-server-two-0",
        "rollout-server-two-1",
    ]
    found = steps(of, "systemd", SITE)
    about = [(step.argv[2], step.argv[6:]) for step in found if step.argv[:2] == ("penstock", "drain")]
    ends, again = ("server", ("--wait", "--yes")), ("server", ("--undo",))
    assert about == [ends, ends, again, again, *[("gateway", ("--wait",))] * of.after.gateways.replicas]


def test_a_rollout_server_that_takes_the_address_of_one_that_goes_works_before_a_gateway_is_drained() -> None:
    raw = tomllib.loads((CLUSTER / "examples/node8.toml").read_text())
    (pool,) = raw["servers"]
    raw["servers"] = [{**pool, "name": "one", "replicas": 2}, {**pool, "name": "two", "replicas": 1}]
    of = change(raw, ["servers.one=1"], "file")
    (gone,) = (each for each in of.goes if each.role == "rollout-server")
    (moved,) = (new for _, new in of.moved if new.role == "rollout-server")
    assert (gone.host, gone.ports["http"]) == (moved.host, moved.ports["http"])
    lines = [step.shell for step in steps(of, "systemd", SITE)]
    undone = [at for at, line in enumerate(lines) if f":{moved.ports['http']} " in line and "--undo" in line]
    begins = next(at for at, line in enumerate(lines) if "enable --now" in line)
    gateways = next(at for at, line in enumerate(lines) if "drain gateway" in line)
    assert len(undone) == 1 and begins < undone[0] < gateways


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Stands in for every program of a script: each call becomes a line of `called`; `fails` names a word at which a program fails."""
    place = tmp_path / "bin"
    place.mkdir()
    for name in ("penstock", "kubectl", "ssh", "rsync", "docker", "scontrol", "scancel", "sbatch"):
        file = place / name
        file.write_text(
            f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/called\ncase "{name} $*" in *"$FAILS"*) exit 1;; esac\n'
        )
        file.chmod(0o755)
    return place


@pytest.mark.parametrize("target", ["kubernetes", "systemd", "slurm", "compose"])
def test_a_script_does_every_step_and_stops_if_a_process_does_not_drain(
    tmp_path: Path, programs: Path, target: str
) -> None:
    of = changed("topology", "gateways=1")
    found = steps(of, target, SITE)

    def run(fails: str) -> tuple[int, list[str]]:
        (tmp_path / "called").unlink(missing_ok=True)
        environment = {"PATH": f"{programs}:{os.environ['PATH']}", "FAILS": fails, "JOB": "7"}
        done = subprocess.run(["sh"], input=scripted(found).encode(), env=environment)
        return done.returncode, (tmp_path / "called").read_text().splitlines()

    rc, everything = run("nothing fails")
    assert rc == 0 and len(everything) == sum(bool(step.argv) for step in found)
    rc, some = run("drain gateway")
    assert rc == 1 and some == everything[: len(some)] and "drain gateway" in some[-1]
    assert not any(word in line for line in some for word in ("disable", "apply", "scancel"))
    rc, some = run("cluster render")  # it may be refused: a file was changed by hand
    assert rc == 1 and some == everything[:1], "no process is drained, nothing ends"


def test_a_script_of_counts_that_were_not_written_does_nothing_when_it_is_run(
    tmp_path: Path, programs: Path
) -> None:
    file = tmp_path / "topology.toml"
    shutil.copy(CLUSTER / "topology.toml", file)
    words = ["scale", str(file), "gateways=1", "-t", "systemd"]
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "FAILS": "nothing fails"}

    def run(*more: str) -> subprocess.CompletedProcess[bytes]:
        result = CliRunner().invoke(app, [*words, *more])
        assert result.exit_code == 0, result.exception
        return subprocess.run(["sh"], input=result.stdout.encode(), env=environment, capture_output=True)

    done = run()
    assert done.returncode == 1 and b"run penstock scale with --write" in done.stderr
    assert not (tmp_path / "called").exists()
    assert run("--write").returncode == 0 and (tmp_path / "called").exists()


def test_for_machines_it_says_counts_window_settings_and_commands() -> None:
    result = CliRunner().invoke(
        app,
        ["scale", str(CLUSTER / "topology.toml"), "runners=3..3", "-t", "compose", "-o", "here", "--json"],
    )
    assert result.exit_code == 0, result.exception
    found = json.loads(result.stdout)
    assert found["counts"] == [
        {"key": "runners[0].replicas", "before": 2, "after": 3},
        {"key": "runners[0].max_replicas", "before": 4, "after": 3},
    ]
    assert found["window"] == {
        "slots": [128, 96],
        "verify_slots": [8, 8],
        "n": 56,
        "places": 48,
        "w": 16,
        "reach": 64,
        "needed": [64.0, 48.0],
    }
    assert found["settings"] == [
        {"key": "rollout.slots", "before": 128, "after": 96, "read_by": ["orchestrator", "web"]}
    ]
    assert [each["name"] for each in found["comes"]] == ["runner-2"] and found["goes"] == found["moves"] == []
    assert found["written"] is False
    assert found["steps"][0]["shell"].endswith("--target compose --out here")
