"""One batch job: one node per host of the topology, one step (`srun`) per process.

Postgres is outside: the data pool outlives jobs. NATS runs inside, on the nodes' own disks. Its lost data is recreated from the data pool, so a
requeued job, even on other nodes, continues where it was. When any step ends, all end and the nodes are free.
"""

import math
from collections.abc import Mapping, Sequence

from orchestrator.contracts.languages import VARIABLE, here_document, markdown_code, sbatch_value, shell_word
from orchestrator.contracts.processes import ProcessRole
from orchestrator.deploy.cluster.placement import PlacedProcess
from orchestrator.deploy.cluster.processes import READS_POOL, configuration, migrate
from orchestrator.deploy.cluster.render.bare import (
    HostSite,
    below,
    nats_conf,
    nats_logins,
    resources_of,
    secret_files,
    unit_of,
)
from orchestrator.deploy.cluster.toml import to_toml
from orchestrator.deploy.cluster.topology import SecretKey, Topology, hosts_of

STOP_S = 120  # seconds for an orderly end: the job is signalled this long before its time limit, or when it is preempted

OWN_URL = SecretKey(name="attempt", key="nats.url")

PREPARE = """\
# --- what every attempt begins with ---
attempt="${SLURM_RESTART_COUNT:-0}"
logs="$SHARED/logs/$SLURM_JOB_ID/attempt-$attempt"
export PENSTOCK_STATE="${TMPDIR:-/tmp}/penstock-$SLURM_JOB_ID-$attempt" # on each node's own disk
mkdir -p "$logs"
for secret in "${SECRETS[@]}"; do
  [ -r "$secret" ] || { echo "the secret $secret cannot be read: it must be a file that the job's user can read on every node" >&2; exit 1; }
done

# own_directory PLACE: a directory that this user alone enters. Below /tmp another user may have made it first.
own_directory() {
  mkdir -p "${1%/*}"
  mkdir -m 700 "$1" 2>/dev/null || true # made by another step of this node
  if [ ! -d "$1" ] || [ -L "$1" ] || [ ! -O "$1" ]; then
    echo "$1 cannot be made or is another user's: remove it on ${HOSTNAME:-this node}, or set TMPDIR" >&2
    return 1
  fi
  chmod 700 "$1"
}
owned="$(declare -f own_directory); own_directory ${PENSTOCK_STATE@Q}" # for a bash on another node

declare -A running=() # what was started, by the process id of its srun
stopping="" requeue=""

# step NAME GROUP NODE CPUS MEMORY_MB GPUS HAS PROGRAM [ARGUMENTS …]: a process on one node of the job, in the background.
# HAS: alone (no other step uses its cores, memory and GPUs) or overlap (with other steps on a node that has too few for all).
step() {
  local name="$1" group="$2" node="$3" cpus="$4" memory="$5" gpus="$6" how=(--exact)
  [ "$7" = alone ] || how+=(--overlap)
  if [ -n "$GRES" ] && [ "$gpus" = 0 ]; then
    how+=(--gres=none) # else it would have all of the job's
  elif [ -n "$GRES" ]; then
    how+=("--gres=$GRES:$gpus")
  fi
  shift 7
  srun "${HET[@]/%/$group}" --relative="$node" --nodes=1 --ntasks=1 "${how[@]}" --job-name="$name" --cpus-per-task="$cpus" \\
    --mem="${memory}M" --kill-on-bad-exit=1 --output="$logs/$name.log" --open-mode=append "$@" &
  running[$!]="$name"
}

# process NAME GROUP NODE CPUS MEMORY_MB GPUS HAS WAIT PROGRAM [ARGUMENTS …]: a step with a directory of its own that holds penstock.toml.
# WAIT: schema, run (both are waited for) or nothing.
process() {
  local name="$1" wait="$8" prepared
  local place=("${@:1:7}")
  shift 8
  local home="$PENSTOCK_STATE/$name"
  prepared="$owned && mkdir -p -m 700 ${home@Q} && cp ${logs@Q}/penstock.toml ${home@Q}/"
  case "$wait" in
    schema) prepared+=" && ${BIN@Q}/penstock cluster wait -c ${home@Q}" ;;
    run) prepared+=" && ${BIN@Q}/penstock cluster wait -c ${home@Q} --run" ;;
  esac
  step "${place[@]}" bash -c "$prepared"' && exec "$@"' "$name" "$@"
}

# Ends every step: in order, then by force. The job's nodes are free when this script has ended.
finish() {
  local status=$? pid left until=$((SECONDS + 60))
  [ -n "$stopping" ] && return
  stopping=yes
  trap '' TERM INT
  # Slurm sends this to the processes of all steps, not to this script. An srun that gets TERM would end its step by force.
  [ "${#running[@]}" = 0 ] || scancel --signal=TERM "$SLURM_JOB_ID" || true
  for pid in "${!running[@]}"; do # all of them have the same minute
    left=$((until - SECONDS))
    if [ "$left" -le 0 ] || ! timeout "$left" tail --pid="$pid" -f /dev/null; then kill -KILL "$pid" 2>/dev/null || true; fi
  done
  wait || true
  [ -z "$requeue" ] || scontrol requeue "$SLURM_JOB_ID" || true # not before: it ends all that still runs
  exit "$status"
}
trap finish EXIT

# Its time is over, or it must make room: it ends in order and waits in the queue for its next attempt.
again() {
  echo "Slurm stops the job: requeued after attempt $attempt" >&2
  requeue=yes
  exit 143
}
trap again TERM
"""

