"""Whatever goes on until something comes says so on its process's board: it runs under `progress.looping` or `restartable`, or says here why not."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tests.architecture.test_architecture import CODE, REPOSITORY

# Not processes of a run: commands that a person waits for, and what measures, shows or hurts the product.
BESIDE = (
    "orchestrator/audit/", "orchestrator/benchmarks/", "orchestrator/chaos/", "orchestrator/cli/", "orchestrator/cluster/",
    "orchestrator/demo/", "orchestrator/evaluation.py", "orchestrator/export/", "orchestrator/publish.py",
    "orchestrator/recording.py", "orchestrator/scaffold_check/", "orchestrator/top/", "trainer/benchmarks/", "trainer/sft/",
)  # fmt: skip
# Which file begins a loop under its name. It says what it works on and rests on.
BEGUN = {
    "orchestrator/bus/courier.py:Courier._confirm_loop": "orchestrator/bus/courier.py",
    "orchestrator/bus/courier.py:Courier._publish_loop": "orchestrator/bus/courier.py",
    "orchestrator/flow/assignments.py:Assignments._serve": "orchestrator/flow/assignments.py",
    "orchestrator/flow/dispatcher.py:dispatcher": "orchestrator/app.py",
    "orchestrator/flow/ender.py:ender": "orchestrator/app.py",
    "orchestrator/flow/gateways.py:Gateways.watch": "orchestrator/flow/gateways.py",
    "orchestrator/flow/heartbeat.py:Heart.run": "orchestrator/flow/worker.py",
    "orchestrator/flow/overseer.py:Overseer.run": "orchestrator/app.py",
    "orchestrator/flow/reaper.py:reaper": "orchestrator/app.py",
    "orchestrator/flow/relay.py:relay": "orchestrator/app.py",
    "orchestrator/flow/tidy.py:tidy": "orchestrator/flow/worker.py",
    "orchestrator/gateway/book.py:SessionBook.tidy": "orchestrator/gateway/server.py",
    "orchestrator/gateway/leases.py:ServerLease.run": "orchestrator/gateway/server.py",
    "orchestrator/gateway/sync.py:EvaluatedVersions.watch": "orchestrator/gateway/server.py",
    "orchestrator/gateway/sync.py:PublishedVersions.follow": "orchestrator/gateway/server.py",
    "orchestrator/gateway/sync.py:PublishedVersions.watch": "orchestrator/gateway/server.py",
    "orchestrator/gateway/watch.py:Watch.run": "orchestrator/gateway/server.py",
    "orchestrator/web/pulse.py:Pulse.run": "orchestrator/web/server.py",
}
PART = "a part of whichever loop calls it, which names its item and rings when that does not move"
POLL = "looks and sleeps, and waits for nobody: only the event loop's own watchdog could have more to say"
REQUEST = "one request or connection of a client, which waits for it and may end it"
START = "before a process is ready; it gives up with one sentence"
SIGNAL = "waits for a signal, which need not come"
OUTERMOST = "`penstock up`: it has no board; what it starts is watched, and it is watched by who started it"
PERSON = "a person waits for it, at a command"
INSIDE = {
    "orchestrator/bus/courier.py:Courier.drained": PART,
    "orchestrator/bus/feed.py:Feed.take": PART,
    "orchestrator/bus/journal.py:Journal.room": REQUEST,
    "orchestrator/bus/link.py:Connection.until_lost": PART,
    "orchestrator/bus/memory.py:MemoryBus.subscribe.pump": "for tests alone",
    "orchestrator/bus/memory.py:MemoryBus._fetch": "for tests alone",
    "orchestrator/bus/pull.py:Puller._abandon": PART,
    "orchestrator/bus/pull.py:Puller._receive": PART,
    "orchestrator/bus/pull.py:Puller._serve": PART,
    "orchestrator/bus/pull.py:Puller.run": "beside a loop that rests on what it brings; it begins anew when an inbox is silent (Lapsed)",
    "orchestrator/embedded/identity.py:ProcessId.gone": POLL,
    "orchestrator/embedded/nats.py:EmbeddedNats._until_ready": START,
    "orchestrator/embedded/postgres.py:EmbeddedPostgres._until_ready": START,
    "orchestrator/embedded/supervised.py:SupervisedProcess._live": OUTERMOST,
    "orchestrator/embedded/supervisor.py:Supervisor._look_after_disk": OUTERMOST,
    "orchestrator/embedded/supervisor.py:Supervisor._obey_signals": SIGNAL,
    "orchestrator/embedded/supervisor.py:Supervisor.ready": OUTERMOST,
    "orchestrator/embedded/supervisor.py:Supervisor.until_stopped": OUTERMOST,
    "orchestrator/flow/assignments.py:Assignments._send": PART,
    "orchestrator/flow/assignments.py:Assignments._slot": PART,
    "orchestrator/flow/blackbox.py:follow": "tells the clocks of an attempt, which end it when nothing moves",
    "orchestrator/flow/bridge.py:_copy": REQUEST,
    "orchestrator/flow/clocks.py:Clocks._until_over": "the clocks of an attempt: they tell its loop when it moves, and end it when it does not",
    "orchestrator/flow/consume.py:consume": PART,
    "orchestrator/flow/gateways.py:Gateways.opens": PART,
    "orchestrator/flow/rollout_runner.py:_secret": START,
    "orchestrator/flow/worker.py:while_full": PART,
    "orchestrator/gateway/app.py:SandboxRoutes._stream": REQUEST,
    "orchestrator/gateway/rollout_server.py:RolloutServer.drained": PART,
    "orchestrator/gateway/servers.py:ServerPool._admit": REQUEST,
    "orchestrator/gateway/servers.py:ServerPool._generate": REQUEST,
    "orchestrator/gateway/sync.py:Keeper._keep": PART,
    "orchestrator/gateway_client.py:_Client._post": PART,
    "orchestrator/pool/engine.py:_answers": START,
    "orchestrator/pool/orders.py:Orders.taken_back": PART,
    "orchestrator/pool/prune.py:_detach": PERSON,
    "orchestrator/pool/prune.py:_without": PERSON,
    "orchestrator/pool/transact.py:_until_committed": PART,
    "orchestrator/progress.py:restartable": "it is what begins them",
    "orchestrator/web/api/events.py:_events": REQUEST,
    "orchestrator/web/pulse.py:Pulse._while_listened": PART,
    "trainer/__main__.py:main.until_told.obey": SIGNAL,
    "trainer/loop.py:train_batches": PART,
    "trainer/loop.py:wait_for_run": PART,
    "trainer/phases.py:_when_there_is_room": PART,
    "trainer/ranks/place.py:Followers.watch": POLL,
    "trainer/serving/app.py:Routes.generate": REQUEST,
}  # fmt: skip
SAYS = {"works", "rests", "moved", "waiting", "pause", "waiting_for"}
AWAITS = (ast.Await, ast.AsyncFor, ast.AsyncWith)
BOUNDS = (ast.Compare, ast.NamedExpr, ast.BoolOp)


@dataclass(frozen=True)
class Found:
    """A loop without a bound: `while True`, `while not stopped.is_set()`, `async for` over what arrives."""

    where: str  # file:qualified name
    looping: bool  # it stands within `with looping(…)`
    says: bool  # what it works on or waits for


def loops(path: str, source: str) -> Iterator[Found]:
    yield from _loops(path, ast.parse(source), (), False)


def _loops(path: str, node: ast.AST, names: tuple[str, ...], looping: bool) -> Iterator[Found]:
    for child in ast.iter_child_nodes(node):
        below, within = names, looping
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            below, within = (*names, child.name), False
        elif isinstance(child, ast.With | ast.AsyncWith):
            within = within or any("looping" in _called(item.context_expr) for item in child.items)
        elif isinstance(child, ast.AsyncFor) or (isinstance(child, ast.While) and _endless(child)):
            yield Found(f"{path}:{'.'.join(names)}", looping, bool(_called(child) & SAYS) or _wakes(child))
        yield from _loops(path, child, below, within)


def _endless(loop: ast.While) -> bool:
    bounded = any(isinstance(part, BOUNDS) for part in ast.walk(loop.test))
    return not bounded and any(isinstance(part, AWAITS) for part in ast.walk(loop))


def _called(node: ast.AST) -> set[str]:
    """The last names of what is called in it."""
    functions = [part.func for part in ast.walk(node) if isinstance(part, ast.Call)]
    return {_last(function) for function in functions}


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _wakes(node: ast.AST) -> bool:
    """Whether it waits for a `Signal` of the flow, which says so."""
    calls = [part.func for part in ast.walk(node) if isinstance(part, ast.Call)]
    return any(_last(call) == "wait" and ".signals." in ast.unparse(call) for call in calls)


def begun(source: str) -> set[str]:
    """The last names of what is handed to `restartable`, directly, in a partial or by way of other names."""
    tree = ast.parse(source)
    values: dict[str, list[ast.AST]] = {}
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
        value = node.iter if isinstance(node, ast.For) else getattr(node, "value", None)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.For) and value is not None:
            for name in (
                part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)
            ):
                values.setdefault(name, []).append(value)  # fmt: skip
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
FOUND = [
    found for path, text in SOURCES.items() if not path.startswith(BESIDE) for found in loops(path, text)
]


def test_every_loop_without_a_bound_is_on_the_board_or_says_why_not() -> None:
    unseen = {found.where for found in FOUND if not found.looping} - BEGUN.keys() - INSIDE.keys()
    assert sorted(unseen) == [], "run it under progress.looping or restartable, or say here whose part it is"


def test_what_is_on_the_board_is_begun_where_it_is_said_and_says_what_it_does() -> None:
    for where, place in BEGUN.items():
        assert where.rpartition(":")[2].rpartition(".")[2] in begun(SOURCES[place]), (where, place)
    silent = {found.where for found in FOUND if (found.looping or found.where in BEGUN) and not found.says}
    assert sorted(silent) == [], "say what it works on, and what it rests on"


def test_every_exemption_is_still_needed() -> None:
    needed = {found.where for found in FOUND if not found.looping}
    assert sorted((BEGUN.keys() | INSIDE.keys()) - needed) == [], "gone"
    assert sorted(BEGUN.keys() & INSIDE.keys()) == []


def test_loops_are_found_however_they_are_written() -> None:
    source = (
        "async def a():\n while True:\n  await b()\n"
        "class C:\n async def d(self):\n  while not self.over.is_set():\n   await pause(1)\n"
        "async def e():\n with looping('e') as loop:\n  while 1:\n   loop.works()\n   await b()\n"
        "async def f(flow):\n async for one in many: print(one)\n"
        "async def g(flow):\n while True: await flow.signals.work.wait(1)\n"
        "async def bounded(n):\n while n < 3: n = await b()\n"
        "def plain():\n while True: b()\n"
    )
    found = [(each.where, each.looping, each.says) for each in loops("m.py", source)]
    assert found == [
        ("m.py:a", False, False), ("m.py:C.d", False, True), ("m.py:e", True, True), ("m.py:f", False, False),
        ("m.py:g", False, True),
    ]  # fmt: skip
    handed = begun("roles = {'x': partial(one, flow)}\nfor n, role in roles.items(): start(restartable, n, role)\n"
                   "start(restartable, 'y', self.two)\nbeside(three)\n")  # fmt: skip
    assert {"one", "two"} <= handed and "three" not in handed
