"""No duration is hidden in a module: times to live, back-offs, patience and periods are settings, or are listed here with the reason why not."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PRODUCT = ("orchestrator", "trainer", "sandboxes", "agents")
# Not the product: code that measures, shows or disturbs it.
OUTSIDE = (
    "orchestrator/deploy/cluster/render/",  # waits of other tools, in files that people own
    "ops/lab/benchmarks", "ops/lab/chaos", "ops/lab/demo", "orchestrator/scaffold_check", "orchestrator/scripted", "orchestrator/api/testing.py",
    "trainer/benchmarks", "sandboxes/conformance", "agents/scaffolds/examples",
)  # fmt: skip
NAMED = re.compile(r"_?[A-Z][A-Z0-9_]*_(S|MS)")

POLL = "a period that is shorter than any scaled time to live"
FIRST = "the first of waits that grow up to a setting"
PEOPLE = "how long a command waits before it tells a person"
START = "how long a program may take to load; nothing is lost by waiting"
WIRE = "a promise to a client or server of a protocol, which no scale changes"
NOISE = "a measure of what is too little to count"
STOP = "how long a process that ends already cleans up"
SETTING = "its creator passes a setting"
EXEMPT = {
    "orchestrator/cli/import_tasks.py:GIT_S": PEOPLE,
    "trainer/phases.py:COUNT_S": STOP,
    "orchestrator/roles/reward_process.py:END_S": STOP,
    "orchestrator/cli/import_tasks.py:TASK_S": "written into each imported task: its author's patience",
    "orchestrator/cli/import_tasks.py:TEST_S": "written into each imported task: its author's patience",
    "orchestrator/tasks/importing/swe_scripts.py:_RESERVE_S": "a share of the time that a task gives its tests",
    "orchestrator/tasks/importing/terminal_bench.py:AGENT_S": "the default of another format",
    "orchestrator/tasks/importing/terminal_bench.py:TEST_S": "the default of another format",
    "orchestrator/runner/verification_limits.py:CPU_S": "an amount of processor time of a judge, above that of the programs under test",
    "orchestrator/runner/verification_limits.py:ATTRIBUTED_S": "a few measurements of a sandbox (sandboxes/program.py)",
    "orchestrator/tasks/untrusted.py:_DISK_S": POLL,
    "orchestrator/tasks/untrusted.py:_POLL_INTERVAL_S": POLL,
    "orchestrator/deploy/cluster/wait.py:POLL_INTERVAL_S": POLL,
    "agents/scaffolds/mini_swe/inside/penstock_model.py:MAX_PAUSE_S": "an agent program of others: its own patience",
    "agents/scaffolds/mini_swe/inside/penstock_model.py:PATIENCE_S": "an agent program of others: its own patience",
    "orchestrator/audit/i5_leases.py:SLACK_S": "what an audit forgives a clock that it reads later",
    "orchestrator/queries/differences.py:EACH_S": "work, not patience: what a page may cost",
    "orchestrator/queries/differences.py:ALL_S": "work, not patience: what a page may cost",
    "orchestrator/api/run.py:ANSWER_S": PEOPLE,
    "orchestrator/api/run.py:POLL_INTERVAL_S": POLL,
    "orchestrator/blobs/cache.py:RECENT_S": "how long a file stays in a cache; a missing one is read again",
    "orchestrator/blobs/send.py:ANSWER_S": "without an answer everything is sent",
    "orchestrator/blobs/send.py:FULL_WAIT_S": POLL,
    "orchestrator/roles/untrainable.py:READ_S": "without an answer ids are not compared with the vocabulary",
    "orchestrator/roles/intake.py:BLOB_WAIT_S": "bounds the growing pause of one message, whose tries are counted",
    "orchestrator/runtime/backoff.py:MAX_DELAY_S": "bounds the growing pause of one piece of work, whose tries are counted",
    "orchestrator/settings/timeouts.py:MAX_S": "the bound of every setting in seconds",
    "orchestrator/bus/courier.py:REFUSED_AGAIN_S": POLL,
    "orchestrator/runner/bridge.py:END_S": STOP,
    "orchestrator/runner/blackbox.py:REMOVE_S": "one command in a sandbox, which has its own time-out",
    "orchestrator/runtime/accepting.py:PAUSE_S": POLL,
    "orchestrator/runtime/probed_socket.py:IDLE_S": "the kernels at both ends answer, however busy or slow the programs are",
    "orchestrator/runtime/probed_socket.py:INTERVAL_S": "the kernels at both ends answer, however busy or slow the programs are",
    "agents/scaffolds/relay.py:PAUSE_S": POLL,
    "orchestrator/deploy/embedded/supervisor.py:LOCK_INTERVAL_S": POLL,
    "orchestrator/bus/link.py:FIRST_WAIT_S": FIRST,
    "orchestrator/runtime/peer.py:_POLL_INTERVAL_S": POLL,
    "orchestrator/bus/link.py:LEADERLESS_S": POLL,
    "orchestrator/bus/link.py:_LOOK_AT_CLIENT_S": POLL,
    "orchestrator/bus/pull.py:_PRIVATE_KEPT_S": "private consumers are of tests and viewers, not of the loop",
    "orchestrator/bus/subjects.py:DEDUP_WINDOW_S": "kept in the stream; a convenience, correctness rests on unique keys",
    "orchestrator/cli/audit.py:SETTLED_S": PEOPLE,
    "orchestrator/cli/dead.py:ANSWER_S": PEOPLE,
    "orchestrator/cli/drain.py:POLL_INTERVAL_S": PEOPLE,
    "orchestrator/cli/logs.py:POLL_INTERVAL_S": PEOPLE,
    "orchestrator/cli/sql.py:TIMEOUT_S": PEOPLE,
    "orchestrator/cli/reading.py:AGAIN_S": PEOPLE,
    "orchestrator/cli/reading.py:STATEMENT_S": PEOPLE,
    "orchestrator/queries/attempt_pages.py:STATEMENT_S": PEOPLE,
    "orchestrator/cli/scaffold.py:SILENCE_S": PEOPLE,
    "orchestrator/cli/scaffold.py:TIMEOUT_S": PEOPLE,
    "orchestrator/cli/status.py:PATIENCE_S": PEOPLE,
    "orchestrator/cli/tail.py:POLL_INTERVAL_S": PEOPLE,
    "orchestrator/deploy/embedded/supervised.py:_MAX_POLL_INTERVAL_S": POLL,
    "orchestrator/deploy/embedded/supervised.py:_READY_POLL_S": POLL,
    "orchestrator/deploy/embedded/spawn.py:_POLL_INTERVAL_S": POLL,
    "orchestrator/deploy/embedded/supervisor.py:POLL_INTERVAL_S": POLL,
    "orchestrator/evaluation.py:ANSWER_S": PEOPLE,
    "orchestrator/evaluation.py:POLL_INTERVAL_S": POLL,
    "orchestrator/evaluation.py:SERVED_S": PEOPLE,
    "orchestrator/export/post.py:ANSWER_S": PEOPLE,
    "orchestrator/export/post.py:FIRST_PAUSE_S": FIRST,
    "orchestrator/export/wandb.py:MAX_S": PEOPLE,
    "orchestrator/deploy/cluster/doctor/bus.py:PATIENCE_S": PEOPLE,
    "orchestrator/deploy/cluster/doctor/clocks.py:TOLERATED_S": PEOPLE,
    "orchestrator/deploy/cluster/doctor/isolation.py:PATIENCE_S": PEOPLE,
    "orchestrator/deploy/cluster/doctor/postgres.py:MIN_STATEMENT_MS": PEOPLE,
    "orchestrator/deploy/cluster/doctor/processes.py:PATIENCE_S": PEOPLE,
    "orchestrator/runner/blackbox.py:ASK_S": "at most; a quarter of rollout.stall_s where that is less",
    "orchestrator/runner/clocks.py:CPU_NOISE_S": NOISE,
    "orchestrator/runner/clocks.py:ROUNDING_S": NOISE,
    "orchestrator/gateway/sessions/session.py:BURST_S": "a part of the event loop's time, on any machine",
    "orchestrator/runner/clocks.py:POLL_INTERVAL_S": "at most; a quarter of rollout.stall_s where that is less",
    "orchestrator/roles/dispatcher.py:POLL_INTERVAL_S": "how often a breaker is looked at whose window is a setting",
    "orchestrator/roles/dispatcher.py:PERIOD_S": POLL,
    "orchestrator/runner/gateways.py:ASK_S": "at most; a quarter of timeouts.gateway_silent_s where that is less",
    "orchestrator/roles/run_end.py:PERIOD_S": POLL,
    "orchestrator/roles/relay.py:PERIOD_S": POLL,
    "orchestrator/roles/relay.py:REFUSED_AGAIN_S": POLL,
    "orchestrator/bus/suspects.py:FIRST_WAIT_S": FIRST,
    "orchestrator/bus/suspects.py:MAX_WAIT_S": "the longest wait of a message that nothing but a repair can help",
    "orchestrator/bus/suspects.py:GONE_S": "many times the longest wait: only bounds what is remembered",
    "orchestrator/gateway/http/dialects/base.py:KEEP_ALIVE_S": WIRE,
    "orchestrator/gateway/servers/segmented.py:EMPTY_REPLY_WAIT_S": FIRST,
    "orchestrator/gateway/servers/weight_sync.py:FIRST_WAIT_S": FIRST,
    "orchestrator/gateway/servers/client/client.py:KEEP_ALIVE_S": WIRE,
    "orchestrator/gateway/servers/client/client.py:QUICK_S": WIRE,
    "orchestrator/gateway_client.py:FIRST_WAIT_S": FIRST,
    "orchestrator/queries/changes.py:OVERLAP_S": "longer than a transaction lasts that changes a state",
    "orchestrator/queries/search.py:BUDGET_S": PEOPLE,
    "orchestrator/queries/silence.py:STUCK_S": PEOPLE,
    "orchestrator/pool/engine.py:CLOSE_S": STOP,
    "orchestrator/pool/engine.py:POLL_INTERVAL_S": POLL,
    "orchestrator/pool/heartbeats.py:FORGOTTEN_S": "a day: how long a name is shown",
    "orchestrator/runtime/metrics.py:STOP_S": STOP,
    "orchestrator/runtime/scrapes.py:ANSWER_S": WIRE,
    "orchestrator/runtime/scrapes.py:HEAD_S": WIRE,
    "orchestrator/runtime/scrapes.py:ROOM_S": WIRE,
    "orchestrator/pool/heartbeats.py:LEAVE_S": STOP,
    "orchestrator/roles/consume.py:STOP_S": STOP,
    "orchestrator/pool/prune.py:PATIENCE_S": PEOPLE,
    "orchestrator/pool/transact.py:FIRST_WAIT_S": FIRST,
    "orchestrator/publish.py:FULL_WAIT_S": POLL,
    "orchestrator/publish.py:KNOWN_RESEND_S": POLL,
    "orchestrator/recording.py:POLL_INTERVAL_S": PEOPLE,
    "orchestrator/recording.py:ANSWER_S": PEOPLE,
    "orchestrator/rewards/speed.py:MIN_S": NOISE,
    "orchestrator/top/app.py:PERIOD_S": PEOPLE,
    "orchestrator/deploy/stack_processes.py:COMMAND_START_S": START,
    "orchestrator/deploy/stack.py:NATS_PATIENCE_S": PEOPLE,
    "orchestrator/deploy/stack_processes.py:SERVER_STOP_S": STOP,
    "orchestrator/runtime/watchdog.py:MAX_POLL_INTERVAL_S": POLL,
    "orchestrator/web/api/events.py:KEEP_ALIVE_S": WIRE,
    "orchestrator/web/api/steering.py:ANSWER_S": PEOPLE,
    "orchestrator/web/api/steering.py:BUS_S": PEOPLE,
    "orchestrator/web/database.py:PATIENCE_S": PEOPLE,
    "orchestrator/web/database.py:STATEMENT_S": PEOPLE,
    "orchestrator/web/change_feed.py:PERIOD_S": POLL,
    "sandboxes/bubblewrap_program.py:_DIE_S": "the kernel's time to end processes",
    "sandboxes/container/engine.py:CALL_S": "a command of an engine that hangs; a program's own time is a setting",
    "orchestrator/runner/collect.py:LIST_S": "a command in a sandbox that hangs; a hook's own time is a key of its task",
    "orchestrator/runner/skills.py:COPY_S": "a command in a sandbox that hangs",
    "sandboxes/container/image.py:GRACE_S": "an engine's time to clean up; a build's own time is a key of its task",
    "sandboxes/container/image.py:_AGAIN_S": POLL,
    "sandboxes/container/image.py:BUILD_S": "an image that hangs in its making; nothing waits for it but its own task",
    "sandboxes/container/program.py:_DIE_S": "the kernel's time to end processes",
    "sandboxes/container/program.py:_ENTER_S": "the engine's time to lead a program in, once that is to be ended",
    "sandboxes/container/program.py:_SOON_S": POLL,
    "sandboxes/container/program.py:_STUBBORN_S": "the kernel's time to end processes",
    "sandboxes/base.py:SERVICE_START_S": START,
    "sandboxes/container/services.py:_END_S": STOP,
    "sandboxes/container/services.py:_LATE_S": POLL,
    "sandboxes/container/services.py:_SOON_S": POLL,
    "sandboxes/container/session.py:_DIE_S": "the kernel's time to end processes",
    "sandboxes/container/session.py:_READY_S": START,
    "sandboxes/container/session.py:_SOON_S": POLL,
    "sandboxes/cleanup_daemon.py:_END_S": STOP,
    "sandboxes/cleanup_daemon.py:_BUSY_S": "while another process cleans up",
    "sandboxes/cleanup_daemon.py:_POLL_INTERVAL_S": POLL,
    "sandboxes/inside/supervisor.py:_POLL_INTERVAL_S": POLL,
    "sandboxes/inside/pipe.py:_AGAIN_S": POLL,
    "sandboxes/inside/pipe.py:_WAIT_S": START,
    "sandboxes/inside/program.py:POLL_INTERVAL_S": POLL,
    "sandboxes/inside/program.py:_DIE_S": "the kernel's time to end processes",
    "sandboxes/inside/program.py:_FRESH_S": POLL,
    "sandboxes/kubernetes/api.py:_ANSWER_S": "one try; how long it is tried is sandbox.kubernetes.start_s",
    "sandboxes/kubernetes/api.py:_FIRST_S": FIRST,
    "sandboxes/kubernetes/api.py:_MAX_S": "one pause; how long it is tried is sandbox.kubernetes.start_s",
    "sandboxes/kubernetes/channel.py:_AGAIN_S": POLL,
    "sandboxes/kubernetes/channel.py:_BEAT_S": WIRE,
    "sandboxes/kubernetes/provider.py:_AGAIN_S": POLL,
    "sandboxes/kubernetes/provider.py:_GONE_S": STOP,
    "sandboxes/local.py:_DIE_S": "the kernel's time to end processes",
    "sandboxes/disk_usage.py:_UNMEASURED_S": "of short programs, after which their disk space is looked at",
    "sandboxes/disk_usage.py:POLL_INTERVAL_S": POLL,
    "sandboxes/program.py:_SOON_S": POLL,
    "sandboxes/session.py:_COMPLAINT_S": STOP,
    "sandboxes/session.py:_DIE_S": "the kernel's time to end processes",
    "sandboxes/session.py:_READY_S": START,
    "sandboxes/join.py:_END_S": STOP,
    "sandboxes/join.py:_NAMESPACE_S": START,
    "sandboxes/bubblewrap_program.py:_AGAIN_S": POLL,
    "sandboxes/bubblewrap_program.py:_INTRODUCED_S": START,
    "sandboxes/bubblewrap_program.py:_STUBBORN_S": "the kernel's time to end processes",
    "sandboxes/directory.py:GRACE_S": "what programs have to end in before they are killed: part of the port's promise",
    "sandboxes/inside/supervisor.py:GRACE_S": "what programs have to end in before they are killed: part of the port's promise",
    "orchestrator/tasks/traps/shellcheck.py:TIMEOUT_S": PEOPLE,
    "sandboxes/tools.py:_ASK_S": START,
    "sandboxes/image_mount.py:_MOUNTED_S": START,
    "sandboxes/image_mount.py:_POLL_S": POLL,
    "sandboxes/images/build.py:_CLEAN_S": STOP,
    "sandboxes/images/build.py:_WAIT_S": POLL,
    "sandboxes/images/caged.py:_POLL_S": POLL,
    "sandboxes/images/caged.py:_REMOVAL_S": STOP,
    "sandboxes/images/mounted.py:_MOUNT_S": START,
    "sandboxes/images/refused.py:KEPT_S": "how long a failed build is remembered; a command builds at once",
    "sandboxes/owned.py:_PATIENCE_S": "while another process cleans up",
    "sandboxes/cgroups.py:_PROBE_S": "the age of a directory of another container; nothing is lost by waiting",
    "sandboxes/reap.py:_BUSY_S": "while another process cleans up",
    "sandboxes/reap.py:_POLL_INTERVAL_S": POLL,
    "sandboxes/reap.py:_UNFINISHED_S": "a record is written in less than a millisecond",
    "trainer/loop.py:LOAD_S": START,
    "trainer/loop.py:POLL_S": POLL,
    "trainer/phases.py:SAVE_S": START,
    "trainer/ranks/rendezvous.py:POLL_INTERVAL_S": POLL,
    "trainer/ranks/rendezvous.py:START_S": START,
    "trainer/ranks/rank_env.py:END_S": STOP,
    "trainer/ranks/rank_env.py:POLL_INTERVAL_S": POLL,
    "trainer/ranks/rank_env.py:NAMED_S": STOP,
    "trainer/serving/__main__.py:SHUTDOWN_S": STOP,
    "trainer/serving/engine.py:POLL_INTERVAL_S": "a hundred checks find one step, longer than any takes: the process then ends",
    "trainer/serving/received.py:JOIN_S": WIRE,
    "trainer/serving/received.py:SILENT_S": WIRE,
}
# Durations that are written at their place of use.
WRITTEN = {
    "orchestrator/probing.py:SandboxSection(cpu_s=)": "an amount of processor time of a probe",
    "orchestrator/probing.py:probed(agent_s=)": SETTING,
    "orchestrator/cli/cluster.py:wait(timeout=)": PEOPLE,
    "agents/scaffolds/scaffold_toml.py:exec(timeout_s=)": START,
    "orchestrator/bus/courier.py:__init__(confirm_every_s=)": POLL,
    "orchestrator/bus/courier.py:__init__(linger_s=)": POLL,
    "orchestrator/bus/courier.py:move_on_after()": POLL,
    "orchestrator/bus/link.py:move_on_after()": STOP,
    "orchestrator/bus/nats.py:connect(patience_s=)": SETTING,
    "orchestrator/bus/nats.py:move_on_after()": STOP,
    "orchestrator/bus/pull.py:move_on_after()": STOP,
    "orchestrator/cli/tasks.py:publish(timeout_s=)": PEOPLE,
    "orchestrator/deploy/embedded/doctor.py:run(timeout=)": PEOPLE,
    "orchestrator/deploy/embedded/file_lock.py:sleep()": POLL,
    "orchestrator/deploy/embedded/leftovers.py:end_leftovers(grace_s=)": STOP,
    "orchestrator/deploy/embedded/leftovers.py:sleep()": POLL,
    "orchestrator/deploy/embedded/nats.py:__init__(start_timeout_s=)": START,
    "orchestrator/deploy/embedded/nats.py:check_server(connect_timeout_s=)": START,
    "orchestrator/deploy/embedded/postgres.py:__init__(start_timeout_s=)": START,
    "orchestrator/deploy/embedded/postgres.py:connect(timeout=)": START,
    "orchestrator/deploy/embedded/postgres_binaries.py:run(timeout=)": START,
    "orchestrator/deploy/embedded/postgres_init.py:run(timeout=)": START,
    "orchestrator/deploy/embedded/service.py:sleep()": POLL,
    "orchestrator/deploy/embedded/service_specs.py:ProcessSpec(grace_s=)": STOP,
    "orchestrator/deploy/embedded/service_specs.py:ProcessSpec(ready_timeout_s=)": START,
    "orchestrator/deploy/embedded/supervisor.py:__init__(leftover_grace_s=)": STOP,
    "orchestrator/deploy/embedded/supervisor.py:stop_running(timeout_s=)": PEOPLE,
    "orchestrator/runner/rollout_runner.py:sleep()": POLL,
    "orchestrator/gateway/servers/server.py:__init__(silence_s=)": SETTING,
    "orchestrator/gateway/server.py:WireRunner(shutdown_timeout=)": STOP,
    "orchestrator/gateway/servers/pool.py:__init__(spill_s=)": SETTING,
    "orchestrator/gateway/servers/client/client.py:ping(timeout=)": SETTING,
    "orchestrator/pool/prune.py:sleep()": PEOPLE,
    "orchestrator/deploy/stack_processes.py:ClientTimeout(total=)": START,
    "orchestrator/tasks/untrusted.py:sleep()": POLL,
    "orchestrator/web/server.py:BoundedRunner(shutdown_timeout=)": STOP,
    "sandboxes/bubblewrap.py:exec(timeout_s=)": START,
    "sandboxes/cgroups.py:remove(timeout_s=)": STOP,
    "sandboxes/cgroups.py:sleep()": POLL,
    "sandboxes/container/provider.py:exec(timeout_s=)": START,
    "sandboxes/inside/program.py:sleep()": POLL,
    "sandboxes/kubernetes/process.py:move_on_after()": STOP,
    "sandboxes/kubernetes/provider.py:exec(timeout_s=)": START,
    "sandboxes/kubernetes/provider.py:move_on_after()": STOP,
    "sandboxes/kubernetes/sandbox.py:move_on_after()": STOP,
    "sandboxes/effective.py:move_on_after()": PEOPLE,
    "sandboxes/local.py:sleep()": POLL,
    "sandboxes/reap.py:_kill(timeout_s=)": STOP,
    "sandboxes/reap.py:sleep()": POLL,
    "trainer/ranks/rank_env.py:sleep()": POLL,
    "trainer/serving/service.py:stop(timeout=)": STOP,
}
WAITS = {"sleep", "move_on_after", "fail_after", "wait_for", "wait"}
LIMIT = re.compile(r".*_(s|ms)|(.*_)?timeout|sock_connect|sock_read|total")


def constants(path: Path) -> Iterator[str]:
    """Names at module level that hold a duration: by their name, or because they are a timedelta."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
        called = node.value.func if isinstance(node.value, ast.Call) else None
        timedelta = isinstance(called, ast.Name) and called.id == "timedelta"
        yield from (name for name in names if timedelta or NAMED.fullmatch(name))


