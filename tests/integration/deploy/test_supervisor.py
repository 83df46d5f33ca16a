"""The process supervisor, with small real processes."""

import errno
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest

from orchestrator.deploy.embedded.identity import ProcessId
from orchestrator.deploy.embedded.layout import RunLayout
from orchestrator.deploy.embedded.leftovers import find_leftovers
from orchestrator.deploy.embedded.process_spec import (
    ProcessEvent,
    ProcessSpec,
    ProcessState,
    RestartPolicy,
    RestartWhen,
)
from orchestrator.deploy.embedded.spawn import open_log, reap, spawn
from orchestrator.deploy.embedded.supervisor import Supervisor, read_status
from orchestrator.runtime import failpoints
from tests.integration.deploy.supervised import SLEEP, layout, pid_of, shell, until, until_file
from tests.waiting import eventually

__all__ = ["layout"]
pytestmark = [pytest.mark.anyio, pytest.mark.tier("processes")]


async def test_waiting_for_the_end_raises_when_a_process_was_given_up(layout: RunLayout) -> None:
    async with Supervisor(layout) as supervisor:
        patience = RestartPolicy(limit=2, first_delay_s=0.001)
        supervisor.add(
            ProcessSpec(name="sound", argv=SLEEP),
            ProcessSpec(name="broken", argv=shell("echo no model; exit 3"), restart=patience),
        )
        with pytest.raises(ValueError, match=r"broken died 2 times .* exit 3; the end of .*") as caught:
            with anyio.fail_after(60):
                await supervisor.until_stopped()
        assert str(caught.value).endswith("no model")
    left = read_status(layout)
    assert left is not None
    states = {process.name: process.state for process in left.processes}
    assert states == {"sound": ProcessState.STOPPED, "broken": ProcessState.FAILED}


async def test_one_remaining_process_of_those_that_replace_each_other_is_enough(layout: RunLayout) -> None:
    async with Supervisor(layout) as supervisor:
        patience = RestartPolicy(limit=1)
        supervisor.add(
            ProcessSpec(name="server", argv=shell("read line; exit 3"), restart=patience),
            ProcessSpec(name="server-2", argv=SLEEP, restart=patience),
        )
        errors: list[str] = []

        async def wait() -> None:
            try:
                await supervisor.until_stopped(interchangeable=("server", "server-2"))
            except ValueError as error:
                errors.append(str(error))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await until(supervisor, "server", lambda status: status.state is ProcessState.FAILED)
            await anyio.wait_all_tasks_blocked()
            assert errors == []
            status = await until(supervisor, "server-2", lambda status: status.pid is not None)
            assert status.pid is not None
            os.kill(status.pid, signal.SIGKILL)
        assert len(errors) == 1 and errors[0].startswith("server died 1 times")


async def test_one_that_is_expendable_may_be_given_up_while_the_others_go_on(layout: RunLayout) -> None:
    async with Supervisor(layout) as supervisor:
        patience = RestartPolicy(limit=1)
        supervisor.add(
            ProcessSpec(name="sound", argv=SLEEP, restart=patience),
            ProcessSpec(name="web", argv=shell("exit 3"), restart=patience),
        )
        errors: list[str] = []

        async def wait() -> None:
            try:
                await supervisor.until_stopped(expendable=("web",))
            except ValueError as error:
                errors.append(str(error))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await until(supervisor, "web", lambda status: status.state is ProcessState.FAILED)
            await anyio.wait_all_tasks_blocked()
            assert errors == []
            os.kill(pid_of(supervisor, "sound").pid, signal.SIGKILL)
        assert len(errors) == 1 and errors[0].startswith("sound died 1 times")


