"""The public Python API over a small real run: PostgreSQL, NATS, orchestrator, gateway, workers, and a scripted policy."""

import importlib.util
import json
import os
import re
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import numpy as np
import pytest
from scaffolds.base import Context, Llm, TaskView
from scaffolds.declare import scaffold
from sqlalchemy import text

from orchestrator.api import (
    ArgumentError,
    ConfigurationError,
    NotFoundError,
    Run,
    Task,
    connect,
    register_scaffold,
)
from orchestrator.api.testing import Reply, Services, start_run
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.deploy.home import write_template
from orchestrator.export.rows import STEPS, TRAJECTORIES
from orchestrator.pool.engine import open_engine
from orchestrator.pool.runs import close_intake
from orchestrator.scripted.server import ScriptedServer
from orchestrator.scripted.services import make_model
from sandboxes.base import Sandbox
from tests.guides import blocks

pytestmark = [pytest.mark.services, pytest.mark.anyio, pytest.mark.tier("look")]

CHECK = b'mkdir -p /logs/verifier; [ "$(cat out)" = hi ]; echo $((1 - $?)) > /logs/verifier/reward.txt'
FILES = {"task.toml": b"", "instruction.md": b"Write hi into out.", "tests/test.sh": CHECK}
AGENT = """\
from scaffolds.declare import scaffold
from scaffolds.shell import Shell


@scaffold(name="mine", version="1")
class Mine(Shell):
    pass
"""
WRITE = {"command": "printf hi > out && cat out"}
GUIDE = "ops/guides/python-api.md"


@scaffold(name="writer", version="1")
class Writer:
    """Writes the policy's first reply into the file out."""

    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        reply = await llm.complete([{"role": "user", "content": task.instruction}])
        await sandbox.exec(["sh", "-c", 'printf %s "$1" > out', "sh", reply.content])
        return reply.content


@scaffold(name="broken", version="1")
class Broken:
    """Fails before its first completion."""

    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        raise RuntimeError("the key is missing")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("policy"))


@pytest.fixture
async def services(
    directory: Path, database_url: str, nats_server: EmbeddedNats, model: Path
) -> AsyncIterator[Services]:
    # The session's server remembers message ids for two minutes, and ids start again in every test's database.
    async with open_engine(database_url, size=1) as engine, engine.begin() as connection:
        await connection.execute(
            text("SELECT setval('rollouts_rollout_id_seq', :n)"), {"n": secrets.randbelow(1 << 40) + 1}
        )
    yield Services(directory=directory, database_url=database_url, nats_url=nats_server.url, model=model)


async def test_a_task_is_published_run_read_and_evaluated(services: Services) -> None:
    task = Task.from_files(FILES)
    async with start_run(scaffolds=[Writer], replies=[Reply(text="hi")], services=services) as run:
        published = await run.publish(task, label="first", timeout_s=60)
        assert not published.refused and not published.unanswered
        [group] = await run.wait(published, timeout_s=60)
        assert group.submission == published.accepted[0] and group.finished
        assert await run.publish(task, label="first") == published  # a no-op
        await trajectories_are_whole(run, task, published.accepted)
        await frames_have_the_columns_of_the_exports(run)
        with pytest.raises(NotFoundError, match="has no ended rollout 7"):
            await run.trajectory(7)
        with pytest.raises(NotFoundError, match="has accepted no submission 'x'"):
            await run.wait(["x"])
        await mistakes_are_one_sentence(run, task)
        await errors_of_callbacks_arrive_unchanged(run, task)
        result = await run.evaluate(task, suite="heldout")
        assert (result.scored, result.version, result.points[-1].successes) == (1, 0, 1)
        assert await run.evaluations(suite="heldout") == [result] and await run.unscored(result) == []
        await a_closed_run_says_why_it_refuses(run, services)
    for late in (run.evaluations(), run.wait(published), run.publish(task, label="x"), run.trajectory(1)):
        with pytest.raises(ConfigurationError, match="is closed: use it inside its `async with connect"):
            await late


