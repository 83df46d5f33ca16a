"""Units for hosts that people run themselves: one directory per host, one unit per process, each with only the permissions that it needs."""

from collections.abc import Mapping
from posixpath import relpath

from orchestrator.contracts.languages import (
    SPECIFIER,
    markdown_code,
    systemd_command,
    systemd_value,
    systemd_word,
)
from orchestrator.contracts.processes import WORKERS, ProcessRole
from orchestrator.deploy.cluster.placement import PlacedProcess
from orchestrator.deploy.cluster.processes import (
    READS_POOL,
    TRAINS,
    configuration,
    key_files,
    migrate,
    wait,
)
from orchestrator.deploy.cluster.render.bare import (
    HostSite,
    below,
    nats_conf,
    of_login,
    resources_of,
    secret_files,
    unit_of,
)
from orchestrator.deploy.cluster.toml import to_toml
from orchestrator.deploy.cluster.topology import SecretKey, Topology

HARDENED = """\
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
ProtectClock=yes
ProtectKernelModules=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RemoveIPC=yes
KeyringMode=private
SystemCallArchitectures=native
UMask=0077
"""
APART = """\
PrivateUsers=yes
ProtectHostname=yes
ProtectProc=invisible
ProtectControlGroups=yes
ProtectKernelLogs=yes
ProtectKernelTunables=yes
RestrictNamespaces=yes
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM
"""
NO_DEVICES = "PrivateDevices=yes\nDevicePolicy=closed\n"
GPUS = "DevicePolicy=closed\nDeviceAllow=char-nvidia* rw\n"  # each release of the driver names its groups in /proc/devices differently
MAKES_SANDBOXES = """\
# Sandboxes are user namespaces of their own with a fresh /proc, and control groups below this unit: no ProtectKernelTunables,
# ProtectControlGroups or RestrictNamespaces, which would forbid them. Their loopback is set up by netlink. Each names itself in a UTS namespace
# of its own: no ProtectHostname, which refuses sethostname there too, as it does for a service.
Delegate=yes
RestrictAddressFamilies=AF_NETLINK
SystemCallFilter=@system-service @mount sethostname seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self
SystemCallErrorNumber=EPERM
"""
COMPUTES = """\
# Ranks look for each other's network interfaces by netlink.
RestrictAddressFamilies=AF_NETLINK
"""
STOP_S = {
    ProcessRole.GATEWAY: 60,
    ProcessRole.RUNNER: 120,
    ProcessRole.VERIFIER: 60,
    ProcessRole.TRAINER: 60,
    ProcessRole.ROLLOUT_SERVER: 60,
}


def _credential(key: SecretKey) -> str:
    return f"{key.name}.{key.key}"


def site(topology: Topology) -> HostSite:
    """Addresses of the hosts, places below `bare`."""
    machines = topology.machines
    return HostSite(
        topology=topology,
        address=lambda host: machines[host].address,
        home=lambda process: below(topology.bare.state, topology.name, unit_of(process)),
        secret=lambda key: f"{SPECIFIER}d/{_credential(key)}",  # the unit's directory of credentials
        programs=f"{topology.bare.install}/bin/",
    )


def _loads(topology: Topology, key: SecretKey) -> str:
    path = below(topology.secrets.directory, key.name, key.key)
    return f"LoadCredential={_credential(key)}:{systemd_value(path)}"


