"""The commands that the provider `container` sends to engines, and its reports of them; ./ops/test --tier containers runs it over a real one."""

import errno
import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sandboxes import seccomp
from sandboxes.base import (
    BuildEntry,
    File,
    Folder,
    ImageRefused,
    Limits,
    Link,
    MachineFault,
    SandboxError,
    SandboxSpec,
    SideService,
)
from sandboxes.build_context import sent
from sandboxes.container.engine import ContainerEngine, ContainerRun, Mount, ServiceRun, profile
from sandboxes.container.image import image_name, made
from sandboxes.container.provider import ContainerProvider
from sandboxes.container.settings import ContainerSettings
from sandboxes.inside import confine

pytestmark = pytest.mark.anyio

RUN = ContainerRun(
    name="penstock-1-1",
    image="image:1",
    user="7:7",
    own_user=True,
    limits=Limits(memory_mb=64, processes=8, cpu_s=1.5, disk_mb=2),
    mounts=[Mount(Path("/here/app"), "/app", writable=True), Mount(Path("/here/tests"), "/tests")],
    labels={"penstock.sandbox": "1"},
    marks={"PENSTOCK_SANDBOX": "1"},
    seccomp=Path("/here/seccomp.json"),
    script="the script",
    argv=["session-1"],
)
FIXED = [
    "--ulimit=core=0:0", "--ulimit=nofile=4096:4096", "--ulimit=stack=8388608:-1", "--ulimit=memlock=8388608:8388608", "--ulimit=rss=-1:-1",
    "--ulimit=locks=-1:-1", "--ulimit=sigpending=1024:1024", "--ulimit=msgqueue=819200:819200", "--ulimit=nice=0:0", "--ulimit=rtprio=0:0",
    "--ulimit=rttime=-1:-1",
]  # fmt: skip
COMMON = [
    "--rm", "--detach", "--name=penstock-1-1", "--pull=never", "--log-driver=none", "--network=none", "--hostname=sandbox", "--ipc=private",
    "--cgroupns=private", "--no-healthcheck", "--read-only", "--cap-drop=all", "--security-opt=no-new-privileges",
    "--security-opt=label=disable", "--security-opt=seccomp=/here/seccomp.json", "--user=7:7", "--workdir=/", "--memory=64m",
    "--memory-swap=64m", "--shm-size=64m", "--pids-limit=34", *FIXED, "--ulimit=nproc=10:10",
    "--ulimit=fsize=2097152:2097152", "--ulimit=cpu=3:3", "--mount", "type=tmpfs,target=/sys,tmpfs-mode=0555",
]  # fmt: skip
REST = [
    "--label=penstock.sandbox=1",
    "--env=PENSTOCK_SANDBOX=1",
    "--mount",
    "type=bind,source=/here/app,target=/app",
    "--mount",
    "type=bind,source=/here/tests,target=/tests,readonly",
]
NO_PROXIES = [
    f"--env={name}="
    for each in ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
    for name in (each, each.upper())
]
TAIL = ["--entrypoint=/bin/sh", "image:1", "-c", "the script", "sh", "session-1"]


@pytest.fixture(autouse=True)
def privileged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confine, "may_raise", lambda: True)


def test_without_privilege_an_engine_gets_no_more_than_our_own_hard_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(confine, "may_raise", lambda: False)
    monkeypatch.setattr("resource.getrlimit", lambda _: (100, 1000))
    words = ContainerEngine(ContainerSettings()).run(RUN)
    assert {"--ulimit=core=0:0", "--ulimit=nofile=1000:1000", "--ulimit=stack=1000:1000"} < {*words}


def test_the_command_of_podman_is_exactly_this() -> None:
    engine = ContainerEngine(
        ContainerSettings(
            runtime="crun", cpus=1.5, global_options=("--log-level=error",), run_options=("--tz=UTC",)
        )
    )
    own = [
        "--read-only-tmpfs=false",
        "--image-volume=ignore",
        "--passwd=false",
        "--systemd=false",
        "--http-proxy=false",
    ]
    assert engine.command == ["podman", "--log-level=error", "--runtime=crun"]
    assert engine.run(RUN) == ["run", *COMMON, *own, "--cpus=1.5", *REST, "--tz=UTC", *TAIL]