async def trajectories_are_whole(run: Run, task: Task, accepted: tuple[str, ...]) -> None:
    found = [each async for each in run.trajectories(task=task.name, scaffold=Writer, submissions=accepted)]
    assert [each.member for each in found] == [0, 1]
    for each in found:
        assert (each.failure_class, each.succeeded, each.answer) == ("completed", True, "hi")
        assert each.verdict is not None and each.reward is not None and each.reward.performance == 1.0
        assert each.versions == (0, 0) and each.label == "first"
        [step] = each.steps
        assert (step.content, step.finish, step.parse, step.trains) == ("hi", "stop", "ok", True)
        assert step.messages[0]["content"] == "Write hi into out."
        assert step.action_ids.dtype == step.versions.dtype == np.int32 and step.logprobs.dtype == np.float32
        assert len(step.action_ids) == len(step.logprobs) == len(step.versions) > 0
        assert set(step.versions) == {0} and set(step.logprobs) == {-0.5}
        assert np.array_equal(step.input_ids, np.concatenate([step.state_ids, step.action_ids]))
        again = await run.trajectory(each.rollout_id)
        assert again.attempt == each.attempt and again.counts
    assert [each.rollout_id async for each in run.trajectories(limit=1)] == [found[0].rollout_id]
    nothing: list[dict[str, Any]] = [
        {"submissions": ()},
        {"rollouts": []},
        {"task": "other"},
        {"versions": (1, None)},
        {"purpose": "eval"},
        {"state": "lost"},
    ]
    for none in nothing:
        assert [each async for each in run.trajectories(**none)] == []


async def frames_have_the_columns_of_the_exports(run: Run) -> None:
    trajectories, steps = await run.trajectory_frame(), await run.step_frame(full=True)
    assert list(trajectories.columns) == list(TRAJECTORIES) and list(steps.columns) == list(STEPS)
    assert list(trajectories["performance"]) == [1.0, 1.0] and len(steps) == 2
    assert list(steps["state_len"] + steps["action_ids"].map(len)) == list(steps["input_ids"].map(len))
    empty = await run.trajectory_frame(label="other")
    assert len(empty) == 0 and list(empty.dtypes) == list(trajectories.dtypes)


async def mistakes_are_one_sentence(run: Run, task: Task) -> None:
    for options, sentence in (
        ({"label": "a b"}, "^label 'a b' cannot be part of a submission id"),
        ({"label": ""}, "^label '' cannot be part of a submission id"),
        ({"group_size": 0}, "^group_size must be a whole number from 1 to 32767, not 0"),
        ({"domain": "A"}, "^domain 'A' is not a valid name"),
        ({"scaffold": "nothing"}, "^scaffold 'nothing' is unknown; the run knows: "),
        ({"purpose": "play"}, "^purpose 'play' is unknown; known: train, eval, record"),
    ):
        with pytest.raises(ArgumentError, match=sentence):
            await run.publish(task, **options)
    wrong_calls: list[tuple[Awaitable[object], str]] = [
        (run.publish(task, group_size=True), "group_size must be a whole number from 1 to 32767, not True"),
        (run.publish(task, group_size=1.5), "group_size must be a whole number"),  # type: ignore[arg-type]
        (run.publish(task, label=5), "label must be a string, not 5"),  # type: ignore[arg-type]
        (run.publish(task, timeout_s=float("nan")), "timeout_s must be a number of seconds from 0, not nan"),
        (run.publish(""), "tasks must be a path, not ''"),
        (run.publish(5), "tasks must be a path, not 5"),  # type: ignore[arg-type]
        (run.wait([5]), "submissions must be a string, not 5"),  # type: ignore[list-item]
        (run.wait([], timeout_s=-1), "timeout_s must be a number of seconds from 0, not -1"),
        (run.trajectory("1"), "rollout_id must be a whole number"),  # type: ignore[arg-type]
        (run.trajectory(2**70), "rollout_id must be a whole number"),
        (anext(run.trajectories(limit=-1)), "limit must be a whole number"),
        (run.evaluate(task, suite="a b"), "suite 'a b' cannot be part of a submission id"),
        (run.evaluate(task, suite="a" * 120), f"suite '{'a' * 80}…' cannot be part of a submission id"),
        (run.evaluate(task, suite="s", version=True), "version must be a whole number"),
        (run.evaluate(task, suite="s", rollouts=1.5), "rollouts must be a whole number"),  # type: ignore[arg-type]
        (run.evaluate(task, suite="s", greedy="no"), "greedy must be True or False"),  # type: ignore[arg-type]
        (run.evaluations(version=2**40), "version must be a whole number"),
        (run.evaluations(suite="a\0"), "suite 'a\\x00' holds characters"),
    ]
    for call, sentence in wrong_calls:
        with pytest.raises(ArgumentError, match="^" + re.escape(sentence)):
            await call
    with pytest.raises(ArgumentError, match=r"^scaffold 'nothing' is unknown"):
        await run.evaluate(task, suite="heldout", scaffold="nothing")
    with pytest.raises(ArgumentError, match=r"^suite is empty"):
        await run.evaluate(task, suite="")
    large = Task.from_files({**FILES, "task.toml": b"[environment]\nmemory_mb = 100000\n"})
    with pytest.raises(ValueError, match="memory_mb = 100000 is more than a sandbox of this run may have"):
        await run.publish(task, large)
    with pytest.raises(ValueError, match=r"^purpose 'play' is unknown"):
        await anext(run.trajectories(purpose="play"))


