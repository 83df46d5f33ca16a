"""The provider `container` over a real podman: the suite of the port, images, and the leftovers of a killed owner."""

import json
import os
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import uuid4

import anyio
import pytest

from orchestrator.tasks.harbor import Task
from sandboxes.base import BuildEntry, File, ImageRefused, Limits, SandboxError, SandboxLost, SandboxSpec
from sandboxes.cgroups import Cgroup
from sandboxes.conformance import ConformanceCheck, checks_for, run_check
from sandboxes.conformance.as_user import AsUser
from sandboxes.conformance.registry import long_sleep, sleepers
from sandboxes.container.engine import LABEL, ROOT, ContainerEngine
from sandboxes.container.provider import ContainerProvider
from sandboxes.container.settings import ContainerSettings
from sandboxes.effective import observe
from sandboxes.moves import ASIDE, TAKES
from sandboxes.owner import Owner
from sandboxes.reap import default_root
from tests.containers.conftest import SETTINGS
from tests.contract.of_checks import each_of
from tests.violations import promise_kept
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.tier("containers")]

DOCKERFILE = b"""FROM localhost/penstock-sandbox
ENV A=image PATH=/opt/bin:/usr/bin:/bin
WORKDIR /srv/work
COPY a.txt sub/
RUN echo made >made && mkdir empty && ln -s sub/a.txt link
"""
SHIM = """#!{python}
import json, os, sys
with open({record!r}, "a") as record:
    record.write(json.dumps(sys.argv[1:]) + "\\n")
os.execvp("podman", ["podman", *{options!r}, *sys.argv[1:]])
"""