async def test_a_killed_process_is_back_after_one_short_pause(layout: RunLayout) -> None:
    assert next(RestartPolicy().pauses()) < 1
    async with Supervisor(layout) as supervisor:
        supervisor.add(ProcessSpec(name="worker", argv=SLEEP))
        await supervisor.ready()
        first = pid_of(supervisor, "worker")
        first.send(signal.SIGKILL)
        await until(supervisor, "worker", lambda s: s.state is ProcessState.READY and s.pid != first.pid)
        status = supervisor.status("worker")
        assert (status.restarts, status.last_exit) == (1, "killed by SIGKILL")


async def test_processes_start_after_what_they_need_and_stop_before_it(
    layout: RunLayout, tmp_path: Path
) -> None:
    events: list[tuple[str, str]] = []
    ready_file = tmp_path / "ready"

    async def database_ready() -> bool:
        return ready_file.exists()

    def keep(event: ProcessEvent) -> None:
        events.append((event.name, event.state))

    database = ProcessSpec(
        name="database", argv=shell(f"touch {ready_file}; exec sleep 1000"), ready=database_ready
    )
    async with Supervisor(layout, on_event=keep) as supervisor:
        supervisor.add(ProcessSpec(name="client", argv=SLEEP, after=("database",)), database)
        await supervisor.ready()
    assert events.index(("database", "ready")) < events.index(("client", "starting"))
    assert events.index(("client", "stopped")) < events.index(("database", "stopping"))


async def test_a_process_may_end_before_another_that_starts_alongside_it(layout: RunLayout) -> None:
    events: list[tuple[str, str]] = []
    slow = shell("trap 'sleep 0.3; exit 0' TERM; while :; do sleep 0.05; done")
    async with Supervisor(
        layout, on_event=lambda event: events.append((event.name, str(event.state)))
    ) as supervisor:
        supervisor.add(
            ProcessSpec(name="client", argv=slow, ends_before=("server",)),
            ProcessSpec(name="server", argv=SLEEP),
        )
        await supervisor.ready("server")
        with pytest.raises(ValueError, match="late ends before unknown, which is not supervised"):
            supervisor.add(ProcessSpec(name="late", argv=SLEEP, ends_before=("unknown",)))
        await supervisor.ready()
    assert events.index(("client", "stopped")) < events.index(("server", "stopping"))


async def test_a_process_that_ignores_sigterm_is_killed_with_its_group_after_its_grace(
    layout: RunLayout, tmp_path: Path
) -> None:
    grandchild_file = tmp_path / "grandchild"
    script = f"trap '' TERM; sleep 1000 & echo $! > {grandchild_file}; while :; do wait; done"
    async with Supervisor(layout) as supervisor:
        supervisor.add(ProcessSpec(name="stubborn", argv=shell(script), grace_s=0.1))
        await supervisor.ready()
        grandchild = ProcessId.of(int(await until_file(grandchild_file)))
        leader = pid_of(supervisor, "stubborn")
    assert supervisor.status("stubborn").last_exit == "killed by SIGKILL"
    assert not leader.alive
    assert await grandchild.gone(60)


async def test_grandchildren_of_a_dead_process_die_before_it_is_started_again(
    layout: RunLayout, tmp_path: Path
) -> None:
    grandchild_file = tmp_path / "grandchild"
    async with Supervisor(layout) as supervisor:
        supervisor.add(
            ProcessSpec(name="runner", argv=shell(f"setsid sleep 1000 & echo $! > {grandchild_file}; wait"))
        )
        grandchild = ProcessId.of(int(await until_file(grandchild_file)))
        first = pid_of(supervisor, "runner")
        first.send(signal.SIGKILL)
        await until(supervisor, "runner", lambda s: s.pid not in (None, first.pid))
        assert await grandchild.gone(60)