def _unit(here: HostSite, process: PlacedProcess) -> str:
    topology, name = here.topology, unit_of(process)
    start_command, location = here.command(process), here.where(process)
    resources, home = resources_of(topology, process), here.home(process)
    # Caches of compiled and loaded code: the user's own home may not exist, and is hidden.
    environment = {**start_command.environment, **({"HOME": home} if process.role in TRAINS else {})}
    owned = process.role in READS_POOL
    keys = [*start_command.files.values(), *key_files(topology, process)]
    credentials = dict.fromkeys(_loads(topology, key) for key in keys)
    lines = [
        "[Unit]",
        f"Description=Penstock run {topology.name}: {name}",
        "Wants=network-online.target",
        "After=network-online.target",
        f"PartOf=penstock-{topology.name}.target",
        "StartLimitIntervalSec=600",
        "StartLimitBurst=30",
        "",
        "[Service]",
        "Type=exec",
        f"User={systemd_value(topology.bare.user)}",
        f"Group={systemd_value(topology.bare.user)}",
        f"StateDirectory=penstock/{topology.name}/{name}",
        "StateDirectoryMode=0700",
        f"WorkingDirectory={systemd_value(home)}",
        *(f"Environment={systemd_word(f'{key}={value}')}" for key, value in environment.items()),
        *credentials,
    ]
    if owned:
        settings = f"/etc/penstock/{topology.name}/penstock.toml"
        copied = ["/usr/bin/install", "-m", "0600", settings, f"{home}/penstock.toml"]
        lines.append(f"ExecStartPre={systemd_command(copied)}")
        lines.append(
            f"ExecStartPre={systemd_command(wait(location, run=process.role != ProcessRole.ORCHESTRATOR))}"
        )
        lines.append("TimeoutStartSec=660")
    lines += [
        f"ExecStart={systemd_command(start_command.argv)}",
        f"Restart={'on-failure' if process.role == ProcessRole.TRAINER else 'always'}",
        "RestartSec=2",
        "KillMode=mixed",
        f"TimeoutStopSec={STOP_S.get(process.role, 30)}",
        f"MemoryMax={round(resources.memory_gb * 1e9)}",
        f"CPUWeight={min(10000, max(1, round(resources.cpus * 100)))}",
        "TasksMax=8192",
        "",
        "# What it may do.",
        *HARDENED.splitlines(),
    ]
    if process.role in WORKERS:
        lines += [*NO_DEVICES.splitlines(), *MAKES_SANDBOXES.splitlines()]
    else:
        lines += [*APART.splitlines(), *(GPUS if process.gpus else NO_DEVICES).splitlines()]
    if process.role in TRAINS:
        lines += COMPUTES.splitlines()
    if process.role in (ProcessRole.TRAINER, ProcessRole.GATEWAY, ProcessRole.ROLLOUT_SERVER):
        mode = "ReadWritePaths" if process.role == ProcessRole.TRAINER else "ReadOnlyPaths"
        lines.append(f"{mode}={systemd_word(topology.shared.path)}")
    lines += ["", "[Install]", f"WantedBy=penstock-{topology.name}.target", ""]
    return "\n".join(lines)


def _migrate(here: HostSite, process: PlacedProcess) -> str:
    topology = here.topology
    key = topology.secrets.database_url
    lines = [
        "[Unit]",
        f"Description=Penstock run {topology.name}: alembic upgrade head",
        "Wants=network-online.target",
        "After=network-online.target",
        f"PartOf=penstock-{topology.name}.target",
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=oneshot",
        "RemainAfterExit=yes",
        "Restart=on-failure",
        "RestartSec=10",
        f"User={systemd_value(topology.bare.user)}",
        f"Group={systemd_value(topology.bare.user)}",
        f"WorkingDirectory={systemd_value(topology.bare.install)}",
        f"Environment=DATABASE_URL_FILE=%d/{_credential(key)}",
        _loads(topology, key),
        f"ExecStart={systemd_command(migrate(here.where(process)))}",
        "",
        *HARDENED.splitlines(),
        *APART.splitlines(),
        *NO_DEVICES.splitlines(),
        "",
        "[Install]",
        f"WantedBy=penstock-{topology.name}.target",
        "",
    ]
    return "\n".join(lines)


