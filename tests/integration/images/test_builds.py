"""Builds of images in their cage: what reaches them and what they leave, limits, bases, and what a hostile Dockerfile tries."""

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from ops.lab.root_filesystem import make_root
from sandboxes import cgroups, seccomp
from sandboxes.base import BuildEntry, File, ImageRefused, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.images.build import Builder
from sandboxes.images.settings import ImageSettings
from sandboxes.images.store import Image, ImageStore
from sandboxes.system import of_this_machine, system_of
from tests.violations import nothing_got_out

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.tier("images"),
]


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="penstock-test-builds-"))
    directory.chmod(0o711)
    ImageStore(directory / "store").add(make_root(directory / "root"), name="base:1")
    yield directory
    shutil.rmtree(directory)


def settings(directory: Path, **changes: object) -> ImageSettings:
    return ImageSettings(directory=str(directory / "store"), **{"build_s": 120.0, **changes})  # type: ignore[arg-type]


def builder(directory: Path, **changes: object) -> Builder:
    found = settings(directory, **changes)
    store = found.store()
    assert store is not None
    return Builder(store, found)


def context(dockerfile: str, **files: bytes) -> Mapping[str, BuildEntry]:
    return {"Dockerfile": File(dockerfile.encode()), **{path: File(body) for path, body in files.items()}}


async def refusal(directory: Path, dockerfile: str, **changes: object) -> str:
    with pytest.raises(ImageRefused) as refused:
        await builder(directory, **changes).built(context(dockerfile))
    return str(refused.value)


def layers(directory: Path) -> set[str]:
    """The layers in buildah's storage, and the containers."""
    graph = directory / "store" / "builds" / "storage" / "graph"
    found = {path.name for path in (graph / "overlay").glob("*") if len(path.name) == 64}
    containers = graph / "overlay-containers" / "containers.json"
    return (
        found | {each["id"] for each in json.loads(containers.read_text() or "[]")}
        if containers.exists()
        else found
    )


async def test_an_ignore_file_of_the_dockerfile_counts_in_place_of_the_general_one(directory: Path) -> None:
    files = {"a": b"a", "b": b"b", ".dockerignore": b"a\n"}
    own = files | {"Dockerfile.dockerignore": b"b\n*ignore\nDockerfile\n"}
    for given, left in ((files, "b"), (own, "a")):
        spec = SandboxSpec(build=context("FROM base:1\nWORKDIR /app\nCOPY . .\n", **given))
        async with BubblewrapProvider(images=settings(directory)).open(spec) as sandbox:
            there = (await sandbox.exec(["ls"])).stdout.decode().split()
            assert [name for name in there if name in files] == [left]


async def test_a_lost_image_is_built_again_with_the_digest_that_attempts_record(directory: Path) -> None:
    spec = SandboxSpec(
        build=context("FROM base:1\nWORKDIR /app\nRUN echo made >made && chown 1001:1001 made")
    )
    found = []
    for _ in range(2):
        provider = BubblewrapProvider(images=settings(directory))
        async with provider.open(spec) as sandbox:
            assert (await sandbox.exec(["cat", "made"])).stdout == b"made\n"
            found.append(system_of(sandbox))
        store = settings(directory).store()
        assert store is not None and found[-1] == store.find(found[-1] or "").reference
        removed = store.prune(keep=lambda _, names: "base:1" in names)
        assert (found[-1] or "").removeprefix("sha256:") in removed.removed
    assert found[0] == found[1]
    async with BubblewrapProvider(images=settings(directory)).open(SandboxSpec()) as plain:
        assert system_of(plain) == of_this_machine() and of_this_machine().startswith("host:")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's sandboxes have several users")
async def test_a_built_image_keeps_the_owners_that_its_dockerfile_gave_also_as_a_base(
    directory: Path,
) -> None:
    dockerfile = (
        "FROM base:1\nRUN echo 'worker:x:1001:1001::/:/bin/sh' >>/etc/passwd\nWORKDIR /app\nRUN echo 1 >own && echo 2 >secret && chmod 600 own secret"
        " && chown 1001:1001 own ."
    )
    first = await builder(directory).built(context(dockerfile))
    store = settings(directory).store()
    assert store is not None
    store.name("owners:1", first)
    for text in (dockerfile, "FROM owners:1\nRUN echo 3 >late"):
        spec = SandboxSpec(build=context(text), user="worker")
        async with BubblewrapProvider(images=settings(directory)).open(spec) as sandbox:
            result = await sandbox.exec(
                ["sh", "-c", "id -un; stat -c %u . own secret; cat own; touch new && cat secret"]
            )
            assert (result.stdout.decode().split(), result.ok) == (
                ["worker", "1001", "1001", "0", "1"],
                False,
            ), result
            assert set((await sandbox.changed()).added) == {"new"}


