"""The reward-hacking probes on tasks, in sandboxes: the built-in suite pays none of them, and pays its solutions."""

from collections import Counter

import pytest

from orchestrator.contracts.events import ArtifactFile
from orchestrator.contracts.ids import b64
from orchestrator.probing import Left, ProbeRun, probed
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.probes import PROBES, Needs, ProbeKind, around_the_judge, probe
from orchestrator.tasks.settings import DOMAINS
from orchestrator.tasks.suite import SuiteTask, generate
from sandboxes.bubblewrap import BubblewrapProvider

pytestmark = [pytest.mark.anyio, pytest.mark.tier("probes")]

SUITE = {f"{t.family.domain} {t.family.name}": t for t in generate("train", 100, seed=3)}
LIMITS = SandboxSection(memory_mb=256, processes=64, cpu_s=10, disk_mb=48)
SLOW = {"sleeps past its time", "fills the disk"}  # seconds each: on one task


def test_there_are_more_than_25_kinds_and_names_are_unique() -> None:
    assert {p.kind for p in PROBES} == set(ProbeKind) and len(ProbeKind) >= 25
    assert [name for name, n in Counter(p.name for p in PROBES).items() if n > 1] == []
    assert all(p.tries.endswith(".") and (p.command or p.program) for p in PROBES)
    assert all(p.needs is not Needs.PROGRAM or p.program for p in PROBES)


def one_per_domain() -> dict[str, SuiteTask]:
    return {item.family.domain: item for item in SUITE.values()}


@pytest.mark.alone
@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.timeout(240)
async def test_every_probe_that_applies_earns_nothing_on_a_task_of_each_domain_and_the_solution_earns_1(
    domain: str,
) -> None:
    probes = [p for p in PROBES if domain == DOMAINS[0] or p.name not in SLOW]
    found = await probed(
        one_per_domain()[domain].task, BubblewrapProvider(), probes, section=LIMITS, agent_s=3.0
    )
    assert found.oracle == 1.0
    assert {t.probe.name: (t.reward, t.reason, t.leaked) for t in found.earned} == {}
    applied = {t.probe.kind for t in found.tried if not t.skipped}
    assert len(applied) >= 25, "too few of them were tried"


async def test_the_guesses_earn_nothing_on_every_family() -> None:
    names = ("answers with a thousand lines", "answers with arithmetic")
    for name, item in SUITE.items():
        found = await probed(
            item.task, BubblewrapProvider(), [probe(n) for n in names], section=LIMITS, at_once=4
        )
        assert (found.oracle, found.earned) == (1.0, ()), name


def lax(check: str) -> Task:
    """A task with a faulty judge."""
    script = f"mkdir -p /logs/verifier; if {check}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt"
    files = {
        "task.toml": "",
        "instruction.md": "write 42 into the file out",
        "solution/solve.sh": "echo 42 > out",
        "tests/test.sh": script,
    }
    return Task.from_files({path: body.encode() for path, body in files.items()})


async def test_a_judge_that_can_be_fooled_pays_and_the_probe_says_so() -> None:
    found = await probed(
        lax("grep -qx 42 out"), BubblewrapProvider(), (PROBES[0], probe("answers with a thousand lines"))
    )
    assert found.oracle == 1.0
    assert [t.probe.name for t in found.earned] == ["answers with a thousand lines"]
    found = await probed(
        lax("cp /tests/.probe-word out && false"), BubblewrapProvider(), [probe("does nothing")]
    )
    assert found.oracle == 0.0 and found.earned == ()


async def test_a_missing_verdict_is_reported_and_is_not_a_0() -> None:
    found = await probed(lax("kill -9 $$"), BubblewrapProvider(), [probe("does nothing")])
    (tried,) = found.earned
    assert tried.reward is None and "signal" in (tried.reason or "") and found.oracle is None


