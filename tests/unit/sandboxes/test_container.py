"""What the provider `container` says to engines, and of them; ./ops/test --tier containers runs it over a real one."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxes import seccomp
from sandboxes.base import Limits, SandboxError, SandboxSpec
from sandboxes.container.engine import Engine, Mount, Run, profile
from sandboxes.container.image import digest
from sandboxes.container.provider import ContainerProvider
from sandboxes.container.settings import ContainerSettings

pytestmark = pytest.mark.anyio

RUN = Run(
    "penstock-1-1", "image:1", "7:7", True, Limits(memory_mb=64, processes=8, cpu_s=1.5, disk_mb=2),
    [Mount(Path("/here/app"), "/app", writable=True), Mount(Path("/here/tests"), "/tests")],
    {"penstock.sandbox": "1"}, {"PENSTOCK_SANDBOX": "1"}, Path("/here/seccomp.json"), "the script", ["/app", "true"],
)  # fmt: skip
COMMON = [
    "--rm", "--interactive", "--attach=stdin", "--attach=stdout", "--attach=stderr", "--name=penstock-1-1", "--pull=never",
    "--log-driver=none", "--sig-proxy=false", "--network=none", "--ipc=private", "--cgroupns=private", "--hostname=sandbox",
    "--no-healthcheck", "--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", "--security-opt=label=disable",
    "--security-opt=seccomp=/here/seccomp.json", "--user=7:7", "--workdir=/", "--memory=64m", "--memory-swap=64m",
    "--shm-size=64m", "--pids-limit=8", "--ulimit=core=0:0", "--ulimit=nofile=4096:4096", "--ulimit=nproc=10:10",
    "--ulimit=fsize=2097152:2097152", "--ulimit=cpu=3:3", "--mount", "type=tmpfs,target=/sys,tmpfs-mode=0555",
]  # fmt: skip
REST = [
    "--label=penstock.sandbox=1", "--env=PENSTOCK_SANDBOX=1",
    "--mount", "type=bind,source=/here/app,target=/app", "--mount", "type=bind,source=/here/tests,target=/tests,readonly",
]  # fmt: skip
TAIL = ["--entrypoint=/bin/sh", "image:1", "-c", "the script", "sh", "/app", "true"]


def test_the_command_of_podman_is_exactly_this() -> None:
    engine = Engine(
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
    begin = ["podman", "--log-level=error", "--runtime=crun", "run"]
    assert engine.run(RUN) == [*begin, *COMMON, *own, "--cpus=1.5", *REST, "--tz=UTC", *TAIL]


def test_the_command_of_docker_is_exactly_this() -> None:
    engine = Engine(ContainerSettings(engine="/opt/docker", runtime="runsc"))
    assert engine.run(RUN) == ["/opt/docker", "run", *COMMON, "--runtime=runsc", *REST, *TAIL]


@pytest.mark.skipif(shutil.which("docker") is None, reason="docker's client is not installed")
def test_dockers_own_parser_takes_the_command() -> None:
    where = ["docker", "--host=unix:///nonexistent/docker.sock"]
    command = Engine(ContainerSettings(engine="docker")).run(RUN)
    command = [*where, *command[1:]]
    command[command.index("--security-opt=seccomp=/here/seccomp.json")] = (
        "--security-opt=seccomp=unconfined"  # it reads the file
    )
    done = subprocess.run(command, capture_output=True, text=True)
    assert "flag" not in done.stderr and "daemon" in done.stderr, done.stderr
    wrong = subprocess.run([*where, "run", "--read-only-tmpfs=false", "x"], capture_output=True, text=True)
    assert "unknown flag" in wrong.stderr  # a parser that took everything would prove nothing


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


def test_an_engine_that_is_neither_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="engine: must be podman or docker"):
        ContainerSettings(engine="nerdctl")


def test_a_path_that_an_engine_would_misread_is_refused() -> None:
    with pytest.raises(ValueError, match="rename it without comma"):
        _ = Mount(Path("/a,readonly=false"), "/x").option


def test_one_build_context_has_one_name() -> None:
    assert digest({"a": b"1", "b": b"2"}) == digest({"b": b"2", "a": b"1"}) != digest({"a": b"12", "b": b""})


async def test_an_engine_that_is_missing_and_an_image_that_was_not_named_are_problems(root: Path) -> None:
    [missing] = await ContainerProvider(ContainerSettings(engine="/absent/podman", image="x")).problems()
    assert (
        missing == "/absent/podman is not installed: install it, or choose another sandbox.container.engine."
    )
    shim = engine(root, "")
    [unnamed] = await ContainerProvider(ContainerSettings(engine=str(shim))).problems()
    assert unnamed.startswith("sandbox.container.image: name the image")


async def test_an_engine_that_cannot_start_a_program_is_the_platforms_failure_and_says_why(
    root: Path,
) -> None:
    shim = engine(root, "if sys.argv[1] == 'run':\n    sys.exit('no space left on device')\n")
    async with ContainerProvider(ContainerSettings(engine=str(shim), image="x")).open(
        SandboxSpec()
    ) as sandbox:
        with pytest.raises(SandboxError, match=r"did not start a program .*no space left on device"):
            await sandbox.exec(["true"])
        [run] = [line for line in recorded(root) if line[0] == "run"]
        assert f"--name=penstock-{sandbox.id}-1" in run and run[-2:] == ["/app", "true"]
        assert ["rm", "--force", f"penstock-{sandbox.id}-1"] in recorded(root)


async def test_a_model_cannot_reach_the_engine_with_arguments(root: Path) -> None:
    shim = engine(root, "")
    async with ContainerProvider(ContainerSettings(engine=str(shim), image="x")).open(
        SandboxSpec()
    ) as sandbox:
        for argument in ("a\0b", "\ud800"):
            assert (await sandbox.exec(["echo", argument])).exit_code == 126
        assert not [line for line in recorded(root) if line[0] == "run"]


def engine(directory: Path, does: str) -> Path:
    """A podman that writes down what it is told, and does what it is told to do."""
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
    done = await Engine(ContainerSettings(engine=str(script))).call("build", "-", stdin=b"x" * 1_000_000)
    assert (done.returncode, done.stdout, len(done.stderr)) == (3, b"layer\n", 1 << 20)
    assert done.stderr.endswith(b"no such file\n")


async def test_an_answer_that_was_cut_is_none(tmp_path: Path) -> None:
    script = tmp_path / "podman"
    script.write_text("#!/bin/sh\nhead -c 3000000 /dev/zero\n")
    script.chmod(0o755)
    with pytest.raises(SandboxError, match="podman ps printed more than 1 MiB"):
        await Engine(ContainerSettings(engine=str(script))).must("ps")


async def test_an_engine_that_ends_before_it_has_read_its_input_says_why(tmp_path: Path) -> None:
    script = tmp_path / "podman"
    script.write_text("#!/bin/sh\necho >&2 no daemon\nexit 1\n")
    script.chmod(0o755)
    done = await Engine(ContainerSettings(engine=str(script))).call("build", "-", stdin=b"x" * 5_000_000)
    assert (done.returncode, done.stderr) == (1, b"no daemon\n")