WATCH = """\
# --- until the first of them ends (`wait -n -p`, which would name it, needs bash 5.1) ---
while [ "${#running[@]}" -gt 0 ]; do
  for pid in "${!running[@]}"; do
    kill -0 "$pid" 2>/dev/null && continue
    name="${running[$pid]}" status=0
    wait "$pid" || status=$?
    unset "running[$pid]"
    if [[ "$name" = trainer* && "$status" = 0 ]]; then
      [[ " ${running[*]} " = *" trainer"* ]] && continue # on its other nodes it still ends
      echo "the trainer is done"
      exit 0
    fi
    echo "$name ended with status $status: see $logs/$name.log" >&2
    exit $((status == 0 ? 1 : status))
  done
  sleep 1
done
"""


def _entries(topology: Topology) -> list[tuple[str, list[str]]]:
    return [(host.name, hosts_of(host.name)) for host in topology.hosts]


class _Job:
    """The position of each host among the job's nodes: component of a heterogeneous job, and index in it."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.entries = _entries(topology)
        self.place = {
            name: (group, index)
            for group, (_, names) in enumerate(self.entries)
            for index, name in enumerate(names)
        }
        first = 0
        self.node: dict[str, int] = {}
        for _, names in self.entries:
            self.node.update({name: first + index for index, name in enumerate(names)})
            first += len(names)
        if not topology.nats.external:  # the job creates the login of its own NATS
            own = topology.secrets.model_copy(update={"nats_url": OWN_URL})
            topology = topology.model_copy(update={"secrets": own})
        self.site = HostSite(
            topology=topology,
            address=lambda host: f"{VARIABLE}{{NODES[{self.node[host]}]}}",
            home=lambda process: f"{VARIABLE}PENSTOCK_STATE/{unit_of(process)}",
            secret=lambda key: (
                f"{VARIABLE}logs/{key.key}"
                if key == OWN_URL
                else below(topology.secrets.directory, key.name, key.key)
            ),
            programs=f"{VARIABLE}BIN/",
        )

        self.narrow = {host for host in topology.machines if not _fits(host, self.topology, self.takes(host))}

    def takes(self, host: str) -> list[PlacedProcess]:
        """The processes that run on a host as steps."""
        return [
            each for each in self.site.processes if each.host == host and each.role != ProcessRole.POSTGRES
        ]

    def has(self, process: PlacedProcess) -> str:
        """Whether its cores and memory are its own. GPUs always are: two overlapping steps would get the same ones."""
        return "overlap" if process.host in self.narrow and not process.gpus else "alone"

    def header(self) -> list[str]:
        slurm = self.topology.slurm
        common = [
            f"#SBATCH --job-name={self.topology.name}",
            f"#SBATCH --time={_time(slurm.hours)}",
            *([f"#SBATCH --account={sbatch_value(slurm.account)}"] if slurm.account else []),
            "#SBATCH --requeue",
            "#SBATCH --open-mode=append",
            f"#SBATCH --signal=B:TERM@{STOP_S}",
            f"#SBATCH --output={self.topology.name}-%j.out",
        ]
        lines: list[str] = []
        for group, (_, names) in enumerate(self.entries):
            gpus = self.topology.hosts[group].gpus
            if group:
                lines.append("#SBATCH hetjob")
            lines += [
                f"#SBATCH --nodes={len(names)}",
                "#SBATCH --ntasks-per-node=1",
                "#SBATCH --exclusive",
                "#SBATCH --mem=0",
                *([f"#SBATCH --partition={sbatch_value(slurm.partition)}"] if slurm.partition else []),
                *([f"#SBATCH --gres={sbatch_value(f'{slurm.gres}:{gpus}')}"] if gpus else []),
            ]
        return [*common, *lines]

    def nodes(self) -> list[str]:
        """Shell lines that fill NODES with the names of all nodes, in the order of the topology's hosts."""
        if len(self.entries) == 1:
            return ['mapfile -t NODES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")', "HET=()"]
        lists = [
            f'scontrol show hostnames "$SLURM_JOB_NODELIST_HET_GROUP_{group}"'
            for group in range(len(self.entries))
        ]
        return [f"mapfile -t NODES < <({'; '.join(lists)})", "HET=(--het-group=)"]


