"""mini-swe-agent, unchanged, in a real sandbox, against a server that answers from a script."""

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scaffolds import relay
from scaffolds.base import AgentLimits, Fault, Launch, TaskView
from scaffolds.mini_swe import PLACE, PROGRAM, MiniSweAgent, environment, submission
from scaffolds.programs import PYTHON
from scaffolds.seen import seen

from ops.tiers import slowness
from sandboxes.base import GATEWAY_SOCKET, ExecResult, File, Provider, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.local import LocalProvider, NoIsolationWarning
from tests.integration.gateway.scripted_chat import Failure, ScriptedChat, bash, scripted_chat

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60), pytest.mark.tier("tasks")]

GOLDEN = Path(__file__).parents[2] / "wire/golden/harness/mini.json"
LIMITS = AgentLimits(turns=4, context=512, tool_timeout_s=20, timeout_s=40)
TASK = TaskView(
    name="count", domain="general", instruction="how many lines has oak.txt: \u2028 – 'x' \x7f \U0001f333\n"
)
FILES = {"/app/oak.txt": File(b"elm\nfig\nplum\nrose\n")}


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that the sandbox's user can pass through; also the place of the sandboxes."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-test-"))
    directory.chmod(0o711)
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    yield directory
    shutil.rmtree(directory)


class Run:
    """One attempt: its result in the scaffold's host half."""

    def __init__(self, ended: ExecResult, answer: str | None, fault: Fault | None) -> None:
        self.ended, self.answer, self.fault = ended, answer, fault


async def play(
    chat: ScriptedChat,
    *,
    limits: AgentLimits = LIMITS,
    launch: Launch | None = None,
    files: dict[str, File] | None = None,
    provider: Provider | None = None,
) -> Run:
    """Run the scaffold as a runner does."""
    scaffold = MiniSweAgent()
    placed = {**FILES, **scaffold.files(TASK, chat.endpoint, limits), **(files or {})}
    spec = SandboxSpec(files=placed, binds=scaffold.binds(), gateway_socket=chat.socket)
    async with (provider or BubblewrapProvider()).open(spec) as sandbox:
        endpoint = replace(chat.endpoint, socket=sandbox.path(GATEWAY_SOCKET))
        start = launch or scaffold.launch(TASK, endpoint, limits)
        ended = await sandbox.exec(start.argv, timeout_s=limits.timeout_s + 5, env=start.env, cwd=start.cwd)
        answer = await scaffold.harvest(sandbox, ended)
        return Run(ended, answer, scaffold.classify(ended, answer))


def tool_results(body: dict[str, Any]) -> list[str]:
    return [message["content"] for message in body["messages"] if message["role"] == "tool"]