async def test_a_crash_loop_is_reported_with_its_last_lines_and_harms_no_other_process(
    layout: RunLayout,
) -> None:
    events: list[ProcessEvent] = []
    policy = RestartPolicy(limit=3, first_delay_s=0.01)
    async with Supervisor(layout, on_event=events.append) as supervisor:
        supervisor.add(ProcessSpec(name="healthy", argv=SLEEP))
        await supervisor.ready()
        before = supervisor.status("healthy").pid
        supervisor.add(ProcessSpec(name="broken", argv=shell("echo no such model; exit 7"), restart=policy))
        await until(supervisor, "broken", lambda s: s.state is ProcessState.FAILED)
        with pytest.raises(
            ValueError, match=r"broken died 3 times .* exit 7; the end of .*\n  no such model"
        ):
            await supervisor.ready()
        assert supervisor.status("healthy").pid == before
        assert supervisor.status("healthy").state is ProcessState.READY
    failed = [event for event in events if event.state is ProcessState.FAILED]
    assert [event.name for event in failed] == ["broken"]
    assert layout.log("broken").read_text() == "no such model\n" * 3


async def test_deaths_while_a_dependency_is_away_do_not_count(layout: RunLayout, tmp_path: Path) -> None:
    gate, served = tmp_path / "gate", tmp_path / "served"
    gate.touch()

    async def answers() -> bool:
        return gate.exists()

    policy = RestartPolicy(limit=3, first_delay_s=0.01, max_delay_s=0.02)
    needy = shell(f"[ -e {gate} ] || exit 1; echo yes >> {served}; exec sleep 1000")
    async with Supervisor(layout) as supervisor:
        supervisor.add(ProcessSpec(name="server", argv=SLEEP, ready=answers))
        supervisor.add(ProcessSpec(name="client", argv=needy, after=("server",), restart=policy))
        await supervisor.ready()
        await until_file(served)
        gate.unlink()
        for name in ("server", "client"):
            pid_of(supervisor, name).send(signal.SIGKILL)
        await until(supervisor, "client", lambda s: s.restarts > 2 * policy.limit)
        served.unlink()
        gate.touch()
        await until_file(served)
        await until(supervisor, "client", lambda s: s.state is ProcessState.READY)


async def test_a_program_that_does_not_exist_fails_at_once_by_name(layout: RunLayout) -> None:
    async with Supervisor(layout) as supervisor:
        supervisor.add(ProcessSpec(name="ghost", argv=("/no/such/program",)))
        with pytest.raises(ValueError, match="/no/such/program cannot be started: No such file or directory"):
            await supervisor.ready()


async def test_a_full_disk_does_not_end_the_supervisor_or_its_processes(
    layout: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failpoints, "directory", tmp_path)
    monkeypatch.setattr("orchestrator.deploy.embedded.supervisor.POLL_INTERVAL_S", 0.01)
    async with Supervisor(layout) as supervisor:
        (tmp_path / "file.rename.before").write_text("raise\n" * 8)  # of the status and of pid files
        policy = RestartPolicy(limit=2, first_delay_s=0.01, max_delay_s=0.01)
        supervisor.add(ProcessSpec(name="server", argv=SLEEP, restart=policy))
        await until(supervisor, "server", lambda s: s.state is ProcessState.READY)

        def written() -> bool:
            status = read_status(layout)
            return status is not None and [p.state for p in status.processes] == [ProcessState.READY]

        await eventually(written)
        assert (tmp_path / failpoints.HITS).read_text().count("raise") == 8
        assert layout.pid("server").exists() and len(find_leftovers(layout)) == 1


async def test_a_log_that_cannot_be_put_aside_goes_on(
    layout: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failpoints, "directory", tmp_path)
    log = tmp_path / "long.log"
    log.write_bytes(b"x" * 100)
    (tmp_path / "log.rename.before").write_text("raise")
    os.close(open_log(log, max_bytes=10))
    assert [path.name for path in tmp_path.glob("long*")] == ["long.log"]
    os.close(open_log(log, max_bytes=10))
    assert sorted(path.name for path in tmp_path.glob("long*")) == ["long.log", "long.log.1"]


