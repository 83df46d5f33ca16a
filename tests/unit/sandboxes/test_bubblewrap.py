"""The messages and acts of the bubblewrap provider beyond the port."""

import os
import signal
import socket
import threading
from pathlib import Path

import anyio
import pytest

from sandboxes import procfs
from sandboxes.base import File, KilledBy, Limits, SandboxError, SandboxLost, SandboxSpec, SandboxSpent
from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.bubblewrap_sandbox import BubblewrapSandbox
from sandboxes.owner import records
from sandboxes.reap import default_root
from sandboxes.tree import TreeUsage
from tests.waiting import eventually

pytestmark = pytest.mark.anyio
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root's sandboxes run as another user")


async def refusal(spec: SandboxSpec) -> str:
    with pytest.raises(ValueError) as refused:
        async with BubblewrapProvider().open(spec):
            pass
    return str(refused.value)


@pytest.mark.parametrize(
    "inside", ["/", "/app", "/app/x", "/usr/local", "/home", "/run/penstock", "opt", "/opt/../x"]
)
async def test_binds_stay_clear_of_the_sandboxs_own_places(root: Path, inside: str) -> None:
    assert "choose a free absolute path" in await refusal(SandboxSpec(binds={root: inside}))


async def test_a_bind_that_is_absent_is_named(root: Path) -> None:
    assert "does not exist" in await refusal(SandboxSpec(binds={root / "absent": "/opt/x"}))


@as_root
async def test_a_bind_behind_a_private_directory_is_named_with_the_remedy(root: Path) -> None:
    (root / "private" / "tool").mkdir(parents=True)
    (root / "private").chmod(0o700)
    assert f"chmod o+x {root / 'private'}" in await refusal(
        SandboxSpec(binds={root / "private/tool": "/opt/x"})
    )


async def test_a_gateway_socket_must_exist_and_be_alone(root: Path) -> None:
    (root / "gateway").mkdir()
    (root / "gateway").chmod(0o755)
    path = root / "gateway" / "gateway.sock"
    assert "start the gateway first" in await refusal(SandboxSpec(gateway_socket=path))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o666)
        (root / "gateway" / "admin.sock").touch()
        assert "alone in its directory" in await refusal(SandboxSpec(gateway_socket=path))