def test_a_program_is_led_into_its_container_with_its_own_user_and_nothing_else() -> None:
    words = ContainerEngine(ContainerSettings()).exec("penstock-1-1", "7:7", "the script", ["/app", "true"])
    assert words == [
        *("exec", "--user=7:7", "--workdir=/", "penstock-1-1"),
        *("/bin/sh", "-c", "the script", "sh", "/app", "true"),
    ]


def test_where_users_are_shared_the_containers_own_limit_of_processes_is_exact() -> None:
    words = ContainerEngine(ContainerSettings()).run(replace(RUN, own_user=False))
    assert "--pids-limit=8" in words and "--ulimit=nproc=32768:32768" in words


def test_the_command_of_docker_is_exactly_this() -> None:
    engine = ContainerEngine(ContainerSettings(engine="/opt/docker", runtime="runsc"))
    assert engine.command == ["/opt/docker"]
    label, *rest = REST
    assert engine.run(RUN) == ["run", *COMMON, "--runtime=runsc", label, *NO_PROXIES, *rest, *TAIL]


def test_docker_gives_a_container_no_proxy_of_its_user_unless_the_task_names_one() -> None:
    docker, podman = (ContainerEngine(ContainerSettings(engine=name)) for name in ("docker", "podman"))
    service = replace(SERVICE.service, env={"http_proxy": "http://proxy:1"})
    for words in (docker.run(RUN), docker.serve(SERVICE)):
        assert set(words) >= set(NO_PROXIES) and len(NO_PROXIES) == 10
    words = docker.serve(replace(SERVICE, service=service))
    assert "--env=http_proxy=http://proxy:1" in words and "--env=http_proxy=" not in words
    assert "--env=HTTP_PROXY=" in words
    for words in (podman.run(RUN), podman.serve(SERVICE)):
        assert "--http-proxy=false" in words and not set(words) & set(NO_PROXIES)


SERVICE = ServiceRun(
    name="penstock-1-services-1",
    image="image:2",
    shares="penstock-1-services",
    service=SideService(
        name="db",
        build={},
        shown="image:2",
        entrypoint=("serve", "--fast"),
        command=("--port", "80"),
        env={"A": "b c", "PENSTOCK_SANDBOX": "another"},
        work_dir="/srv",
        user="7",
        volumes=("/data",),
    ),
    limits=Limits(memory_mb=64, processes=8, disk_mb=2),
    hosts=Mount(Path("/here/hosts"), "/etc/hosts"),
    labels={"penstock.sandbox": "1"},
    marks={"PENSTOCK_SANDBOX": "1"},
    seccomp=Path("/here/seccomp.json"),
)


def test_the_command_of_a_side_service_is_exactly_this() -> None:
    common = [
        "--rm", "--name=penstock-1-services-1", "--pull=never", "--log-driver=none", "--sig-proxy=false",
        "--network=container:penstock-1-services", "--pid=container:penstock-1-services", "--ipc=private", "--cgroupns=private",
        "--no-healthcheck", "--cap-drop=all", "--cap-add=CHOWN", "--cap-add=DAC_OVERRIDE", "--cap-add=FOWNER", "--cap-add=KILL",
        "--cap-add=NET_BIND_SERVICE", "--cap-add=SETGID", "--cap-add=SETUID", "--security-opt=no-new-privileges",
        "--security-opt=label=disable", "--security-opt=seccomp=/here/seccomp.json", "--memory=64m", "--memory-swap=64m",
        "--shm-size=64m", "--pids-limit=32", *FIXED, "--ulimit=nproc=32768:32768",
        "--ulimit=fsize=2097152:2097152", "--mount", "type=tmpfs,target=/sys,tmpfs-mode=0555",
        "--mount", "type=bind,source=/here/hosts,target=/etc/hosts,readonly",
    ]  # fmt: skip
    rest = [
        "--label=penstock.sandbox=1",
        "--env=A=b c",
        "--env=PENSTOCK_SANDBOX=1",
        "--volume=/data",
        "--user=7",
        "--workdir=/srv",
        "--entrypoint=serve",
    ]
    tail = ["image:2", "--fast", "--port", "80"]
    podman = ContainerEngine(ContainerSettings(cpus=1.5, run_options=("--tz=UTC",)))
    own = ["--systemd=false", "--http-proxy=false", "--cpus=1.5"]
    assert podman.serve(SERVICE) == ["run", *common, *own, *rest, "--tz=UTC", *tail]
    docker = ContainerEngine(ContainerSettings(engine="docker", runtime="runsc"))
    assert docker.serve(SERVICE) == [
        "run",
        *common,
        "--runtime=runsc",
        rest[0],
        *NO_PROXIES,
        *rest[1:],
        *tail,
    ]
    image_alone = replace(SERVICE, service=SideService(name="db", build={}, shown="x"))
    assert podman.serve(image_alone)[-1] == "image:2"
    assert not any(word.startswith("--entrypoint") for word in podman.serve(image_alone))