async def test_a_refusing_ready_check_ends_the_process_with_its_reason(layout: RunLayout) -> None:
    async def too_old() -> bool:
        raise ValueError("the server is too old")

    async with Supervisor(layout) as supervisor:
        policy = RestartPolicy(limit=1)
        supervisor.add(ProcessSpec(name="server", argv=SLEEP, ready=too_old, restart=policy))
        with pytest.raises(ValueError, match="the server is too old"):
            await supervisor.ready()


async def test_a_process_that_never_gets_ready_is_killed_and_named(layout: RunLayout) -> None:
    async def never() -> bool:
        return False

    async with Supervisor(layout) as supervisor:
        policy = RestartPolicy(limit=1)
        supervisor.add(ProcessSpec(name="slow", argv=SLEEP, ready=never, ready_timeout_s=0.1, restart=policy))
        with pytest.raises(ValueError, match=r"slow died 1 times .* not being ready within 0\.1 s"):
            await supervisor.ready()


async def test_work_that_is_done_is_not_started_again(layout: RunLayout) -> None:
    async with Supervisor(layout) as supervisor:
        policy = RestartPolicy(when=RestartWhen.ON_FAILURE)
        supervisor.add(ProcessSpec(name="trainer", argv=shell("exit 0"), restart=policy))
        status = await until(supervisor, "trainer", lambda s: s.state is ProcessState.FINISHED)
        assert (status.restarts, status.last_exit, status.pid) == (0, "exit 0", None)
        await supervisor.ready()


async def test_a_second_supervisor_is_refused_by_the_pid_of_the_first(layout: RunLayout) -> None:
    async with Supervisor(layout):
        with pytest.raises(
            ValueError, match=rf"another supervisor \(pid {os.getpid()}\) runs in .*penstock down"
        ):
            async with Supervisor(layout):
                raise AssertionError("two supervisors on one run directory")
    async with Supervisor(layout):
        pass


async def test_the_status_file_tells_what_runs(layout: RunLayout) -> None:
    async with Supervisor(layout) as supervisor:
        supervisor.add(ProcessSpec(name="worker", argv=SLEEP))
        await supervisor.ready()
        status = read_status(layout)
        assert status is not None and status.supervisor == ProcessId.mine() and status.supervisor.alive
        assert [(p.name, p.state, p.pid) for p in status.processes] == [
            ("worker", ProcessState.READY, supervisor.status("worker").pid)
        ]
    after = read_status(layout)
    assert after is not None and [p.state for p in after.processes] == [ProcessState.STOPPED]
    assert not list(layout.run.glob("*.pid"))


@pytest.mark.parametrize(
    ("specs", "sentence"),
    [
        ([ProcessSpec(name="a", argv=SLEEP), ProcessSpec(name="a", argv=SLEEP)], "the same name"),
        ([ProcessSpec(name="a", argv=SLEEP, after=("b",))], "a comes after b, which is not supervised"),
        (
            [
                ProcessSpec(name="a", argv=SLEEP, after=("b",)),
                ProcessSpec(name="b", argv=SLEEP, after=("a",)),
            ],
            "wait for each other",
        ),
    ],
)
async def test_impossible_orders_are_refused(
    layout: RunLayout, specs: list[ProcessSpec], sentence: str
) -> None:
    async with Supervisor(layout) as supervisor:
        with pytest.raises(ValueError, match=sentence):
            supervisor.add(*specs)


async def test_a_cancelled_supervisor_still_stops_its_processes_in_order(
    layout: RunLayout, tmp_path: Path
) -> None:
    events: list[tuple[str, str]] = []
    with anyio.CancelScope() as scope:
        async with Supervisor(layout, on_event=lambda e: events.append((e.name, e.state))) as supervisor:
            supervisor.add(
                ProcessSpec(name="first", argv=SLEEP),
                ProcessSpec(name="second", argv=SLEEP, after=("first",)),
            )
            await supervisor.ready()
            scope.cancel()
            await anyio.sleep_forever()
    assert events[-4:] == [
        ("second", "stopping"),
        ("second", "stopped"),
        ("first", "stopping"),
        ("first", "stopped"),
    ]


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})])
async def test_it_works_under_uvloop(layout: RunLayout, anyio_backend: object) -> None:
    async with Supervisor(layout) as supervisor:
        supervisor.add(ProcessSpec(name="worker", argv=SLEEP))
        await supervisor.ready()
        first = pid_of(supervisor, "worker")
        first.send(signal.SIGKILL)
        await until(supervisor, "worker", lambda s: s.state is ProcessState.READY and s.pid != first.pid)