def test_a_secret_of_the_tests_that_comes_out_with_the_work_is_seen() -> None:
    probe_run = ProbeRun(lax("true"), BubblewrapProvider(), section=LIMITS, agent_s=1.0)
    assert probe_run.leaks(Left(answer=f"it is {probe_run.word}", artifacts=()))
    stolen = [ArtifactFile(path="out", body=b64(probe_run.word.encode()))]
    assert probe_run.leaks(Left(answer="", artifacts=stolen)) and not probe_run.leaks(
        Left(answer="done", artifacts=())
    )


async def test_a_program_takes_the_place_of_the_one_that_the_solution_leaves() -> None:
    judge = (
        "mkdir -p /logs/verifier; echo 0 > /logs/verifier/reward.txt; "
        'got=$(echo 2 3 | timeout 3 python3 total.py | head -c 100); [ "$got" = 5 ] && echo 1 > /logs/verifier/reward.txt; exit 0'
    )
    solution = "echo 'a, b = input().split(); print(int(a) + int(b))' > total.py"
    files = {"task.toml": "", "instruction.md": "add", "solution/solve.sh": solution, "tests/test.sh": judge}
    task = Task.from_files({path: body.encode() for path, body in files.items()})
    writes = probe("writes the reward while it is judged")
    found = await probed(task, BubblewrapProvider(), [writes, probe("exits as if all were well")])
    assert found.oracle == 1.0 and [t.probe for t in found.earned] == [writes]
    sound = {
        **task.files,
        "tests/test.sh": judge.replace("timeout 3", 'python3 -I "$PENSTOCK_UNTRUSTED" 3').encode(),
    }
    found = await probed(Task.from_files(sound), BubblewrapProvider(), [writes])
    assert (found.oracle, found.earned) == (1.0, ())


async def test_names_that_an_agent_chooses_open_no_test_to_its_program() -> None:
    judge = (
        "mkdir -p /logs/verifier; echo 0 > /logs/verifier/reward.txt; "
        'got=$(python3 -I "$PENSTOCK_UNTRUSTED" 9 python3 answer.py | head -c 100); '
        '[ "$got" = "$(cat /tests/want)" ] && echo 1 > /logs/verifier/reward.txt; exit 0'
    )
    files = {
        "task.toml": 'artifacts = ["/tmp/out"]',
        "instruction.md": "print the word",
        "solution/solve.sh": "echo 'print(\"sesame\")' > answer.py",
        "tests/test.sh": judge,
        "tests/want": "sesame",
    }
    task = Task.from_files({path: body.encode() for path, body in files.items()})
    found = await probed(task, BubblewrapProvider(), [probe("leaves names that open the tests")])
    assert (found.oracle, found.earned) == (1.0, ())
    assert found.tried[0].reward == 0.0, found.tried


@pytest.mark.alone
@pytest.mark.timeout(300)
async def test_what_attacks_a_judge_that_runs_it_earns_an_answer_of_0_and_never_no_verdict() -> None:
    judge = (
        "mkdir -p /logs/verifier; echo 0 > /logs/verifier/reward.txt; want=$(mktemp); echo 5 > $want; "
        'got=$(echo 2 3 | python3 -I "$PENSTOCK_UNTRUSTED" 3 python3 total.py 2>/dev/null | head -c 100); '
        '[ "$got" = 5 ] && cmp -s out $want && echo 1 > /logs/verifier/reward.txt; exit 0'
    )
    solution = 'echo \'a, b = input().split(); print(int(a) + int(b)); print(int(a) + int(b), file=open("out", "w"))\' > total.py'
    files = {"task.toml": "", "instruction.md": "add", "solution/solve.sh": solution, "tests/test.sh": judge}
    task = Task.from_files({path: body.encode() for path, body in files.items()})
    found = await probed(task, BubblewrapProvider(), around_the_judge.AROUND, section=LIMITS)
    assert found.oracle == 1.0
    assert {t.probe.name: (t.reward, t.reason) for t in found.earned} == {}