def test_a_container_with_the_network_of_another_gets_a_name_from_podman_alone() -> None:
    run = replace(RUN, shares="penstock-1-services")
    words = [ContainerEngine(ContainerSettings(engine=each)).run(run) for each in ("podman", "docker")]
    assert all(
        "--network=container:penstock-1-services" in each and "--network=none" not in each for each in words
    )
    assert ["--hostname=sandbox" in each for each in words] == [True, False]


@pytest.mark.skipif(shutil.which("docker") is None, reason="docker's client is not installed")
def test_dockers_own_parser_takes_the_command() -> None:
    where = ["docker", "--host=unix:///nonexistent/docker.sock"]
    engine = ContainerEngine(ContainerSettings(engine="docker"))
    command = [*where, *engine.run(RUN)]
    command[command.index("--security-opt=seccomp=/here/seccomp.json")] = (
        "--security-opt=seccomp=unconfined"  # it reads the file
    )
    done = subprocess.run(command, capture_output=True, text=True)
    assert "flag" not in done.stderr and "daemon" in done.stderr, done.stderr
    enter = engine.exec("penstock-1-1", "7:7", "the script", ["/app", "true"])
    done = subprocess.run([*where, *enter], capture_output=True, text=True)
    assert "flag" not in done.stderr and "daemon" in done.stderr, done.stderr
    wrong = subprocess.run([*where, "run", "--read-only-tmpfs=false", "x"], capture_output=True, text=True)
    assert "unknown flag" in wrong.stderr  # a parser that accepted everything would prove nothing


def test_the_filter_is_that_of_bubblewrap_call_by_call() -> None:
    found = profile()
    assert found is not None and found["defaultAction"] == "SCMP_ACT_ALLOW"
    plain = {name for rule in found["syscalls"] if "args" not in rule for name in rule["names"]}
    assert plain == (seccomp.DENIED.keys() | seccomp.ABSENT.keys()) & seccomp.numbers().keys()
    families = {
        rule["args"][0]["valueTwo"]
        for rule in found["syscalls"]
        if rule["names"] == ["socket"] and rule["args"][0]["op"] == "SCMP_CMP_MASKED_EQ"
    }
    assert families | set(seccomp.FAMILIES) == set(range(max(seccomp.FAMILIES) + 1))
    thread = {"index": 0, "op": "SCMP_CMP_MASKED_EQ", "value": 0x1_0400, "valueTwo": 0x1_0000}
    own_files = {"index": 2, "op": "SCMP_CMP_MASKED_EQ", "value": 2, "valueTwo": 2}
    checks = [(rule["names"], rule["args"]) for rule in found["syscalls"] if "args" in rule]
    assert (["clone"], [thread]) in checks and (["close_range"], [own_files]) in checks
    unsupported = [rule for rule in found["syscalls"] if rule["errnoRet"] == errno.EOPNOTSUPP]
    (space,) = (rule["args"] for rule in unsupported if rule["names"] == ["fallocate"])
    assert space == [{"index": 1, "op": "SCMP_CMP_MASKED_EQ", "value": seccomp.FREEING, "valueTwo": 0}]
    requests = {rule["args"][0]["valueTwo"] for rule in unsupported if rule["names"] == ["ioctl"]}
    assert requests == set(seccomp.PREALLOCATING)


