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
    assert "token-4711" not in heard
    assert "HOME=/tmp/untrusted-" in await judged("env")


PLANT = """
for home in "$1" "$HOME" "$TMPDIR" /tmp; do
    site=$home/.local/lib/python$2/site-packages
    mkdir -p $site
    echo 'print("planted")' | tee $site/usercustomize.py $site/sitecustomize.py
    echo 'import sys; print("planted")' > $site/planted.pth
    echo 'echo planted' | tee $home/.bashrc $home/.profile $home/.bash_profile
done
"""
RUNS_MORE = """
version=$(python3 -I -c 'import sys; print("%d.%d" % sys.version_info[:2])')
python3 -I "$0" 5 bash -c "$1" sh "$HOME" $version >/dev/null 2>&1
python3 -c 'print("judged")'; bash -lc 'echo twice'; ls -A ~ /tmp
"""


async def test_what_it_plants_where_programs_look_at_their_start_is_not_found_by_its_judge() -> None:
    async with BubblewrapProvider().open(SandboxSpec(files=FILES)) as box:
        ended = await box.exec(["bash", "-c", RUNS_MORE, UNTRUSTED_FILE, PLANT], timeout_s=60)
    assert ended.stdout.split() == [b"judged", b"twice", b"/home/agent:", b"/tmp:"], ended


async def test_a_program_finds_what_its_environment_has_at_home_and_nothing_of_one_before_it() -> None:
    files = {**FILES, "/home/agent/given": File(b"given\n")}
    script = "cat /home/agent/given; ls -A $HOME $TMPDIR; touch $HOME/mine $TMPDIR/mine /app/kept; mkdir -p $HOME/a/b; chmod 0 $HOME/a"
    judge = 'for i in 1 2; do python3 -I "$0" 5 bash -c "$1"; echo "code $?"; done; ls /app'
    async with BubblewrapProvider().open(SandboxSpec(files=files)) as box:
        ended = await box.exec(["bash", "-c", judge, UNTRUSTED_FILE, script], timeout_s=60)
    assert ended.stdout.count(b"given\n") == 2 and ended.stdout.count(b"code 0") == 2
    assert ended.stdout.endswith(b"kept\nmine\n") and ended.stdout.count(b"mine") == 1, ended


@pytest.mark.parametrize("where", ["/home/agent", "/tmp", "/tests", "/"])
async def test_it_runs_nothing_from_where_its_judge_has_what_is_its_own(where: str) -> None:
    async with BubblewrapProvider().open(SandboxSpec(files=FILES)) as box:
        ended = await box.exec(["python3", "-I", UNTRUSTED_FILE, "2", "touch", "ran"], cwd=where)
        assert ended.exit_code == 125 and b"call it from the work directory" in ended.stderr


async def test_what_cannot_be_started_and_what_cannot_be_held_is_said_by_the_exit_code() -> None:
    assert "code 127;" in await judged("no-such-program")
