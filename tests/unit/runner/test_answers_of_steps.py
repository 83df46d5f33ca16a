"""A program that runs once for each step of a task, in one sandbox: an earlier step's answer is never a later one's."""

import json
from pathlib import Path

import pytest
from scaffolds.base import AgentLimits, BlackBox, Endpoint, Launch, TaskView
from scaffolds.mini_swe import PLACE, TRAJECTORY, MiniSweAgent
from scaffolds.scaffold_toml import from_toml

from orchestrator.contracts.states import FailureClass
from orchestrator.gateway_client import Activity, OpenSession
from orchestrator.runner.blackbox import Sight, run_black
from orchestrator.runner.clocks import Clocks
from orchestrator.runner.outcome import AttemptOutcome
from sandboxes.base import File, Provider, Sandbox, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.local import LocalProvider

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore::sandboxes.local.NoIsolationWarning")]

LIMITS = AgentLimits(turns=4, context=1000, tool_timeout_s=10.0, timeout_s=60.0)
VIEW = TaskView(name="t", domain="general", instruction="Work.")
SUBMITTED = json.dumps(
    {
        "info": {"exit_status": "Submitted", "submission": "one"},
        "messages": [{"role": "exit", "content": ""}],
    }
)


async def idle() -> Activity:
    return Activity(in_flight=0, calls=1, queued_s=0.0)


async def step(black: BlackBox, sandbox: Sandbox, *, first: bool = True) -> AttemptOutcome:
    clocks = Clocks(timeout_s=LIMITS.timeout_s, stall_s=60.0, completion_s=60.0)
    session = OpenSession(
        token="t", path="/s/t/v1", base_url="", socket_path="", expires=0.0, context=LIMITS.context
    )
    return await run_black(
        black,
        VIEW,
        sandbox,
        session=session,
        clocks=clocks,
        limits=LIMITS,
        activity=idle,
        sight=Sight(),
        first=first,
    )


def once(command: str) -> str:
    """A program that works in its first run alone."""
    return f"[ ! -e /tmp/ran ] || exit 1; touch /tmp/ran; {command}"


class Mini(MiniSweAgent):
    def launch(self, task: TaskView, gateway: Endpoint, limits: AgentLimits) -> Launch:
        return Launch(argv=("bash", "-c", once(f"mkdir -p {PLACE}; echo '{SUBMITTED}' > {TRAJECTORY}")))


def declared(directory: Path, harvest: str, command: str) -> BlackBox:
    path = directory / "scaffold.toml"
    argv = json.dumps(["bash", "-c", command])
    path.write_text(f'name = "once"\nversion = "1"\nargv = {argv}\nharvest = ["{harvest}"]\ntcp = false\n')
    return from_toml(path).black()


@pytest.mark.parametrize("program", ["declared", "mini-swe-agent"])
async def test_a_program_that_fails_in_the_second_step_has_no_answer(tmp_path: Path, program: str) -> None:
    toml = declared(tmp_path, "/logs/answer*.txt", once("echo one > '/logs/answer 1.txt'"))
    black = toml if program == "declared" else Mini()
    async with BubblewrapProvider().open(SandboxSpec(files={})) as sandbox:
        first = await step(black, sandbox)
        assert (first.failure, (first.answer or "").strip()) == (FailureClass.COMPLETED, "one")
        second = await step(black, sandbox, first=False)
        assert (second.failure, second.answer) == (FailureClass.INFRA_FAILURE, None)
        assert second.reason is not None and "exit code 1" in second.reason


@pytest.fixture(params=["bubblewrap", "local"])
def provider(request: pytest.FixtureRequest, tmp_path: Path) -> Provider:
    return BubblewrapProvider() if request.param == "bubblewrap" else LocalProvider(root=tmp_path / "local")


@pytest.mark.parametrize("pattern", ["/app/answer.txt", "/app/../app/a*.txt", "/logs/work/answer.txt"])
async def test_an_answer_in_the_work_directory_stays_as_the_work_of_its_step(
    tmp_path: Path, provider: Provider, pattern: str
) -> None:
    async with provider.open(SandboxSpec(files={})) as sandbox:
        link = f"ln -sfn $PWD {sandbox.path('/logs/work')}"
        black = declared(tmp_path, pattern, f"{link}; echo one >> answer.txt")
        for number in range(2):
            await step(black, sandbox, first=number == 0)
        assert await sandbox.get("/app/answer.txt") == b"one\none\n"


async def test_what_lies_there_before_the_first_start_stays_and_so_does_a_directory(
    tmp_path: Path, provider: Provider
) -> None:
    black = declared(tmp_path, "/logs/answer*", "true")
    files = {"/logs/answer.txt": File(b"placed"), "/logs/answers/kept.txt": File(b"kept")}
    async with provider.open(SandboxSpec(files=files)) as sandbox:
        assert (await step(black, sandbox)).answer == "placed"
        assert (await step(black, sandbox, first=False)).answer is None
        assert await sandbox.get("/logs/answers/kept.txt") == b"kept"