def test_an_engine_that_is_neither_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="engine: must be podman or docker"):
        ContainerSettings(engine="nerdctl")


def test_a_path_that_an_engine_would_misread_is_refused() -> None:
    for path in ("/a,readonly=false", '/a"b', "/a\nb", "/a\rb"):
        with pytest.raises(ValueError, match="rename it without comma"):
            _ = Mount(Path(path), "/x").option


def test_one_build_context_has_one_name() -> None:
    digest = partial(image_name, ContainerEngine(ContainerSettings()))
    one, two = File(b"1"), File(b"2")
    assert (
        digest({"a": one, "b": two})
        == digest({"b": two, "a": one})
        != digest({"a": File(b"12"), "b": File(b"")})
    )
    names = {digest({"a": entry}) for entry in (one, File(b"1", 0o755), Link("1"), Folder(), Folder(0o700))}
    assert len(names) == 5


async def test_an_image_is_built_again_with_other_build_options_and_only_then(root: Path) -> None:
    built = root / "built"
    shim = engine(
        root,
        f"""import pathlib
built = pathlib.Path({str(built)!r})
known = built.read_text().split() if built.exists() else []
if sys.argv[1] == "build":
    known += [word.partition("=")[2] for word in sys.argv if word.startswith("--tag=")]
    built.write_text(" ".join(known))
elif sys.argv[1:3] == ["image", "inspect"] and sys.argv[-1] not in known:
    sys.exit(1)
""",
    )
    names = []
    for options in ((), ("--build-arg=A=1",), ("--build-arg=A=2",), ("--build-arg=A=1",), ()):
        settings = ContainerSettings(engine=str(shim), build_options=options)
        names.append(await made(ContainerEngine(settings), {"Dockerfile": File(b"FROM x")}, 60.0))
    plain, one, two, *again = names
    assert again == [one, plain] and built.read_text().split() == [plain, one, two]


@pytest.mark.parametrize("name", [".dockerignore", "Dockerfile.dockerignore"])
async def test_an_engine_gets_a_build_context_without_what_its_ignore_file_leaves_out(
    root: Path, name: str
) -> None:
    shim = engine(
        root,
        f"""import io, tarfile
if sys.argv[1] == "build":
    with tarfile.open(fileobj=io.BytesIO(sys.stdin.buffer.read())) as archive:
        open({str(root / "sent")!r}, "w").write(json.dumps(archive.getnames()))
elif sys.argv[1:3] == ["image", "inspect"]:
    sys.exit(1)
""",
    )
    container = ContainerEngine(ContainerSettings(engine=str(shim)))
    context: dict[str, BuildEntry] = {
        "Dockerfile": File(b"FROM x\nCOPY . .\n"),
        name: File(b"*\n!kept\nkept/*.log\n"),
        "kept/a": File(b"1"),
        "kept/b.log": File(b"2"),
        "link": Link("kept/a"),
        "secret/c": File(b"3"),
        "empty": Folder(),
    }
    if name != ".dockerignore":
        context[".dockerignore"] = File(b"kept\n")  # the other one counts
    await made(container, context, 60.0)
    assert json.loads((root / "sent").read_text()) == sorted(["Dockerfile", name, "kept/a"])
    with pytest.raises(
        ImageRefused, match=r"^environment/Dockerfile: the pattern 'a\*\*b' of its .*ignore is not read"
    ):
        await made(container, {**context, name: File(b"a**b\n")}, 60.0)


