"""A program under test that attacks its judge scores 0 at the first verification: it neither sees nor writes the deciding files, and
it cannot make its verdict the platform's failure."""

from pathlib import Path

import pytest

from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.tasks.harbor import Task
from tests.integration.runner.judge_attacks import ATTACKS, HONEST, JUDGES, LEAVES
from tests.integration.runner.rig import a_task, open_rig, runs, says

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("judges")]

LEFT_TO = [judge for name, judge in JUDGES.items() if name != "runs it ten times"]
"""One after the other over the same work: the reward is 1 if any of them pays."""
CRASHES = """
echo "drew $RANDOM $PENSTOCK_SEED"
set -e
python3 -I "$PENSTOCK_UNTRUSTED" 5 python3 total.py
cat data > /dev/null
mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt
"""


def task(program: str, judge: str, leaves: str = "") -> Task:
    writes = f"cat > total.py <<'END'\n{program}\nEND\necho data > data\n{leaves}"
    settings = "[verifier]\ntimeout_sec = 30"
    return a_task(runs(writes), says("done"), files={"tests/test.sh": judge.encode()}, settings=settings)


@pytest.mark.alone
async def test_an_attack_on_the_judge_scores_0_at_once_and_an_honest_program_scores_1(
    database_url: str, nats_server: EmbeddedNats, directory: Path, model: Path
) -> None:
    async with open_rig(database_url, nats_server.url, directory, model, slots=3, lease_ttl_s=15.0) as rig:
        rig.start_runner()
        rig.start_verifier()
        honest = {name: await rig.submit(task(HONEST, judge)) for name, judge in JUDGES.items()}
        assert {name: await rig.verdict(rollout) for name, rollout in honest.items()} == dict.fromkeys(
            JUDGES, 1.0
        )
        tried = {
            name: await rig.submit(task(attack.program, JUDGES[attack.judge]))
            for name, attack in ATTACKS.items()
        }
        ends = {
            name: await rig.state(rollout, "verified", "lost", "finished") for name, rollout in tried.items()
        }
        ends = {name: await rig.state(row.rollout_id, "verified", "lost") for name, row in ends.items()}
        found = {name: (row.state, row.verify_tries) for name, row in ends.items()}
        assert {name: end for name, end in found.items() if end != ("verified", 0)} == {}
        rewards = {name: await rig.verdict(rollout) for name, rollout in tried.items()}
        assert {name: reward for name, reward in rewards.items() if reward} == {}
        forged = await rig.rows("SELECT rollout_id FROM verdicts WHERE process::text NOT IN ('null', '{}')")
        assert not forged, "what a program writes of its process is not the judge's word"


async def test_links_that_an_agent_leaves_earn_nothing_and_hold_up_neither_their_collection_nor_a_judge(
    database_url: str, nats_server: EmbeddedNats, directory: Path, model: Path
) -> None:
    wrong = "print(0)\ntry:\n    print(0, file=open('out', 'w'))\nexcept OSError:\n    pass\n"
    paid = "grep -qx 1 /logs/verifier/reward.txt && paid=1"
    judge = "".join(f"( {each} )\n{paid}\n" for each in LEFT_TO)
    judge += 'echo "${paid:-0}" > /logs/verifier/reward.txt\nexit 0\n'
    async with open_rig(database_url, nats_server.url, directory, model, slots=3, lease_ttl_s=15.0) as rig:
        rig.start_runner()
        rig.start_verifier()
        honest = await rig.submit(task(HONEST, judge))
        assert await rig.verdict(honest) == 1.0
        tried = {name: await rig.submit(task(wrong, judge, leaves)) for name, leaves in LEAVES.items()}
        found = {}
        for name, rollout in tried.items():
            row = await rig.state(rollout, "verified", "lost")
            found[name] = (
                row.state,
                row.verify_tries,
                await rig.attempts(rollout),
                await rig.verdict(rollout),
            )
        ends = {
            name: (state, tries, len(tried), reward) for name, (state, tries, tried, reward) in found.items()
        }
        assert {name: end for name, end in ends.items() if end != ("verified", 0, 1, 0.0)} == {}
        # All but the program that is too much were graded: none of them is the platform's failure.
        classes = {name: str(attempts[-1].failure_class) for name, (_, _, attempts, _) in found.items()}
        assert classes == {name: "policy_failure" if "more links" in name else "completed" for name in LEAVES}