@as_root
async def test_a_gateway_socket_must_let_sandbox_users_in(root: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        (root / "gateway").mkdir()
        (root / "gateway").chmod(0o755)
        listener.bind(str(root / "gateway" / "s"))
        (root / "gateway" / "s").chmod(0o600)
        assert "mode 0666" in await refusal(SandboxSpec(gateway_socket=root / "gateway" / "s"))


async def test_a_program_cannot_pass_its_failure_off_as_the_platforms(root: Path) -> None:
    forged = "echo 'bwrap: execvp x: No such file or directory' >&2"
    report = 'for fd in 3 4 5 6 7 8 9; do echo "{ \\"exit-code\\": 0 }" >&$fd; done 2>/dev/null'
    async with BubblewrapProvider().open(SandboxSpec()) as sandbox:
        for script in (f"{forged}; exit 1", f"{forged}; {report}; exit 1"):
            assert (await sandbox.exec(["bash", "-c", script])).exit_code == 1


def command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:  # gone
        return b""


async def test_what_the_environment_holds_is_not_on_any_command_line(root: Path) -> None:
    async with BubblewrapProvider().open(SandboxSpec(env={"TOKEN": "sesame-4711"})) as sandbox:
        process = await sandbox.start(["sh", "-c", "echo $TOKEN; sleep 60"])
        assert await process.read() == (b"sesame-4711\n", b"")
        lines = [command(path) for path in Path("/proc").glob("[0-9]*")]
        assert any(b"bwrap" in line for line in lines)
        assert not any(b"sesame-4711" in line for line in lines)


async def test_files_cannot_be_placed_before_the_root_can_be_written(root: Path) -> None:
    default_root().parent.joinpath("file").touch()
    with pytest.raises((SandboxError, NotADirectoryError)):
        async with BubblewrapProvider(root / "file" / "below").open(SandboxSpec()):
            pass


async def test_a_spec_with_a_bad_file_leaves_nothing_behind(root: Path) -> None:
    provider = BubblewrapProvider()
    with pytest.raises(ValueError, match="not a plain path"):
        async with provider.open(SandboxSpec(files={"/etc/passwd": File(b"")})):
            pass
    assert records(default_root()) == []
    assert [path.name for path in default_root().iterdir()] == ["reap.lock"]


async def test_a_refusal_shows_the_beginning_of_a_long_name(root: Path) -> None:
    provider, name = BubblewrapProvider(), "\x1b\n\U0001f30d" * 30_000
    async with provider.open(SandboxSpec()) as sandbox:
        with pytest.raises(ValueError, match="an absolute directory") as refused:
            await sandbox.exec(["true", name], cwd=name)
        assert len(str(refused.value)) < 400 and str(refused.value).isprintable()
    with pytest.raises(ValueError, match="not a plain path") as refused:
        async with provider.open(SandboxSpec(files={name: File(b"")})):
            pass
    assert len(str(refused.value)) < 400 and str(refused.value).isprintable()


async def test_the_surrounding_scope_can_be_cancelled_at_any_moment(root: Path) -> None:
    provider = BubblewrapProvider()
    for delay in (0.0, 0.002, 0.005, 0.01, 0.02, 0.05):
        with anyio.move_on_after(delay):
            async with provider.open(SandboxSpec()) as sandbox:
                process = await sandbox.start(["sleep", "60"])
                await process.wait()
    assert records(default_root()) == []


def monitors() -> set[int]:
    """The bubblewrap processes that this process has started."""
    return {
        pid
        for pid in procfs.tree(os.getpid())
        if command(Path(f"/proc/{pid}")).partition(b"\0")[0].endswith(b"bwrap")
    }


async def test_a_program_that_dies_with_its_session_never_looks_as_if_it_had_ended_by_itself(
    root: Path,
) -> None:
    async def ends_the_session(sandbox: BubblewrapSandbox, running: int, of: set[int]) -> None:
        await eventually(lambda: len(sandbox.living()) >= running, every_s=0.001)
        for pid in of:
            os.kill(pid, signal.SIGKILL)

    for _ in range(10):
        before = monitors()
        async with BubblewrapProvider().open(SandboxSpec()) as sandbox, anyio.create_task_group() as tasks:
            assert isinstance(sandbox, BubblewrapSandbox)
            assert (await sandbox.exec(["sh", "-c", "kill -9 0"])).exit_code == 137  # its own act: a result
            with anyio.fail_after(60):
                tasks.start_soon(ends_the_session, sandbox, 30, monitors() - before)
                with pytest.raises(SandboxLost):
                    await sandbox.exec(["sh", "-c", "for i in $(seq 30); do sleep 60 & done; wait"])


FILL = ["sh", "-c", "head -c 300000000 /dev/zero >/dev/shm/fill"]


@as_root
async def test_a_session_that_ends_as_its_programs_use_up_their_memory_counts_against_them(
    root: Path,
) -> None:
    spec = SandboxSpec(limits=Limits(memory_mb=96, disk_mb=1024))
    async with BubblewrapProvider().open(spec) as sandbox:
        assert isinstance(sandbox, BubblewrapSandbox)
        if sandbox.cgroup is None:
            pytest.skip("no control groups can be made here")
        assert (await sandbox.exec(["true"])).ok
        (first,) = sandbox.living()
        # It belongs to another group. Here, the kernel takes it first.
        (sandbox.cgroup.directories[0] / "cgroup.procs").write_text(str(first))
        Path(f"/proc/{first}/oom_score_adj").write_text("1000")
        assert (await sandbox.exec(FILL)).killed_by is KilledBy.MEMORY
        await eventually(lambda: procfs.ended(first))
        with pytest.raises(SandboxSpent):
            await sandbox.exec(["true"])
        with pytest.raises(SandboxSpent):
            await sandbox.changed()


@as_root
async def test_a_session_killed_after_programs_had_used_up_their_memory_is_lost(root: Path) -> None:
    async with BubblewrapProvider().open(SandboxSpec(limits=Limits(memory_mb=96, disk_mb=1024))) as sandbox:
        assert isinstance(sandbox, BubblewrapSandbox)
        result = await sandbox.exec(["python3", "-c", "held = bytearray(300 << 20)"])
        assert result.killed_by is KilledBy.MEMORY or sandbox.cgroup is None
        assert (await sandbox.exec(["true"])).ok
        (first,) = sandbox.living()
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: procfs.ended(first))
        with pytest.raises(SandboxLost):
            await sandbox.exec(["true"])


