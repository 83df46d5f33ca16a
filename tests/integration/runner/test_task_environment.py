"""Keys of `[environment]` that change what runs: health checks, resources, images. The oracle acts as the agent."""

import json
from pathlib import Path

import pytest

from orchestrator.contracts.states import Purpose
from orchestrator.runner.verification_limits import DISK_MB
from orchestrator.tasks.harbor import Task
from tests.integration.runner.rig import Opens, Rig, a_task, says

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("roles")]

THIRD = "n=$(cat /tmp/n 2>/dev/null || echo 0); n=$((n + 1)); echo $n > /tmp/n; [ $n = 3 ]"
CHECKED = """[environment.healthcheck]
command = "{command}"
interval_sec = 0
start_interval_sec = 0
"""


def solved(solution: str, *, check: str, settings: str, **files: bytes) -> Task:
    return a_task(check=check, settings=settings, files={"solution/solve.sh": solution.encode(), **files})


async def reward_of(rig: Rig, task: Task) -> float:
    return await rig.verdict(await rig.submit(task, scaffold="oracle", purpose=Purpose.EVAL))


async def test_the_agent_starts_once_the_health_check_has_passed_and_sees_what_it_left(
    opens_at_work: Opens,
) -> None:
    task = solved(
        "cat /tmp/n word > out",
        check='[ "$(tr "\\n" " " < out)" = "3 placed " ]',
        settings=CHECKED.format(command=f"{THIRD} && [ -f word ]"),
        **{"environment/files/word": b"placed\n"},
    )
    async with opens_at_work() as rig:
        assert await reward_of(rig, task) == 1.0


async def test_an_unhealthy_sandbox_gives_no_verdict_but_a_failure_with_its_words(
    opens_at_work: Opens,
) -> None:
    command = CHECKED.format(command="echo no database >&2; exit 7") + "retries = 2\n"
    async with opens_at_work() as rig:
        rollout = await rig.submit(
            solved("true", check="true", settings=command), scaffold="oracle", purpose=Purpose.EVAL
        )
        row = await rig.state(rollout, "lost")
        sentence = (
            "task: its health check failed 2 times in a row, the last one ended with exit code 7: no database"
        )
        assert row.reason.endswith(sentence)
        (first, *_) = await rig.attempts(rollout)
        assert (first.failure_class, first.reason, first.steps) == ("infra_failure", sentence, 0)
        assert await rig.rows("SELECT 1 FROM verdicts WHERE rollout_id = :id", id=rollout) == []


async def test_failures_of_the_start_period_do_not_count(opens_at_work: Opens) -> None:
    settings = CHECKED.format(command=THIRD) + "start_period_sec = 600\nretries = 1\n"
    async with opens_at_work() as rig:
        assert await reward_of(rig, solved("true", check="true", settings=settings)) == 1.0


async def test_a_sandbox_has_the_disk_that_its_task_asks_for(opens_at_work: Opens) -> None:
    task = solved(
        "ulimit -f > out", check='[ "$(cat out)" = 8192 ]', settings="[environment]\nstorage_mb = 8"
    )
    async with opens_at_work() as rig:
        assert await reward_of(rig, task) == 1.0


async def test_the_memory_that_a_task_asks_for_bounds_its_programs(opens_at_work: Opens) -> None:
    uses = 'python3 -c "held = bytes(range(256)) * (160 << 12); print(len(held))" > out'
    for limit_mb, reward in ((64, 0.0), (256, 1.0)):
        task = solved(uses, check="[ -s out ]", settings=f"[environment]\nmemory_mb = {limit_mb}")
        async with opens_at_work() as rig:
            assert await reward_of(rig, task) == reward, limit_mb


async def test_an_image_that_the_own_system_stands_for_takes_the_place_of_the_dockerfile(
    opens_at_work: Opens,
) -> None:
    task = solved(
        "ls > /tmp/all; mv /tmp/all out",
        check='[ "$(cat out)" = a ]',
        settings='[environment]\ndocker_image = "debian:12"',
        **{
            "environment/Dockerfile": b"FROM somewhere/else\nCOPY b .\n",
            "environment/b": b"2",
            "environment/files/a": b"1",
        },
    )
    async with opens_at_work() as rig:
        assert await reward_of(rig, task) == 1.0


async def test_collect_hooks_run_after_the_agent_and_artifacts_reach_the_tests_at_their_own_paths(
    opens_at_work: Opens,
) -> None:
    settings = """artifacts = [{ source = "/tmp/out", exclude = ["*.log"], destination = "x" }, "made"]
[[verifier.collect]]
command = "false"
[[verifier.collect]]
command = "cat /home/agent/state > /logs/artifacts/state; exit 3"
"""
    solution = """mkdir -p /tmp/out/deep; echo kept > /home/agent/state; echo 1 > /tmp/out/a; echo 2 > /tmp/out/b.log
printf '#!/bin/sh\\necho 3' > /tmp/out/deep/c; chmod +x /tmp/out/deep/c; ln -s /etc/passwd /tmp/out/link; echo 4 > /tmp/other; echo 5 > made
"""
    check = """[ "$(cat /logs/artifacts/state) $(cat /tmp/out/a) $(/tmp/out/deep/c) $(cat made)" = "kept 1 3 5" ] \\
  && [ ! -e /tmp/out/b.log ] && [ ! -e /tmp/out/link ] && [ ! -e /tmp/other ]"""
    async with opens_at_work() as rig:
        assert await reward_of(rig, solved(solution, check=check, settings=settings)) == 1.0