def test_an_engine_gets_no_other_ignore_file_than_the_one_that_counts() -> None:
    others = (".dockerignore", ".containerignore", "Dockerfile.containerignore")
    context: dict[str, BuildEntry] = {
        "Dockerfile": File(b"FROM x\nCOPY . .\n"),
        "Dockerfile.dockerignore": File(b"secret\n"),
        "kept": File(b"1"),
        "secret": File(b"2"),
        **{name: File(b"kept\n") for name in others},
    }
    assert sorted(sent(context, "a", time.monotonic() + 3600)) == [
        "Dockerfile",
        "Dockerfile.dockerignore",
        "kept",
    ]
    del context["Dockerfile.dockerignore"]
    assert sorted(sent(context, "a", time.monotonic() + 3600)) == [".dockerignore", "Dockerfile", "secret"]


@pytest.mark.parametrize("patterns", [b"x\n" * 2000, b"x" * 300_000])
def test_an_ignore_file_that_is_too_large_is_refused_before_it_is_read(patterns: bytes) -> None:
    context: dict[str, BuildEntry] = {"Dockerfile": File(b"FROM x\n"), ".dockerignore": File(patterns)}
    with pytest.raises(ImageRefused, match=r"^a: its .dockerignore is larger than 2,000 lines"):
        sent(context, "a", time.monotonic() + 3600)


def test_the_time_of_an_ignore_file_is_part_of_the_builds() -> None:
    context: dict[str, BuildEntry] = {"Dockerfile": File(b"FROM x\n"), ".dockerignore": File(b"x\n")}
    with pytest.raises(ImageRefused, match=r"^a: its .dockerignore takes longer than the build may"):
        sent(context, "a", time.monotonic() - 1)


@pytest.mark.parametrize(("entry", "kind"), [(Link("ignored"), "a link"), (Folder(), "a directory")])
async def test_an_ignore_file_that_is_none_is_refused_by_name(
    root: Path, entry: BuildEntry, kind: str
) -> None:
    shim = engine(root, "sys.exit(sys.argv[1] == 'image')")
    context: dict[str, BuildEntry] = {"Dockerfile": File(b"FROM x\n"), ".dockerignore": entry}
    with pytest.raises(
        ImageRefused, match=f"^environment/Dockerfile: its .dockerignore is {kind}: write the file"
    ):
        await made(ContainerEngine(ContainerSettings(engine=str(shim))), context, 60.0)


AWAY = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
FULL = "write /var/lib/docker/tmp/x: no space left on device"


@pytest.mark.parametrize(
    ("does", "error", "sentence"),
    [
        (f"sys.exit({AWAY!r})", MachineFault, "podman does not answer: Cannot connect to the Docker daemon"),
        # It goes away during the build.
        (
            f"""import os
away = sys.argv[0] + ".away"
if sys.argv[1] == "image":
    sys.exit("No such image")
if sys.argv[1] == "build":
    open(away, "w").close()
if os.path.exists(away):
    sys.exit({AWAY!r})
""",
            MachineFault,
            "podman does not answer: Cannot connect to the Docker daemon",
        ),
        (
            f"sys.exit({{'image': 'No such image', 'build': {FULL!r}}}.get(sys.argv[1]))",
            MachineFault,
            "the disk of .*podman is full: .*no space left",
        ),
        (
            f"sys.exit({{'image': 'No such image', 'build': {FULL!r} + chr(10) + 'exit code: 1'}}.get(sys.argv[1]))",
            ImageRefused,
            "^environment/Dockerfile: its build by .*podman failed",
        ),
    ],
)
async def test_a_build_that_the_engine_fails_is_not_the_tasks_fault(
    root: Path, does: str, error: type[Exception], sentence: str
) -> None:
    container = ContainerEngine(ContainerSettings(engine=str(engine(root, does))))
    with pytest.raises(error, match=sentence):
        await made(container, {"Dockerfile": File(b"FROM x")}, 60.0)


async def test_an_engine_that_is_away_is_a_problem_and_its_images_are_not(root: Path) -> None:
    shim = engine(root, f"sys.exit({AWAY!r})")
    [problem] = await ContainerProvider(ContainerSettings(engine=str(shim), image="x")).problems()
    assert problem.startswith(f"{shim} does not answer: Cannot connect to the Docker daemon")