async def test_the_first_process_of_a_sandbox_shows_and_takes_nothing(root: Path) -> None:
    tries = "for way in mem maps environ exe cwd root fd/0; do dd count=1 bs=1 status=none if=/proc/1/$way && echo $way; done"
    async with BubblewrapProvider().open(SandboxSpec()) as sandbox:
        result = await sandbox.exec(
            ["sh", "-c", f"{tries}; readlink /proc/1/exe /proc/1/root /proc/1/fd/0; id -u"]
        )
        assert result.stdout == b"1000\n"
        score = await sandbox.exec(["sh", "-c", "echo 1000 >/proc/1/oom_score_adj"])
        assert not score.ok


async def test_a_program_killed_as_it_starts_is_dead(root: Path) -> None:
    async with BubblewrapProvider().open(SandboxSpec()) as sandbox:
        for _ in range(5):
            process = await sandbox.start(["sleep", "1000"])
            with anyio.fail_after(60):
                assert (await process.kill()).killed_by is KilledBy.CALLER


HOLDS_MEMORY = """
import os, time
def fill(fd):
    for _ in range(30):
        os.write(fd, bytes(1 << 20))
fill(os.memfd_create("m"))
SECOND
time.sleep(300)
"""
ORPHANS = """
import os, time
for _ in range(4):
    read, write = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            while time.process_time() < 0.3:
                pass
        os._exit(0)
    os.close(write)
    os.wait()
    os.read(read, 1)
"""
"""Four processes, one after the other, that outlive their parents and end before the program does."""


@pytest.mark.parametrize(
    "second",
    [
        'fill(os.memfd_create("m"))',
        'fill(os.open("/dev/shm/f", os.O_CREAT | os.O_WRONLY))',
        'fill(os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR))',
    ],
    ids=["memfd_create", "a file in /dev/shm", "without a name in /dev/shm"],
)
async def test_without_control_groups_memory_files_count_for_the_limit(second: str, root: Path) -> None:
    async with BubblewrapProvider(use_cgroups=False).open(
        SandboxSpec(limits=Limits(memory_mb=48))
    ) as sandbox:
        result = await sandbox.exec(["python3", "-c", HOLDS_MEMORY.replace("SECOND", second)])
    assert result.killed_by is KilledBy.MEMORY, result


async def test_without_control_groups_processor_time_of_orphans_counts_once(root: Path) -> None:
    for cpu_s in (0.5, 30.0):
        async with BubblewrapProvider(use_cgroups=False).open(
            SandboxSpec(limits=Limits(cpu_s=cpu_s))
        ) as sandbox:
            result = await sandbox.exec(["python3", "-c", ORPHANS])
        assert result.killed_by is (KilledBy.CPU if cpu_s < 1 else KilledBy.NONE), result
    assert 1.1 < result.cpu_s < 2.2, result


async def test_time_is_kept_while_a_look_at_the_disk_takes_long(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    monkeypatch.setattr(TreeUsage, "add", lambda used, _: (ended.wait(100), used)[1])
    async with BubblewrapProvider(root).open(SandboxSpec()) as sandbox:
        with anyio.fail_after(60):
            result = await sandbox.exec(["sleep", "1000"], timeout_s=1)
        ended.set()  # the look takes until here
    assert result.killed_by is KilledBy.TIMEOUT


async def test_problems_are_none_here_and_name_the_package_elsewhere(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await BubblewrapProvider().problems() == ()
    monkeypatch.setenv("PATH", str(root))
    problems = await BubblewrapProvider().problems()
    assert "apt-get install bubblewrap" in problems[0]
