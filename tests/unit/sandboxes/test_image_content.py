"""The permitted content of an image's work directory: bounded before it is kept, and refused in one sentence."""

import io
import sys
import tarfile
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from orchestrator.tasks.artifacts import packed as result_of
from orchestrator.tasks.artifacts import with_artifacts
from orchestrator.tasks.environment import Environment
from sandboxes.base import BuildEntry, File, ImageRefused, Limits, SandboxError, SandboxSpec
from sandboxes.container.content import DirectoryBounds, DirectoryContent, read
from sandboxes.container.engine import ContainerEngine
from sandboxes.container.image import Image, built, reads
from sandboxes.container.provider import ContainerSandbox
from sandboxes.container.settings import ContainerSettings
from sandboxes.owner import Owner
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

SMALL = DirectoryBounds(entries=20, file=4096, total=8192)
Add = Callable[[tarfile.TarFile], None]


def entry(
    name: str, body: bytes = b"", *, kind: bytes = tarfile.REGTYPE, to: str = "", **more: object
) -> Add:
    def add(archive: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.size, info.linkname = kind, len(body), to
        for key, value in more.items():
            setattr(info, key, value)
        archive.addfile(info, io.BytesIO(body))

    return add


def packed(*entries: Add, form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for add in entries:
            add(archive)
    return out.getvalue()


def content(data: bytes, bounds: DirectoryBounds = SMALL) -> DirectoryContent:
    return read(io.BytesIO(data), bounds)


def test_files_links_hard_links_and_directories_come_as_they_are() -> None:
    found = content(
        packed(
            entry("./", kind=tarfile.DIRTYPE),
            entry("./sub", kind=tarfile.DIRTYPE),
            entry("./sub/a.txt", b"hello", mode=0o4755),
            entry("./..odd", b"x"),
            entry("./link", kind=tarfile.SYMTYPE, to="/anywhere"),
            entry("./again", kind=tarfile.LNKTYPE, to="./sub/a.txt"),
            entry("./" + "n" * 200, b"long"),
        )
    )
    assert {path: (file.data, file.mode) for path, file in found.files.items()} == {
        "sub/a.txt": (b"hello", 0o755),
        "..odd": (b"x", 0o644),
        "again": (b"hello", 0o755),
        "n" * 200: (b"long", 0o644),
    }
    assert (found.links, found.directories) == ({"link": "/anywhere"}, ["sub"])
    assert content(packed()) == DirectoryContent()


async def test_what_the_agent_deleted_of_an_image_does_not_come_back_and_what_it_replaced_is_what_it_made_of_it(
    root: Path,
) -> None:
    names = ("kept/a", "gone/deep/a", "emptied/a", "tree/a", "edited", "removed", "file")
    image = Image(
        name="image",
        content={name: File(b"image") for name in names},
        links={"link": "kept/a", "cut": "kept/a"},
        directories=("kept", "gone", "gone/deep", "emptied", "tree", "void", "__pycache__"),
    )
    agent = (
        "rm -r gone emptied/a tree removed file void cut __pycache__; echo agent >edited; echo agent >tree;"
        " mkdir file; echo agent >file/in"
    )
    engine = ContainerEngine(ContainerSettings())

    async with ContainerSandbox(root, SandboxSpec(), engine=engine, image=image).opened() as sandbox:
        before = await sandbox.changed()
        assert not (before.added or before.modified or before.deleted)
        await anyio.run_process(["sh", "-c", agent], cwd=root / sandbox.id / "files/app")
        changed = await sandbox.changed()
    assert changed.deleted == (
        "cut", "emptied/a", "file", "gone", "gone/deep/a", "removed", "tree/a", "void",
    )  # fmt: skip
    task = with_artifacts(Environment(files={}, build={"Dockerfile": File(b"FROM x")}), result_of(changed))
    spec = task.spec(task.files, Limits())
    async with ContainerSandbox(root, spec, engine=engine, image=image).opened() as sandbox:
        app = root / sandbox.id / "files/app"
        found = {str(path.relative_to(app)): path for path in app.rglob("*")}
        assert sorted(found) == [
            "__pycache__", "edited", "emptied", "file", "file/in", "kept", "kept/a", "link", "tree",
        ]  # fmt: skip
        assert all(found[name].read_text() == "agent\n" for name in ("edited", "file/in", "tree"))


def claims(size: int) -> bytes:
    """A file that claims that size, with nothing behind its header."""
    info = tarfile.TarInfo("big")
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


PAX = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9999999"}
REFUSED = {
    "more than 20 files and directories": packed(*(entry(f"f{n}") for n in range(21))),
    "more than 20 files and directories: ": packed(entry("/".join("abcdefghijklmnopqrstuvw"))),
    "a file of more than 0 MB: 'big'": packed(entry("big", b"x" * 4097)),
    "a file of more than 0 MB: 'big' ": claims(1 << 62),
    "more than 0 MB": packed(*(entry(f"f{n}", b"x" * 4096) for n in range(3))),
    "more than 0 MB ": packed(
        entry("a", b"x" * 4096), *(entry(f"b{n}", kind=tarfile.LNKTYPE, to="a") for n in range(2))
    ),
    "a sparse file": packed(entry("a", b"1\n0\n1\nx", pax_headers=PAX)),
    "neither a file nor a directory nor a link: 'pipe'": packed(entry("pipe", kind=tarfile.FIFOTYPE)),
    "neither a file nor a directory nor a link: 'dev'": packed(entry("dev", kind=tarfile.CHRTYPE)),
    "a file without a plain name, or too deep: '/etc/x'": packed(entry("/etc/x")),
    "a file without a plain name, or too deep: '../x'": packed(entry("a/../../x")),
    "a file without a plain name": packed(entry("n" * 256)),
    "a file without a plain name ": packed(entry("a", pax_headers={"path": "a\0b"})),
    "or too deep: 'a/a/": packed(entry("a/" * 100 + "x")),
    "'a/b' below a path that is not a directory": packed(
        entry("a", kind=tarfile.SYMTYPE, to="/etc"), entry("a/b", b"x")
    ),
    "'a' twice": packed(entry("a/b"), entry("a", kind=tarfile.SYMTYPE, to="/etc")),
    "'b' twice": packed(entry("b", b"1"), entry("b", b"2")),
    "a link that leads nowhere": packed(entry("a", kind=tarfile.SYMTYPE)),
    "a hard link that leads out of it: 'a'": packed(entry("a", kind=tarfile.LNKTYPE, to="../../etc/passwd")),
    "what has a header of": packed(entry("a", pax_headers={"comment": "x" * (1 << 17)})),
}


@pytest.mark.parametrize("problem", REFUSED)
def test_what_no_sandbox_takes_is_the_tasks_mistake_and_named(problem: str) -> None:
    with pytest.raises(ImageRefused) as caught:
        content(REFUSED[problem])
    message = str(caught.value)
    assert message.startswith("environment/Dockerfile: the work directory of its image holds ")
    assert problem.strip() in message and "\n" not in message


WHOLE = packed(entry("a", b"x" * 700), entry("b", b"y"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x1f\x8b" + b"x" * 600,
        b"no archive" * 100,
        claims(4000),
        WHOLE[:1000],
        WHOLE[:1536] + b"z" + WHOLE[1537:],
        packed(entry("a", pax_headers={"comment": "x"}))[:1024] * 600,
    ],
    ids=["empty", "gzip", "junk", "short", "torn", "damaged", "headers"],
)
def test_an_incomplete_archive_is_the_platforms_failure(data: bytes) -> None:
    with pytest.raises(SandboxError, match=r"archive of an image's work directory") as caught:
        content(data)
    assert "\n" not in str(caught.value)


def test_a_compressed_archive_is_not_looked_into() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        entry("a", b"x")(archive)
    with pytest.raises(SandboxError):
        content(out.getvalue())


def test_a_size_that_is_only_claimed_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(SandboxError, match="unexpected end of data"):
            content(claims(200 << 20), DirectoryBounds())
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_sandboxs_own_limits_bound_its_work_directory() -> None:
    own = DirectoryBounds.of(Limits(disk_mb=64, disk_files=100))
    assert own == DirectoryBounds(100, 64 << 20, 64 << 20)
    assert DirectoryBounds.of(Limits(disk_mb=1 << 20, disk_files=1 << 30)) == DirectoryBounds()


ENGINE = """#!{python}
import os, sys
match sys.argv[1:]:
    case ["image", "inspect", "--format={{{{json .Config}}}}", _]:
        print('{{"WorkingDir": "/srv", "Env": ["A=1"]}}')
    case ["image", "inspect", _]:
        pass
    case ["create", *_]:
        print("c1")
    case ["cp", "c1:/srv/.", "-"]:
{does}
    case ["rm", "--force", "--volumes", "--ignore", "c1"]:
        open({removed!r}, "w").close()
"""


def engine(directory: Path, *does: str) -> ContainerEngine:
    shim = directory / "podman"
    lines = "\n".join(f"        {line}" for line in does)
    shim.write_text(ENGINE.format(python=sys.executable, does=lines, removed=str(directory / "removed")))
    shim.chmod(0o755)
    return ContainerEngine(ContainerSettings(engine=str(shim)))


async def test_a_work_directory_that_never_ends_is_cut_off_as_it_arrives(tmp_path: Path) -> None:
    endless = engine(
        tmp_path,
        "part = bytes(1 << 20)",
        f"sys.stdout.buffer.write({claims(1 << 40)!r})",
        "while True: sys.stdout.buffer.write(part)",
    )
    with pytest.raises(ImageRefused, match=r"more than 1 MB \(sandbox.disk_mb"):
        await built(
            endless,
            tmp_path,
            SandboxSpec(build={"Dockerfile": File(b"FROM x")}, limits=Limits(disk_mb=1, disk_files=10)),
        )
    assert (tmp_path / "removed").exists()


async def test_a_reader_that_is_cancelled_while_it_reads_an_image_removes_the_container(
    tmp_path: Path,
) -> None:
    copying = tmp_path / "copying"
    context: dict[str, BuildEntry] = {"Dockerfile": File(b"FROM x")}
    waits = engine(tmp_path, f"open({str(copying)!r}, 'w').close()", "import time", "time.sleep(100)")
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(built, waits, tmp_path, SandboxSpec(build=context))
            await eventually(copying.exists)
            tasks.cancel_scope.cancel()
    assert (tmp_path / "removed").exists()


async def test_what_an_engine_copies_is_read_and_what_it_breaks_off_is_not(tmp_path: Path) -> None:
    spec = SandboxSpec(build={"Dockerfile": File(b"FROM x")}, limits=Limits(disk_mb=1))
    whole = f"sys.stdout.buffer.write({WHOLE!r})"
    image = await built(engine(tmp_path, whole), tmp_path, spec)
    assert (image.work, sorted(image.content)) == ("/srv", ["a", "b"])
    assert not (await built(engine(tmp_path, "sys.exit(1)"), tmp_path, spec)).content
    with pytest.raises(SandboxError, match=r"cp failed after \d+ bytes"):
        await built(engine(tmp_path, whole, "sys.exit(1)"), tmp_path, spec)


def test_a_container_is_kept_only_for_a_reader_that_may_be_alive() -> None:
    lives = Owner.current()
    assert Owner.read(str(lives)) == lives
    assert reads(f"reader:{lives}")
    assert not reads(f"reader:{replace(lives, start=1)}")
    assert not reads(f"reader:{replace(lives, boot='an earlier one')}")
    assert not any(map(reads, ("", "reader:", "reader:a/b", "0123456789abcdef")))
