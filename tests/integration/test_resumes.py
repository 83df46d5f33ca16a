"""A runner, or with it a gateway, dies after step 7 of 10 is recorded: only the last three are generated. Real processes throughout."""

import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from orchestrator.audit import audit
from orchestrator.embedded.nats import EmbeddedNats
from orchestrator.tasks.harbor import Task
from tests.integration.gateway_process import gateway_at
from tests.integration.gateway_rig import Policies, Proxy, running_proxy
from tests.integration.runner_rig import Rig, open_rig

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(900)]

Opens = Callable[..., AbstractAsyncContextManager[tuple[Rig, Proxy]]]
HERE = "tests.integration.scaffolds_at_work"
PROGRAM = str(Path(__file__).parent / "steady_scaffold")
TASK = Task.from_files(
    {
        "task.toml": b"[agent]\nmax_turns = 10\n",
        "instruction.md": b"Count.",
        "tests/test.sh": b"mkdir -p /logs/verifier; grep -c . log > /logs/verifier/n; echo 1 > /logs/verifier/reward.txt\n",
    }
)


@pytest.fixture
def directory() -> Iterator[Path]:
    """Unlike `tmp_path`, the users of sandboxes can pass through it, and a Unix socket's path fits."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture
def opens(
    database_url: str, nats_server: EmbeddedNats, server_url: str, directory: Path, policies: Policies
) -> Opens:
    """Opens a rig whose policy is a real rollout server behind a proxy that writes down every call, and audits what comes of it."""

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
            report = await audit(rig.flow.engine, rig.flow.run)
            assert not report.violations, report.violations

    return opened


async def recorded(rig: Rig, rollout: int, steps: int) -> None:
    """Wait until the data pool has so many steps, and no more."""
    await rig.until(
        "SELECT count(*) AS n FROM steps WHERE rollout_id = :id", lambda row: row.n == steps, id=rollout
    )


async def killed_after(rig: Rig, proxy: Proxy, rollout: int, steps: int, gateway_url: str = "") -> None:
    """A runner process whose policy answers so often; then kill -9, while the next call is held before the rollout server."""
    proxy.most = steps

    def held() -> int:
        return proxy.seen.count("/generate") - len(proxy.asked)

    before = held()
    async with rig.runner_process(gateway_url):
        await recorded(rig, rollout, steps)
        with anyio.fail_after(30):
            while held() == before:
                await anyio.sleep(0.01)
    proxy.most = None


def url_of(rig: Rig) -> str:
    """Where the gateway listens, which keeps its port over restarts."""
    assert rig.gateway.url_file is not None
    return rig.gateway.url_file.read_text().strip()


async def resumes_of(rig: Rig, rollout: int) -> Sequence[Any]:
    return await rig.rows("SELECT * FROM resumes WHERE rollout_id = :id ORDER BY epoch", id=rollout)


async def states_of(rig: Rig, rollout: int, attempt: int = 1) -> dict[int, tuple[int, int]]:
    """(epoch, tokens of the state) of every step of an attempt."""
    rows = await rig.rows(
        "SELECT idx, epoch, state_len FROM steps WHERE rollout_id = :id AND attempt = :attempt ORDER BY idx",
        id=rollout, attempt=attempt,
    )  # fmt: skip
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
        assert [len(call["input_ids"]) for call in proxy.asked] == [length for _, length in steps.values()]
        (attempt,) = await rig.attempts(rollout)
        assert (attempt.failure_class, attempt.epoch, attempt.steps) == ("completed", 2, 10)
        (resume,) = await resumes_of(rig, rollout)
        assert (resume.steps, resume.replayed, resume.replay, resume.epoch) == (7, 7, "continued", 2)
        assert resume.reason == "the runner's lease ran out" and not resume.given_back
        assert not await rig.rows("SELECT 1 FROM step_marks WHERE rollout_id = :id", id=rollout)
        took = sum(row.t_gen for row in await rig.rows("SELECT t_gen FROM steps WHERE idx < 7"))
        assert attempt.agent_s > took > 0, "the time of replayed completions is the agent's as well"


async def test_agents_that_worked_at_the_same_time_go_on_each_where_it_was(opens: Opens) -> None:
    async with opens() as (rig, proxy):
        rollout = await rig.submit(TASK, scaffold=f"{HERE}:Crew")
        await killed_after(rig, proxy, rollout, 7)
        async with rig.runner_process():
            await rig.state(rollout, "finished")
        assert len(proxy.asked) == 10
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
        assert len(proxy.asked) == 17, "nothing was generated for the resume that diverged"
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
        assert second.steps == 10 and len(proxy.asked) == 17
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
        assert len(proxy.asked) == 10
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
        assert len(proxy.asked) == 10
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
            # Whichever the zombie meets first: its heartbeat finds the lease lost, or the gateway says that its session is over.
            await rig.counted("leases_lost", "results_stale")
        assert len(await states_of(rig, rollout)) == len(proxy.asked) == 10
        (attempt,) = await rig.attempts(rollout)
        assert (attempt.epoch, attempt.failure_class) == (2, "completed")


async def test_a_rollout_that_loses_its_runner_every_time_is_not_resumed_for_ever(opens: Opens) -> None:
    async with opens(max_resumes=2, retry_delay_s=0.01) as (rig, proxy):
        rollout = await rig.submit(TASK, scaffold=f"{HERE}:Steady")
        for steps in (2, 4, 6):
            await killed_after(rig, proxy, rollout, steps)
        async with rig.runner_process():
            await rig.state(rollout, "finished")
        assert [resume.steps for resume in await resumes_of(rig, rollout)] == [2, 4]
        first, second = await rig.attempts(rollout)
        assert (first.failure_class, second.failure_class) == ("infra_failure", "completed")
        assert len(await states_of(rig, rollout, 1)) == 6 and len(proxy.asked) == 16
