"""The provider `container` over a real podman: the suite of the port, images, and what a killed owner leaves."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from sandboxes.base import File, ImageRefused, Limits, SandboxSpec
from sandboxes.conformance import CHECKS, Check, run_check
from sandboxes.container.engine import LABEL, ROOT, Engine
from sandboxes.container.provider import ContainerProvider
from sandboxes.container.settings import ContainerSettings
from sandboxes.effective import observe
from sandboxes.owner import Owner
from sandboxes.reap import default_root
from tests.containers.conftest import SETTINGS

pytestmark = pytest.mark.anyio

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


@pytest.mark.parametrize("check", CHECKS, ids=[each.name for each in CHECKS])
async def test_podman_keeps_every_promise(check: Check) -> None:
    result = await run_check(ContainerProvider(), check)
    assert result.passed, result.detail


async def test_a_dockerfile_is_built_once_and_its_work_directory_is_the_sandboxs() -> None:
    context = {"Dockerfile": DOCKERFILE, "a.txt": b"hello"}
    spec = SandboxSpec(build=context, files={"/app/placed": File(b"x")}, env={"B": "spec"})
    for _ in range(2):
        async with ContainerProvider().open(spec) as sandbox:
            result = await sandbox.exec(
                ["sh", "-c", 'pwd; ls; echo "$A $B $PATH"; cat link; echo 1 >new; rm made']
            )
            said = result.stdout.decode().split("\n")
            assert said == [
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


async def test_a_dockerfile_that_cannot_be_built_is_the_tasks_mistake() -> None:
    with pytest.raises(ValueError, match=r"environment/Dockerfile cannot be built by podman: .*false"):
        async with ContainerProvider().open(
            SandboxSpec(build={"Dockerfile": b"FROM localhost/penstock-sandbox\nRUN false\n"})
        ):
            pass


@pytest.mark.parametrize("work", ["/", "/usr/src", "/tests"])
async def test_a_work_directory_that_is_taken_is_named(work: str) -> None:
    dockerfile = f"FROM localhost/penstock-sandbox\nWORKDIR {work}\n".encode()
    with pytest.raises(ValueError, match=f"WORKDIR {work} is taken"):
        async with ContainerProvider().open(SandboxSpec(build={"Dockerfile": dockerfile})):
            pass


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("truncate -s 300M hole", "a file of more than 64 MB|more than 64 MB"),
        ("head -c 40M /dev/zero >a && ln a b", r"more than 64 MB \(sandbox.disk_mb"),
        ("mkfifo pipe", "what is no file, directory or link: 'pipe'"),
        ("for n in $(seq 60); do echo >$n; done", "more than 50 files and directories"),
    ],
    ids=["hole", "hard link", "pipe", "crowd"],
)
async def test_what_no_sandbox_takes_of_an_image_is_the_tasks_mistake(made: str, said: str) -> None:
    dockerfile = f"FROM localhost/penstock-sandbox\nWORKDIR /srv\nRUN {made}\n".encode()
    spec = SandboxSpec(build={"Dockerfile": dockerfile}, limits=Limits(disk_mb=64, disk_files=50))
    with pytest.raises(ImageRefused, match=said):
        async with ContainerProvider().open(spec):
            pass


async def test_links_of_an_image_are_its_own() -> None:
    dockerfile = b"FROM localhost/penstock-sandbox\nWORKDIR /srv\nRUN echo 1 >a && ln a b && ln -s a c && mkdir -p d/e && ln -s / d/f\n"
    async with ContainerProvider().open(SandboxSpec(build={"Dockerfile": dockerfile})) as sandbox:
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
        assert owner.stdout is not None and await owner.stdout.receive() == b"ready\n"
        assert len(await Engine(SETTINGS).left(default_root())) == 1
        owner.kill()
    with anyio.fail_after(20):
        while list(default_root().glob("*.json")) or await Engine(SETTINGS).left(default_root()):
            await anyio.sleep(0.1)


async def test_a_container_by_which_an_image_was_read_goes_with_who_read_it_and_not_before() -> None:
    engine, lives = Engine(SETTINGS), Owner.current()
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


async def test_the_commands_for_docker_run_as_they_are(tmp_path: Path) -> None:
    """podman takes docker's flags; that docker itself takes them, tests/unit/sandboxes/test_container.py asks its own parser where it is
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