def _nats(here: HostSite, process: PlacedProcess) -> str:
    topology, resources, login = here.topology, here.topology.nats.resources, here.topology.secrets.nats_login
    conf = f"/etc/penstock/{topology.name}/{process.name}.conf"
    lines = [
        "[Unit]",
        f"Description=Penstock run {topology.name}: {process.name} (JetStream)",
        "Wants=network-online.target",
        "After=network-online.target",
        f"PartOf=penstock-{topology.name}.target",
        "",
        "[Service]",
        "Type=exec",
        f"User={systemd_value(topology.bare.user)}",
        f"Group={systemd_value(topology.bare.user)}",
        f"StateDirectory=penstock/{topology.name}/{process.name}",
        "StateDirectoryMode=0700",
        *([_loads(topology, login)] if login is not None else []),
        f"ExecStart={systemd_command([f'{topology.bare.install}/bin/nats-server', '--config', conf])}",
        "ExecReload=/bin/kill -HUP $MAINPID",
        "Restart=always",
        "RestartSec=2",
        "LimitNOFILE=65536",
        f"MemoryMax={round(resources.memory_gb * 1e9)}",
        "",
        *HARDENED.splitlines(),
        *APART.splitlines(),
        *NO_DEVICES.splitlines(),
        "",
        "[Install]",
        f"WantedBy=penstock-{topology.name}.target",
        "",
    ]
    return "\n".join(lines)


def render(topology: Topology) -> Mapping[str, str]:
    """A directory per host. ValueError if no hosts are named."""
    if not topology.hosts:
        raise ValueError("hosts is empty: name the machines on which units are to run ([[hosts]])")
    local_site = site(topology)
    files: dict[str, str] = {
        "README.md": _notes(topology),
        "penstock.toml": to_toml(configuration(topology, local_site.links)),
    }
    target = "\n".join(
        [
            "[Unit]",
            f"Description=Penstock run {topology.name}",
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
    )
    migrated = False
    for process in local_site.processes:
        directory = f"hosts/{process.host}"
        files[f"{directory}/penstock-{topology.name}.target"] = target
        prefix = f"{directory}/penstock-{topology.name}-"
        if process.role == ProcessRole.NATS:
            store = below(topology.bare.state, topology.name, process.name)
            login = topology.secrets.nats_login
            included = ""
            if login is not None:
                credentials = (
                    f"/run/credentials/penstock-{topology.name}-{process.name}.service/{_credential(login)}"
                )
                included = relpath(credentials, f"/etc/penstock/{topology.name}")
            files[f"{directory}/{process.name}.conf"] = nats_conf(
                local_site, process, store, local_site.address(process.host), included
            )
            files[f"{prefix}{process.name}.service"] = _nats(local_site, process)
        elif process.role != ProcessRole.POSTGRES:
            if process.role == ProcessRole.ORCHESTRATOR and not migrated:
                files[f"{prefix}migrate.service"] = _migrate(local_site, process)
                migrated = True
            files[f"{prefix}{unit_of(process)}.service"] = _unit(local_site, process)
    return files


def _notes(topology: Topology) -> str:
    directory = f"/etc/penstock/{topology.name}"
    first = next(each for each in site(topology).processes if each.role == ProcessRole.ORCHESTRATOR)
    return f"""\
# {topology.name} on hosts with systemd (252 or newer)

Written by `penstock cluster render`; change the topology and render again, or go on by hand.

1. On every host: Penstock in {markdown_code(topology.bare.install)} (bin/penstock, bin/alembic, alembic.ini, bin/nats-server), the user
   {markdown_code(topology.bare.user)}, and the shared directory at {markdown_code(topology.shared.path)}.
   PostgreSQL is yours: units only name it by its URL.
2. The secrets, as files of root with mode 0600 on every host that uses them (the admin secret: 32 random bytes as text, the same everywhere):

{secret_files(topology)}
{of_login(site(topology))}
3. On each HOST, from its directory:

       install -D -m 0644 penstock.toml {directory}/penstock.toml
       install -m 0644 hosts/HOST/*.conf {directory}/        # where there are any
       install -m 0644 hosts/HOST/*.service hosts/HOST/*.target /etc/systemd/system/
       systemctl daemon-reload
       systemctl enable --now 'penstock-{topology.name}.target' $(cd hosts/HOST && ls *.service)

Processes wait for the schema, which one unit on one host makes; it tries again every 10 s until PostgreSQL answers. After new code, first
`systemctl restart penstock-{topology.name}-migrate.service` on {first.host}. `systemctl stop penstock-{topology.name}.target` stops all of a host;
`systemd-analyze security penstock-{topology.name}-gateway-0.service` says what a unit may still do.
"""
