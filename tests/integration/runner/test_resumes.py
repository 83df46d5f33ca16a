"""A runner, or with it a gateway, dies after step 7 of 10 is recorded: only the last three are generated. Real processes throughout."""

import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.tasks.harbor import Task
from tests.integration.audit.audited import no_violations
from tests.integration.gateway.gateway_process import gateway_at
from tests.integration.gateway.rig import Policies, Proxy, running_proxy
from tests.integration.runner.rig import Rig, open_rig
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(900), pytest.mark.tier("faults")]

Opens = Callable[..., AbstractAsyncContextManager[tuple[Rig, Proxy]]]
HERE = "tests.integration.runner.scaffolds_at_work"
PROGRAM = str(Path(__file__).parent / "steady_scaffold")
JUDGE = b"mkdir -p /logs/verifier; grep -c . log > /logs/verifier/n; echo 1 > /logs/verifier/reward.txt\n"
TASK = Task.from_files(
    {
        "task.toml": b"[agent]\nmax_turns = 10\n",
        "instruction.md": b"Count.",
        "tests/test.sh": JUDGE,
    }
)

STEPS = Task.from_files(
    {
        "task.toml": b'[agent]\nmax_turns = 20\n[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n',
        "steps/one/instruction.md": b"Count.",
        "steps/two/instruction.md": b"Count on.",
        "tests/test.sh": JUDGE,
    }
)


@pytest.fixture
def opens(
    database_url: str, nats_server: EmbeddedNats, server_url: str, directory: Path, policies: Policies
) -> Opens:
    """Opens a rig whose policy is a real rollout server behind a proxy that records every call, and audits the result."""

    @asynccontextmanager
    async def opened(*, gateway_apart: bool = False, **rollout: Any) -> AsyncIterator[tuple[Rig, Proxy]]:
        async with (
            running_proxy(server_url) as proxy,
            open_rig(
                database_url,
                nats_server.url,
                directory,
                policies.model,
                server_url=proxy.url,
                gateway_apart=gateway_apart,
                **{"lease_ttl_s": 5.0, **rollout},
            ) as rig,
        ):
            await rig.publish(policies.versions[0])
            yield rig, proxy
            await no_violations(rig.context.engine, rig.context.run)

    return opened


async def recorded(rig: Rig, rollout: int, steps: int) -> None:
    """Wait until the data pool has exactly so many steps."""
    await rig.until(
        "SELECT count(*) AS n FROM steps WHERE rollout_id = :id", lambda row: row.n == steps, id=rollout
    )


async def killed_after(rig: Rig, proxy: Proxy, rollout: int, steps: int, gateway_url: str = "") -> None:
    """A runner process whose policy answers so often; then kill -9, while the next call is held before the rollout server."""
    proxy.most = steps

    def held() -> int:
        return proxy.seen.count("/generate") - len(proxy.requests)

    before = held()
    async with rig.runner_process(gateway_url):
        await recorded(rig, rollout, steps)
        await eventually(lambda: held() != before)
    proxy.most = None


def url_of(rig: Rig) -> str:
    """The gateway's address; it keeps its port over restarts."""
    assert rig.gateway.url_file is not None
    return rig.gateway.url_file.read_text().strip()


async def resumes_of(rig: Rig, rollout: int) -> Sequence[Any]:
    return await rig.rows("SELECT * FROM resumes WHERE rollout_id = :id ORDER BY epoch", id=rollout)


async def states_of(rig: Rig, rollout: int, attempt: int = 1) -> dict[int, tuple[int, int]]:
    """(epoch, tokens of the state) of every step of an attempt."""
    rows = await rig.rows(
        "SELECT idx, epoch, state_len FROM steps WHERE rollout_id = :id AND attempt = :attempt ORDER BY idx",
        id=rollout,
        attempt=attempt,
    )
    return {row.idx: (row.epoch, row.state_len) for row in rows}