async def test_what_is_collected_counts_as_what_the_agent_leaves(opens_at_work: Opens) -> None:
    task = solved("head -c 2000000 /dev/zero > /tmp/out", check="true", settings='artifacts = ["/tmp/out"]')
    async with opens_at_work(sandbox={"artifact_file_mb": 1}) as rig:
        rollout = await rig.submit(task, scaffold="oracle", purpose=Purpose.EVAL)
        assert await rig.verdict(rollout) == 0.0
        (attempt,) = await rig.attempts(rollout)
        assert attempt.failure_class == "policy_failure" and attempt.reason.startswith("artifacts: ")


SERVER = b"""#!/bin/bash
read -r request
case "$request" in *initialize*) echo "$1 by $(id -un) in $PWD" ;; esac
"""
BROUGHT = """[environment]
skills_dir = "skills"
[[environment.mcp_servers]]
name = "words"
transport = "stdio"
command = "/app/server"
args = ["a \\"b\\""]
"""


async def test_mcp_servers_and_skills_of_a_task_reach_the_program_and_run_in_its_sandbox(
    opens_at_work: Opens,
) -> None:
    answers = json.dumps({"words": 'a "b" by agent in /app', "skills": ["count"]})
    files = {
        "environment/files/server": SERVER,
        "environment/files/skills/count/SKILL.md": b"count",
        "tests/want.json": answers.encode(),
    }
    task = a_task(says("done"), check="cmp answers.json /tests/want.json", settings=BROUGHT, files=files)
    async with opens_at_work() as rig:
        rollout = await rig.submit(task, scaffold=str(Path(__file__).parent / "mcp_scaffold"))
        assert await rig.verdict(rollout) == 1.0
        (attempt,) = await rig.attempts(rollout)
        assert (attempt.answer, attempt.steps) == ("done", 1)
        refused = await rig.submit(task, scaffold="shell")
        row = await rig.state(refused, "lost")
        assert "[environment].mcp_servers is not honoured by the scaffold shell" in row.reason


async def test_skills_that_are_not_there_are_the_tasks_failure(opens_at_work: Opens) -> None:
    task = a_task(says("done"), check="true", settings='[environment]\nskills_dir = "/usr/absent"')
    async with opens_at_work() as rig:
        rollout = await rig.submit(task, scaffold=str(Path(__file__).parent / "mcp_scaffold"))
        row = await rig.state(rollout, "lost")
        assert "task: [environment].skills_dir /usr/absent cannot be copied: " in row.reason


async def test_separate_tests_get_the_declared_artifacts_alone(opens_at_work: Opens) -> None:
    files = {"environment/files/kept": b"new", "environment/files/gone": b"old"}
    for mode, extra in (("shared", "hidden"), ("separate", "")):
        task = solved(
            "mkdir deep; echo 1 > deep/a; echo 2 > hidden; rm gone; echo 3 > /tmp/b",
            check=f'[ "$(echo $(ls) $(cat deep/a /tmp/b))" = "$(echo deep {"" if extra else "gone"} {extra} kept 1 3)" ]',
            settings=f'artifacts = ["deep", "/tmp/b"]\n[verifier]\nenvironment_mode = "{mode}"',
            **files,
        )
        async with opens_at_work() as rig:
            assert await reward_of(rig, task) == 1.0, mode


async def test_the_tests_have_an_environment_of_their_own(opens_at_work: Opens) -> None:
    settings = """artifacts = ["/app/out"]
[environment]
env = { WORD = "agent" }
[verifier.environment]
env = { WORD = "tests" }
workdir = "/app/judged"
storage_mb = 8
"""
    files = {
        "tests/Dockerfile": b"FROM debian:12\nENV MORE=1\nCOPY want /app/given\n",
        "tests/want": b"agent",
        "environment/files/a": b"1",
    }
    task = solved(
        "echo -n $WORD > out",
        check='[ "$WORD$MORE$PWD" = tests1/app/judged ] && cmp ../out ../given && [ ! -e ../a ]',
        settings=settings,
        **files,
    )
    async with opens_at_work() as rig:
        assert await reward_of(rig, task) == 1.0


async def test_the_tests_have_the_variables_of_the_verifier_and_the_agent_has_not(
    opens_at_work: Opens,
) -> None:
    settings = '[verifier]\nenv = { WANTED = "7" }'
    task = solved("echo got$WANTED > out", check='[ "$(cat out)$WANTED" = got7 ]', settings=settings)
    async with opens_at_work() as rig:
        assert await reward_of(rig, task) == 1.0


OWN = {"tests/Dockerfile": b"FROM debian:12\n"}


@pytest.mark.parametrize("wanted", ["storage_mb = 8", 'storage = "8M"'])
async def test_the_sandbox_of_the_tests_has_the_disk_that_its_own_environment_asks_for(
    opens_at_work: Opens, wanted: str
) -> None:
    settings = f"[environment]\nstorage_mb = 99\n[verifier.environment]\n{wanted}"
    blocks = 1024 * (8 + 1 + DISK_MB)  # of 1 KB in bash; 1 MB more for the files of the tests
    task = solved("true", check=f'[ "$(ulimit -f)" = {blocks} ]', settings=settings, **OWN)
    async with opens_at_work() as rig:
        assert await reward_of(rig, task) == 1.0


async def test_a_runner_without_side_services_says_so_of_a_task_that_needs_them(opens_at_work: Opens) -> None:
    compose = {"environment/docker-compose.yaml": b"services: {db: {image: postgres}}"}
    async with opens_at_work() as rig:
        task = solved("true", check="true", settings="", **compose)
        rollout = await rig.submit(task, scaffold="oracle", purpose=Purpose.EVAL)
        await rig.state(rollout, "lost", "dead")
        (first, *_) = await rig.attempts(rollout)
        assert (first.failure_class, first.steps) == ("infra_failure", 0)
        assert first.reason.startswith(
            "task: environment/docker-compose.yaml has the services db, which the provider bubblewrap does not run"
        )