def _requested(topology: Topology, processes: Sequence[PlacedProcess]) -> tuple[int, int]:
    """Cores and MB of memory that the steps request."""
    found = [resources_of(topology, each) for each in processes]
    return sum(math.ceil(each.cpus) for each in found), sum(round(each.memory_gb * 1000) for each in found)


def _fits(host: str, topology: Topology, processes: Sequence[PlacedProcess]) -> bool:
    """Whether all requests fit. ValueError if those of processes with GPUs do not: each of their steps would wait for another to end."""
    machine = topology.machines[host]

    def shortage_of(some: Sequence[PlacedProcess]) -> str:
        cpus, memory = _requested(topology, some)
        if cpus > machine.cpus:
            return f"cpus = {machine.cpus:g}, but {cpus}"
        return (
            f"memory_gb = {machine.memory_gb:g}, but {memory / 1000:g}"
            if memory > machine.memory_gb * 1000
            else ""
        )

    if shortage := shortage_of([each for each in processes if each.gpus]):
        raise ValueError(
            f"host {host} has {shortage} are requested by its processes with GPUs, which share nothing: give the host more or the processes less"
        )
    return not shortage_of(processes)


def _time(hours: float) -> str:
    minutes = round(hours * 60)
    days, rest_minutes = divmod(minutes, 24 * 60)
    return f"{days}-{rest_minutes // 60:02d}:{rest_minutes % 60:02d}:00"


def _line(job: _Job, process: PlacedProcess) -> str:
    starts = job.site.command(process)
    resources = resources_of(job.topology, process)
    group, node = job.place[process.host]
    position = [
        unit_of(process),
        group,
        node,
        math.ceil(resources.cpus),
        round(resources.memory_gb * 1000),
        len(process.gpus),
        job.has(process),
    ]
    environment = [
        f"{key}={value}" for key, value in starts.environment.items() if key != "CUDA_VISIBLE_DEVICES"
    ]
    dependency = (
        ""
        if process.role not in READS_POOL
        else "schema"
        if process.role == ProcessRole.ORCHESTRATOR
        else "run"
    )
    argv = ["env", *environment, *starts.argv] if environment else list(starts.argv)
    return (
        f"process {' '.join(map(str, position))} {dependency or 'nothing'} {' '.join(map(shell_word, argv))}"
    )