def written(path: Path) -> Iterator[str]:
    """Numbers used as a duration: defaults of parameters, arguments of calls, values of dictionaries."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            placed = [*node.args.posonlyargs, *node.args.args]
            defaults = [
                *zip(reversed(placed), reversed(node.args.defaults), strict=False),
                *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
            ]
            yield from (
                f"{node.name}({argument.arg}=)"
                for argument, default in defaults
                if LIMIT.fullmatch(argument.arg) and _number(default)
            )
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in WAITS and node.args and _number(node.args[0]):
                yield f"{name}()"
            for keyword in node.keywords:
                if keyword.arg and LIMIT.fullmatch(keyword.arg) and _number(keyword.value):
                    yield f"{name}({keyword.arg}=)"
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and LIMIT.fullmatch(str(key.value)) and _number(value):
                    yield f"{{{key.value!s}}}"


def _number(node: ast.expr | None) -> bool:
    """A positive number: a wait of 0 is not a wait."""
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and node.value is not True
        and node.value > 0
    )


def _in_product(kind: Callable[[Path], Iterator[str]]) -> set[str]:
    return {
        f"{path.relative_to(REPOSITORY).as_posix()}:{name}"
        for root in PRODUCT
        for path in sorted((REPOSITORY / root).rglob("*.py"))
        if not path.relative_to(REPOSITORY).as_posix().startswith(OUTSIDE)
        for name in kind(path)
    }


def test_every_duration_of_the_product_is_a_setting_or_says_why_it_is_none() -> None:
    found = _in_product(constants)
    assert sorted(found - set(EXEMPT)) == [], (
        "make it a key of orchestrator.settings.timeouts.Timeouts, or say here why it is none"
    )
    assert sorted(set(EXEMPT) - found) == [], "gone"


def test_every_duration_is_a_setting_or_has_a_reason() -> None:
    found = _in_product(written)
    assert sorted(found - set(WRITTEN)) == [], (
        "make it a key of orchestrator.settings.timeouts.Timeouts, or say here why it is none"
    )
    assert sorted(set(WRITTEN) - found) == [], "gone"


def test_a_duration_is_found_however_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        "A_S = 1\nB_S, _C_MS = 1, 2\nD: float = 3\nE_S: float = 3.0\nLATER = timedelta(seconds=1)\nSIZE = 1\n"
        "def wait(size=3, *, patience_s=60.0, off_s=0): sleep(2), move_on_after(delay=1)\n"
        "call(timeout=5, connect_timeout=2, none_s=0, size=4)\nDICT = {'timeout': 10, 'size': 2}\n"
    )
    assert list(constants(file)) == ["A_S", "B_S", "_C_MS", "E_S", "LATER"]
    assert sorted(written(file)) == [
        "call(connect_timeout=)",
        "call(timeout=)",
        "sleep()",
        "wait(patience_s=)",
        "{timeout}",
    ]