async def test_an_engine_that_is_missing_and_an_image_that_was_not_named_are_problems(root: Path) -> None:
    [missing] = await ContainerProvider(ContainerSettings(engine="/absent/podman", image="x")).problems()
    assert (
        missing == "/absent/podman is not installed: install it, or choose another sandbox.container.engine."
    )
    shim = engine(root, "")
    [unnamed] = await ContainerProvider(ContainerSettings(engine=str(shim))).problems()
    assert unnamed.startswith("sandbox.container.image: name the image")


async def test_an_engine_that_cannot_start_a_container_is_the_platforms_failure_and_says_why(
    root: Path,
) -> None:
    shim = engine(root, "if sys.argv[1] == 'run':\n    sys.exit('no space left on device')\n")
    async with ContainerProvider(ContainerSettings(engine=str(shim), image="x")).open(
        SandboxSpec()
    ) as sandbox:
        with pytest.raises(SandboxError, match=r"did not start a container .*no space left on device"):
            await sandbox.exec(["true"])
        [run] = [line for line in recorded(root) if line[0] == "run"]
        assert f"--name=penstock-{sandbox.id}-1" in run and run[-2:] == ["sh", "session-1"]
        assert ["rm", "--force", "--volumes", "--ignore", f"penstock-{sandbox.id}-1"] in recorded(root)


async def test_a_model_cannot_reach_the_engine_with_arguments(root: Path) -> None:
    shim = engine(root, "")
    async with ContainerProvider(ContainerSettings(engine=str(shim), image="x")).open(
        SandboxSpec()
    ) as sandbox:
        for argument in ("a\0b", "\ud800"):
            assert (await sandbox.exec(["echo", argument])).exit_code == 126
        assert not [line for line in recorded(root) if line[0] == "exec"]


def engine(directory: Path, does: str) -> Path:
    """A podman that records its arguments, and then runs the code `does`."""
    shim = directory / "podman"
    head = f"#!{sys.executable}\nimport json, sys\nwith open({str(directory / 'argv')!r}, 'a') as f:\n"
    shim.write_text(f"{head}    f.write(json.dumps(sys.argv[1:]) + '\\n')\n{does}")
    shim.chmod(0o755)
    return shim


def recorded(directory: Path) -> list[list[str]]:
    return [json.loads(line) for line in (directory / "argv").read_text().splitlines()]


async def test_of_an_engine_that_prints_without_end_the_last_is_kept(tmp_path: Path) -> None:
    script = tmp_path / "podman"
    script.write_text(
        "#!/bin/sh\ncat > /dev/null\nhead -c 3000000 /dev/zero >&2\necho >&2 no such file\necho layer\nexit 3\n"
    )
    script.chmod(0o755)
    done = await ContainerEngine(ContainerSettings(engine=str(script))).call(
        "build", "-", stdin=b"x" * 1_000_000
    )
    assert (done.returncode, done.stdout, len(done.stderr)) == (3, b"layer\n", 1 << 20)
    assert done.stderr.endswith(b"no such file\n")


async def test_an_answer_that_was_cut_is_none(tmp_path: Path) -> None:
    script = tmp_path / "podman"
    script.write_text("#!/bin/sh\nhead -c 3000000 /dev/zero\n")
    script.chmod(0o755)
    with pytest.raises(SandboxError, match="podman ps printed more than 1 MiB"):
        await ContainerEngine(ContainerSettings(engine=str(script))).must("ps")


async def test_an_engine_that_ends_before_it_has_read_its_input_says_why(tmp_path: Path) -> None:
    script = tmp_path / "podman"
    script.write_text("#!/bin/sh\necho >&2 no daemon\nexit 1\n")
    script.chmod(0o755)
    done = await ContainerEngine(ContainerSettings(engine=str(script))).call(
        "build", "-", stdin=b"x" * 5_000_000
    )
    assert (done.returncode, done.stderr) == (1, b"no daemon\n")