def script(topology: Topology) -> str:
    """The batch script."""
    job = _Job(topology)
    first = next(each for each in job.site.processes if each.role == ProcessRole.ORCHESTRATOR)
    secrets = dict.fromkeys(
        shell_word(below(topology.secrets.directory, key.name, key.key)) for key in topology.secrets.keys
    )
    login: list[str] = []
    if not topology.nats.external:
        made = nats_logins(job.site, '"$logs/nats.login"', '"$logs/nats.url"')
        login_lines = [line.replace(VARIABLE, "$") for line in made]
        login = ["# --- the login of this attempt's NATS, for the job's user alone ---", *login_lines, ""]
    count = sum(len(names) for _, names in job.entries)
    lines = [
        "#!/usr/bin/env bash",
        f"# The Penstock run {topology.name} as one job of {count} node{'s' if count > 1 else ''}. Written by `penstock cluster render`.",
        *job.header(),
        "set -euo pipefail",
        f"BIN={shell_word(f'{topology.bare.install}/bin')}",
        f"SHARED={shell_word(topology.shared.path)}",
        f"GRES={shell_word(topology.slurm.gres) if any(host.gpus for host in topology.hosts) else ''}",
        f"SECRETS=({' '.join(secrets)})",
        "# The nodes, in the order of the topology's hosts: " + ", ".join(name for name, _ in job.entries),
        *job.nodes(),
        f'[ "${{#NODES[@]}}" = {count} ] || {{ echo "this job needs {count} nodes, not ${{#NODES[@]}}" >&2; exit 1; }}',
        "",
        PREPARE,
        'cat > "$logs/penstock.toml" <<TOML',
        here_document(to_toml(configuration(job.site.topology, job.site.links))) + "TOML",
        "",
        *login,
        "# --- the schema, before the rest ---",
        f"(cd {shell_word(topology.bare.install)} && DATABASE_URL_FILE={shell_word(job.site.secret(topology.secrets.database_url))} "
        f'{" ".join(map(shell_word, migrate(job.site.where(first))))}) > "$logs/migrate.log" 2>&1',
        "",
        "# --- every process on its node: NAME GROUP NODE CPUS MEMORY_MB GPUS HAS … ---",
    ]
    for process in job.site.processes:
        if process.role == ProcessRole.POSTGRES:
            continue
        if process.role != ProcessRole.NATS:
            lines.append(_line(job, process))
            continue
        group, node = job.place[process.host]
        home = job.site.home(process)
        nats_resources = topology.nats.resources
        conf = nats_conf(job.site, process, home, "0.0.0.0", "nats.login")
        lines += [
            f'cat > "$logs/{process.name}.conf" <<NATS',
            here_document(conf) + "NATS",
            f"step {process.name} {group} {node} {math.ceil(nats_resources.cpus)} {round(nats_resources.memory_gb * 1000)} 0 {job.has(process)} "
            f"""bash -c "$owned"' && exec "$@"' {process.name} """
            f'"$BIN/nats-server" --config "$logs/{process.name}.conf"',
        ]
    return "\n".join([*lines, "", WATCH])


def render(topology: Topology) -> Mapping[str, str]:
    """The script and its instructions. ValueError if no hosts are named."""
    if not topology.hosts:
        raise ValueError("hosts is empty: name the machines that stand for the job's nodes ([[hosts]])")
    if (topology.secrets.nats_url or topology.secrets.nats_login) and not topology.nats.external:
        raise ValueError(
            "secrets.nats_url names a file with the URL of an existing NATS, but in a job NATS runs on nodes that are not known in advance: "
            "take secrets.nats_url (and nats_login: each attempt makes its own) out, or name the existing servers in nats.external"
        )
    name = f"{topology.name}.sbatch"
    nats = (
        "NATS is, too."
        if topology.nats.external
        else "NATS runs in the job, with a login of each attempt's own."
    )
    notes = f"""\
# {topology.name} as a job of Slurm

Written by `penstock cluster render`; change the topology and render again, or go on by hand.

1. On every node: Penstock in {markdown_code(topology.bare.install)} (bin/penstock, bin/alembic, alembic.ini, bin/nats-server),
   the shared directory at {markdown_code(topology.shared.path)}, and these secrets, readable for the job's user alone:

{secret_files(topology)}

   PostgreSQL is outside of the job, named by that URL: the data pool outlives jobs. {nats}
2. `sbatch --test-only {name}`, then `sbatch {name}`.

Logs: {markdown_code(f"{topology.shared.path}/logs/JOB/attempt-N/NAME.log")}.
When any process ends, the job ends and its nodes are free; a job whose node is lost, that is preempted or whose time
is over waits in the queue again, and its next attempt goes on from the data pool and the weights.

To end it for good: `scontrol update JobId=JOB Requeue=0`, then `scancel JOB`. A job that is only cancelled gets the same signal as one whose
time is over, and may come back.

Where preempted jobs have a GraceTime, it must be 90 s or more, with `PreemptParameters=send_user_signal`: otherwise Slurm ends the processes
before the job does, and the job may count as done instead of waiting in the queue again.
"""
    return {name: script(topology), "README.md": notes}
