"""The wrapper that runs the agent's programs while they are judged, in a real sandbox: a program can do its work and cannot affect its judge."""

import json
import struct

import pytest

from orchestrator.runner.grade import WRAPPER
from orchestrator.tasks.held import confine
from orchestrator.tasks.verdict import UNTRUSTED_FILE, UNTRUSTED_LIMITS
from sandboxes.artifacts import stays
from sandboxes.base import ExecResult, File, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider
from tests.preallocating import PREALLOCATED, PREALLOCATES

pytestmark = [pytest.mark.anyio, pytest.mark.tier("probes")]

FILES = {
    **WRAPPER,
    "/tests/secret": File(b"sesame"),
    "/app/mine": File(b"mine\n"),
    "/logs/reward": File(b"0"),
}
JUDGE = (
    'echo given | python3 -I "$0" 2 "$@"; echo "code $?; $(cat /logs/reward); $(ls /proc | grep -c "^[0-9]")"'
)


async def judged(*argv: str, secret: str = "token-4711") -> str:
    """The output of a judge that runs this program: the program's output, its code, the reward, the number of processes."""
    async with BubblewrapProvider().open(SandboxSpec(files=FILES)) as sandbox:
        ended = await sandbox.exec(
            ["bash", "-c", JUDGE, UNTRUSTED_FILE, *argv], env={"SECRET": secret}, timeout_s=60
        )
        assert ended.ok, ended
        return ended.stdout.decode()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (
            "cat; cat mine; echo x > new && cat new; echo > $HOME/f; echo > $TMPDIR/f; exit 3",
            "given\nmine\nx\ncode 3; 0;",
        ),
        ("cat /tests/secret || ls /tests", "code 2; 0;"),
        ("echo 1 > /logs/reward; touch /logs/other; rm /logs/reward", "code 1; 0;"),
        ("kill -9 $PPID; kill -STOP $PPID; echo alive", "alive\ncode 0; 0;"),
        ("kill -9 -1; echo alive", "alive\ncode 0; 0;"),
        ("for p in 2 3 4 5 6 7 8 9; do kill -9 $p; done; exit 0", "; 0;"),
        ("echo early; sleep 60", "early\ncode 124; 0;"),
        ("(setsid sh -c 'sleep 70 & sleep 71' >/dev/null 2>&1 &); exit 0", "code 0; 0;"),
        pytest.param(":(){ :|:& };:; sleep 60", "; 0;", marks=pytest.mark.alone),
    ],
)
async def test_a_program_of_the_agent_does_its_work_and_nothing_to_its_judge(
    script: str, expected: str
) -> None:
    output = await judged("bash", "-c", script)
    assert expected in output and "sesame" not in output
    # The judge, the sandbox's process 1 and the counting processes; the program's leftovers are dead.
    assert int(output.rpartition("; ")[2]) <= 5


async def test_it_sees_no_environment_but_its_own_and_no_memory_of_others() -> None:
    look = "for p in /proc/[0-9]*; do cat $p/environ; ls -l $p/fd; head -c 1 $p/mem; done 2>/dev/null; env"
    output = await judged("bash", "-c", look)
    assert "token-4711" not in output
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


WATCHES = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.inotify_init1(os.O_NONBLOCK)
for place in sys.argv[1:]:
    ctypes.set_errno(0)
    print(place, libc.inotify_add_watch(fd, place.encode(), 0xFFF), os.strerror(ctypes.get_errno()))
for name, arguments in [("init", (0x200, 0)), ("mark", (-1, 1, ctypes.c_uint64(0x20), -100, b"/tests"))]:
    ctypes.set_errno(0)
    print(name, getattr(libc, "fanotify_" + name)(*arguments), os.strerror(ctypes.get_errno()))
os.system("ls > /dev/null")
try:
    print(os.read(fd, 4096))
except BlockingIOError:
    print("nothing")