async def errors_of_callbacks_arrive_unchanged(run: Run, task: Task) -> None:
    mine = ConnectionRefusedError("of my own server")

    def fails(*_: object) -> None:
        raise mine

    for call in (
        run.publish(task, label="fails", on_progress=fails),
        run.evaluate(task, suite="fails", on_progress=fails),
    ):
        with pytest.raises(ConnectionRefusedError) as caught:
            await call
        assert caught.value is mine


async def a_closed_run_says_why_it_refuses(run: Run, services: Services) -> None:
    async with open_engine(services.database_url, size=1) as engine, engine.begin() as connection:
        query = text("SELECT run_id FROM runs WHERE name = :name")
        await close_intake(connection, await connection.scalar(query, {"name": run.name}))
    late = await run.publish(Task.from_files(FILES), label="late")
    assert late.accepted == () and list(late.refused) == list(late.submissions) and all(late.refused.values())


async def test_an_error_of_a_scaffold_is_data_and_one_of_the_test_arrives_unchanged(
    services: Services,
) -> None:
    with pytest.raises(pytest.fail.Exception, match="mine"):
        async with start_run(scaffolds=[Broken], services=services) as run:
            await run.wait(await run.publish(Task.from_files(FILES), purpose="record"), timeout_s=60)
            [first, *_] = [each async for each in run.trajectories()]
            assert (first.failure_class, first.reason) == ("infra_failure", "scaffold: RuntimeError")
            pytest.fail("mine")


@pytest.mark.parametrize("wrong", ["raises", "gives another type"])
async def test_an_error_of_the_function_that_gives_replies_ends_the_context_as_it_is(
    services: Services, wrong: str
) -> None:
    mine = KeyError("the test's own")

    def replies(prompt: str) -> Reply:
        if wrong == "raises":
            raise mine
        return "hi"  # type: ignore[return-value]

    with anyio.fail_after(120), pytest.raises(KeyError if wrong == "raises" else ArgumentError) as caught:
        async with start_run(scaffolds=[Writer], replies=replies, services=services) as run:
            await run.wait(await run.publish(Task.from_files(FILES)))
    assert caught.value is mine or str(caught.value) == "replies must give a Reply, not 'hi'"


