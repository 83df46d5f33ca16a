"""The container of a pod of `fake_kubernetes`: the pod's own command in bubblewrap, or a supervisor in this process."""

import asyncio
import base64
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandboxes.base import Limits
from sandboxes.cgroups import Cgroup
from sandboxes.inside.pipe import SOCKET
from sandboxes.inside.supervisor import Supervisor
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.unit.sandboxes.fake_kubernetes import Fake

_PATH = {"PATH": "/usr/bin:/bin:/usr/sbin"}
Object = dict[str, Any]


class Runtime:
    """A pod's container."""

    def __init__(self, fake: "Fake", pod: Object) -> None:
        self.fake, self.pod, self.name = fake, pod, pod["metadata"]["name"]
        self.place = fake.directory / pod["metadata"]["uid"]
        self.out_of_memory = False
        self.process: asyncio.subprocess.Process | None = None
        self.first = 0
        self.cgroup: Cgroup | None = None
        self.supervisor: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        if self.supervisor is not None:
            return not self.supervisor.done()
        return self.process is not None and self.process.returncode is None

    async def start(self) -> None:
        self.place.mkdir(mode=0o711)
        held = {name: base64.b64decode(data) for name, data in self.fake.secrets[self.name]["data"].items()}
        if not self.fake.processes:
            (self.place / "run/penstock").mkdir(parents=True)
            self.supervisor = asyncio.create_task(
                Supervisor(json.loads(held["session.json"]), "", self.place).run()
            )
            await eventually((self.place / SOCKET.lstrip("/")).exists, every_s=0.002)
            return
        read, write = os.pipe()
        command = self.command(held, write)
        if self.fake.hierarchies is not None:
            most = self.pod["spec"]["containers"][0]["resources"]["limits"]
            limits = Limits(
                memory_mb=int(most["memory"].removesuffix("Mi")), cpus=float(most["cpu"]), processes=4096
            )
            self.cgroup = self.fake.hierarchies.create(self.name[-60:], limits)
            command = ["sh", "-c", f'{self.cgroup.attach_script()}exec "$@"', "sh", *command]
        self.process = await asyncio.create_subprocess_exec(
            *command, env={}, pass_fds=(write,), stdin=subprocess.DEVNULL
        )
        os.close(write)
        line = b""
        while b"\n" not in line:
            line += await asyncio.to_thread(os.read, read, 4096)
        os.close(read)
        self.first = int(json.loads(line.split(b"\n")[0])["child-pid"])

    def command(self, held: dict[str, bytes], status: int) -> list[str]:
        """bubblewrap's command line for the pod's spec."""
        spec = self.pod["spec"]
        container = spec["containers"][0]
        words = [
            "bwrap",
            "--unshare-pid",
            "--unshare-ipc",
            "--unshare-uts",
            "--unshare-cgroup-try",
            "--as-pid-1",
            "--die-with-parent",
        ]
        words += [] if self.fake.network else ["--unshare-net"]
        words += [
            "--hostname",
            "pod",
            "--clearenv",
            "--json-status-fd",
            str(status),
            "--setenv",
            "PATH",
            "/usr/bin:/bin:/usr/sbin",
        ]
        words += ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]
        for name in ("bin", "sbin", "lib", "lib64"):
            words += ["--symlink", f"usr/{name}", f"/{name}"]
        for name in ("alternatives", "ld.so.cache"):
            words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        above = {
            str(path) for mount in container["volumeMounts"] for path in Path(mount["mountPath"]).parents
        }
        for path in sorted(above - {"/", "/dev", "/proc", "/usr"}):
            words += ["--perms", "0755", "--dir", path]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for number, mount in enumerate(container["volumeMounts"]):
            volume, inside = volumes[mount["name"]], mount["mountPath"]
            if volume.get("emptyDir", {}).get("medium") == "Memory":
                words += [
                    "--size",
                    str(int(volume["emptyDir"]["sizeLimit"].removesuffix("Mi")) << 20),
                    "--perms",
                    "1777",
                    "--tmpfs",
                    inside,
                ]
                continue
            at = self.place / str(number)
            at.mkdir()
            if "secret" in volume:
                for name, data in held.items():
                    (at / name).write_bytes(data)
                    (at / name).chmod(volume["secret"]["defaultMode"])
            words += ["--ro-bind" if mount.get("readOnly") else "--bind", str(at), inside]
        security = container["securityContext"]
        assert (
            security["readOnlyRootFilesystem"]
            and security["capabilities"]["drop"] == ["ALL"]
            and not security["privileged"]
        )
        assert security["allowPrivilegeEscalation"] is False and spec["automountServiceAccountToken"] is False
        words += ["--remount-ro", "/", "--cap-drop", "ALL"]
        for right in security["capabilities"]["add"]:
            words += ["--cap-add", f"CAP_{right}"]
        return [*words, "--", *container["command"]]

    async def exec(
        self, command: list[str]
    ) -> tuple[asyncio.StreamReader, Any, Callable[[], Awaitable[None]]]:
        if self.supervisor is not None:
            reader, writer = await asyncio.open_unix_connection(str(self.place / SOCKET.lstrip("/")))

            async def nothing() -> None:
                return

            return reader, writer, nothing
        rights = ",".join(
            f"+{right.lower()}"
            for right in self.pod["spec"]["containers"][0]["securityContext"]["capabilities"]["add"]
        )
        enter = [
            "nsenter",
            f"--target={self.first}",
            "--pid",
            "--mount",
            "--ipc",
            "--uts",
            "--net",
            "--cgroup",
        ]
        confined = ["setpriv", f"--bounding-set=-all,{rights}", "--inh-caps=-all", "--no-new-privs", "--"]
        process = await asyncio.create_subprocess_exec(
            *enter, "--", *confined, *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_PATH
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None

        async def end() -> None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            process._transport.close()  # type: ignore[attr-defined] # its pipes, which are not read any more

        return process.stdout, process.stdin, end

    async def ended(self) -> int:
        if self.supervisor is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self.supervisor
            return 0
        assert self.process is not None
        return await self.process.wait()

    async def stop(self) -> None:
        if self.supervisor is not None:
            self.supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.supervisor
        elif self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.first, 9)
                self.process.kill()
            await self.process.wait()
        if self.cgroup is not None:
            await asyncio.to_thread(self.cgroup.remove)
        shutil.rmtree(self.place, ignore_errors=True)