@pytest.mark.parametrize("scaffold", [f"{HERE}:Steady", PROGRAM], ids=["white box", "black box"])
async def test_after_kill_9_of_the_runner_at_step_7_of_10_only_the_last_three_are_generated(
    opens: Opens, scaffold: str
) -> None:
    async with opens() as (rig, proxy):
        rollout = await rig.submit(TASK, scaffold=scaffold)
        await killed_after(rig, proxy, rollout, 7)
        async with rig.runner_process():
            await rig.state(rollout, "finished")
        steps = await states_of(rig, rollout)
        assert [epoch for epoch, _ in steps.values()] == [1] * 7 + [2] * 3 and list(steps) == list(range(10))
        assert [len(call["input_ids"]) for call in proxy.requests] == [length for _, length in steps.values()]
        (attempt,) = await rig.attempts(rollout)
        assert (attempt.failure_class, attempt.epoch, attempt.steps) == ("completed", 2, 10)
        (resume,) = await resumes_of(rig, rollout)
        assert (resume.steps, resume.replayed, resume.replay, resume.epoch) == (7, 7, "continued", 2)
        assert resume.reason == "the runner's lease ran out" and not resume.given_back
        assert not await rig.rows("SELECT 1 FROM step_marks WHERE rollout_id = :id", id=rollout)
        took = sum(row.t_gen for row in await rig.rows("SELECT t_gen FROM steps WHERE idx < 7"))
        assert attempt.agent_s > took > 0, "the time of replayed completions is the agent's as well"


async def test_after_kill_9_in_the_second_step_of_a_task_its_first_step_is_replayed_and_graded(
    opens: Opens,
) -> None:
    async with opens() as (rig, proxy):
        rollout = await rig.submit(STEPS, scaffold=f"{HERE}:Steady")
        await killed_after(rig, proxy, rollout, 13)
        rig.start_verifier()
        async with rig.runner_process():
            await rig.state(rollout, "verified")
        steps = await states_of(rig, rollout)
        assert [epoch for epoch, _ in steps.values()] == [1] * 13 + [2] * 7 and list(steps) == list(range(20))
        (attempt,) = await rig.attempts(rollout)
        assert (attempt.failure_class, attempt.epoch, attempt.steps) == ("completed", 2, 20)
        (resume,) = await resumes_of(rig, rollout)
        assert (resume.steps, resume.replayed, resume.replay) == (13, 13, "continued")
        left = await rig.rows(
            "SELECT DISTINCT step FROM artifacts WHERE rollout_id = :id ORDER BY 1", id=rollout
        )
        assert [row.step for row in left] == [0, 1]
        (verdict,) = await rig.rows("SELECT components FROM verdicts WHERE rollout_id = :id", id=rollout)
        assert verdict.components == {"reward": 1.0, "one/reward": 1.0, "two/reward": 1.0}


async def test_agents_that_worked_at_the_same_time_go_on_each_where_it_was(opens: Opens) -> None:
    async with opens() as (rig, proxy):
        rollout = await rig.submit(TASK, scaffold=f"{HERE}:Crew")
        await killed_after(rig, proxy, rollout, 7)
        async with rig.runner_process():
            await rig.state(rollout, "finished")
        assert len(proxy.requests) == 10
        rows = await rig.rows(
            "SELECT agent, epoch FROM steps WHERE rollout_id = :id ORDER BY idx", id=rollout
        )
        assert [row.epoch for row in rows] == [1] * 7 + [2] * 3
        assert sorted(row.agent for row in rows) == (["main/one"] * 5 + ["main/three"] * 2 + ["main/two"] * 3)
        (resume,) = await resumes_of(rig, rollout)
        assert (resume.replayed, resume.replay) == (7, "continued")


async def test_a_scaffold_that_asks_for_something_else_than_before_gets_a_new_attempt_and_both_are_recorded(
    opens: Opens,
) -> None:
    async with opens() as (rig, proxy):
        rollout = await rig.submit(TASK, scaffold=f"{HERE}:Fickle")
        await killed_after(rig, proxy, rollout, 7)
        async with rig.runner_process():
            await rig.state(rollout, "finished")
        (resume,) = await resumes_of(rig, rollout)
        assert (resume.replay, resume.replayed, resume.steps) == ("diverged", 4, 7)
        first, second = await rig.attempts(rollout)
        assert (first.failure_class, first.epoch) == ("infra_failure", 2)
        assert first.reason == "replay: another request came in the place of step 4"
        assert (second.failure_class, second.attempt, second.epoch, second.steps) == ("completed", 2, 3, 10)
        assert len(proxy.requests) == 17, "nothing was generated for the resume that diverged"
        assert len(await states_of(rig, rollout, 1)) == 7 and len(await states_of(rig, rollout, 2)) == 10
        await rig.counted("resumes_diverged")