async def test_the_program_calls_observes_and_submits_through_the_socket_alone(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replies = [bash("wc -l < oak.txt"), bash(submission("4 lines"), "call_s1_0", None)]
    async with scripted_chat(root, replies) as chat:
        run = await play(chat)
    assert (run.answer, run.fault) == ("4 lines", None), run.ended
    (headers, first), (_, second) = chat.requests
    assert headers["Authorization"] == "Bearer a-token" and headers["x-stainless-retry-count"] == "0"
    assert first["messages"][1] == {"role": "user", "content": TASK.instruction}
    assert submission("answer") in first["messages"][0]["content"]
    assert second["messages"][:2] == first["messages"]
    assert second["messages"][2] == {"role": "assistant", "content": None, **replies[0]}
    assert second["messages"][3] == {"role": "tool", "content": "4", "tool_call_id": "call_s0_0"}
    with capsys.disabled():
        print(f"\nmini-swe-agent: {run.ended.cpu_s:.2f} s CPU, {run.ended.wall_s:.2f} s for two turns")
    assert run.ended.cpu_s < 3 * slowness()  # it takes one on the idle reference machine


async def test_its_requests_have_the_shape_of_the_recorded_ones(root: Path) -> None:
    golden = [exchange["body_trimmed"] for exchange in json.loads(GOLDEN.read_text())]
    async with scripted_chat(root, [bash("echo hi"), bash(submission("done"))]) as chat:
        await play(chat)
    for (_, ours), theirs in zip(chat.requests, golden, strict=True):
        assert set(ours) == set(theirs)
        assert [message["role"] for message in ours["messages"]] == [m["role"] for m in theirs["messages"]]
        assert trimmed(ours["tools"]) == theirs["tools"]
    call, result = chat.requests[1][1]["messages"][2:]
    recorded_call, recorded_result = golden[1]["messages"][2:]
    assert set(result) == set(recorded_result)
    assert set(call["tool_calls"][0]) == set(recorded_call["tool_calls"][0])


def trimmed(tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tools in the form that the recording keeps."""
    return [
        {
            "type": tool["type"],
            "function.name": tool["function"]["name"],
            "function_keys": sorted(tool["function"]),
            "description_chars": len(tool["function"]["description"]),
            "param_names": sorted(tool["function"]["parameters"]["properties"]),
            "schema_keys": sorted(tool["function"]["parameters"]),
        }
        for tool in tools
    ]


COMMANDS = [
    "cat oak.txt",
    "cat absent.txt",
    "false",
    "true",
    "echo; echo; echo late",
    "printf 'no end'; echo worse >&2",
    "oak",
    "printf '%0100d' 7",
    "cat absent.txt; seq 3000; false",
    "printf '\\xff'",
    "env | grep -c -E 'MSWEA|OPENAI|PYTHON|GATEWAY'",
    "kill -9 $$",
    "sleep 60 &",
]


@pytest.mark.parametrize(
    "shape", [{}, {"observation_characters": 60}, {"observation_lines": 3}], ids=["full", "short", "brief"]
)
async def test_commands_look_as_they_do_in_every_other_scaffold(root: Path, shape: dict[str, int]) -> None:
    limits = replace(LIMITS, turns=20, **shape)
    replies = [bash(command) for command in COMMANDS]
    async with scripted_chat(root, [*replies, bash(submission("done"))]) as chat:
        run = await play(chat, limits=limits)
    assert run.fault is None
    async with BubblewrapProvider().open(SandboxSpec(files=FILES)) as sandbox:
        results = [await sandbox.exec(["bash", "-c", command]) for command in COMMANDS]
    assert tool_results(chat.requests[-1][1]) == [seen(result, limits) for result in results]


async def test_a_command_that_does_not_end_is_killed_and_the_program_goes_on(root: Path) -> None:
    async with scripted_chat(
        root, [bash("echo a; sleep 60"), bash("sleep 60"), bash(submission("b"))]
    ) as chat:
        run = await play(chat, limits=replace(LIMITS, tool_timeout_s=1))
    assert (run.answer, tool_results(chat.requests[-1][1])) == (
        "b",
        ["a\nkilled after 1 s", "killed after 1 s"],
    )


async def test_background_processes_serve_later_commands_and_end_with_a_command_that_is_killed(
    root: Path,
) -> None:
    serve = "(while sleep 0.1; do echo up >> log; done) & echo $! > pid"
    ask = "n=$(wc -l < log); until [ $(wc -l < log) -gt $((n + 1)) ]; do sleep 0.1; done; kill $(cat pid) && echo served"
    hang = "sleep 60 & echo $! > pid; sleep 60"
    replies = [bash(each) for each in (serve, "sleep 1", ask, hang, "kill -0 $(cat pid)", submission("b"))]
    async with scripted_chat(root, replies) as chat:
        run = await play(chat, limits=replace(LIMITS, turns=9, tool_timeout_s=10))
    seen_by_policy = tool_results(chat.requests[-1][1])
    assert (run.answer, seen_by_policy[:4]) == ("b", ["ok", "ok", "served", "killed after 10 s"])
    assert "No such process" in seen_by_policy[4]


async def test_time_that_passes_while_it_runs_does_not_end_the_program_by_itself(root: Path) -> None:
    """It cannot tell its own time from the platform's: the attempt's clocks end it."""
    replies = [bash("sleep 2.5"), bash(submission("done"))]
    async with scripted_chat(root, replies) as chat:
        files = MiniSweAgent().files(TASK, chat.endpoint, replace(LIMITS, timeout_s=1))
        run = await play(chat, files=dict(files))
    assert (run.answer, run.fault) == ("done", None)


async def test_a_request_is_sent_again_with_the_retry_header_until_it_is_answered(root: Path) -> None:
    replies: list[dict[str, Any] | Failure] = [
        Failure(503),
        Failure(0),
        Failure(429),
        bash(submission("late")),
    ]
    async with scripted_chat(root, replies) as chat:
        run = await play(chat)
    assert run.answer == "late"
    assert [headers["x-stainless-retry-count"] for headers, _ in chat.requests] == ["0", "1", "2", "3"]
    assert all(body == chat.requests[0][1] for _, body in chat.requests)


async def test_nothing_submitted_leaves_an_empty_answer_and_is_not_a_fault(root: Path) -> None:
    async with scripted_chat(root, [bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")]) as chat:
        run = await play(chat)
    assert (run.answer, run.fault) == ("", None)


async def test_it_runs_in_the_sandbox_that_isolates_nothing(root: Path) -> None:
    async with scripted_chat(root, [bash("cat oak.txt"), bash(submission("elm"))]) as chat:
        with pytest.warns(NoIsolationWarning):
            run = await play(chat, provider=LocalProvider())
    assert (run.answer, tool_results(chat.requests[-1][1])) == ("elm", ["elm\nfig\nplum\nrose"])


@pytest.mark.parametrize(
    ("replies", "fault"),
    [
        ([{"content": "four"}], Fault("policy", "ill_formed: not a call of bash with a command")),
        ([bash("true")] * 4, Fault("policy", "turns")),
        ([bash("true"), Failure(400, "budget_exhausted", "used up")], Fault("policy", "used up")),
        ([bash("true"), Failure(400, "context_length_exceeded", "full")], Fault("policy", "full")),
        (
            [bash("kill -9 $PPID")],
            Fault("infra", "it ended early, exit code 137: Warning: Input is not a terminal (fd=0)."),
        ),
        ([Failure(401, "invalid_api_key", "unknown")], Fault("infra", "GatewayRefused: 401: unknown")),
        ([bash("true"), Failure(409, "session_over", "over")], Fault("infra", "GatewayRefused: 409: over")),
    ],
)
async def test_an_end_without_an_answer_is_somebodys_fault(
    root: Path, replies: list[dict[str, Any] | Failure], fault: Fault
) -> None:
    async with scripted_chat(root, replies) as chat:
        run = await play(chat)
    assert (run.answer, run.fault) == (None, fault), run.ended
    assert not chat.left


async def test_a_gateway_that_stays_away_is_an_infrastructure_failure(root: Path) -> None:
    model = Path(relay.__file__).with_name("mini_swe") / "inside/penstock_model.py"
    impatient = model.read_text().replace("PATIENCE_S: Final = 60.0", "PATIENCE_S: Final = 0.2")
    files = {f"{PLACE}/penstock_model.py": File(impatient.encode())}
    async with scripted_chat(root, [Failure(503)] * 3) as chat:
        run = await play(chat, files=files)
    assert run.fault is not None and run.fault.kind == "infra"
    assert run.fault.reason == "GatewayAway: no reply to 3 requests; the last: not now"


async def test_a_program_that_does_not_start_is_an_infrastructure_failure(root: Path) -> None:
    async with scripted_chat(root, []) as chat:
        run = await play(chat, files={f"{PLACE}/start.py": File(b"import absent\n")})
    assert run.fault == Fault(
        "infra", "it ended early, exit code 1: ModuleNotFoundError: No module named 'absent'"
    )


async def test_the_programs_default_model_and_templates_work_over_the_relay(root: Path) -> None:
    """Slow: its model class imports litellm, which is why the scaffold has its own model class."""
    program: tuple[str, ...] = (
        PYTHON,
        f"{PLACE}/start.py",
        "--yolo",
        "--exit-immediately",
        "-m",
        "openai/policy",
    )
    program = (*program, "-t", "print hi", "-o", f"{PLACE}/trajectory.json")
    replies = [bash("echo hi-from-fake", think=None), bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")]
    async with scripted_chat(root, replies) as chat:
        env = environment(chat.endpoint) | {
            "OPENAI_API_BASE": chat.endpoint.base_url.replace("gateway", "127.0.0.1:8080"),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }
        del env["OPENAI_BASE_URL"]
        argv = (PYTHON, "-S", f"{PLACE}/relay.py", chat.endpoint.socket, "8080", *program)
        files = {f"{PLACE}/relay.py": File(Path(relay.__file__).read_bytes())}
        run = await play(chat, launch=Launch(argv=argv, env=env), files=files)
    assert (run.answer, run.fault) == ("", None), run.ended
    golden = json.loads(GOLDEN.read_text())
    for (headers, body), recorded in zip(chat.requests, golden, strict=True):
        assert headers["x-stainless-retry-count"] == "0"
        theirs = recorded["body_trimmed"]
        assert set(body) == set(theirs) and trimmed(body["tools"]) == theirs["tools"]
        assert [set(message) for message in body["messages"]] == [set(m) for m in theirs["messages"]]
    assert chat.requests[1][1]["messages"][3] == golden[1]["body_trimmed"]["messages"][3] | {
        "tool_call_id": "call_s0_0"
    }


async def test_the_program_is_mounted_compiled_and_read_only(root: Path) -> None:
    scaffold = MiniSweAgent()
    async with BubblewrapProvider().open(SandboxSpec(binds=scaffold.binds())) as sandbox:
        compiled = await sandbox.exec(
            ["find", f"{PROGRAM}/minisweagent/run/__pycache__", "-name", "mini.*.pyc"]
        )
        written = await sandbox.exec(["touch", f"{PROGRAM}/x"])
    assert compiled.stdout and not written.ok
