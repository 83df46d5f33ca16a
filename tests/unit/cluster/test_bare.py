"""Units, batch jobs and compose files: taken by systemd, Slurm and bash themselves, where they are installed; a crash frees the nodes."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from orchestrator.deploy.cluster.reading import read
from orchestrator.deploy.cluster.render import render, slurm
from orchestrator.deploy.cluster.topology import SecretKey, Topology
from tests.unit.cluster.rendered import EXAMPLES, files, topology
from tests.unit.cluster.tools import wants
from tests.waiting import eventually_blocking

pytestmark = pytest.mark.tier("cluster")


def script(name: str) -> str:
    return next(text for file, text in files(name, "slurm").items() if file.endswith(".sbatch"))


# --- systemd --------------------------------------------------------------------------------------------------


@wants("systemd-analyze")
@pytest.mark.parametrize("name", EXAMPLES)
def test_systemd_finds_no_fault_in_a_unit_and_little_that_it_may_do(name: str, tmp_path: Path) -> None:
    programs = tmp_path / "install" / "bin"
    programs.mkdir(parents=True)
    for program in ("penstock", "alembic", "python3", "torchrun", "nats-server"):
        (programs / program).write_text("#!/bin/sh\n")
        (programs / program).chmod(0o755)
    here = tmp_path / "units"
    here.mkdir()
    units = []
    for file, text in files(name, "systemd").items():
        if file.endswith((".service", ".target")):
            unit = here / Path(file).name  # names are unique in a run, targets equal
            unit.write_text(text.replace("/opt/penstock/bin", str(programs)))
            units += [unit] if file.endswith(".service") else []
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *units],
        capture_output=True,
        text=True,
    )
    assert (verified.returncode, verified.stderr) == (0, "")
    scored = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", "--threshold=35", *units],
        capture_output=True,
        text=True,
    )
    assert scored.returncode == 0, [line for line in scored.stdout.splitlines() if "Overall" in line]


def test_a_unit_starts_its_process_only_when_the_schema_is_there() -> None:
    unit = files("nodes4", "systemd")["hosts/cpu1/penstock-nodes4-gateway-0.service"]
    lines = unit.splitlines()
    wait = next(at for at, line in enumerate(lines) if "cluster wait" in line)
    assert wait < next(at for at, line in enumerate(lines) if line.startswith("ExecStart="))
    assert "LoadCredential=nodes4-gateway-login.uri:/etc/penstock/secrets/nodes4-gateway-login/uri" in lines


# --- Slurm ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXAMPLES)
def test_bash_reads_the_job_script(name: str, tmp_path: Path) -> None:
    file = tmp_path / "job.sbatch"
    file.write_text(script(name))
    assert subprocess.run(["bash", "-n", file], capture_output=True).returncode == 0


@wants("shellcheck")
@pytest.mark.parametrize("name", EXAMPLES)
def test_shellcheck_has_nothing_to_say_of_the_job_script(name: str, tmp_path: Path) -> None:
    file = tmp_path / "job.sbatch"
    file.write_text(script(name))
    checked = subprocess.run(["shellcheck", "-s", "bash", file], capture_output=True, text=True)
    assert (checked.returncode, checked.stdout) == (0, "")


CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={port}
AuthInfo=socket={place}/munge.socket
StateSaveLocation={place}/state
SlurmctldPidFile={place}/ctld.pid
SlurmctldLogFile={place}/ctld.log
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
MpiDefault=none
SuspendTime=600
SuspendProgram=/bin/true
ResumeProgram=/bin/true
NodeName=gpu[1-48] NodeAddr=127.0.0.1 CPUs=192 RealMemory=2000000 Gres=gpu:8 State=CLOUD
NodeName=cpu[1-16] NodeAddr=127.0.0.1 CPUs=128 RealMemory=500000 State=CLOUD
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
SLURM = ("sbatch", "slurmctld", "munged", "sinfo")


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A slurmctld of 64 nodes that do not exist; tests only query it. Its environment."""
    import socket

    place = tmp_path_factory.mktemp("slurm")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (place / "state").mkdir()
    (place / "slurm.conf").write_text(CONF.format(host=socket.gethostname(), port=port, place=place))
    (place / "gres.conf").write_text("NodeName=gpu[1-48] Name=gpu Count=8\n")
    (place / "munge.key").write_bytes(os.urandom(1024))
    (place / "munge.key").chmod(0o600)
    names = ("key-file", "socket", "pid-file", "log-file", "seed-file")
    values = ("munge.key", "munge.socket", "munge.pid", "munge.log", "munge.seed")
    options = [f"--{name}={place / value}" for name, value in zip(names, values, strict=True)]
    environment = {**os.environ, "SLURM_CONF": str(place / "slurm.conf")}
    keeper = subprocess.Popen(
        ["munged", "--foreground", "--force", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    daemon = subprocess.Popen(
        ["slurmctld", "-D", "-c", "-f", place / "slurm.conf"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        try:
            eventually_blocking(
                lambda: not subprocess.run(["sinfo"], env=environment, capture_output=True).returncode,
                every_s=0.1,
            )
        except TimeoutError:
            raise AssertionError((place / "ctld.log").read_text()) from None
        yield environment
    finally:
        for process in (daemon, keeper):
            process.terminate()
            process.wait(10)


@wants(*SLURM, root=True)
@pytest.mark.parametrize(
    ("name", "nodes"), [("node8", 1), ("topology", 2), ("nodes4", 4), ("nodes8", 8), ("nodes64", 64)]
)
def test_sbatch_would_start_the_job(
    name: str, nodes: int, controller: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "job.sbatch"
    text = script(name).replace("#SBATCH --account=rl\n", "")
    file.write_text(text)
    planned = subprocess.run(["sbatch", "--test-only", file], env=controller, capture_output=True, text=True)
    assert planned.returncode == 0 and "to start at" in planned.stderr, planned.stderr
    assert text.count("#SBATCH --nodes=") == len(topology(name).hosts) and nodes == len(
        topology(name).machines
    )


SRUN = """\
#!/usr/bin/env bash
name=step log=/dev/null
while [[ "$1" = --* ]]; do
  case "$1" in --job-name=*) name="${1#*=}" ;; --output=*) log="${1#*=}" ;; esac
  shift
done
echo "$name" >> "$STARTED"
setpriv --pdeathsig KILL sh -c 'touch "$STEPS/$$"; exec "$@"' sh "$@" >> "$log" 2>&1 &
step=$!
trap 'kill -KILL "$step"; wait "$step"; exit 137' TERM
wait "$step"
"""
"""`srun`: TERM ends its step by force, as Slurm's own does. The process of the step ends at the latest with it."""
SCANCEL = """\
#!/bin/sh
echo "scancel $*" >> "$STARTED"
for step in "$STEPS"/*; do kill -TERM "${step##*/}"; done
"""
"""`scancel --signal`: the signal reaches every step."""
SCONTROL = """\
#!/bin/sh
[ "$1" != show ] || exec echo node1
echo "$* with $(find "$READY" -type f | wc -l) processes" >> "$STARTED"
"""
WAITING = f"""\
#!/bin/sh
status=0
{shutil.which("timeout")} "$@" || status=$?
[ "$2" != tail ] || [ "$status" != 124 ] || echo "$1" >> "$WAITED"
exit "$status"
"""
"""`timeout`, which notes the seconds that a step had to end, and did not."""
ENDING = 'until [ "$(find "$READY" -type f | wc -l)" = 7 ]; do sleep 0.05; done'
"""A process that ends the job waits until all others of the job are ready for the signal: each has set its trap, then made a file."""
PENSTOCK = f"""\
#!/usr/bin/env bash
case "$1 $2" in
  "cluster wait") exit 0 ;;
esac
if [ "$1" = "$ENDS" ]; then {ENDING}; exit "$STATUS"; fi
trap 'rm -f "$READY/$$"; echo stopped; exit 0' TERM
touch "$READY/$$"
echo up
while :; do sleep 0.05; done
"""


def one_node(tmp_path: Path) -> tuple[Topology, dict[str, str]]:
    """A job of one node on this machine: the steps are real processes, srun and penstock are stand-ins that print their arguments."""
    install, shared, fakes = tmp_path / "install", tmp_path / "shared", tmp_path / "fakes"
    for directory in (install / "bin", shared, fakes, tmp_path / "ready", tmp_path / "steps"):
        directory.mkdir(parents=True)
    secret = tmp_path / "secrets"
    for key in ("db/uri", "gw/admin"):
        (secret / key).parent.mkdir(parents=True)
        (secret / key).write_text("x")
    programs = {
        **{install / "bin" / name: PENSTOCK for name in ("penstock", "python3", "nats-server")},
        install / "bin" / "alembic": "#!/bin/sh\necho migrated\n",
        fakes / "srun": SRUN,
        fakes / "scancel": SCANCEL,
        fakes / "scontrol": SCONTROL,
    }
    for file, text in programs.items():
        file.write_text(text)
        file.chmod(0o755)
    found = read(
        {
            "name": "job",
            "images": {"penstock": "penstock:1"},
            "shared": {"path": str(shared), "model": "m"},
            "secrets": {
                "directory": str(secret),
                "database_url": {"name": "db", "key": "uri"},
                "gateway_admin": {"name": "gw", "key": "admin"},
            },
            "hosts": [{"name": "node1"}],
            "bare": {"install": str(install)},
        }
    )
    environment = {
        "PATH": f"{fakes}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node1",
        "TMPDIR": str(tmp_path),
        "STARTED": str(tmp_path / "started"),
        "READY": str(tmp_path / "ready"),
        "STEPS": str(tmp_path / "steps"),
        "ENDS": "none",
        "STATUS": "0",
    }
    return found, environment


@pytest.mark.parametrize(
    ("ends", "status", "expected", "says"),
    [
        ("gateway", "3", 3, "gateway-0 ended with status 3"),
        ("web", "0", 1, "web-0 ended with status 0"),
        ("trainer", "0", 0, "the trainer is done"),
    ],
)
def test_when_one_process_ends_all_end_and_the_nodes_are_free(
    ends: str, status: str, expected: int, says: str, tmp_path: Path
) -> None:
    found, environment = one_node(tmp_path)
    file = tmp_path / "job.sbatch"
    file.write_text(slurm.script(found))
    done = subprocess.run(
        ["bash", file],
        env={**environment, "ENDS": ends, "STATUS": status},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, says in done.stdout + done.stderr) == (expected, True), done.stderr
    started = (tmp_path / "started").read_text().split()
    assert {"nats-0", "orchestrator-0", "gateway-0", "runner-0", "verifier-0", "trainer", "web-0"} <= set(
        started
    )
    logs = tmp_path / "shared" / "logs" / "7" / "attempt-0"
    ended = {each.stem for each in logs.glob("*.log") if "stopped" in each.read_text()}
    assert len(ended) == 7 and "runner-0" in ended  # in order, not by force
    assert "scancel --signal=TERM 7" in (tmp_path / "started").read_text().splitlines()
    assert 'urls = ["http://node1:8080"]' in (logs / "penstock.toml").read_text()


def test_a_job_ends_in_a_bash_whose_wait_cannot_name_what_ended(tmp_path: Path) -> None:
    found, environment = one_node(tmp_path)
    older = 'wait() { [[ " $* " != *" -p "* ]] || exit 97; builtin wait "$@"; }\n'  # before 5.1
    file = tmp_path / "job.sbatch"
    file.write_text(older + slurm.script(found))
    ended = {**environment, "ENDS": "gateway", "STATUS": "3"}
    done = subprocess.run(["bash", file], env=ended, capture_output=True, text=True, timeout=100)
    assert done.returncode == 3 and "gateway-0 ended with status 3" in done.stderr


def test_a_job_whose_time_is_over_is_requeued_and_its_next_attempt_has_logs_of_its_own(
    tmp_path: Path,
) -> None:
    found, environment = one_node(tmp_path)
    file = tmp_path / "job.sbatch"
    file.write_text(slurm.script(found))
    job = subprocess.Popen(
        ["bash", file],
        env={**environment, "SLURM_RESTART_COUNT": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    started = tmp_path / "started"
    logs = tmp_path / "shared" / "logs" / "7" / "attempt-2"
    try:

        def up() -> bool:
            assert job.poll() is None
            return len(list((tmp_path / "ready").iterdir())) == 8

        eventually_blocking(up, every_s=0.05)
        job.send_signal(signal.SIGTERM)
        _, printed = job.communicate(timeout=100)
    finally:
        job.kill()
        job.communicate()
    assert job.returncode == 143 and b"requeued after attempt 2" in printed
    assert "requeue 7 with 0 processes" in started.read_text().splitlines()
    assert sum("stopped" in each.read_text() for each in logs.glob("*.log")) == 8  # none by force


def test_steps_that_hang_have_one_minute_together(tmp_path: Path) -> None:
    found, environment = one_node(tmp_path)
    text = slurm.script(found)
    assert "SECONDS + 60" in text
    file, minute_s = tmp_path / "job.sbatch", 3
    file.write_text(text.replace("SECONDS + 60", f"SECONDS + {minute_s}"))
    logs, ended = tmp_path / "shared/logs/7/attempt-0", tmp_path / "ended"
    gateway = f"until [ $(grep -lx up {logs}/*.log | wc -l) = 5 ]; do sleep 0.1; done; touch {ended}; exit 3"
    stubborn = re.sub(r"trap '.*' TERM", "trap '' TERM", PENSTOCK).replace(ENDING, gateway)
    for name in ("python3", "nats-server"):  # in order, as always
        (tmp_path / "install" / "bin" / name).write_text(PENSTOCK.replace("echo up", "echo here"))
    (tmp_path / "install" / "bin" / "penstock").write_text(stubborn)
    (tmp_path / "fakes" / "timeout").write_text(WAITING)
    (tmp_path / "fakes" / "timeout").chmod(0o755)
    waited = tmp_path / "waited"
    done = subprocess.run(
        ["bash", file],
        env={**environment, "ENDS": "gateway", "STATUS": "3", "WAITED": str(waited)},
        capture_output=True,
        timeout=100,
    )
    assert done.returncode == 3 and ended.exists()
    # The job waits for one step after the other, each time for what is left: the first that hangs takes all of it.
    assert 0 < sum(map(int, waited.read_text().split())) <= minute_s


def test_a_job_whose_nats_runs_in_it_takes_no_url_of_another(tmp_path: Path) -> None:
    found, _ = one_node(tmp_path)
    login = found.secrets.model_copy(update={"nats_url": SecretKey(name="nats", key="url")})
    both = found.model_copy(update={"secrets": login})
    with pytest.raises(
        ValueError,
        match=r"^secrets\.nats_url names .* take secrets\.nats_url .* out, or name the existing servers in nats\.external",
    ):
        render(both, "slurm")
    external = both.model_copy(update={"nats": both.nats.model_copy(update={"external": "nats://bus:4222"})})
    texts = render(external, "slurm")
    assert "nats-server --config" not in texts["job.sbatch"] and "NATS_URL_FILE=" in texts["job.sbatch"]
    assert "NATS is, too." in texts["README.md"]


def test_each_attempt_of_a_job_makes_the_login_of_its_nats(tmp_path: Path) -> None:
    found, environment = one_node(tmp_path)
    (tmp_path / "job.sbatch").write_text(slurm.script(found))
    ended = {**environment, "ENDS": "gateway", "STATUS": "3"}
    logs, tokens = tmp_path / "shared" / "logs" / "7", []
    for attempt in ("0", "1"):
        subprocess.run(
            ["bash", tmp_path / "job.sbatch"],
            env={**ended, "SLURM_RESTART_COUNT": attempt},
            capture_output=True,
            timeout=60,
        )
        here = logs / f"attempt-{attempt}"
        url = (here / "nats.url").read_text().strip()
        found_token = re.fullmatch(r"nats://([0-9a-f]{48})@node1:4222", url)
        assert found_token and f'NATS_TOKEN: "{found_token[1]}"' in (here / "nats.login").read_text()
        assert {(here / name).stat().st_mode & 0o777 for name in ("nats.url", "nats.login")} == {0o600}
        assert "nats_url" not in (here / "penstock.toml").read_text()
        conf = (here / "nats-0.conf").read_text()
        assert 'include "nats.login"' in conf and "token: $NATS_TOKEN" in conf
        tokens.append(found_token[1])
    assert tokens[0] != tokens[1]


def test_the_readme_warns_of_a_nats_without_a_login(tmp_path: Path) -> None:
    for target in ("systemd", "compose"):
        readme = files("nodes4", target)["README.md"]
        assert "**NATS requires no login**" in readme and "4222, 6222, 8222" in readme
    assert "requires no login" not in files("laptop", "compose")["README.md"]  # it is on a network of its own


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_readme_tells_how_to_end_a_job_for_good(name: str) -> None:
    readme = files(name, "slurm")["README.md"]
    assert "`scontrol update JobId=JOB Requeue=0`, then `scancel JOB`" in readme


def test_a_target_without_hosts_says_what_it_needs() -> None:
    bare = read({"name": "x", "images": {"penstock": "p:1"}, "shared": {"path": "/s", "model": "m"}})
    for target in ("slurm", "systemd", "compose"):
        with pytest.raises(ValueError, match="hosts is empty"):
            render(bare, target)
    with pytest.raises(ValueError, match="unknown target 'nomad'; known: kubernetes, helm"):
        render(bare, "nomad")


# --- compose --------------------------------------------------------------------------------------------------

SERVICE = {
    "image", "networks", "network_mode", "read_only", "cap_drop", "security_opt", "tmpfs", "deploy", "user", "command", "environment",
    "secrets", "volumes", "depends_on", "healthcheck", "restart", "stop_grace_period", "working_dir", "shm_size", "cap_add",
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_service_may_do_little_and_knows_only_its_own(name: str) -> None:
    for file, text in files(name, "compose").items():
        if not file.endswith("compose.yaml"):
            continue
        whole = yaml.load(text, Loader=yaml.CSafeLoader)
        assert set(whole) <= {"name", "services", "networks", "volumes", "secrets"}
        for called, service in whole["services"].items():
            assert (
                set(service) <= SERVICE
                and service["read_only"]
                and "no-new-privileges:true" in service["security_opt"]
            )
            assert set(service.get("secrets", [])) <= set(whole.get("secrets", {}))
            assert all(
                volume.partition(":")[0] in whole["volumes"]
                for volume in service.get("volumes", [])
                if isinstance(volume, str) and volume.startswith("state-")
            )
            assert all(other in whole["services"] for other in service.get("depends_on", {}))
            assert ("networks" in service) != ("network_mode" in service)
            assert set(service.get("networks", [])) <= set(whole.get("networks", {}))
            if called.startswith("rollout-server") and "networks" in service:
                assert service["networks"] == ["servers"]  # gateways alone share it