"""


async def test_no_watch_tells_it_the_names_of_its_judges_files_and_programs_that_follow_a_file_go_on() -> (
    None
):
    output = await judged("python3", "-c", WATCHES, "/tests", "/logs", "/tmp", "/app", "/")
    assert output.count(" -1 No space left on device") == 7 and "\nnothing\n" in output, output
    follows = "tail -f mine > $TMPDIR/got & echo more >> mine; until grep more $TMPDIR/got; do sleep .1; done"
    async with BubblewrapProvider().open(SandboxSpec(files=FILES)) as sandbox:
        ended = await sandbox.exec(
            ["bash", "-c", 'python3 -I "$0" 50 bash -c "$1"', UNTRUSTED_FILE, follows], timeout_s=60
        )
    assert ended.stdout == b"more\n", ended


async def test_what_it_plants_where_programs_look_at_their_start_is_not_found_by_its_judge() -> None:
    async with BubblewrapProvider().open(SandboxSpec(files=FILES)) as sandbox:
        ended = await sandbox.exec(["bash", "-c", RUNS_MORE, UNTRUSTED_FILE, PLANT], timeout_s=60)
    assert ended.stdout.split() == [b"judged", b"twice", b"/home/agent:", b"/tmp:"], ended


async def test_a_program_finds_what_its_environment_has_at_home_and_nothing_of_one_before_it() -> None:
    files = {**FILES, "/home/agent/given": File(b"given\n"), UNTRUSTED_LIMITS: File(b'{"home": ["given"]}')}
    script = "cat /home/agent/given; ls -A $HOME $TMPDIR; touch $HOME/mine $TMPDIR/mine /app/kept; mkdir -p $HOME/a/b; chmod 0 $HOME/a"
    judge = 'for i in 1 2; do python3 -I "$0" 5 bash -c "$1"; echo "code $?"; done; ls /app'
    async with BubblewrapProvider().open(SandboxSpec(files=files)) as sandbox:
        ended = await sandbox.exec(["bash", "-c", judge, UNTRUSTED_FILE, script], timeout_s=60)
    assert ended.stdout.count(b"given\n") == 2 and ended.stdout.count(b"code 0") == 2
    assert ended.stdout.endswith(b"kept\nmine\n") and ended.stdout.count(b"mine") == 1, ended


@pytest.mark.parametrize("name", ["/tests", "../tests", "a/../../tests", "", "."])
async def test_a_name_that_leads_out_of_its_directory_opens_nothing(name: str) -> None:
    ended = await limited(
        json.dumps({"tmp": [name], "home": [name]}),
        "cat",
        "/tests/secret",
        "/tmp/want",
        before="echo sesame > /tmp/want",
    )
    assert ended.stdout == b"code 1\n", ended


@pytest.mark.parametrize(
    "where", ["/home/agent", "/tmp", "/tests", "/tests/.penstock", "/", "/logs", "/logs/verifier"]
)
async def test_it_runs_nothing_from_where_its_judge_has_what_is_its_own(where: str) -> None:
    spec = SandboxSpec(files=FILES, directories=("/logs/verifier",))
    async with BubblewrapProvider().open(spec) as sandbox:
        ended = await sandbox.exec(["python3", "-I", UNTRUSTED_FILE, "2", "touch", "ran"], cwd=where)
        assert ended.exit_code == 125 and b"call it from the work directory" in ended.stderr


COPIED = """
export TEST_DIR=$(mktemp -d) && cp -a /tests/. "$TEST_DIR" || exit 1
python3 -I "$0" 2 cat "$TEST_DIR/secret"; echo "code $?"
mkdir "$TEST_DIR/in"; cd "$TEST_DIR/in" && python3 -I "$0" 2 cat ../secret; echo "code $?"
export TEST_DIR=/app && cd /app && python3 -I "$0" 2 cat mine
"""


async def test_a_copy_of_the_tests_is_as_closed_to_it_as_the_tests_are() -> None:
    async with BubblewrapProvider().open(SandboxSpec(files=FILES)) as sandbox:
        ended = await sandbox.exec(["bash", "-c", COPIED, UNTRUSTED_FILE], timeout_s=60)
    assert ended.stdout == b"code 1\ncode 125\nmine\n", ended


WITHIN = """
mkdir -p src/deep /logs/verifier /logs/artifacts ~/kept && cd "$1" && python3 -I "$0" 5 bash -c "$2"; echo "code $?"
echo x > here && chmod 755 . && cat own /logs/reward; ls /app/new; ls /logs/verifier
"""
ACTS = """
cat /app/mine; cat ../mine ../../mine 2>/dev/null; [ $PWD = /app ] || echo new > /app/new; echo own > own; chmod 0 .
cat /tests/secret; echo 1 > /logs/verifier/reward.txt; echo 1 > /logs/reward; true
"""


@pytest.mark.parametrize("where", ["/app", "src", "/app/src/deep", "/app/src/../src"])
async def test_a_program_that_starts_in_a_directory_of_the_work_directory_reads_all_of_it(where: str) -> None:
    async with BubblewrapProvider().open(SandboxSpec(files=FILES)) as sandbox:
        judge = ["bash", "-c", WITHIN, UNTRUSTED_FILE, where, ACTS]
        ended = await sandbox.exec(judge, timeout_s=60)
    found = ended.stdout.decode().split()
    assert [each for each in found if each != "mine"] == ["code", "0", "own", "0"], ended
    assert found.count("mine") == (1 if where == "/app" else 2), ended


@pytest.mark.parametrize("where", ["/logs/artifacts", "/home/agent/kept"])
async def test_elsewhere_it_has_the_current_directory_alone(where: str) -> None:
    async with BubblewrapProvider().open(SandboxSpec(files=FILES)) as sandbox:
        judge = ["bash", "-c", WITHIN, UNTRUSTED_FILE, where, f"echo own > own; cat own; {ACTS}"]
        ended = await sandbox.exec(judge, timeout_s=60)
    assert ended.stdout.decode().split() == ["own", "code", "0", "own", "0"], ended


TAKES_DISK = (
    "echo planted > ../judged; rm -f ../judged ../mine; for n in {1..40}; do echo > f$n; done; sleep 60"
)


async def test_a_program_writes_only_below_its_current_directory_and_nothing_else_counts() -> None:
    before = "mkdir run; echo kept > judged; for n in {1..40}; do echo > j$n; done; cd run"
    ended = await limited('{"disk_files": 20}', "cat", "../judged", "../mine", before=before)
    assert ended.stdout == b"kept\nmine\ncode 0\n", ended
    ended = await limited(
        '{"disk_files": 20}',
        "bash",
        "-c",
        TAKES_DISK,
        before=before,
        after="ls; cd ..; cat judged mine; ls j4*",
    )
    assert ended.stdout.decode().split() == ["code", "137", "kept", "mine", "j4", "j40"], ended
    assert b"the program used up its disk" in ended.stderr


@pytest.mark.parametrize("mode", ["300", "0"])
async def test_the_entries_of_a_directory_that_it_closes_count(mode: str) -> None:
    script = f"mkdir d; cd d; for n in {{1..40}}; do echo > f$n; done; chmod {mode} ..; sleep 60"
    ended = await limited(
        '{"disk_files": 20}', "bash", "-c", script, before="mkdir run; cd run", after="stat -c %a .; ls"
    )
    assert ended.stdout == b"code 137\n755\n", ended


async def test_what_its_judge_writes_while_it_uses_up_its_disk_stays() -> None:
    judge = (
        "mkdir run; mkfifo /tmp/up; cd run; "
        'python3 -I "$0" 50 bash -c "echo up; until [ -f ../log ]; do sleep .1; done; $1" > /tmp/up & '
        'read line < /tmp/up; echo kept > /app/log; wait $!; echo "code $?"; cat /app/log; ls /app/run'
    )
    files = {**FILES, UNTRUSTED_LIMITS: File(b'{"disk_files": 20}')}
    async with BubblewrapProvider().open(SandboxSpec(files=files)) as sandbox:
        ended = await sandbox.exec(["bash", "-c", judge, UNTRUSTED_FILE, TAKES_DISK], timeout_s=60)
    assert ended.stdout == b"code 137\nkept\n", ended


async def test_its_judges_home_within_the_work_directory_stays_closed() -> None:
    judge = 'mkdir -p h src; echo sesame > h/want; cd src; HOME=/app/h python3 -I "$0" 5 cat ../h/want || cat ../mine'
    async with BubblewrapProvider().open(SandboxSpec(files=FILES)) as sandbox:
        ended = await sandbox.exec(["bash", "-c", judge, UNTRUSTED_FILE], timeout_s=60)
    assert ended.stdout == b"mine\n", ended


RUN = 'python3 -I "$0" 5'
CASES = "one 1\ntwo 2\n"
READ_BY_ITS_JUDGE = [
    f'while read -r n w; do got=$({RUN} $P); echo "$n:$got"; done < /tests/cases',
    f'while read -r n w; do got=$({RUN} $P | head -c 99); echo "$n:$got"; done < /tests/cases',
    f'while read -r n w; do got=$(timeout 9 {RUN} $P); echo "$n:$got"; done < /tests/cases',
    f'while read -r -u 3 n w; do got=$({RUN} $P <&3); echo "$n:$got"; done 3< /tests/cases',
    f'while read -r n w; do setsid -f {RUN} $P > got; sleep 1; echo "$n:$(cat got)"; done < /tests/cases',
    f'exec < /tests/cases; while read -r n w; do got=$({RUN} $P); echo "$n:$got"; done',
    f'run() {{ {RUN} "$@"; }}; while read -r n w; do got=$( ( run $P ) ); echo "$n:$got"; done < /tests/cases',
    f'while read -r n w; do setsid -fw {RUN} $P > got; echo "$n:$(cat got)"; done < /tests/cases',
    'sh -c \'while read -r n w; do got=$(python3 -I "$0" 5 $P); echo "$n:$got"; done < /tests/cases\' "$0"',
    f'while read -r -u 3 n w; do got=$({RUN} $P); echo "$n:$got"; done 3< /tests/cases',
    'python3 -I -c "import subprocess as s, sys\nfor line in iter(sys.stdin.readline, str()):\n'
    "    got = s.run(['python3', '-I', sys.argv[1], '5', *sys.argv[2:]], capture_output=True).stdout\n"
    'print(line.split()[0] + \':\' + got.decode())" "$0" $P < /tests/cases'.replace("\nprint", "\n    print"),
]
GIVEN = [
    f"{RUN} $P < /tests/given",
    f"{RUN} $P <<< given",
    f"{RUN} $P <<END\ngiven\nEND",
    f"echo given | {RUN} $P",
    f"echo given | timeout 9 {RUN} $P",
    f'echo "$(echo given | {RUN} $P | head -c 99)"',
    f"exec <&-; echo given | {RUN} $P",
    f"while read -r n w; do echo given | {RUN} $P; break; done < /tests/cases",
    f'while read -r n w; do got=$({RUN} $P < /tests/given); echo "$got"; break; done < /tests/cases',
    f'run() {{ {RUN} "$@" | head -c 99; }}; echo given | run $P',
    f'run() {{ {RUN} "$@" | head -c 99; }}; got=$(echo given | run $P); echo $got',
    f'run() {{ {RUN} "$@" | head -c 99; }}; run $P < /tests/given',
    f'run() {{ {RUN} "$@"; }}; while read -r n w; do got=$(run $P <<< given); echo $got; break; done < /tests/cases',
    f"echo given | {{ {RUN} $P; echo; }}",
    f"( cd . && {RUN} $P ) < /tests/given",
    f"for n in 1 2 3; do {RUN} $P < /tests/given & done; wait",
    f'run() {{ rm -f out; got=$({RUN} $P); echo "$got"; }}; run <<< given; while read -r n w; do run <<< given; done < /tests/cases',
    f"run() {{ {RUN} $P; }}; run <<END\ngiven\nEND\nif run <<< given; then true; fi",
    f"echo given | {{ mkdir -p d; y=$(cat /tests/given); {RUN} $P; true; }}",
    'echo given | sh -c \'cd . && python3 -I "$0" 5 python3 all.py; true\' "$0"',
    "python3 -I -c \"import subprocess as s, sys; s.run(['python3', '-I', *sys.argv[1:]], input=b'given')\" \"$0\" 5 $P",
]
TAKES_ALL = """
import os
for fd in range(64):
    for _ in range(2):
        try:
            found = os.read(fd, 99)
            os.write(1, found if found.strip() else b"")
            os.lseek(fd, 0, 0)
        except OSError:
            pass
