"""The isolation that is actually in force, read by a program inside a real sandbox and from the host's side of that program.

`observe(provider)` opens a sandbox with default limits. The result does not depend on the provider's settings.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio

from sandboxes.base import Provider, SandboxError, SandboxSpec
from sandboxes.beginning import differences, parse_limits

_PROBE = """
import json, os, sys, time
read = lambda path: open(path, errors="replace").read()
lines = lambda path: read(path).splitlines()
mounts = [line.split() for line in lines("/proc/self/mountinfo")]
print(json.dumps({
    "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in sorted(os.listdir("/proc/self/ns"))},
    "uid": os.getuid(), "gid": os.getgid(), "groups": os.getgroups(),
    "uid_map": [line.split() for line in lines("/proc/self/uid_map")],
    "gid_map": [line.split() for line in lines("/proc/self/gid_map")],
    "status": dict(line.split(":\\t", 1) for line in lines("/proc/self/status") if ":\\t" in line),
    "limits": read("/proc/self/limits"), "niceness": os.getpriority(os.PRIO_PROCESS, 0),
    "interfaces": [line.split(":")[0].strip() for line in lines("/proc/net/dev")[2:]],
    "mounts": [[m[4], m[5], m[m.index("-") + 1]] for m in mounts],
    "environment": dict(os.environ),
    "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
    "descriptors": sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1],
    "devices": sorted(os.listdir("/dev")),
    "hostname": os.uname().nodename,
}), flush=True)
time.sleep(60)
"""
_CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_SECCOMP = {"0": "off", "1": "strict", "2": "filter"}
_GROUP_FILES = (
    "memory.max",
    "memory.swap.max",
    "pids.max",
    "cpu.max",
    "cpu.cfs_quota_us",
    "memory.limit_in_bytes",
    "memory.memsw.limit_in_bytes",
)
_NEEDED = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


@dataclass(frozen=True, slots=True)
class Effective:
    """The result. `sections`: title → (item, finding) in reading order; `concerns`: one sentence for each item that isolates less than the
    default provider does."""

    provider: str
    sections: Mapping[str, tuple[tuple[str, str], ...]]
    concerns: tuple[str, ...]


async def observe(provider: Provider) -> Effective:
    """Open a sandbox, inspect it, close it. `SandboxError` if no program runs in it."""
    marker = secrets.token_hex(8)
    async with provider.open(SandboxSpec()) as sandbox:
        process = await sandbox.start(["python3", "-c", _PROBE, marker])
        output = b""
        with anyio.move_on_after(30):
            while not output.endswith(b"\n") and (chunks := await process.read()) != (b"", b""):
                output += chunks[0]
        if not output.endswith(b"\n"):
            raise SandboxError(
                f"the probe did not run: {(await process.kill()).stderr.decode(errors='replace')}"
            )
        outside = _outside(marker)
        await process.kill()
    return _read(provider, json.loads(output), outside)


def _outside(marker: str) -> dict[str, str]:
    """This machine's view of the probe: its pid, user and control groups here. Empty if it cannot be seen."""
    for process in (Path("/proc", name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            # Skip other processes, and those that only wrap the probe.
            if words[:2] != [b"python3", b"-c"] or marker.encode() not in words:
                continue
            found = {"process": process.name, "user": str(process.stat().st_uid)}
            found["oom_score_adj"] = (process / "oom_score_adj").read_text().strip()
            for line in (process / "cgroup").read_text().splitlines():
                found |= _group(*line.split(":", 2)[1:])
            return found
        except OSError:
            continue
    return {}


def _group(controllers: str, path: str) -> dict[str, str]:
    """The limits of one control group, under the hierarchy's mount point here."""
    found: dict[str, str] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount_fields, _, type_fields = line.partition(" - ")
        kind, options = type_fields.split(" ")[0], type_fields.split(" ")[2].split(",")
        is_same_hierarchy = (
            kind == "cgroup2"
            if not controllers
            else kind == "cgroup" and controllers.split(",")[0] in options
        )
        if is_same_hierarchy:
            for name in _GROUP_FILES:
                group_file = Path(mount_fields.split()[4] + path, name)
                # A program's part of its sandbox's group has no limits, so the sandbox's group is read too.
                for file in (group_file, group_file.parents[1] / name):
                    if file.exists():
                        found[name] = file.read_text().strip()
                        break
    return found


def _read(provider: Provider, inside: dict[str, object], outside: dict[str, str]) -> Effective:
    facts = _Facts(inside)
    host_namespaces = {name: os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")}
    shared = {
        name
        for name, namespace in facts.table("namespaces").items()
        if host_namespaces.get(name) == namespace
    }
    return Effective(
        provider.name,
        {
            "namespaces": tuple(
                (name, ("the host's, " if name in shared else "its own, ") + namespace)
                for name, namespace in facts.table("namespaces").items()
                if not name.endswith("_for_children")
            ),
            "user": _user(facts, outside),
            "privileges": _privileges(facts),
            "limits": (
                *((f"cgroup {name}", value) for name, value in outside.items() if "." in name),
                *((f"rlimit {name}", soft) for name, (soft, _) in parse_limits(facts.text("limits")).items()),
                ("niceness", facts.text("niceness")),
                ("oom_score_adj", outside.get("oom_score_adj", "?")),
            ),
            "network": (("interfaces", facts.joined("interfaces")), ("hostname", facts.text("hostname"))),
            "mounts": tuple((m[0], f"{m[2]}, {m[1]}") for m in facts.rows("mounts")),
            "visible": tuple((name, facts.joined(name)) for name in ("processes", "descriptors", "devices")),
            "environment": tuple(sorted(facts.table("environment").items())),
        },
        tuple(_concerns(facts, outside, shared, limits_cores=getattr(provider, "limits_cores", True))),
    )


def _user(facts: _Facts, outside: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    maps = ((name, "; ".join(" ".join(row) for row in facts.rows(name))) for name in ("uid_map", "gid_map"))
    return (
        (
            "inside",
            f"uid {facts.text('uid')}, gid {facts.text('gid')}, groups {facts.joined('groups') or 'none'}",
        ),
        ("on this machine", f"uid {outside.get('user', '?')}, process {outside.get('process', '?')}"),
        *maps,
    )


def _privileges(facts: _Facts) -> tuple[tuple[str, str], ...]:
    status = facts.table("status")
    suid = [m[0] for m in facts.rows("mounts") if "nosuid" not in m[1].split(",")]
    return (
        ("no_new_privs", "on" if status.get("NoNewPrivs") == "1" else "off"),
        (
            "seccomp",
            f"{_SECCOMP.get(status.get('Seccomp', '0'), '?')}, {status.get('Seccomp_filters', '?')} filters",
        ),
        ("set-user-id", f"heeded below {', '.join(suid)}" if suid else "ignored on every mount"),
        *((name, status.get(name, "?")) for name in _CAPABILITIES),
    )


def _concerns(
    facts: _Facts, outside: Mapping[str, str], shared: set[str], *, limits_cores: bool
) -> Iterator[str]:
    status = facts.table("status")
    yield from (f"the {name} namespace is the host's" for name in _NEEDED if name in shared)
    if status.get("NoNewPrivs") != "1":
        yield "programs can gain privileges: no_new_privs is off"
    if status.get("Seccomp") != "2":
        yield "no filter of system calls is in force"
    if capabilities := [name for name in _CAPABILITIES if int(status.get(name, "0"), 16)]:
        yield f"capabilities are left: {', '.join(capabilities)}"
    if "0" in (facts.text("uid"), outside.get("user")):
        yield "programs run as root"
    if facts.joined("interfaces") != "lo":
        yield f"there is a network: {facts.joined('interfaces')}"
    for difference in differences(parse_limits(facts.text("limits")), facts.text("niceness")):
        yield f"programs begin with another {difference}: start the runner without it"
    if not any(name.startswith(("memory.", "pids.")) for name in outside):
        yield "no control group limits memory and processes: they are limited by looking, and per program"
    if not limits_cores:
        yield "no control group limits cores: `cpus` of a task does not hold, its programs have all cores"


class _Facts:
    """Reads the probe's JSON by shape."""

    def __init__(self, found: Mapping[str, object]) -> None:
        self._found = found

    def table(self, name: str) -> dict[str, str]:
        value = self._found[name]
        assert isinstance(value, dict)
        return {str(key): str(text).strip() for key, text in value.items()}

    def text(self, name: str) -> str:
        return str(self._found[name])

    def rows(self, name: str) -> list[list[str]]:
        value = self._found[name]
        assert isinstance(value, list)
        return [[str(part) for part in row] for row in value]

    def joined(self, name: str) -> str:
        value = self._found[name]
        assert isinstance(value, list)
        return ", ".join(map(str, value))
