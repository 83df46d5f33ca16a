"""A whole Penstock in a directory of its own: started, watched, disturbed and stopped from outside, through the command line alone."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.deploy.embedded.leftovers import find_leftovers
from orchestrator.deploy.embedded.process_spec import ProcessState, ProcessStatus, SupervisorStatus
from orchestrator.deploy.embedded.supervisor import read_status
from orchestrator.deploy.home import Home
from sandboxes.reap import default_root
from tests.waiting import eventually

REPOSITORY = Path(__file__).resolve().parents[2]
START_S = 150.0  # a machine may be busy with other things
POLL_INTERVAL_S = 0.05

CONFIG = """\
[run]
name = "e2e"

[policy]
model = "{model}"

[queue]
batch_groups = 2
group_size = 2
max_staleness = 1
capacity = 6
window_fraction = 0.5

[stage]
max_turns = 2
max_context = 1024
end_batches = {batches}

[sampling]
max_new_tokens = 12

[reward]
zero_signal = "performance"

[sandbox]
memory_mb = 512
processes = 64
cpu_s = 60
disk_mb = 64

[rollout]
slots = 6
verify_slots = 2
lease_ttl_s = {lease_ttl_s}
retry_delay_s = 0.1
timeout_s = 30.0
completion_s = 60.0
tool_timeout_s = 60.0
"""


@contextmanager
def place() -> Iterator[Path]:
    """A new directory, gone afterwards. Unlike `tmp_path`, PostgreSQL's user and those of sandboxes can pass through it."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-e2e-"))
    directory.chmod(0o755)
    (directory / "tmp").mkdir(mode=0o755)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def until(holds: Callable[[], bool | Awaitable[bool]], what: str, patience_s: float) -> None:
    """Wait until `holds`."""
    try:
        await eventually(holds, within_s=patience_s, every_s=POLL_INTERVAL_S)
    except TimeoutError:
        raise AssertionError(f"not within {patience_s:g} s: {what}") from None


@dataclass(slots=True)
class Stack:
    """One run directory and the `penstock up` that was last started in it."""

    directory: Path
    process: subprocess.Popen[bytes] | None = None
    log_start: int = 0  # bytes of up.log that earlier starts wrote

    @property
    def home(self) -> Home:
        return Home.at(self.directory)

    @property
    def log(self) -> Path:
        return self.directory / "up.log"

    def environment(self, **more: str) -> dict[str, str]:
        """Of this repository's code. Sandboxes lie in a temporary directory of the stack's own."""
        own = {
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "agents")]),
            "TMPDIR": str(self.directory / "tmp"),
            "OMP_NUM_THREADS": "1",
            "NO_COLOR": "1",
        }
        inherited = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "NATS_URL")}
        return {**inherited, **own, **more}

    def configure(self, model: Path, *, batches: int, lease_ttl_s: float = 3.0, more: str = "") -> None:
        """Write the run's configuration."""
        text = CONFIG.format(model=model, batches=batches, lease_ttl_s=lease_ttl_s) + more
        (self.directory / "penstock.toml").write_text(text)

    def penstock(
        self, *arguments: str, timeout_s: float = 60.0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "orchestrator.cli", *arguments, "--config", str(self.directory)],
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def penstock_alone(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one command that is about no run."""
        return subprocess.run(
            [sys.executable, "-m", "orchestrator.cli", *arguments],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=60.0,
        )

    async def up(self, *options: str) -> None:
        """`penstock up`, until it reports that everything is up."""
        self.started(*options)
        await until(self._is_up, "penstock up is up", START_S)

    def started(self, *options: str) -> subprocess.Popen[bytes]:
        """The process of `penstock up`, which may not come up."""
        with self.log.open("ab") as log:
            self.log_start = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator.cli", "up", "--config", str(self.directory), *options],
                env=self.environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.process

    def last_output(self) -> str:
        """The output of the last start so far."""
        return self.log.read_bytes()[self.log_start :].decode()

    def says_that_it_is_up(self) -> bool:
        return " is up; " in self.last_output()

    def _is_up(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.last_output()
        return self.says_that_it_is_up()

    def forget(self) -> None:
        """As if nothing had ever been started in this directory."""
        shutil.rmtree(self.home.layout.root)

    def signalled(self, number: signal.Signals, timeout_s: float = 60.0) -> int:
        """Signal the supervisor and wait for its end; returns its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout_s)

    def status(self) -> SupervisorStatus:
        found = read_status(self.home.layout)
        assert found is not None
        return found

    def of(self, name: str) -> ProcessStatus:
        """The supervisor's entry for one process."""
        return next(process for process in self.status().processes if process.name == name)

    def kill(self, name: str) -> int:
        """SIGKILL one process by the id in the status file; returns that id."""
        pid = self.of(name).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        return pid

    async def back(self, name: str, killed: int) -> None:
        """Wait until the supervisor has another process of that name ready."""

        def ready() -> bool:
            found = self.of(name)
            assert found.state is not ProcessState.FAILED, found.detail
            return found.state is ProcessState.READY and found.pid not in (None, killed)

        await until(ready, f"{name} is back", START_S)

    def left_running(self) -> list[str]:
        """Processes of this stack: by the supervisor's mark, or because their files or mounts are its own (sandboxes)."""
        found = {process.pid for process in find_leftovers(self.home.layout)}
        needle = str(self.directory)
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if needle in (entry / "mountinfo").read_text() or needle in os.readlink(entry / "cwd"):
                        found.add(int(entry.name))
                except (OSError, ValueError):
                    continue  # gone by now, or not ours to look at
        return [f"{pid} {_command(pid)}" for pid in sorted(found)]

    @property
    def sandbox_root(self) -> Path:
        """The directory of its workers' sandboxes, in the stack's own temporary directory."""
        return self.directory / "tmp" / default_root().name

    def sandboxes_left(self) -> list[str]:
        """Sandboxes on this stack's disk."""
        root = self.sandbox_root
        return [path.name for path in root.iterdir() if path.name != "reap.lock"] if root.is_dir() else []

    def tracebacks(self) -> list[str]:
        """The ends of logs in which a process died of, or reported, an unforeseen error."""
        logs = [self.log, *sorted(self.home.layout.logs.glob("*.log"))]
        logged = [(log.name, log.read_text(errors="replace").partition("Traceback")) for log in logs]
        return [f"{name}: {found}{rest[:4000]}" for name, (_, found, rest) in logged if found]

    def destroy(self) -> None:
        """End the processes that a failed test left, by their identity."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if (self.directory / "penstock.toml").exists():
            for process in find_leftovers(self.home.layout):
                process.send(signal.SIGKILL)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    except OSError:
        return "(gone)"