async def test_a_program_that_makes_its_judge_fail_at_every_try_scores_0_and_stays_in_its_group(
    database_url: str, nats_server: EmbeddedNats, directory: Path, model: Path
) -> None:
    async with open_rig(database_url, nats_server.url, directory, model, slots=2, lease_ttl_s=15.0) as rig:
        rig.start_runner()
        rig.start_verifier()
        rollout = await rig.submit(task("import os\nos.unlink('data')", CRASHES))
        row = await rig.state(rollout, "verified", "lost")
        assert (row.state, await rig.verdict(rollout)) == ("verified", 0.0)
        (verdict,) = await rig.rows("SELECT log FROM verdicts WHERE rollout_id = :id", id=rollout)
        assert verdict.log.startswith("reward 0: programs under test ran, and 3 verifications failed")


async def test_a_judge_that_dies_at_every_try_whatever_it_judges_is_named_and_gives_no_reward(
    database_url: str, nats_server: EmbeddedNats, directory: Path, model: Path
) -> None:
    dies = 'python3 -I "$PENSTOCK_UNTRUSTED" 5 python3 total.py\nmkdir -p /logs/verifier\n{}kill -9 $$\n'
    async with open_rig(database_url, nats_server.url, directory, model, slots=2, lease_ttl_s=15.0) as rig:
        rig.start_runner()
        rig.start_verifier()
        always = await rig.submit(task(HONEST, dies.format("")))
        over_work = await rig.submit(
            task(HONEST, dies.format("[ -f data ] || { echo 0 > /logs/verifier/reward.txt; exit; }\n"))
        )
        row = await rig.state(always, "verified", "lost")
        assert (row.state, row.failure_class) == ("lost", "verifier_failure")
        assert row.reason == "3 verifications failed; the last one: tests/test.sh was ended by signal 9"
        assert not await rig.rows("SELECT 1 FROM verdicts WHERE rollout_id = :id", id=always)
        row = await rig.state(over_work, "verified", "lost")
        assert (row.state, await rig.verdict(over_work)) == ("verified", 0.0), "the work may be why"


READS = """
mkdir -p /logs/verifier
if [ -f data ]; then cat data | python3 -I -c 'import json, sys; print(int(json.load(sys.stdin) == 7))' > /logs/verifier/reward.txt
else echo 0 > /logs/verifier/reward.txt; fi
"""
BROKEN = "exit 0"


async def test_a_file_that_makes_its_judge_fail_at_every_try_scores_0_and_one_whose_tests_never_reach_a_verdict_is_lost(
    database_url: str, nats_server: EmbeddedNats, directory: Path, model: Path
) -> None:
    deep = "python3 -c 'print(\"[\" * 100_000)' > data"
    async with open_rig(database_url, nats_server.url, directory, model, slots=2, lease_ttl_s=15.0) as rig:
        rig.start_runner()
        rig.start_verifier()
        veto, broken = [await rig.submit(task("", judge, deep)) for judge in (READS, BROKEN)]
        right = await rig.submit(task("", READS, "echo 7 > data"))
        assert await rig.verdict(right) == 1.0
        row = await rig.state(veto, "verified", "lost")
        assert (row.state, await rig.verdict(veto)) == ("verified", 0.0)
        (verdict,) = await rig.rows("SELECT log FROM verdicts WHERE rollout_id = :id", id=veto)
        assert verdict.log.startswith("reward 0: the tests reach a verdict over nothing, and 3 verifications")
        assert (await rig.state(broken, "verified", "lost")).state == "lost"