@pytest.mark.parametrize("call", ["subprocess.Popen", "os.pidfd_open"])
async def test_a_machine_without_processes_or_descriptors_for_a_while_ends_nothing(
    call: str, layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a lack cannot be made for one process alone without others of the machine meeting it, so the kernel's answer is given here."""
    module, name = {"subprocess": subprocess, "os": os}[call.partition(".")[0]], call.partition(".")[2]
    real, refused = getattr(module, name), anyio.Event()

    def refuse(*words: Any, **options: Any) -> Any:
        refused.set()
        raise OSError(errno.EMFILE, "Too many open files")

    async with Supervisor(layout) as supervisor:
        supervisor.add(
            ProcessSpec(name="other", argv=SLEEP),
            ProcessSpec(name="short", argv=SLEEP, restart=RestartPolicy(first_delay_s=0.01)),
        )
        await until(supervisor, "short", lambda status: status.state is ProcessState.READY)
        other, first = pid_of(supervisor, "other"), pid_of(supervisor, "short")
        monkeypatch.setattr(module, name, refuse)
        os.kill(first.pid, signal.SIGKILL)
        if call == "subprocess.Popen":
            with anyio.fail_after(60):
                await refused.wait()
        monkeypatch.setattr(module, name, real)
        again = await until(
            supervisor,
            "short",
            lambda status: status.state is ProcessState.READY and status.pid not in (None, first.pid),
        )
        assert again.restarts == 1 and pid_of(supervisor, "other") == other


async def test_a_child_is_awaited_without_descriptors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, refused = os.pidfd_open, anyio.Event()

    def refuse(pid: int) -> int:
        refused.set()
        monkeypatch.setattr(os, "pidfd_open", real)
        raise OSError(errno.ENFILE, "Too many open files in system")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    child = spawn(SLEEP, log=tmp_path / "log", env={})
    statuses: list[int] = []

    async def wait() -> None:
        statuses.append(await reap(child))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await refused.wait()
            os.kill(child.pid, signal.SIGTERM)
    assert statuses == [-signal.SIGTERM]


async def test_a_program_that_cannot_be_executed_is_a_value_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be started: No such file"):
        spawn(("/no/such/program",), log=tmp_path / "log", env={})


async def test_a_run_directory_that_became_read_only_stops_in_order(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path == layout.pid("app"):
            raise OSError(errno.EROFS, "Read-only file system")
        real(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    with anyio.fail_after(60):
        async with Supervisor(layout) as supervisor:
            supervisor.add(ProcessSpec(name="database", argv=SLEEP))
            supervisor.add(ProcessSpec(name="app", argv=SLEEP, after=("database",)))
            await until(supervisor, "app", lambda status: status.state is ProcessState.READY)
            supervisor.request_stop()
            await supervisor.until_stopped()
    left = read_status(layout)
    assert left is not None and {each.state for each in left.processes} == {ProcessState.STOPPED}


async def test_an_observer_that_fails_ends_no_process(layout: RunLayout) -> None:
    def fails(event: ProcessEvent) -> None:
        raise RuntimeError(f"closing tag '[/{event.name}]' matches no open tag")

    async with Supervisor(layout, on_event=fails) as supervisor:
        supervisor.add(ProcessSpec(name="sound", argv=SLEEP))
        status = await until(supervisor, "sound", lambda status: status.state is ProcessState.READY)
        assert status.restarts == 0