async def test_a_scaffold_that_is_declared_not_replayable_gets_a_new_attempt(opens: Opens) -> None:
    async with opens() as (rig, proxy):
        rollout = await rig.submit(TASK, scaffold=f"{HERE}:Hasty")
        await killed_after(rig, proxy, rollout, 7)
        async with rig.runner_process():
            await rig.state(rollout, "finished")
        first, second = await rig.attempts(rollout)
        assert (first.failure_class, first.reason) == ("infra_failure", "the runner's lease ran out")
        assert second.steps == 10 and len(proxy.requests) == 17
        assert await resumes_of(rig, rollout) == []


async def test_a_gateway_that_dies_together_with_the_runner_serves_the_recorded_steps_when_both_are_back(
    opens: Opens,
) -> None:
    async with opens(gateway_apart=True) as (rig, proxy):
        rollout = await rig.submit(TASK, scaffold=f"{HERE}:Steady")
        async with gateway_at(rig.gateway, prefix="") as (_, gateway):
            await killed_after(rig, proxy, rollout, 7, url_of(rig))
            gateway.kill()
        async with gateway_at(rig.gateway, prefix=""), rig.runner_process(url_of(rig)):
            await rig.state(rollout, "finished")
        assert len(proxy.requests) == 10
        (resume,) = await resumes_of(rig, rollout)
        assert (resume.steps, resume.replay) == (7, "continued")


async def test_a_gateway_that_dies_in_the_middle_of_a_replay_goes_on_with_it(opens: Opens) -> None:
    async with opens(gateway_apart=True) as (rig, proxy):
        rollout = await rig.submit(TASK, scaffold=f"{HERE}:Steady")
        async with gateway_at(rig.gateway, prefix="") as (_, gateway):
            await killed_after(rig, proxy, rollout, 7, url_of(rig))
            proxy.most = 7  # nothing is generated before the gateway is back
            async with rig.runner_process(url_of(rig)):
                await rig.until(
                    "SELECT jsonb_array_length(seal -> 'replayed') AS n FROM sessions WHERE epoch = 2",
                    lambda row: (row.n or 0) >= 1,
                )
                gateway.kill()
                gateway.wait()
                proxy.most = None
                async with gateway_at(rig.gateway, prefix=""):
                    await rig.state(rollout, "finished")
        assert len(proxy.requests) == 10
        (attempt,) = await rig.attempts(rollout)
        assert attempt.failure_class == "completed"


async def test_a_zombie_of_the_lease_before_changes_nothing(opens: Opens) -> None:
    async with opens() as (rig, proxy):
        rollout = await rig.submit(TASK, scaffold=f"{HERE}:Steady")
        proxy.most = 7
        async with rig.runner_process() as zombie:
            await recorded(rig, rollout, 7)
            zombie.send_signal(signal.SIGSTOP)
            await rig.until(
                "SELECT lease_epoch FROM rollouts WHERE rollout_id = :id",
                lambda row: row.lease_epoch == 2,
                id=rollout,
            )
            proxy.most = None
            rig.start_another_runner()
            await rig.state(rollout, "finished")
            zombie.send_signal(signal.SIGCONT)
            # The zombie meets one of the two first: its heartbeat finds the lease lost, or the gateway reports that its session is over.
            await rig.counted("leases_lost", "results_stale")
        assert len(await states_of(rig, rollout)) == len(proxy.requests) == 10
        (attempt,) = await rig.attempts(rollout)
        assert (attempt.epoch, attempt.failure_class) == (2, "completed")


async def test_a_rollout_that_loses_its_runner_every_time_is_not_resumed_forever(opens: Opens) -> None:
    async with opens(max_resumes=2, retry_delay_s=0.01) as (rig, proxy):
        rollout = await rig.submit(TASK, scaffold=f"{HERE}:Steady")
        for steps in (2, 4, 6):
            await killed_after(rig, proxy, rollout, steps)
        async with rig.runner_process():
            await rig.state(rollout, "finished")
        assert [resume.steps for resume in await resumes_of(rig, rollout)] == [2, 4]
        first, second = await rig.attempts(rollout)
        assert (first.failure_class, second.failure_class) == ("infra_failure", "completed")
        assert len(await states_of(rig, rollout, 1)) == 6 and len(proxy.requests) == 16
