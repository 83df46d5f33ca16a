"""A program that reports that its time is up: believed only if its own time is, without the platform's queues."""

from collections.abc import Mapping
from typing import Any, cast

import pytest
from scaffolds.base import AgentLimits, BlackBoxDefaults, Endpoint, Fault, Launch, TaskView

from orchestrator.contracts.states import FailureClass
from orchestrator.gateway_client import Activity, OpenSession
from orchestrator.runner import blackbox, clocks
from orchestrator.runner.blackbox import Sight, run_black
from orchestrator.runner.clocks import Clocks
from sandboxes.base import ExecResult, KilledBy, Sandbox
from tests import virtual_time
from tests.virtual_time import passes

pytestmark = pytest.mark.anyio

LIMITS = AgentLimits(turns=4, context=1000, tool_timeout_s=10.0, timeout_s=10.5)
VIEW = TaskView(name="t", domain="general", instruction="Work.")


@pytest.fixture
def anyio_backend(monkeypatch: pytest.MonkeyPatch) -> tuple[str, Mapping[str, Any]]:
    virtual_time.show(monkeypatch, clocks, blackbox)
    return virtual_time.BACKEND


class Impatient(BlackBoxDefaults):
    """A program with a clock of its own, which runs on while it waits."""

    def launch(self, task: TaskView, gateway: Endpoint, limits: AgentLimits) -> Launch:
        return Launch(argv=("program",))

    async def harvest(self, sandbox: Sandbox, ended: ExecResult) -> str | None:
        return None

    def classify(self, ended: ExecResult, answer: str | None) -> Fault | None:
        return Fault("timeout", "its time ended")


class Started:
    """`Process` of a program that ends after ten seconds."""

    last_output = 0.0

    def cpu_s(self) -> float:
        return 0.0

    async def wait(self) -> ExecResult:
        await passes(10.0)
        return ExecResult(
            exit_code=1,
            stdout=b"",
            stderr=b"",
            truncated=False,
            killed_by=KilledBy.NONE,
            wall_s=10.0,
            cpu_s=0.0,
        )


class Place:
    """The part of `Sandbox` that a program without files needs."""

    def path(self, inside: str) -> str:
        return inside

    async def start(self, argv: Any, **_: Any) -> Started:
        return Started()


@pytest.mark.parametrize(
    ("queued_s", "failure"),
    [
        pytest.param(0.0, FailureClass.TIMEOUT, id="all of its time was its own"),
        pytest.param(8.0, FailureClass.INFRA_FAILURE, id="most of its time it waited for the platform"),
    ],
)
async def test_a_programs_own_time_out_counts_if_the_agents_own_time_is_up(
    queued_s: float, failure: FailureClass
) -> None:
    async def activity() -> Activity:
        return Activity(in_flight=0, calls=1, queued_s=queued_s, instance="a")

    watch = Clocks(timeout_s=LIMITS.timeout_s, stall_s=60.0, completion_s=60.0)
    session = OpenSession(
        token="t", path="/s/t/v1", base_url="", socket_path="", expires=0.0, context=LIMITS.context
    )
    outcome = await run_black(
        Impatient(),
        VIEW,
        cast(Sandbox, Place()),
        session=session,
        clocks=watch,
        limits=LIMITS,
        activity=activity,
        sight=Sight(),
    )
    assert (outcome.failure, outcome.reason) == (failure, "its time ended")
