"""Attacks of a session's own commands on its harness, its sandbox and the gateway, over the real runners, gateway, sandboxes and data pool. Each
attempt ends once, as the policy's, with a reward not above a wrong answer's; and another session's calls are answered throughout."""

from pathlib import Path

import pytest

from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.probes import probe
from tests.integration.runner.rig import Rig, a_task, open_rig, runs, says
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("processes")]

LOOPER = str(Path(__file__).parent / "looper_scaffold")
COUNTS = probe("makes the gateway look broken").acts()
FORKS = """python3 - <<'END'
import os, time
while True:
    try:
        if os.fork() == 0:
            time.sleep(1000)
    except OSError:
        time.sleep(0.05)
END"""
STOPS = "kill -STOP $PPID; sleep 1000"
LARGE = COUNTS.replace("1_700_000", "10_000_000").replace("/messages/count_tokens", "/chat/completions")
LEAVES = (
    "mkdir -p a/b; mkfifo a/pipe; ln -s /etc/passwd a/link; touch $'a/\\xff\\n'; truncate -s 1T a/sparse; chmod 0 a/b a; "
    "for n in 1 2 3 4; do (while true; do echo $RANDOM > grows.$n; done) & done; kill -9 $PPID"
)
HOSTILE: dict[str, str] = {
    "counts 3.5 MB of tokens, then kills its agent": COUNTS,
    "asks with 20 MB, then kills its agent": LARGE,
    "takes all processes of its sandbox": FORKS,
    "stops its harness": STOPS,
    "leaves what cannot be collected, with writers, and kills its agent": LEAVES,
}
TURNS = 40
DURING = """SELECT DISTINCT h.rollout_id FROM attempts h, steps s
WHERE s.rollout_id = :honest AND h.rollout_id = ANY(:hostile) AND s.ended BETWEEN h.started AND h.ended"""
"""The hostile rollouts during whose attempt a call of the honest one was answered."""


def task(*script: dict[str, object], timeout_s: int = 8) -> Task:
    return a_task(*script, settings=f"[agent]\ntimeout_sec = {timeout_s}\nmax_turns = 60")


async def calls_answered(rig: Rig, rollout: int) -> int:
    (answered,) = await rig.rows("SELECT count(*) AS n FROM steps WHERE rollout_id = :id", id=rollout)
    return int(answered.n)


async def ended(rig: Rig, rollout: int) -> tuple[str, str, int, float]:
    """(state, failure class, attempts, reward) of a rollout."""
    row = await rig.state(rollout, "verified", "lost")
    attempts = await rig.attempts(rollout)
    reward = await rig.verdict(rollout) if row.state == "verified" else -1.0
    return row.state, str(attempts[-1].failure_class), len(attempts), reward


@pytest.mark.alone
@pytest.mark.timeout(240)
async def test_what_a_session_does_to_the_platform_is_the_policys_failure_and_no_other_sessions(
    database_url: str, nats_server: EmbeddedNats, directory: Path, model: Path
) -> None:
    async with open_rig(database_url, nats_server.url, directory, model, slots=6, lease_ttl_s=15.0) as rig:
        rig.start_runner()
        rig.start_verifier()
        each = runs("sleep 0.2; echo done > out")  # so that its calls come between the acts of the others
        honest = await rig.submit(task(*[each] * TURNS, says("done"), timeout_s=120), scaffold=LOOPER)
        # it is under way before the others start
        await eventually(lambda: calls_answered(rig, honest), within_s=120, every_s=0.05)
        hostile = {
            name: await rig.submit(task(runs(command), says("done")), scaffold=LOOPER)
            for name, command in HOSTILE.items()
        }
        assert await ended(rig, honest) == ("verified", "completed", 1, 1.0)
        assert await calls_answered(rig, honest) == TURNS + 1
        ends = {name: await ended(rig, rollout) for name, rollout in hostile.items()}
        wrong = {
            name: end
            for name, end in ends.items()
            if end not in (("verified", "policy_failure", 1, 0.0), ("verified", "timeout", 1, 0.0))
        }
        assert wrong == {}
        answered = await rig.rows(DURING, honest=honest, hostile=list(hostile.values()))
        assert {row.rollout_id for row in answered} == set(hostile.values()), (
            "an act that no other session met"
        )
