"""No duration is hidden in a module: times to live, back-offs, patience and periods are settings, or say here why they are none."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PRODUCT = ("orchestrator", "trainer", "sandboxes", "agents")
# Not the product: they measure it, show it, or hurt it.
BESIDE = (
    "orchestrator/cluster/render/",  # what other tools wait for, in files that people own
    "orchestrator/benchmarks", "orchestrator/chaos", "orchestrator/demo", "orchestrator/scaffold_check",
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
SETTING = "whoever makes it passes a setting"
EXEMPT = {
    "orchestrator/cluster/wait.py:LOOK_S": POLL,
    "agents/scaffolds/mini_swe/inside/penstock_model.py:LONGEST_PAUSE_S": "an agent program of others: its own patience",
    "agents/scaffolds/mini_swe/inside/penstock_model.py:PATIENCE_S": "an agent program of others: its own patience",
    "agents/scaffolds/mini_swe/inside/penstock_model.py:REPLY_S": "an agent program of others: its own patience",
    "orchestrator/audit/leases.py:SLACK_S": "what an audit forgives a clock that it reads later",
    "orchestrator/look/differences.py:EACH_S": "work, not patience: what a page may cost",
    "orchestrator/look/differences.py:ALL_S": "work, not patience: what a page may cost",
    "orchestrator/bus/courier.py:REFUSED_AGAIN_S": POLL,
    "orchestrator/bus/link.py:FIRST_WAIT_S": FIRST,
    "orchestrator/bus/link.py:LEADERLESS_S": POLL,
    "orchestrator/bus/link.py:_LOOK_AT_CLIENT_S": POLL,
    "orchestrator/bus/pull.py:_PRIVATE_KEPT_S": "private consumers are of tests and viewers, not of the flow",
    "orchestrator/bus/subjects.py:DEDUP_WINDOW_S": "kept in the stream; a convenience, correctness rests on unique keys",
    "orchestrator/cli/audit.py:SETTLED_S": PEOPLE,
    "orchestrator/cli/dead.py:ANSWER_S": PEOPLE,
    "orchestrator/cli/drain.py:LOOK_S": PEOPLE,
    "orchestrator/cli/logs.py:LOOK_S": PEOPLE,
    "orchestrator/cli/pool.py:TIMEOUT_S": PEOPLE,
    "orchestrator/cli/reading.py:AGAIN_S": PEOPLE,
    "orchestrator/cli/reading.py:STATEMENT_S": PEOPLE,
    "orchestrator/cli/scaffold.py:SILENCE_S": PEOPLE,
    "orchestrator/cli/scaffold.py:TIMEOUT_S": PEOPLE,
    "orchestrator/cli/status.py:PATIENCE_S": PEOPLE,
    "orchestrator/cli/tail.py:LOOK_S": PEOPLE,
    "orchestrator/embedded/supervised.py:_READY_POLL_S": POLL,
    "orchestrator/embedded/supervisor.py:LOOK_S": POLL,
    "orchestrator/evaluation.py:ANSWER_S": PEOPLE,
    "orchestrator/evaluation.py:LOOK_S": POLL,
    "orchestrator/evaluation.py:SERVED_S": PEOPLE,
    "orchestrator/evaluation.py:STUCK_S": PEOPLE,
    "orchestrator/export/post.py:ANSWER_S": PEOPLE,
    "orchestrator/export/post.py:FIRST_PAUSE_S": FIRST,
    "orchestrator/export/wandb.py:LONGEST_S": PEOPLE,
    "orchestrator/cluster/doctor/bus.py:PATIENCE_S": PEOPLE,
    "orchestrator/cluster/doctor/clocks.py:TOLERATED_S": PEOPLE,
    "orchestrator/cluster/doctor/isolation.py:PATIENCE_S": PEOPLE,
    "orchestrator/cluster/doctor/postgres.py:SHORTEST_STATEMENT_MS": PEOPLE,
    "orchestrator/cluster/doctor/processes.py:PATIENCE_S": PEOPLE,
    "orchestrator/flow/blackbox.py:ASK_S": "at most; a quarter of rollout.stall_s where that is less",
    "orchestrator/flow/clocks.py:CPU_NOISE_S": NOISE,
    "orchestrator/flow/clocks.py:LOOK_S": "at most; a quarter of rollout.stall_s where that is less",
    "orchestrator/flow/dispatcher.py:LOOK_S": "how often a breaker is looked at whose window is a setting",
    "orchestrator/flow/dispatcher.py:PERIOD_S": POLL,
    "orchestrator/flow/gateways.py:ASK_S": "at most; a quarter of clock.gateway_silent_s where that is less",
    "orchestrator/flow/ender.py:PERIOD_S": POLL,
    "orchestrator/flow/relay.py:PERIOD_S": POLL,
    "orchestrator/flow/relay.py:REFUSED_AGAIN_S": POLL,
    "orchestrator/flow/rollout_runner.py:TOOL_TIMEOUT_S": "what an agent may do: part of the task, as its turns are",
    "orchestrator/gateway/dialects/base.py:KEEP_ALIVE_S": WIRE,
    "orchestrator/gateway/servers.py:BARREN_WAIT_S": FIRST,
    "orchestrator/gateway/sync.py:FIRST_WAIT_S": FIRST,
    "orchestrator/gateway/upstream/client.py:KEEP_ALIVE_S": WIRE,
    "orchestrator/gateway/upstream/client.py:QUICK_S": WIRE,
    "orchestrator/gateway_client.py:FIRST_WAIT_S": FIRST,
    "orchestrator/look/changes.py:OVERLAP_S": "longer than a transaction lasts that changes a state",
    "orchestrator/look/search.py:BUDGET_S": PEOPLE,
    "orchestrator/pool/engine.py:CLOSE_S": STOP,
    "orchestrator/pool/engine.py:LOOK_S": POLL,
    "orchestrator/pool/presence.py:FORGOTTEN_S": "a day: how long a name is shown",
    "orchestrator/metrics.py:STOP_S": STOP,
    "orchestrator/pool/presence.py:LEAVE_S": STOP,
    "orchestrator/pool/prune.py:PATIENCE_S": PEOPLE,
    "orchestrator/pool/transact.py:FIRST_WAIT_S": FIRST,
    "orchestrator/publish.py:FULL_WAIT_S": POLL,
    "orchestrator/publish.py:KNOWN_RESEND_S": POLL,
    "orchestrator/recording.py:LOOK_S": PEOPLE,
    "orchestrator/recording.py:STUCK_S": PEOPLE,
    "orchestrator/rewards/speed.py:SHORTEST_S": NOISE,
    "orchestrator/top/app.py:PERIOD_S": PEOPLE,
    "orchestrator/stack.py:COMMAND_START_S": START,
    "orchestrator/stack.py:NATS_PATIENCE_S": PEOPLE,
    "orchestrator/stack.py:SERVER_STOP_S": STOP,
    "orchestrator/watchdog.py:LONGEST_LOOK_S": POLL,
    "orchestrator/web/api/events.py:KEEP_ALIVE_S": WIRE,
    "orchestrator/web/api/steering.py:ANSWER_S": PEOPLE,
    "orchestrator/web/api/steering.py:BUS_S": PEOPLE,
    "orchestrator/web/database.py:PATIENCE_S": PEOPLE,
    "orchestrator/web/database.py:STATEMENT_S": PEOPLE,
    "orchestrator/web/pulse.py:PERIOD_S": POLL,
    "sandboxes/bubblewrap_program.py:_DIE_S": "the kernel's time to end processes",
    "sandboxes/container/engine.py:CALL_S": "a command of an engine that hangs; a program's own time is a setting",
    "sandboxes/container/image.py:BUILD_S": "an image that hangs in its making; nothing waits for it but its own task",
    "sandboxes/container/program.py:_AGAIN_S": POLL,
    "sandboxes/container/program.py:_DIE_S": "the kernel's time to end processes",
    "sandboxes/heir.py:_END_S": STOP,
    "sandboxes/heir.py:_BUSY_S": "while somebody else cleans up",
    "sandboxes/heir.py:_LOOK_S": POLL,
    "sandboxes/inside/keeper.py:_LOOK_S": POLL,
    "sandboxes/inside/pipe.py:_AGAIN_S": POLL,
    "sandboxes/inside/pipe.py:_WAIT_S": START,
    "sandboxes/inside/program.py:LOOK_S": POLL,
    "sandboxes/inside/program.py:_DIE_S": "the kernel's time to end processes",
    "sandboxes/inside/program.py:_FRESH_S": POLL,
    "sandboxes/kubernetes/api.py:_ANSWER_S": "one try; how long it is tried is sandbox.kubernetes.start_s",
    "sandboxes/kubernetes/api.py:_FIRST_S": FIRST,
    "sandboxes/kubernetes/api.py:_LONGEST_S": "one pause; how long it is tried is sandbox.kubernetes.start_s",
    "sandboxes/kubernetes/channel.py:_AGAIN_S": POLL,
    "sandboxes/kubernetes/channel.py:_BEAT_S": WIRE,
    "sandboxes/kubernetes/provider.py:_AGAIN_S": POLL,
    "sandboxes/kubernetes/provider.py:_GONE_S": STOP,
    "sandboxes/local.py:_DIE_S": "the kernel's time to end processes",
    "sandboxes/looks.py:_UNSEEN_S": "of short programs, after which their disk space is looked at",
    "sandboxes/program.py:LOOK_S": POLL,
    "sandboxes/owned.py:_PATIENCE_S": "while somebody else cleans up",
    "sandboxes/reap.py:_BUSY_S": "while somebody else cleans up",
    "sandboxes/reap.py:_LOOK_S": POLL,
    "sandboxes/reap.py:_UNFINISHED_S": "a record is written in less than a millisecond",
    "trainer/loop.py:LOAD_S": START,
    "trainer/loop.py:POLL_S": POLL,
    "trainer/phases.py:SAVE_S": START,
    "trainer/ranks/join.py:LOOK_S": POLL,
    "trainer/ranks/join.py:START_S": START,
    "trainer/ranks/place.py:END_S": STOP,
    "trainer/ranks/place.py:LOOK_S": POLL,
    "trainer/ranks/place.py:NAMED_S": STOP,
    "trainer/serving/__main__.py:SHUTDOWN_S": STOP,
    "trainer/serving/received.py:JOIN_S": WIRE,
    "trainer/serving/received.py:SILENT_S": WIRE,
}
# Durations that are written where they are used.
WRITTEN = {
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
    "orchestrator/embedded/doctor.py:run(timeout=)": PEOPLE,
    "orchestrator/embedded/exclusive.py:sleep()": POLL,
    "orchestrator/embedded/leftovers.py:end_leftovers(grace_s=)": STOP,
    "orchestrator/embedded/leftovers.py:sleep()": POLL,
    "orchestrator/embedded/nats.py:__init__(start_timeout_s=)": START,
    "orchestrator/embedded/nats.py:check_server(connect_timeout_s=)": START,
    "orchestrator/embedded/nats.py:sleep()": POLL,
    "orchestrator/embedded/nats_server.py:run(timeout=)": START,
    "orchestrator/embedded/postgres.py:__init__(start_timeout_s=)": START,
    "orchestrator/embedded/postgres.py:connect(timeout=)": START,
    "orchestrator/embedded/postgres.py:end_server(grace_s=)": STOP,
    "orchestrator/embedded/postgres.py:sleep()": POLL,
    "orchestrator/embedded/postgres_binaries.py:run(timeout=)": START,
    "orchestrator/embedded/postgres_init.py:run(timeout=)": START,
    "orchestrator/embedded/service_specs.py:ProcessSpec(grace_s=)": STOP,
    "orchestrator/embedded/service_specs.py:ProcessSpec(ready_timeout_s=)": START,
    "orchestrator/embedded/supervisor.py:__init__(leftover_grace_s=)": STOP,
    "orchestrator/embedded/supervisor.py:stop_running(timeout_s=)": PEOPLE,
    "orchestrator/flow/rollout_runner.py:sleep()": POLL,
    "orchestrator/gateway/rollout_server.py:__init__(silence_s=)": SETTING,
    "orchestrator/gateway/server.py:AppRunner(shutdown_timeout=)": STOP,
    "orchestrator/gateway/servers.py:__init__(spill_s=)": SETTING,
    "orchestrator/gateway/upstream/client.py:ping(timeout=)": SETTING,
    "orchestrator/pool/prune.py:sleep()": PEOPLE,
    "orchestrator/stack.py:ClientTimeout(total=)": START,
    "orchestrator/tasks/untrusted.py:sleep()": POLL,
    "orchestrator/web/server.py:AppRunner(shutdown_timeout=)": STOP,
    "sandboxes/bubblewrap.py:exec(timeout_s=)": START,
    "sandboxes/bubblewrap_program.py:move_on_after()": STOP,
    "sandboxes/cgroups.py:remove(timeout_s=)": STOP,
    "sandboxes/cgroups.py:sleep()": POLL,
    "sandboxes/container/program.py:sleep()": POLL,
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
    "trainer/ranks/place.py:sleep()": POLL,
    "trainer/serving/service.py:stop(timeout=)": STOP,
}
WAITS = {"sleep", "move_on_after", "fail_after", "wait_for", "wait"}
LIMIT = re.compile(r".*_(s|ms)|(.*_)?timeout|sock_connect|sock_read|total")


def constants(path: Path) -> Iterator[str]:
    """Names at module level that hold a duration: by their name, or because they are a timedelta."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        if not targets or node.value is None:
            continue
        names = [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
        called = node.value.func if isinstance(node.value, ast.Call) else None
        timedelta = isinstance(called, ast.Name) and called.id == "timedelta"
        yield from (name for name in names if timedelta or NAMED.fullmatch(name))


def written(path: Path) -> Iterator[str]:
    """Numbers in the place of a duration: defaults of parameters, arguments of calls, values of dictionaries."""
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
    """More than none: a wait of 0 is none."""
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
        if not path.relative_to(REPOSITORY).as_posix().startswith(BESIDE)
        for name in kind(path)
    }


def test_every_duration_of_the_product_is_a_setting_or_says_why_it_is_none() -> None:
    found = _in_product(constants)
    assert sorted(found - set(EXEMPT)) == [], (
        "make it a key of orchestrator.clock.Clock, or say here why it is none"
    )
    assert sorted(set(EXEMPT) - found) == [], "gone"


def test_no_duration_is_written_where_it_is_used_without_saying_why_it_is_no_setting() -> None:
    found = _in_product(written)
    assert sorted(found - set(WRITTEN)) == [], (
        "make it a key of orchestrator.clock.Clock, or say here why it is none"
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
