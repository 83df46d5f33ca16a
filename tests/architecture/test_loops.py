"""Every loop without a bound reports to its process's registry: it runs under `liveness.track_loop` or `restartable`, or is listed here with the
reason why not."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tests.architecture.test_architecture import CODE, REPOSITORY

# Not processes of a run: commands that a person waits for, and programs that measure, show or disturb the product.
OUTSIDE = (
    "orchestrator/audit/", "ops/lab/benchmarks/", "ops/lab/chaos/", "orchestrator/cli/", "orchestrator/deploy/cluster/",
    "ops/lab/demo/", "orchestrator/api/", "orchestrator/evaluation.py", "orchestrator/export/", "orchestrator/publish.py",
    "orchestrator/recording.py", "orchestrator/scaffold_check/", "orchestrator/scripted/", "orchestrator/top/", "trainer/benchmarks/", "trainer/sft/",
)  # fmt: skip
# The file that starts a loop under its name. The loop reports its current item and its dependency.
RESTARTABLE = {
    "orchestrator/bus/courier.py:Courier._confirm_loop": "orchestrator/bus/courier.py",
    "orchestrator/bus/courier.py:Courier._publish_loop": "orchestrator/bus/courier.py",
    "orchestrator/runner/assignments.py:Assignments._serve": "orchestrator/runner/assignments.py",
    "orchestrator/roles/dispatcher.py:dispatcher": "orchestrator/app.py",
    "orchestrator/roles/run_end.py:run_end": "orchestrator/app.py",
    "orchestrator/roles/readers.py:end_long_readers": "orchestrator/app.py",
    "orchestrator/runner/gateways.py:Gateways.watch": "orchestrator/runner/gateways.py",
    "orchestrator/runner/heartbeat.py:Heart.run": "orchestrator/runner/worker.py",
    "orchestrator/roles/stall_detector.py:StallDetector.run": "orchestrator/app.py",
    "orchestrator/roles/reaper.py:reaper": "orchestrator/app.py",
    "orchestrator/roles/relay.py:relay": "orchestrator/app.py",
    "orchestrator/runner/cleanup.py:remove_leftovers": "orchestrator/runner/worker.py",
    "orchestrator/gateway/sessions/registry.py:SessionRegistry.expire": "orchestrator/gateway/server.py",
    "orchestrator/gateway/servers/lease.py:ServerLease.run": "orchestrator/gateway/server.py",
    "orchestrator/gateway/servers/targets.py:TargetVersion.watch": "orchestrator/gateway/server.py",
    "orchestrator/gateway/servers/targets.py:announcements": "orchestrator/gateway/server.py",
    "orchestrator/gateway/servers/health.py:HealthProbe.run": "orchestrator/gateway/server.py",
    "orchestrator/web/change_feed.py:ChangeFeed.run": "orchestrator/web/server.py",
}
PART = "a part of whichever loop calls it, which names its item and rings when that does not move"
POLL = "looks and sleeps, and waits for no other process: only the event loop's own watchdog could have more to say"
REQUEST = "one request or connection of a client, which waits for it and may end it"
START = "before a process is ready; it gives up with one sentence"
CLIENTS = "waits for clients, which need not come"
SIGNAL = "waits for a signal, which need not come"
OUTERMOST = (
    "`penstock up`: it has no registry; what it starts is watched, and it is watched by who started it"
)
PERSON = "a person waits for it, at a command"
ROLE = "a role of its own, which `restartable` begins by another name"
INSIDE = {
    "orchestrator/runner/healthcheck.py:until_healthy": PART,
    "orchestrator/runner/egress/proxy.py:Proxy._copy": REQUEST,
    "orchestrator/runner/egress/proxy.py:Proxy._forward.up": REQUEST,
    "orchestrator/runner/egress/proxy.py:Proxy._forward.down": REQUEST,
    "orchestrator/runner/egress/sandbox.py:Listener.begin": PART,
    "orchestrator/bus/courier.py:Courier.drained": PART,
    "orchestrator/roles/consume.py:_Consuming._keep": PART,
    "orchestrator/roles/reward_threads.py:_Computation.over": PART,
    "orchestrator/bus/feed.py:Feed.take": PART,
    "orchestrator/bus/journal.py:Journal.room": REQUEST,
    "orchestrator/bus/link.py:Connection.until_lost": PART,
    "orchestrator/bus/pull.py:Puller._abandon": PART,
    "orchestrator/bus/pull.py:Puller._receive": PART,
    "orchestrator/bus/pull.py:Puller._serve": PART,
    "orchestrator/bus/pull.py:Puller.run": "runs alongside a loop that waits for its messages; it restarts when an inbox is silent (Lapsed)",
    "orchestrator/deploy/embedded/identity.py:ProcessId.gone": POLL,
    "orchestrator/gateway/http/bodies.py:_sent": REQUEST,
    "orchestrator/deploy/embedded/service.py:EmbeddedService._until_ready": START,
    "orchestrator/deploy/embedded/spawn.py:_dead": OUTERMOST,
    "orchestrator/deploy/embedded/supervised.py:SupervisedProcess._live": OUTERMOST,
    "orchestrator/deploy/embedded/supervisor.py:Supervisor._look_after_disk": OUTERMOST,
    "orchestrator/deploy/embedded/supervisor.py:Supervisor._obey_signals": SIGNAL,
    "orchestrator/runtime/ending.py:ended_by_signal.cancel_at_the_first": SIGNAL,
    "orchestrator/deploy/embedded/supervisor.py:Supervisor.ready": OUTERMOST,
    "orchestrator/deploy/embedded/supervisor.py:Supervisor.until_stopped": OUTERMOST,
    "orchestrator/blobs/send.py:_ask": PERSON,
    "orchestrator/vetting/readable.py:_files": PERSON,
    "orchestrator/blobs/send.py:send_blobs": PERSON,
    "orchestrator/pool/blobs.py:named": PERSON,
    "orchestrator/roles/blobs.py:answer_missing": ROLE,
    "orchestrator/runner/assignments.py:Assignments._send": PART,
    "orchestrator/runner/assignments.py:Assignments._slot": PART,
    "orchestrator/runner/blackbox.py:follow": "tells the clocks of an attempt, which end it when nothing moves",
    "orchestrator/runner/bridge.py:_copy": REQUEST,
    "orchestrator/runtime/accepting.py:serve": CLIENTS,
    "orchestrator/runner/clocks.py:Clocks._until_over": "the clocks of an attempt: they tell its loop when it moves, and end it when it does not",
    "orchestrator/roles/consume.py:consume": PART,
    "orchestrator/runner/rollout_runner.py:_secret": START,
    "orchestrator/runner/worker.py:while_full": PART,
    "orchestrator/gateway/http/app.py:SandboxRoutes._read": REQUEST,
    "orchestrator/gateway/http/app.py:SandboxRoutes._stream": REQUEST,
    "orchestrator/gateway/servers/client/replies.py:body_of": PART,
    "orchestrator/gateway/servers/server.py:RolloutServer.drained": PART,
    "orchestrator/gateway/servers/pool.py:ServerPool._admit": REQUEST,
    "orchestrator/gateway/servers/pool.py:ServerPool.generate": REQUEST,
    "orchestrator/gateway/servers/weight_sync.py:WeightSyncer._keep_in_sync": PART,
    "orchestrator/gateway_client.py:_Client._post": PART,
    "orchestrator/pool/engine.py:_answers": START,
    "orchestrator/pool/drain_requests.py:DrainRequests.until_withdrawn": PART,
    "orchestrator/pool/prune.py:_detach": PERSON,
    "orchestrator/pool/prune.py:_without": PERSON,
    "orchestrator/pool/transact.py:_until_committed": PART,
    "orchestrator/pool/transact.py:transact": PART,
    "orchestrator/runtime/liveness.py:restartable": "it is what begins them",
    "orchestrator/web/api/events.py:_events": REQUEST,
    "orchestrator/web/change_feed.py:ChangeFeed._while_listened": PART,
    "trainer/loop.py:train_batches": PART,
    "trainer/loop.py:wait_for_run": PART,
    "trainer/phases.py:_when_there_is_room": PART,
    "trainer/ranks/rank_env.py:Followers.watch": POLL,
    "trainer/serving/app.py:Routes.generate": REQUEST,
}
SAYS = {"busy", "idle", "progressed", "waiting", "pause", "waiting_for"}
AWAITS = (ast.Await, ast.AsyncFor, ast.AsyncWith)
BOUNDS = (ast.Compare, ast.NamedExpr, ast.BoolOp)


@dataclass(frozen=True)
class Found:
    """A loop without a bound: `while True`, `while not stopped.is_set()`, `async for` over arrivals."""

    where: str  # file:qualified name
    track_loop: bool  # it is within `with track_loop(…)`
    says: bool  # its current item or its dependency


def loops(path: str, source: str) -> Iterator[Found]:
    yield from _loops(path, ast.parse(source), (), False)


def _loops(path: str, node: ast.AST, names: tuple[str, ...], track_loop: bool) -> Iterator[Found]:
    for child in ast.iter_child_nodes(node):
        below, within = names, track_loop
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            below, within = (*names, child.name), False
        elif isinstance(child, ast.With | ast.AsyncWith):
            within = within or any("track_loop" in _called(item.context_expr) for item in child.items)
        elif isinstance(child, ast.AsyncFor) or (isinstance(child, ast.While) and _endless(child)):
            yield Found(f"{path}:{'.'.join(names)}", track_loop, bool(_called(child) & SAYS) or _wakes(child))
        yield from _loops(path, child, below, within)


def _endless(loop: ast.While) -> bool:
    bounded = any(isinstance(part, BOUNDS) for part in ast.walk(loop.test))
    return not bounded and any(isinstance(part, AWAITS) for part in ast.walk(loop))


def _called(node: ast.AST) -> set[str]:
    """The last names of the functions called in it."""
    functions = [part.func for part in ast.walk(node) if isinstance(part, ast.Call)]
    return {_last(function) for function in functions}


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _wakes(node: ast.AST) -> bool:
    """Whether it waits for a `Signal` of the orchestrator, which reports that."""
    calls = [part.func for part in ast.walk(node) if isinstance(part, ast.Call)]
    return any(_last(call) == "wait" and ".signals." in ast.unparse(call) for call in calls)


def restarted(source: str) -> set[str]:
    """The last names of the functions passed to `restartable`, directly, in a partial or by way of other names."""
    tree = ast.parse(source)
    values: dict[str, list[ast.AST]] = {}
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
        value = node.iter if isinstance(node, ast.For) else getattr(node, "value", None)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.For) and value is not None:
            for name in (
                part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)
            ):
                values.setdefault(name, []).append(value)
    handed: set[str] = set()
    todo: list[ast.AST] = [
        argument
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and any(_last(argument) == "restartable" for argument in node.args)
        for argument in node.args
    ]
    while todo:
        for part in ast.walk(todo.pop()):
            if isinstance(part, ast.Name | ast.Attribute) and (name := _last(part)) not in handed:
                handed.add(name)
                todo += values.get(name, []) if isinstance(part, ast.Name) else []
    return handed


SOURCES = {
    path.relative_to(REPOSITORY).as_posix(): path.read_text()
    for path in (REPOSITORY / code for code in CODE)
    if path.relative_to(REPOSITORY).parts[0] in ("orchestrator", "trainer")
}


@cache
def all_loops() -> list[Found]:
    """Read once, by the worker that runs these tests."""
    return [
        found for path, text in SOURCES.items() if not path.startswith(OUTSIDE) for found in loops(path, text)
    ]


@dataclass(frozen=True)
class Taking:
    """A loop over what others send, by the bus."""

    messages: str  # the name of what it takes from
    guarded: bool  # one message can end only itself


def taking(source: str) -> Iterator[Taking]:
    """The loops that take from what a file gets by `async with bus.listen(…) as NAME` or `subscribe`. Without a loop, the name is not guarded.

    The guard is `with apart(…)` or `except Exception` in the loop, or in a function of the file that the loop calls.
    """
    tree = ast.parse(source)
    guards = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _guards(node)
    }
    names = {
        item.optional_vars.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncWith)
        for item in node.items
        if _called(item.context_expr) & {"listen", "subscribe"} and isinstance(item.optional_vars, ast.Name)
    }
    for name in sorted(names):
        found = [
            node
            for node in ast.walk(tree)
            if (isinstance(node, ast.AsyncFor) and ast.unparse(node.iter) == name)
            or (isinstance(node, ast.While) and _takes(node, name))
        ]
        for loop in found:
            yield Taking(name, _guards(loop) or bool(_called(loop) & guards))
        if not found:
            yield Taking(name, False)


def _takes(loop: ast.AST, name: str) -> bool:
    calls = [part for part in ast.walk(loop) if isinstance(part, ast.Call)]
    return any(
        ast.unparse(call.func) == f"{name}.take" or name in map(ast.unparse, call.args) for call in calls
    )


def _guards(node: ast.AST) -> bool:
    parts = list(ast.walk(node))
    handlers = [part.type for part in parts if isinstance(part, ast.ExceptHandler) and part.type is not None]
    return any(isinstance(part, ast.With) and "apart" in _called(part) for part in parts) or any(
        ast.unparse(caught) == "Exception" for caught in handlers
    )


def test_every_loop_over_messages_of_others_handles_each_of_them_apart() -> None:
    found = {path: list(taking(text)) for path, text in SOURCES.items()}
    open_to_all = {path: loops for path, loops in found.items() if not all(loop.guarded for loop in loops)}
    assert open_to_all == {}, "use bus.message_guard, or roles.consume"
    assert sum(map(len, found.values())) >= 6


def test_loops_over_messages_are_found_with_their_guard() -> None:
    begin = "async def f(bus):\n async with bus.listen(x) as notes:\n  "
    cases = {
        "async for n in notes:\n   with apart('n'): use(n)": True,
        "async for n in notes:\n   try: use(n)\n   except Exception: log(n)": True,
        "async for n in notes:\n   try: use(n)\n   except ValueError: log(n)": False,
        "while True:\n   handle(await notes.take(1))\n"
        "def handle(n):\n try: use(n)\n except Exception: log(n)": True,
        "while True: use(await next(notes))": False,
        "await elsewhere(notes)": False,
    }
    assert {case: [loop.guarded for loop in taking(begin + case)] for case in cases} == {
        case: [guarded] for case, guarded in cases.items()
    }


def test_every_loop_without_a_bound_is_in_the_registry_or_says_why_not() -> None:
    unseen = (
        {found.where for found in all_loops() if not found.track_loop} - RESTARTABLE.keys() - INSIDE.keys()
    )
    assert sorted(unseen) == [], (
        "run it under liveness.track_loop or restartable, or say here whose part it is"
    )


def test_each_restartable_loop_is_started_where_the_table_says_and_every_loop_reports_its_work() -> None:
    for where, place in RESTARTABLE.items():
        assert where.rpartition(":")[2].rpartition(".")[2] in restarted(SOURCES[place]), (where, place)
    silent = {
        found.where
        for found in all_loops()
        if (found.track_loop or found.where in RESTARTABLE) and not found.says
    }
    assert sorted(silent) == [], "say what it works on, and what it rests on"


def test_every_exemption_is_still_needed() -> None:
    needed = {found.where for found in all_loops() if not found.track_loop}
    assert sorted((RESTARTABLE.keys() | INSIDE.keys()) - needed) == [], "gone"
    assert sorted(RESTARTABLE.keys() & INSIDE.keys()) == []


def test_loops_are_found_however_they_are_written() -> None:
    source = (
        "async def a():\n while True:\n  await b()\n"
        "class C:\n async def d(self):\n  while not self.over.is_set():\n   await pause(1)\n"
        "async def e():\n with track_loop('e') as loop:\n  while 1:\n   loop.busy()\n   await b()\n"
        "async def f(context):\n async for one in many: print(one)\n"
        "async def g(context):\n while True: await context.signals.work.wait(1)\n"
        "async def bounded(n):\n while n < 3: n = await b()\n"
        "def plain():\n while True: b()\n"
    )
    found = [(each.where, each.track_loop, each.says) for each in loops("m.py", source)]
    assert found == [
        ("m.py:a", False, False),
        ("m.py:C.d", False, True),
        ("m.py:e", True, True),
        ("m.py:f", False, False),
        ("m.py:g", False, True),
    ]
    handed = restarted(
        "roles = {'x': partial(one, context)}\nfor n, role in roles.items(): start(restartable, n, role)\n"
        "start(restartable, 'y', self.two)\nother(three)\n"
    )
    assert {"one", "two"} <= handed and "three" not in handed