async def test_a_trajectory_has_its_conversation_as_chat_messages(services: Services) -> None:
    replies = [Reply(text="I write it.", calls=[("bash", WRITE)]), Reply(text="done")]
    async with start_run(replies=replies, services=services) as run:
        await run.wait(await run.publish(Task.from_files(FILES), purpose="record"), timeout_s=60)
        [found] = [each async for each in run.trajectories()]
        *prompt, call, result, answer = found.messages
        assert found.succeeded and prompt[-1] == {"role": "user", "content": "Write hi into out."}
        assert (call["role"], call["content"], call["reasoning_content"]) == (
            "assistant",
            "I write it.",
            "so",
        )
        [bash_call] = call["tool_calls"]
        assert (bash_call["type"], bash_call["function"]["name"]) == ("function", "bash")
        assert json.loads(bash_call["function"]["arguments"]) == WRITE
        assert (result["role"], result["tool_call_id"]) == ("tool", bash_call["id"]) and "hi" in result[
            "content"
        ]
        assert (answer["role"], answer["content"]) == ("assistant", "done")
        assert [(each.name, each.exit_code) for each in found.tool_executions] == [("bash", 0)]
        first, last = found.steps
        assert first.conversation == [*prompt, call] and last.messages == [result] and last.reply == answer


async def test_a_given_rollout_server_takes_the_place_of_the_scripted_one(services: Services) -> None:
    def policy(prompt: str) -> Reply:
        return Reply(text="hi" if "Write hi" in prompt else "what?")

    async with (
        ScriptedServer(services.model, policy).serving() as server,
        start_run(scaffolds=[Writer], servers=[server.url], model=services.model, services=services) as run,
    ):
        published = await run.publish(Task.from_files(FILES), purpose="record", group_size=1)
        [group] = await run.wait(published, timeout_s=60)
        [found] = [each async for each in run.trajectories()]
        assert group.state == "scored" and found.succeeded and len(server.sent) == 1


async def test_what_cannot_start_says_so_before_anything_starts(services: Services) -> None:
    @scaffold(name="inner", version="1")
    class Inner(Writer):
        pass

    for options, sentence in (
        ({"scaffolds": [Inner]}, "defined inside a function"),
        ({"scaffolds": [Path]}, "not declared as a scaffold"),
        ({"sandbox": "nothing"}, "unknown sandbox provider 'nothing'"),
        ({"replies": []}, "at least one reply"),
        ({"servers": ["http://127.0.0.1:9"]}, "name the directory of the model"),
        ({"settings": {"queue": {"group_sise": 3}}}, "group_sise"),
    ):
        with pytest.raises(ValueError, match=sentence):
            async with start_run(services=services, **options):
                raise AssertionError("it started")


def module_of(block: str, file: Path) -> ModuleType:
    """A block of a guide as an imported file."""
    file.write_text(block)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def children() -> Iterator[str]:
    """The command lines of this process's children."""
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        try:
            yield Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue


async def test_the_guides_programs_work_on_a_run(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Task.from_files(FILES).write(tmp_path / "tasks/hello")
    Task.from_files({**FILES, "task.toml": b"[metadata]\nname = 'held'\n"}).write(
        tmp_path / "suite/heldout/one"
    )
    write_template(tmp_path / "runs/second", "second", "")
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents/my-agent").mkdir()
    (tmp_path / "agents/my-agent/mine.py").write_text(AGENT)
    programs = [block for block in blocks(GUIDE) if block.info == "run"]
    async with start_run(replies=[Reply(text="hi")], services=services) as run:
        (tmp_path / "runs/first").symlink_to(run.directory)
        for number, program in enumerate(programs):
            module: Any = module_of(program.text, tmp_path / f"penstock_guide_{number}.py")
            if hasattr(module, "main"):
                await module.main()
        async with connect("runs/first") as same:
            assert same.name == run.name
    assert len(programs) == 3 and "agents/my-agent" in Path("runs/second/penstock.toml").read_text()
    with pytest.raises(ValueError, match="other does not exist"):
        register_scaffold("runs/second", "agents/other")


async def test_the_guides_test_passes_on_services_of_its_own_and_leaves_nothing(tmp_path: Path) -> None:
    [block] = [block for block in blocks(GUIDE) if block.info == "test"]
    module: Any = module_of(block.text, tmp_path / "penstock_guide_test.py")
    await module.test_the_reply_is_written()
    assert [line for line in children() if "penstock-test-" in line] == []