@pytest.mark.parametrize("check", each_of(checks_for(ContainerProvider())))
async def test_podman_keeps_every_promise(
    check: ConformanceCheck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    result = await run_check(ContainerProvider(), check)
    promise_kept(result)
    assert list(here.iterdir()) == [], "left in the working directory of this process"


async def test_a_dockerfile_is_built_once_and_its_work_directory_is_the_sandboxs() -> None:
    context: dict[str, BuildEntry] = {"Dockerfile": File(DOCKERFILE), "a.txt": File(b"hello")}
    spec = SandboxSpec(build=context, files={"/app/placed": File(b"x")}, env={"B": "spec"})
    for _ in range(2):
        async with ContainerProvider().open(spec) as sandbox:
            result = await sandbox.exec(
                ["sh", "-c", 'pwd; ls; echo "$A $B $PATH"; cat link; echo 1 >new; rm made']
            )
            lines = result.stdout.decode().split("\n")
            assert lines == [
                "/srv/work",
                "empty",
                "link",
                "made",
                "placed",
                "sub",
                "image spec /opt/bin:/usr/bin:/bin",
                "hello",
            ]
            found = await sandbox.changed()
            assert ({*found.added}, {*found.modified}, found.deleted) == ({"new"}, set(), ("made",))
            assert await sandbox.get("/app/sub/a.txt") == b"hello"


async def test_the_image_the_work_directory_the_cores_and_the_build_time_of_a_task_hold() -> None:
    task = Task.from_files(
        {
            "task.toml": b'[environment]\ndocker_image = "localhost/penstock-sandbox"\nworkdir = "/srv/mine"\ncpus = 0.5\n',
            "instruction.md": b"do it",
            "tests/test.sh": b"true",
            "environment/a": b"1",
        }
    )
    environment = task.environment(None, containers=True)
    spec = environment.spec(environment.files, Limits())
    async with ContainerProvider().open(spec) as sandbox:
        result = await sandbox.exec(
            ["sh", "-c", "pwd; ls; cat /sys/fs/cgroup/cpu.max 2>/dev/null || echo 50000 100000"]
        )
        assert result.stdout.decode().split() == ["/srv/mine", "a", "50000", "100000"]
    slow = SandboxSpec(
        build={"Dockerfile": File(f"FROM localhost/penstock-sandbox\nRUN sleep 60 # {uuid4()}\n".encode())},
        build_timeout_s=2,
    )
    with pytest.raises(ImageRefused, match=r"not built by podman within 2 s \(build_timeout_sec\)"):
        async with ContainerProvider().open(slow):
            pass

    async def removed() -> bool:
        with suppress(SandboxError):  # podman's list fails while a build's container is being removed
            return b"working-container" not in await ContainerEngine(SETTINGS).must(
                "ps", "--all", "--external", "--format={{.Names}}"
            )
        return False

    await eventually(removed, every_s=0.2)


NAMED = b"""FROM localhost/penstock-sandbox
RUN echo "worker:x:4321:4322::/home/worker:/bin/sh" >>/etc/passwd && mkdir -p /srv/work/mine
WORKDIR /srv/work
RUN echo secret >secret && chmod 600 secret && echo own >mine/own && chown -R 4321:4322 mine && chmod 700 mine
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's containers have other users")
@pytest.mark.parametrize("user", ["worker", "4321"])
async def test_a_named_user_of_an_image_has_its_own_files_and_no_others(user: str) -> None:
    spec = SandboxSpec(build={"Dockerfile": File(NAMED)}, user=user, files={"/app/placed": File(b"x", 0o600)})
    async with ContainerProvider().open(spec) as sandbox:
        script = "id -u; id -g; whoami; echo $USER; cat mine/own placed; stat -c %u . secret mine/own placed; echo new >mine/new"
        result = await sandbox.exec(["sh", "-c", script])
        assert result.stdout.decode().split() == [
            *("4321", "4322", "worker", "worker", "own", "x0", "0", "4321", "4321")
        ], result
        for forbidden in ("cat secret", "touch new", "rm secret", "unshare -U true"):
            assert not (await sandbox.exec(["sh", "-c", forbidden])).ok, forbidden
        assert set((await sandbox.changed()).added) == {"mine/new"}


async def test_what_is_placed_over_an_image_replaces_what_it_has_of_another_kind_and_keeps_what_is_in_a_directory() -> (
    None
):
    build = {"Dockerfile": File(DOCKERFILE), "a.txt": File(b"a")}
    placed = SandboxSpec(
        build=build,
        modes={"/app/sub": 0o700, "/app/made": 0o755, "/app/link": 0o755},
        files={"/app/empty": File(b"x"), "/app/link/y": File(b"y")},
    )
    async with ContainerProvider().open(placed) as sandbox:
        result = await sandbox.exec(
            ["sh", "-c", "stat -c %a sub; cat sub/a.txt empty link/y; ls made; [ -L link ] || echo real"]
        )
        assert result.stdout == b"700\naxyreal\n", result


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's containers have other users")
async def test_sandboxes_of_one_named_user_do_not_use_up_each_others_processes() -> None:
    spec = SandboxSpec(user="4321", limits=Limits(processes=24))
    many = "for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do sleep 600 >&- 2>&- & done; echo started"
    async with ContainerProvider().open(spec) as first, ContainerProvider().open(spec) as second:
        for sandbox in (first, second):
            result = await sandbox.exec(["sh", "-c", many])
            assert (result.stdout, result.stderr) == (b"started\n", b""), result
        refused = await second.exec(["sh", "-c", many])
        assert b"fork" in refused.stderr.lower(), refused


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's containers have other users")
@pytest.mark.alone
@pytest.mark.parametrize("user", ["agent", "4321"])
async def test_programs_that_multiply_without_pause_are_the_sandboxs_own_fault(user: str) -> None:
    bomb = "import os\nif os.fork(): os._exit(0)\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
    async with ContainerProvider().open(
        SandboxSpec(user=user, limits=Limits(processes=24, cpu_s=600))
    ) as sandbox:
        await sandbox.exec(["python3", "-c", bomb])
        for _ in range(3):
            result = await sandbox.exec(["sh", "-c", "echo lives"], timeout_s=60)
            crowded = b"cannot run: the sandbox's running programs have used up its processes\n"
            assert (result.exit_code, result.stdout, result.stderr) in [
                (0, b"lives\n", b""),
                (126, b"", crowded),
            ], result
        assert set((await sandbox.changed()).added) == set()


async def test_users_that_a_container_cannot_have_are_one_sentence() -> None:
    for user, sentence in (
        ("root", "their root would be this machine's"),
        ("stranger", "no user 'stranger'"),
    ):
        with pytest.raises(ImageRefused, match=sentence):
            async with ContainerProvider().open(SandboxSpec(user=user)):
                pass


OF_USERS = [each for each in checks_for(ContainerProvider()) if each.escape or each.isolation]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's containers have other users")
@pytest.mark.parametrize("check", each_of(OF_USERS))
async def test_a_named_user_of_podman_has_no_way_out(check: ConformanceCheck) -> None:
    result = await run_check(AsUser(ContainerProvider(), "4321"), check)
    promise_kept(result)


async def test_a_dockerfile_that_cannot_be_built_is_the_tasks_mistake() -> None:
    with pytest.raises(ValueError, match=r"environment/Dockerfile: its build by podman failed at RUN false"):
        async with ContainerProvider().open(
            SandboxSpec(build={"Dockerfile": File(b"FROM localhost/penstock-sandbox\nRUN false\n")})
        ):
            pass


@pytest.mark.parametrize("work", ["/usr", "/proc/x", "/tests"])
async def test_a_work_directory_that_is_taken_is_named(work: str) -> None:
    dockerfile = f"FROM localhost/penstock-sandbox\nWORKDIR {work}\n".encode()
    with pytest.raises(ValueError, match=f"WORKDIR {work} is taken"):
        async with ContainerProvider().open(SandboxSpec(build={"Dockerfile": File(dockerfile)})):
            pass


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        ("truncate -s 300M hole", "a file of more than 64 MB|more than 64 MB"),
        ("head -c 40M /dev/zero >a && ln a b", r"more than 64 MB \(sandbox.disk_mb"),
        ("mkfifo pipe", "neither a file nor a directory nor a link: 'pipe'"),
        ("for n in $(seq 60); do echo >$n; done", "more than 50 files and directories"),
    ],
    ids=["hole", "hard link", "pipe", "crowd"],
)
async def test_what_no_sandbox_takes_of_an_image_is_the_tasks_mistake(made: str, sentence: str) -> None:
    dockerfile = f"FROM localhost/penstock-sandbox\nWORKDIR /srv\nRUN {made}\n".encode()
    spec = SandboxSpec(build={"Dockerfile": File(dockerfile)}, limits=Limits(disk_mb=64, disk_files=50))
    with pytest.raises(ImageRefused, match=sentence):
        async with ContainerProvider().open(spec):
            pass


async def test_links_of_an_image_are_its_own() -> None:
    dockerfile = b"FROM localhost/penstock-sandbox\nWORKDIR /srv\nRUN echo 1 >a && ln a b && ln -s a c && mkdir -p d/e && ln -s / d/f\n"
    async with ContainerProvider().open(SandboxSpec(build={"Dockerfile": File(dockerfile)})) as sandbox:
        result = await sandbox.exec(["sh", "-c", "cat a b c; readlink c d/f; ls d"])
        assert result.stdout.split() == [b"1", b"1", b"1", b"a", b"/", b"e", b"f"]


async def test_an_image_that_is_not_there_is_named_with_the_command() -> None:
    [problem] = await ContainerProvider(ContainerSettings(image="localhost/absent")).problems()
    assert (
        problem
        == "sandbox.container.image: podman has no image localhost/absent: run `podman pull localhost/absent`."
    )


async def test_users_are_those_of_the_machine_and_nothing_else_isolates_less_than_bubblewrap() -> None:
    found = await observe(ContainerProvider())
    assert found.concerns == ("the user namespace is the host's",) and found.provider == "container"


async def test_a_killed_owners_container_and_files_are_gone_at_once() -> None:
    script = (
        "import anyio, os\nfrom sandboxes.container.provider import ContainerProvider\nfrom sandboxes.base import SandboxSpec\n"
        "async def own():\n    async with ContainerProvider().open(SandboxSpec()) as sandbox:\n"
        "        process = await sandbox.start(['sh', '-c', 'echo ready; sleep 600'])\n        await process.read()\n"
        "        print('ready', flush=True)\n        await process.wait()\nanyio.run(own)"
    )
    async with await anyio.open_process([sys.executable, "-c", script]) as owner:
        assert owner.stdout is not None and (await owner.stdout.receive()).startswith(b"ready")
        assert len(await ContainerEngine(SETTINGS).left(default_root())) == 1
        owner.kill()
    await eventually(
        lambda: ContainerEngine(SETTINGS).left(default_root()),
        lambda seen: not list(default_root().glob("*.json")) and not seen,
        every_s=0.1,
    )


async def test_programs_cannot_reach_process_1_its_pipe_or_the_exit_code_of_another() -> None:
    attack = (
        "import glob, os, signal\n"
        "def tried(what, *args):\n    try:\n        what(*args)\n        return True\n    except OSError:\n        return False\n"
        "others = [int(p) for p in os.listdir('/proc') if p.isdigit() and os.stat('/proc/' + p).st_uid != os.getuid()]\n"
        "for number in (9, 15, 19):\n    for pid in others:\n        assert not tried(os.kill, pid, number), pid\n"
        "assert 1 in others and not any(tried(open, f'/proc/{pid}/{name}') for pid in others for name in ('mem', 'environ'))\n"
        "for path in glob.glob('/run/penstock-program/*'):\n    for name in ('status', 'gate', 'leash'):\n"
        "        if tried(os.stat, f'{path}/{name}') and name != 'leash':\n"
        "            fd = os.open(f'{path}/{name}', os.O_RDWR | os.O_NONBLOCK) if 'session' not in path else -1\n"
        "            fd >= 0 and os.write(fd, b'0\\n')\n"
        "assert not any(tried(os.open, path, os.O_WRONLY | os.O_NONBLOCK) for path in glob.glob('/run/penstock-program/session-*/*'))\n"
        "print('tried', flush=True)"
    )
    async with ContainerProvider().open(SandboxSpec()) as sandbox:
        judge = await sandbox.start(["sh", "-c", "while [ ! -e go ]; do sleep 0.05; done; exit 7"])
        result = await sandbox.exec(["python3", "-c", attack])
        assert (result.exit_code, result.stdout) == (0, b"tried\n"), result
        await sandbox.put({"/app/go": File(b"")})
        assert (await judge.wait()).exit_code == 7


async def test_a_program_that_leaves_no_process_to_be_had_does_not_keep_the_next_one_out() -> None:
    fill = "import subprocess\ntry:\n    while True:\n        subprocess.Popen(['sleep', '300'])\nexcept OSError:\n    print('full')"
    async with ContainerProvider().open(SandboxSpec(limits=Limits(processes=30))) as sandbox:
        assert (await sandbox.exec(["python3", "-c", fill])).stdout == b"full\n"
        result = await sandbox.exec(["sh", "-c", "echo in; (true) || exit 3"])
        assert result.stdout == b"in\n" and not result.ok


async def test_a_container_that_something_outside_ends_is_lost_and_nothing_goes_on_without_it() -> None:
    async with ContainerProvider().open(SandboxSpec()) as sandbox:
        process = await sandbox.start(["sleep", "100"])
        [container] = await ContainerEngine(SETTINGS).left(default_root())
        await ContainerEngine(SETTINGS).remove(container)
        for call in (process.wait, sandbox.changed, partial(sandbox.exec, ["true"])):
            with pytest.raises(SandboxLost):
                await call()


async def test_an_exec_that_is_cancelled_while_the_container_starts_leaves_none_and_the_next_has_its_own() -> (
    None
):
    async with ContainerProvider().open(SandboxSpec()) as sandbox:
        for after_s in (0.05, 0.3, 0.6):
            with anyio.move_on_after(after_s):
                await sandbox.exec(["sleep", "100"])
        assert (await sandbox.exec(["true"])).ok
        assert len(await ContainerEngine(SETTINGS).left(default_root())) == 1
    assert not await ContainerEngine(SETTINGS).left(default_root())


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "unseen"])
async def test_where_programs_cannot_be_distinguished_one_that_is_ended_takes_all_along(
    seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a user in docker's group (no control group can be made), or with gVisor (no process can be seen)."""

    def refused(*_: object) -> None:
        raise PermissionError

    if seen:
        monkeypatch.setattr(Cgroup, "part", refused)
    else:
        monkeypatch.setattr("sandboxes.container.session.procfs.marked", lambda *_: iter(()))
    held, ended = long_sleep(), long_sleep()
    async with ContainerProvider().open(SandboxSpec()) as sandbox:
        assert (await sandbox.exec(["sh", "-c", f"sleep {held} & exit 3"])).exit_code == 3
        assert (await sandbox.exec(["true"])).ok and sleepers(held), "what it left running is gone"
        assert (
            await sandbox.exec(["sh", "-c", f"setsid sleep {ended} & sleep 100"], timeout_s=4.0)
        ).timed_out
        assert not sleepers(held) and not sleepers(ended)
        late = "(sh -c 'trap \"echo 1 >late; exit\" TERM; echo >up; while :; do sleep 0.05; done' &); while [ ! -e up ]; do sleep 0.05; done"
        assert (await sandbox.exec(["sh", "-c", late])).ok, "the sandbox is unusable afterwards"
        assert "late" in (await sandbox.changed()).added, (
            "a program that writes on SIGTERM had no time for it"
        )
        assert (await sandbox.exec(["sh", "-c", f"sleep {held} &"])).ok
    assert not sleepers(held) and not await ContainerEngine(SETTINGS).left(default_root())
    async with ContainerProvider().open(SandboxSpec(background=False)) as sandbox:
        assert (await sandbox.exec(["sh", "-c", f"setsid sleep {held} & exit 4"])).exit_code == 4
        assert not sleepers(held), "it is left running where nothing may"


async def test_a_container_by_which_an_image_was_read_goes_with_who_read_it_and_not_before() -> None:
    engine, lives = ContainerEngine(SETTINGS), Owner.current()
    dead = replace(lives, pid=2**22, start=1)
    made = []
    for owner in (lives, dead):
        labels = (f"--label={LABEL}=reader:{owner}", f"--label={ROOT}={default_root()}")
        made.append(
            (await engine.must("create", *labels, "localhost/penstock-sandbox", "true")).decode().split()[-1]
        )
    try:
        async with ContainerProvider().open(SandboxSpec()):
            assert made[0] in (left := await engine.left(default_root())) and made[1] not in left
    finally:
        await engine.remove(*made)
    assert not await engine.left(default_root()), "one that is gone keeps the others from being removed"


async def test_the_commands_for_docker_run_as_they_are(tmp_path: Path) -> None:
    """podman takes docker's flags. tests/unit/sandboxes/test_container.py checks them with docker's own parser where docker is
    installed."""
    record, shim = tmp_path / "argv", tmp_path / "docker"
    shim.write_text(
        SHIM.format(python=sys.executable, record=str(record), options=list(SETTINGS.global_options))
    )
    shim.chmod(0o755)
    provider = ContainerProvider(ContainerSettings(engine=str(shim), image=SETTINGS.image))
    async with provider.open(SandboxSpec(env={"TOKEN": "secret-1"})) as sandbox:
        result = await sandbox.exec(["sh", "-c", "echo $TOKEN"], env={"OTHER": "secret-2"})
        assert result.stdout == b"secret-1\n"
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    [run] = [line for line in lines if line[0] == "run"]
    assert "--read-only" in run and not any(word.startswith("--read-only-tmpfs") for word in run)
    assert not any("secret" in word for line in lines for word in line), "a token stands on a command line"
    assert os.environ.get("TOKEN") is None


@pytest.mark.parametrize("work", sorted(TAKES))
async def test_work_in_a_place_of_the_sandbox_is_kept_and_what_is_the_sandboxs_own_is_not(work: str) -> None:
    dockerfile = f"FROM localhost/penstock-sandbox\nWORKDIR {work}\nRUN echo seed >seed\n".encode()
    own = {"/home/agent/.own": File(b"home"), "/tmp/own": File(b"tmp"), "/solution/own": File(b"solution")}
    spec = SandboxSpec(build={"Dockerfile": File(dockerfile)}, files=own)
    async with ContainerProvider().open(spec) as sandbox:
        script = (
            'pwd; cat seed; grep ^agent: /etc/passwd | cut -d: -f6; echo "$HOME $TMPDIR"; cat "$@" && '
            f'echo 1 >{work}/new && echo 2 >"$HOME/mine" && echo 3 >"$TMPDIR/x" && rm seed'
        )
        result = await sandbox.exec(["sh", "-c", script, "sh", *map(sandbox.path, own)])
        home, temporary = map(sandbox.path, ("/home/agent", "/tmp"))
        lines = result.stdout.decode().splitlines()
        assert lines == [work, "seed", home, f"{home} {temporary}", "hometmpsolution"], result
        assert [home.startswith(ASIDE), temporary.startswith(ASIDE)] == [
            work.startswith("/home"),
            work == "/tmp",
        ]
        found = await sandbox.changed()
        assert (set(found.added), set(found.modified), found.deleted) == ({"new"}, set(), ("seed",))
        assert await sandbox.get("/home/agent/mine") == b"2\n" and await sandbox.get("/app/new") == b"1\n"
