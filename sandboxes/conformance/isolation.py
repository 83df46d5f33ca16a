"""Checks of everything that must not be reachable from inside, and of the gateway, which must be."""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
from pathlib import Path

import anyio
import anyio.abc

from sandboxes.base import GATEWAY_SOCKET, Provider, SandboxSpec
from sandboxes.conformance.registry import check, confined, long_sleep, output, require, shell


@check()
async def the_hosts_environment_is_not_inherited(provider: Provider) -> None:
    secret = secrets.token_hex(8)
    os.environ["PENSTOCK_CONFORMANCE"] = secret
    try:
        async with provider.open(SandboxSpec()) as sandbox:
            confined(secret not in await output(sandbox, "env"), "a variable of the host is set")
    finally:
        del os.environ["PENSTOCK_CONFORMANCE"]


@check(isolation=True)
async def the_hosts_environment_and_processes_cannot_be_seen(provider: Provider) -> None:
    seconds, secret = long_sleep(), secrets.token_hex(8)
    async with await anyio.open_process(
        ["sleep", seconds], env={**os.environ, "SECRET": secret}
    ) as host_process:
        try:
            async with provider.open(SandboxSpec()) as sandbox:
                # Brackets, so that the search does not find its own arguments.
                pattern = f"[{secret[0]}]{secret[1:]}\\|[{seconds[0]}]{seconds[1:]}"
                found = await shell(
                    sandbox, f"cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | grep -a '{pattern}'"
                )
                confined(found.exit_code != 0, "a process of the host is visible")
                require(found.exit_code == 1, f"the search failed: {found}")
        finally:
            host_process.kill()


@check(isolation=True)
async def the_hosts_files_cannot_be_read(provider: Provider) -> None:
    with tempfile.TemporaryDirectory() as host:
        Path(host).chmod(0o755)
        Path(host, "secret").write_text("x")
        async with provider.open(SandboxSpec()) as sandbox:
            confined(
                not (await shell(sandbox, f"cat {host}/secret")).ok,
                "a temporary file of the host is readable",
            )
            for directory in (Path.home(), Path.cwd(), Path("/root"), Path("/var/lib")):
                result = await shell(sandbox, f'ls -A "{directory}"')
                visible = set(result.stdout.decode(errors="replace").splitlines())
                # An image has such directories too, but with other content.
                if getattr(provider, "own_system", False):
                    on_host = set(os.listdir(directory)) if os.access(directory, os.R_OK) else set()
                    confined(
                        not on_host or on_host - visible, f"{directory} is visible: {sorted(visible)[:9]}"
                    )
                else:
                    confined(not visible, f"{directory} is visible: {sorted(visible)[:9]}")


@check(isolation=True)
async def programs_have_no_rights(provider: Provider) -> None:
    async with provider.open(SandboxSpec()) as sandbox:
        status = dict(
            line.split(":", 1) for line in (await output(sandbox, "cat /proc/self/status")).splitlines()
        )
        confined(status["NoNewPrivs"].strip() == "1", "new privileges can be had")
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            confined(int(status[name], 16) == 0, f"{name} is {status[name]}")
        own_root = getattr(provider, "user", "") in ("root", "0")
        confined(own_root or (await output(sandbox, "id -u")).strip() != "0", "programs run as root")
        for script in (
            "touch /x",
            "touch /usr/x",
            "touch /etc/x",
            "echo 1 >/proc/sys/kernel/panic",
            "unshare -Ur true",
        ):
            confined(not (await shell(sandbox, script)).ok, f"{script!r} succeeded")


@check(isolation=True)
async def the_network_cannot_be_reached(provider: Provider) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connect = f"import socket; socket.create_connection(('127.0.0.1', {port}), 3)"
        async with provider.open(SandboxSpec()) as sandbox:
            result = await sandbox.exec(["python3", "-c", connect])
            confined(not result.ok, f"loopback of the host: {result}")
            require(b"refused" in result.stderr, f"loopback of the host: {result}")
            interfaces = (await output(sandbox, "tail -n +3 /proc/net/dev | cut -d: -f1")).split()
            confined(interfaces == ["lo"], f"interfaces: {interfaces}")


@check()
async def the_gateways_socket_answers_also_after_it_was_recreated(provider: Provider) -> None:
    client = (
        "import socket, sys\n"
        "for line in sys.stdin:\n"
        "    s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(line.encode())\n"
        "    print(s.recv(99).decode(), flush=True)"
    )
    with tempfile.TemporaryDirectory() as host:
        Path(host).chmod(0o755)
        path = Path(host, "listening")
        async with _gateway(path, b"first"):
            async with provider.open(SandboxSpec(gateway_socket=path)) as sandbox:
                argv = ["python3", "-c", client, sandbox.path(GATEWAY_SOCKET)]
                result = await sandbox.exec(argv, stdin=b"hello\n")
                require(result.stdout == b"first hello\n\n", result)
                # The same program, running on, reaches the gateway's successor.
                wait = f"while [ ! -e again ]; do sleep 0.02; done; echo hi | python3 -c '{client}' \"$0\""
                process = await sandbox.start(["sh", "-c", wait, sandbox.path(GATEWAY_SOCKET)])
                path.unlink()
                async with _gateway(path, b"second"):
                    await output(sandbox, "touch again")
                    second_result = await process.wait()
                    require(second_result.stdout == b"second hi\n\n", second_result)


class _gateway:
    """A Unix socket that answers with its name and the line that it received."""

    def __init__(self, path: Path, name: bytes) -> None:
        self._path, self._name = path, name

    async def __aenter__(self) -> None:
        self._listener = await anyio.create_unix_listener(self._path, mode=0o666)
        self._group = await anyio.create_task_group().__aenter__()
        self._group.start_soon(self._listener.serve, self._answer)

    async def __aexit__(self, *_: object) -> None:
        self._group.cancel_scope.cancel()
        await self._group.__aexit__(None, None, None)
        await self._listener.aclose()

    async def _answer(self, stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.send(self._name + b" " + await stream.receive())