"""


async def fed(judge: str) -> str:
    """The output of a judge whose program prints what all its descriptors give."""
    files = {**FILES, "/tests/cases": File(CASES.encode()), "/tests/given": File(b"given\n")}
    files["/app/all.py"] = File(TAKES_ALL.encode())
    async with BubblewrapProvider().open(SandboxSpec(files=files)) as sandbox:
        ended = await sandbox.exec(
            ["bash", "-c", judge, UNTRUSTED_FILE], env={"P": "python3 all.py"}, timeout_s=60
        )
        return ended.stdout.decode()


@pytest.mark.parametrize("judge", READ_BY_ITS_JUDGE)
async def test_it_gets_nothing_of_what_its_judge_reads_and_its_judge_misses_nothing(judge: str) -> None:
    assert (await fed(judge)).split() == ["one:", "two:"]


@pytest.mark.parametrize("judge", GIVEN)
async def test_it_gets_the_input_that_its_command_a_function_or_a_group_was_given(judge: str) -> None:
    assert set((await fed(judge)).split()) == {"given"}


READERS = [
    ("cat", "/dev/stdin"),
    ("python3", "-c", "print(open('/dev/stdin').read(), end='')"),
    ("python3", "-c", "import os; print(open('/proc/self/fd/0').read(), end=''); os.read(0, 2)"),
    ("bash", "-c", "read -r line < /dev/fd/0; echo $line; ! echo > /dev/stdin"),
    ("sort", "-n", "/dev/stdin"),
]
INPUTS = ["< /tests/given", "< <(echo given)", "<<< given", '<<< "$long"']


@pytest.mark.parametrize("reader", READERS, ids=" ".join)
async def test_its_input_can_be_opened_by_name_and_what_it_leaves_of_a_file_is_its_judges(
    reader: tuple[str, ...],
) -> None:
    files = {**FILES, "/tests/given": File(b"given\n")}
    judge = "printf -v long %70000s given\n"
    judge += "".join(f'python3 -I "$0" 5 "$@" 2> /dev/null {given}\n' for given in INPUTS)
    judge += '{ python3 -I "$0" 5 "$@"; cat; } 2> /dev/null < /tests/given; cat /tests/given'
    async with BubblewrapProvider().open(SandboxSpec(files=files)) as sandbox:
        ended = await sandbox.exec(["bash", "-c", judge, UNTRUSTED_FILE, *reader], timeout_s=60)
    rest = "ven" if "os.read" in reader[-1] else "given"
    assert ended.stdout.decode().split() == ["given"] * 5 + [rest, "given"], ended


async def test_a_file_that_its_judge_writes_by_that_number_gives_it_nothing() -> None:
    judge = 'echo sesame > ~/log; exec 0>> ~/log; python3 -I "$0" 5 cat /dev/stdin'
    async with BubblewrapProvider().open(SandboxSpec(files=FILES)) as sandbox:
        ended = await sandbox.exec(["bash", "-c", judge, UNTRUSTED_FILE], timeout_s=60)
    assert ended.exit_code == 1 and b"sesame" not in ended.stdout + ended.stderr, ended


async def test_a_file_that_is_on_no_disk_can_be_its_input() -> None:
    makes = "import os, subprocess, sys\n"
    makes += "fd = os.memfd_create('m')\nos.write(fd, b'given')\nos.lseek(fd, 0, 0)\nsubprocess.run(sys.argv[1:], stdin=fd)"
    async with BubblewrapProvider().open(SandboxSpec(files=FILES)) as sandbox:
        runs = ["python3", "-I", UNTRUSTED_FILE, "5", "cat", "/dev/stdin"]
        ended = await sandbox.exec(["python3", "-I", "-c", makes, *runs], timeout_s=60)
    assert ended.stdout == b"given", ended


async def test_an_input_without_a_name_counts_for_its_judge() -> None:
    before = "head -c 2000000 /dev/zero > given; exec < given; rm given"
    ended = await limited('{"disk_bytes": 1000000}', "sh", "-c", "cat | wc -c", before=before)
    assert ended.stdout == b"2000000\ncode 0\n", ended


async def test_the_exit_code_tells_that_a_program_cannot_be_started() -> None:
    assert "code 127;" in await judged("no-such-program")


async def limited(limits: str, *argv: str, before: str = "", after: str = "") -> ExecResult:
    """A judge that runs this program under such limits."""
    judge = f'{before}\npython3 -I "$0" 10 "$@"; echo "code $?"\n{after}'
    files = {**FILES, UNTRUSTED_LIMITS: File(limits.encode())}
    async with BubblewrapProvider().open(SandboxSpec(files=files)) as sandbox:
        return await sandbox.exec(["bash", "-c", judge, UNTRUSTED_FILE, *argv], timeout_s=60)


ORPHAN = "import os, time; os.fork() and (os.wait(), time.sleep(20)); os.fork() and os._exit(0)"
"""The first process waits; a process whose parent has ended does the rest."""
NAMELESS = (
    "import os, tempfile; held = [tempfile.TemporaryFile(dir='.') for _ in range(4)]; "
    "[(f.write(b'1' * 400_000), f.flush()) for f in held]"
)
"""1.6 MB in files without a name."""


@pytest.mark.parametrize(
    ("limits", "script", "named"),
    [
        ('{"memory_bytes": 60000000}', "import time; held = b'1' * 100_000_000; time.sleep(20)", "memory"),
        ('{"memory_bytes": 60000000}', "ORPHAN; held = b'1' * 100_000_000; time.sleep(20)", "memory"),
        ('{"cpu_s": 0.3}', "while True: pass", "cpu"),
        ('{"cpu_s": 0.3}', "ORPHAN\nwhile True: pass", "cpu"),
        ('{"output_bytes": 1000}', "print('x' * 5000)", "output"),
        ('{"disk_bytes": 1000000}', "for n in range(4): open(f'f{n}', 'wb').write(b'1' * 400_000)", "disk"),
        ('{"disk_files": 20}', "for n in range(40): open(f'f{n}', 'wb')", "disk"),
        ('{"disk_bytes": 1000000}', f"{NAMELESS}; import time; time.sleep(20)", "disk"),
        ('{"disk_bytes": 1000000}', f"ORPHAN; {NAMELESS}; time.sleep(20)", "disk"),
    ],
)
async def test_a_limit_that_a_program_uses_up_is_named_and_its_judge_goes_on(
    limits: str, script: str, named: str
) -> None:
    script = script.replace("ORPHAN", ORPHAN)
    ended = await limited(limits, "python3", "-c", script, after="ls /app")
    assert b"code 137" in ended.stdout and ended.ok, ended
    assert f"the program used up its {named}".encode() in ended.stderr
    assert named != "disk" or (ended.stdout.endswith(b"mine\n") and b"f0" not in ended.stdout)


async def test_the_time_of_all_programs_ends_before_that_of_their_judge() -> None:
    ended = await limited('{"until_s": 0.000001}', "echo", "ran")
    assert ended.stdout == b"code 124\n" and b"the time for programs is up" in ended.stderr


async def test_in_a_place_of_its_own_a_program_makes_links_and_pipes_and_moves_none_into_the_work_directory() -> (
    None
):
    script = (
        "cd $TMPDIR && ln -s /etc e && mkfifo p && mkdir d && ln -s /etc d/e && echo made;"
        " mv e p /app/; mv -T d /app/d; ln -s /etc /app/l; cd /app; ls -A"
    )
    ended = await limited('{"private": 1}', "bash", "-c", script)
    assert ended.stdout.startswith(b"made\n"), ended
    assert not {b"e", b"p", b"l"} & set(ended.stdout.split()), ended


def older(version: int) -> dict[str, File]:
    """The wrapper as on a kernel with this version of Landlock, too old for its limit on signals."""
    version_call, scoped = b"return _call(_CREATE_RULESET, 0, 0, 1)", b"SCOPED_SIGNALS = 6"
    changed = {
        path: File(
            file.data.replace(version_call, f"return {version}".encode()).replace(
                scoped, b"SCOPED_SIGNALS = 99"
            )
        )
        for path, file in WRAPPER.items()
    }
    assert changed != WRAPPER
    return changed


@pytest.mark.parametrize("version", [1, 2, 4])
async def test_on_older_kernels_a_program_cuts_off_nothing_of_its_judges(version: int) -> None:
    script = (
        "import os\nfor path in ('/logs/reward', '/home/agent/want'):\n"
        "    try:\n        os.truncate(path, 0)\n    except OSError:\n        print('held')\n"
    )
    judge = 'echo 42 > ~/want; python3 -I "$0" 5 python3 -c "$1"; cat ~/want /logs/reward'
    async with BubblewrapProvider().open(SandboxSpec(files=FILES | older(version))) as sandbox:
        ended = await sandbox.exec(["bash", "-c", judge, UNTRUSTED_FILE, script], timeout_s=60)
    assert ended.stdout == b"held\nheld\n42\n0", ended


OLDER = older(4)
"""The wrapper as on Linux 6.7 to 6.11: there, a confinement for signals does not also forbid moves."""


@pytest.mark.parametrize("wrapper", [WRAPPER, OLDER], ids=["this kernel", "Linux 6.7"])
async def test_a_link_that_an_agent_left_moves_to_no_place_from_which_it_leads_out(
    wrapper: dict[str, File],
) -> None:
    assert stays("a/b/reward", "../../logs/reward")
    script = "import os\ntry:\n    os.rename('a/b', 'out')\nexcept OSError:\n    print('held')\n"
    judge = 'python3 -I "$0" 5 python3 -c "$1"; echo 1 > out/reward; cat out/secret /logs/reward'
    spec = SandboxSpec(
        files=FILES | wrapper,
        links={"/app/a/b/reward": "../../logs/reward", "/app/a/b/secret": "../../tests/secret"},
    )
    async with BubblewrapProvider().open(spec) as sandbox:
        ended = await sandbox.exec(["bash", "-c", judge, UNTRUSTED_FILE, script], timeout_s=60)
    assert ended.stdout == b"held\n0", ended


async def test_shared_memory_works_for_a_program_and_holds_nothing_of_it_afterwards() -> None:
    script = (
        "import multiprocessing as m\nq = m.Queue()\np = m.Process(target=q.put, args=(4711,))\np.start()\nprint(q.get())\np.join()\n"
        "open('/dev/shm/left', 'w').write('1')"
    )
    ended = await limited('{"private": 1}', "python3", "-c", script, after="ls -A /dev/shm")
    assert ended.stdout == b"4711\ncode 0\n", ended


async def test_a_program_preallocates_no_space() -> None:
    ended = await limited('{"private": 1}', "python3", "-c", PREALLOCATES)
    assert ended.stdout.decode().split() == [*PREALLOCATED, "code", "0"], ended


async def test_what_a_judge_keeps_in_shared_memory_closes_it_to_the_program() -> None:
    ended = await limited('{"private": 1}', "cat", "/dev/shm/want", before="echo sesame > /dev/shm/want")
    assert b"sesame" not in ended.stdout and b"code 1" in ended.stdout


async def test_a_judge_that_ends_its_server_under_test_leaves_nothing_of_it() -> None:
    judge = (
        'mkfifo /tmp/up; python3 -I "$0" 50 bash -c "echo up; sleep 61 & sleep 62" > /tmp/up & read line < /tmp/up;'
        ' kill $!; wait $!; echo "code $? $line"; cat /proc/[0-9]*/cmdline | tr "\\0" " " | grep -c "sleep 6[12]"; ls -A /tmp'
    )
    async with BubblewrapProvider().open(SandboxSpec(files=FILES)) as sandbox:
        ended = await sandbox.exec(["bash", "-c", judge.replace("sleep 6[12]", "^sleep 6"), UNTRUSTED_FILE])
    assert ended.stdout == b"code 143 up\n0\nup\n", ended


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_jumps_to_instructions_that_there_are(machine: str) -> None:
    for private in (False, True):
        code = confine.calls(machine, private, version=1)
        assert code is not None
        count = len(code) // 8
        for at, (kind, yes, no, _) in enumerate(struct.iter_unpack("<HBBI", code)):
            assert kind & 7 != 5 or at + 1 + max(yes, no) < count
    assert confine.calls("riscv64", True) is None
