"""What runs the agent's programs while they are judged, in a real sandbox: it can do its work and nothing to its judge."""

import pytest

from orchestrator.flow.verify_runner import UNTRUSTED
from orchestrator.tasks.verdict import UNTRUSTED_FILE
from sandboxes.base import File, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider

pytestmark = pytest.mark.anyio

FILES = {
    UNTRUSTED_FILE: UNTRUSTED,
    "/tests/secret": File(b"sesame"),
    "/app/mine": File(b"mine\n"),
    "/logs/reward": File(b"0"),
}
JUDGE = (
    'echo given | python3 -I "$0" 2 "$@"; echo "code $?; $(cat /logs/reward); $(ls /proc | grep -c "^[0-9]")"'
)


async def judged(*argv: str, secret: str = "token-4711") -> str:
    """What a judge that runs this program says: the program's output, its code, the reward, the number of processes."""
    async with BubblewrapProvider().open(SandboxSpec(files=FILES)) as box:
        ended = await box.exec(
            ["bash", "-c", JUDGE, UNTRUSTED_FILE, *argv], env={"SECRET": secret}, timeout_s=60
        )
        assert ended.ok, ended
        return ended.stdout.decode()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "cat; cat mine; echo x > new && cat new; echo > $HOME/f; echo > $TMPDIR/f; exit 3",
            "given\nmine\nx\ncode 3; 0;",
        ),
        ("cat /tests/secret || ls /tests", "code 2; 0;"),
        ("echo 1 > /logs/reward; touch /logs/other; rm /logs/reward", "code 1; 0;"),
        ("kill -9 $PPID; sleep 1", "code 137; 0;"),
        ("kill -9 -1; sleep 1", "code 137; 0;"),
        ("for p in 2 3 4 5 6 7 8 9; do kill -9 $p; done; exit 0", "; 0;"),
        ("echo early; sleep 60", "early\ncode 124; 0;"),
        ("(setsid sh -c 'sleep 70 & sleep 71' >/dev/null 2>&1 &); exit 0", "code 0; 0;"),
        (":(){ :|:& };:; sleep 60", "; 0;"),
    ],
)
async def test_a_program_of_the_agent_does_its_work_and_nothing_to_its_judge(script: str, said: str) -> None:
    heard = await judged("bash", "-c", script)
    assert said in heard and "sesame" not in heard
    # The judge, the sandbox's process 1 and what counts them; what the program left behind is dead.
    assert int(heard.rpartition("; ")[2]) <= 5


async def test_it_sees_no_environment_but_its_own_and_no_memory_of_others() -> None:
    look = "for p in /proc/[0-9]*; do cat $p/environ; ls -l $p/fd; head -c 1 $p/mem; done 2>/dev/null; env"
    heard = await judged("bash", "-c", look)
    assert "token-4711" not in heard and "HOME=/home/agent" in heard
    assert "HOME=/home/agent" in await judged("env")


async def test_what_cannot_be_started_and_what_cannot_be_held_is_said_by_the_exit_code() -> None:
    assert "code 127;" in await judged("no-such-program")
    async with BubblewrapProvider().open(SandboxSpec(files=FILES)) as box:
        ended = await box.exec(["python3", "-I", UNTRUSTED_FILE, "2", "cat", "secret"], cwd="/tests")
        assert ended.exit_code == 125 and b"call it from the work directory" in ended.stderr