async def test_a_dockerfile_with_run_becomes_an_image_in_which_programs_run(directory: Path) -> None:
    text = (
        "FROM base:1 AS First\nRUN echo made >/made\nHEALTHCHECK --start-interval=1s CMD true\nFROM base:1\nENV A=1\nWORKDIR /srv/code\n"
        "COPY --from=First /made .\n"
        "COPY run.sh /usr/bin/\nRUN run.sh >ran && chmod 4755 ran"
    )
    files = {**context(text), "run.sh": File(b"#!/bin/sh\necho ran $A\n", 0o755)}
    provider = BubblewrapProvider(images=settings(directory))
    assert provider.containers
    async with provider.open(SandboxSpec(build=files)) as sandbox:
        result = await sandbox.exec(
            ["sh", "-c", "pwd; cat made ran; echo $A; stat -c %a ran; rm ran; test ! -e /run/penstock-build"]
        )
        assert result.ok and result.stdout == b"/srv/code\nmade\nran 1\n1\n755\n"
        assert (await sandbox.changed()).deleted == ("ran",)
    in_no_time = builder(directory, build_s=0.001)
    with pytest.raises(ImageRefused, match=r"takes longer than 0\.001 s"):
        await in_no_time.built(context("FROM base:1\nRUN echo in no time"))
    assert (await in_no_time.built(files)).work == "/srv/code"  # not built again


TAKING = """\
# how others write them \\
FROM base:1 AS one
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ARG THING=/var/lib/thing
ENV E=/e
VOLUME ["/data", "${THING}"]
VOLUME $E/"a b" /f/$NONE \\
  '/$E'
ENV E=/other
RUN mkdir /data /srv && [[ $0 == /bin/bash ]] && echo after >/data/kept
RUN <<EOF
[[ $0 == /bin/bash ]] && echo document >/srv/document
EOF
FROM one
COPY --link --from=tools:1 /usr/bin/tool /usr/bin/
COPY --chmod=755 <<EOF /srv/by/copy
#!/bin/sh
EOF
RUN --mount=type=bind,from=tools:1,source=/usr/bin/tool,target=/mnt/tool cp /mnt/tool /srv/mounted && [[ -x /srv/by/copy ]]
RUN <<EOF
#!/bin/sh -e
cat $0 >/srv/own
EOF
"""


async def test_a_dockerfile_may_take_files_of_images_name_a_shell_and_declare_directories_of_data(
    directory: Path,
) -> None:
    store = settings(directory).store()
    assert store is not None
    root = make_root(directory / "tools", python=False)
    (root / "usr/bin/tool").write_text("#!/bin/sh\necho tool\n")
    (root / "usr/bin/tool").chmod(0o755)
    store.add(root, name="tools:1")
    image = await builder(directory).built(context(TAKING))
    assert image.volumes == ("/$E", "/data", "/e/a b", "/f", "/var/lib/thing")
    found = {name: (image.root / name).read_text() for name in ("data/kept", "srv/document", "srv/mounted")}
    assert found == {
        "data/kept": "after\n",
        "srv/document": "document\n",
        "srv/mounted": "#!/bin/sh\necho tool\n",
    }
    assert (image.root / "srv/own").read_text().startswith("#!/bin/sh -e\n")
    store.name("declared:1", image)
    later = await builder(directory).built(context("FROM declared:1\nRUN echo later >>/data/kept\n"))
    assert later.volumes == image.volumes and (later.root / "data/kept").read_text() == "after\nlater\n"
    async with BubblewrapProvider(images=settings(directory)).open(
        SandboxSpec(image=later.digest)
    ) as sandbox:
        result = await sandbox.exec(
            ["sh", "-c", "echo x >>/data/kept; echo y >/var/lib/thing/new; touch /var/lib/x"]
        )
        assert not result.ok and b"Read-only" in result.stderr
        left = await sandbox.changed()
    assert set(left.added) == {"/var/lib/thing/new"} and set(left.modified) == {"/data/kept"}


async def test_an_image_from_which_files_are_taken_and_that_is_not_there_is_named(directory: Path) -> None:
    says = await refusal(directory, "FROM base:1\nCOPY --from=ghcr.io/a/uv:1 /uv /bin/\n")
    assert "the base image ghcr.io/a/uv:1 is not in" in says and "sandbox.images.bases" in says


async def test_a_copied_file_keeps_its_mode_as_docker_keeps_it(directory: Path) -> None:
    text = "FROM base:1\nCOPY id_rsa run.sh /app/\nRUN stat -c %a:%u /app/id_rsa /app/run.sh >/app/seen"
    files = {name: File(b"#!/bin/sh\n", mode) for name, mode in {"id_rsa": 0o600, "run.sh": 0o750}.items()}
    image = await builder(directory).built({**context(text), **files})
    assert (image.root / "app/seen").read_text().split() == ["600:0", "750:0"]


async def test_what_only_the_build_sees_is_not_in_the_image(directory: Path) -> None:
    (directory / "pip.conf").write_text("sesame-4711")
    (directory / "pip.conf").chmod(0o644)
    options = {
        "build_env": {"PIP_INDEX_URL": "https://sesame-4711/simple", "SPACED": " two  blanks "},
        "build_files": {"pip.conf": str(directory / "pip.conf")},
    }
    check = 'test "$PIP_INDEX_URL" = https://sesame-4711/simple && grep -q sesame-4711 /run/penstock-build/pip.conf'
    text = f"FROM base:1\nRUN {check} && test \"$SPACED\" = ' two  blanks ' && echo seen >/app/seen"
    image = await builder(directory, **options).built(context(text))
    assert (image.root / "app/seen").read_text() == "seen\n"
    assert image.env.keys() <= {"PATH"} and not (image.root / "run/penstock-build").exists()
    files = [path for path in image.root.parent.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(files) > 100 and not [path for path in files if b"sesame-4711" in path.read_bytes()]


async def test_a_file_that_a_build_reads_is_read_again_after_a_change(directory: Path) -> None:
    mirror = directory / "mirror"
    for text in ("first", "another"):
        mirror.write_text(text)
        mirror.chmod(0o644)
        builds = builder(directory, build_files={"mirror": str(mirror)})
        image = await builds.built(context("FROM base:1\nRUN cat /run/penstock-build/mirror >/app/seen"))
        assert (image.root / "app/seen").read_text() == text


async def test_a_task_has_its_own_time_for_its_build(directory: Path) -> None:
    provider = BubblewrapProvider(images=settings(directory))
    spec = SandboxSpec(build=context("FROM base:1\nRUN sleep 600"), build_timeout_s=3.0)
    with pytest.raises(ImageRefused, match=r"its build takes longer than 3 s \(build_timeout_sec\)"):
        async with provider.open(spec):
            pass
    with pytest.raises(ImageRefused, match=r"takes longer than 4 s \(sandbox\.images\.build_s\)"):
        async with BubblewrapProvider(images=settings(directory, build_s=4.0)).open(
            replace(spec, build_timeout_s=900.0)
        ):
            pass


async def test_a_failed_build_leaves_no_container_no_mount_and_no_layer(directory: Path) -> None:
    await builder(directory).built(context("FROM base:1\nRUN echo before"))
    before = layers(directory)
    message = await refusal(directory, "FROM base:1\nRUN echo one >/one\nRUN echo why it failed; exit 3")
    assert "why it failed" in message and "exit status 3" in message
    assert layers(directory) == before
    assert "takes longer than 5 s" in await refusal(
        directory, "FROM base:1\nRUN echo two >/two\nRUN sleep 600", build_s=5.0
    )
    assert layers(directory) == before
    with pytest.raises(ImageRefused, match="WORKDIR /tmp/x is taken"):  # built, and not accepted
        await builder(directory).built(context("FROM base:1\nRUN echo three >/three\nWORKDIR /tmp/x"))
    assert layers(directory) == before
    assert str(directory) not in Path("/proc/self/mountinfo").read_text()
    assert os.listdir(directory / "store" / "unfinished") == []


@pytest.mark.alone
async def test_a_build_that_takes_too_much_disk_space_is_ended(directory: Path) -> None:
    before = layers(directory)
    message = await refusal(
        directory, "FROM base:1\nRUN head -c 900000000 /dev/zero >/large; sleep 60", build_mb=100
    )
    assert "takes more than 100 MB of disk space" in message
    assert layers(directory) == before


@pytest.mark.skipif(cgroups.detect() is None, reason="no control groups that we may make")
async def test_a_build_that_takes_too_much_memory_is_ended_and_refused_by_its_key(directory: Path) -> None:
    before = layers(directory)
    message = await refusal(
        directory, "FROM base:1\nRUN python3 -c 'print(len(b\"x\" * (1 << 30)))'", build_memory_mb=400
    )
    assert "takes more than 400 MB of memory (sandbox.images.build_memory_mb) at RUN python3" in message
    assert layers(directory) == before


async def test_an_earlier_layer_is_not_built_again(directory: Path) -> None:
    await builder(directory).built(context("FROM base:1\nRUN date +%N >/app/once\nRUN echo 1"))
    first = await builder(directory).built(
        context("FROM base:1\nRUN date +%N >/app/once\nRUN echo 2 >/app/two")
    )
    second = await builder(directory).built(
        context("FROM base:1\nRUN date +%N >/app/once\nRUN echo 3 >/app/three")
    )
    assert (first.root / "app/once").read_text() == (second.root / "app/once").read_text()


async def test_a_base_that_is_not_there_is_named_with_the_three_ways_to_get_it(directory: Path) -> None:
    message = await refusal(directory, "FROM python:3.11-slim\nRUN true")
    assert "python:3.11-slim" in message
    for way in ("penstock images bootstrap", "penstock images import", "sandbox.images.bases"):
        assert way in message


async def test_a_substitute_for_a_base_is_recorded(directory: Path) -> None:
    image = await builder(directory, bases={"python:3.11": "base:1"}).built(
        context("FROM docker.io/library/python:3.11\nRUN echo substituted")
    )
    assert dict(image.substitutes) == {
        "docker.io/library/python:3.11": ImageStore(directory / "store").find("base:1").digest
    }


async def test_two_builds_of_the_same_at_once_make_one_image(directory: Path) -> None:
    found: list[Image] = []

    async def build() -> None:
        found.append(await builder(directory).built(context("FROM base:1\nRUN date +%N >/app/one")))

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(build)
    assert len({image.digest for image in found}) == 1


async def test_a_cancelled_build_leaves_nothing(directory: Path) -> None:
    await builder(directory).built(context("FROM base:1\nRUN echo before"))
    before = layers(directory)
    with anyio.move_on_after(6):
        await builder(directory).built(context("FROM base:1\nRUN echo half >/half\nRUN sleep 600"))
    assert layers(directory) == before and os.listdir(directory / "store" / "unfinished") == []


ATTEMPTS = r"""
import ctypes, errno, json, os, socket, sys
target = json.load(open("/targets.json"))
libc = ctypes.CDLL(None, use_errno=True)

def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")

def anywhere(way):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            os.stat(f"/proc/{pid}/root{way}")
            return open(f"/proc/{pid}/comm").read().strip()
        except OSError:
            pass
    raise FileNotFoundError

def connect(address, family=socket.AF_INET):
    with socket.socket(family) as s:
        s.settimeout(5)
        s.connect(address)

def climb():
    os.mkdir("/climb")
    os.chroot("/climb")

devices = ("/dev/mem", "/dev/kmsg", "/dev/fuse", "/dev/vda")
attempts = {
    "a file of the machine": lambda: open(target["file"]),
    "a file of the machine through any process": lambda: anywhere(target["file"]),
    "the store of other builds through any process": lambda: anywhere("/storage/graph"),
    "a unix socket of the machine": lambda: connect(target["unix"], socket.AF_UNIX),
    "an abstract socket of the machine": lambda: connect("\0" + target["abstract"], socket.AF_UNIX),
    "a server on the machine's loopback": lambda: connect(("127.0.0.1", target["port"])),
    "the same by the network's name for it": lambda: connect(("10.0.2.2", target["port"])),
    "a server on the machine's own address": lambda: connect((target["address"], target["port"])),
    "the metadata service": lambda: connect(("169.254.169.254", 80)),
    "a private address": lambda: connect(("10.1.2.3", 80)),
    "a disk": lambda: os.mknod("/disk", 0o60600, os.makedev(8, 0)),
    "a device of the machine": lambda: [open(path) for path in devices if os.path.exists(path)] or open("/dev/mem"),
    "another root": climb,
    "a mount": lambda: call(target["calls"]["mount"], b"none", b"/tmp", b"tmpfs", 0, 0),
    "a user namespace": lambda: call(target["calls"]["unshare"], 0x10000000),
    "a setting of the kernel": lambda: open("/proc/sys/kernel/core_pattern", "w").write("|/x"),
    "the files of the build": lambda: open("/run/penstock-build/ca.crt", "w"),
    "another network": lambda: call(target["calls"]["setns"], os.open("/proc/1/ns/net", os.O_RDONLY), 0),
    "a kernel module": lambda: call(target["calls"]["init_module"], b"", 0, b""),
    "a process of the machine": lambda: os.kill(target["pid"], 0),
}
found = {}
for name, attempt in attempts.items():
    try:
        found[name] = f"out {attempt() or ''}"
    except OSError as error:
        found[name] = errno.errorcode.get(error.errno, type(error).__name__)
json.dump(found, open("/app/found.json", "w"))
"""


async def test_every_attempt_to_escape_from_a_build_is_refused(directory: Path) -> None:
    host = directory / "host"
    host.mkdir(mode=0o777)
    host.chmod(0o777)
    (host / "secret").write_text("secret")
    with (
        socket.socket() as tcp,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        tcp.bind(("0.0.0.0", 0))
        unix.bind(str(host / "socket"))
        (host / "socket").chmod(0o777)
        abstract.bind("\0penstock-test-builds")
        for each in (tcp, unix, abstract):
            each.listen()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outward:
            outward.connect(("192.0.2.1", 9))
            address = outward.getsockname()[0]
        for own in ("127.0.0.1", address):  # the control: out here it answers
            socket.create_connection((own, tcp.getsockname()[1]), 5).close()
        targets = {
            "file": str(host / "secret"),
            "unix": str(host / "socket"),
            "abstract": "penstock-test-builds",
            "port": tcp.getsockname()[1],
            "address": address,
            "pid": os.getpid(),
            "calls": seccomp.numbers(),
        }
        files = {"attempts.py": ATTEMPTS.encode(), "targets.json": json.dumps(targets).encode()}
        image = await builder(directory).built(
            context("FROM base:1\nCOPY attempts.py targets.json /\nRUN python3 /attempts.py", **files)
        )
    found = json.loads((image.root / "app/found.json").read_text())
    nothing_got_out({name: how for name, how in found.items() if how.startswith("out")})
    assert len(found) >= 20, found


async def test_a_link_in_a_context_reaches_no_file_of_the_machine(directory: Path) -> None:
    place = directory / "linked"
    place.mkdir()
    (place / "Dockerfile").write_text("FROM base:1\nCOPY out /app/out\nRUN true")
    (place / "out").symlink_to("/etc/hostname")
    try:
        image = await builder(directory).build(place)
    except ImageRefused:
        return
    taken = image.root / "app/out"
    if not taken.is_symlink() and taken.read_text() == Path("/etc/hostname").read_text():
        nothing_got_out({"a link in a context": "/etc/hostname"})


async def test_the_image_that_a_task_names_is_used_where_it_is_and_its_dockerfile_built_where_it_is_not(
    directory: Path,
) -> None:
    built, prebuilt = context("FROM base:1\nRUN echo built >/app/which"), context("FROM named:1\n")
    spec = SandboxSpec(build=built, prebuilt=prebuilt)
    async with BubblewrapProvider(images=settings(directory)).open(spec) as sandbox:
        assert (await sandbox.exec(["cat", "which"])).stdout == b"built\n"
        assert (system_of(sandbox) or "").endswith(" (environment/Dockerfile in place of named:1)")
    named = await builder(directory).built(context("FROM base:1\nRUN echo named >/app/which"))
    store = settings(directory).store()
    assert store is not None
    store.name("named:1", named)
    async with BubblewrapProvider(images=settings(directory)).open(spec) as sandbox:
        assert (await sandbox.exec(["cat", "which"])).stdout == b"named\n"
        assert "(" not in (system_of(sandbox) or "")


async def test_an_image_that_cannot_be_had_is_named_by_its_key(directory: Path) -> None:
    absent = context("FROM absent:1\n")
    with pytest.raises(
        ImageRefused, match=r"^task.toml: docker_image: the image absent:1 is not in .*: import"
    ):
        await builder(directory).prebuilt_or_built(absent, absent)
    with pytest.raises(
        ImageRefused,
        match=r"^task.toml: docker_image: the image absent:1 .* cannot be built in its place: .*gone:1",
    ):
        await builder(directory).prebuilt_or_built(absent, context("FROM gone:1\nRUN true"))
