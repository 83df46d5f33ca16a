"""An ordinary user builds an image, with subordinate ids, and runs a program in it."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from ops.lab.root_filesystem import make_root
from tests.other_user import readable_packages

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.tier("images"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user"),
]
USER = "penstock-test-images"
PROGRAM = """
import anyio, sys
from pathlib import Path
from sandboxes.base import SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.images.settings import ImageSettings

async def main():
    home = Path(sys.argv[1])
    settings = ImageSettings(directory=str(home / "store"), build_s=300.0)
    settings.store().add(Path(sys.argv[2]), name="base:1")
    provider = BubblewrapProvider(home / "boxes", images=settings)
    text = b"FROM base:1\\nRUN id -u >/app/built && chown 33:33 /app/built"
    async with provider.open(SandboxSpec(build={"Dockerfile": text})) as sandbox:
        result = await sandbox.exec(["sh", "-c", "cat built; rm built; id -u"])
        print(result.stdout.decode().split(), (await sandbox.changed()).deleted, sorted(path.name for path in (home / "store/unfinished").iterdir()))

anyio.run(main)
"""

MINE = """
import anyio, os, sys
from functools import partial
from pathlib import Path
from sandboxes.images import bootstrap, caged
from sandboxes.images.caged import Caged
from sandboxes.images.settings import ImageSettings

home = Path(sys.argv[1])
settings = ImageSettings(directory=str(home / "store"))
store = settings.store()
OTHERS = "mkdir -m 700 {0}/d && mkdir {0}/d/e && echo 1 >{0}/d/e/f && chmod 600 {0}/d/e/f && chown -R 33:33 {0}/d"
"""
LEFT = (
    MINE
    + """
store.prepare()
place = store.directory / "unfinished/dead"
(place / "out").mkdir(parents=True)
place.with_suffix(".lock").touch()
words = ("sh", "-c", OTHERS.format("/out"))
task = Caged(argv=words, what="x", binds=[(place / "out", "/out", False)], time_s=60.0, disk_mb=99, grows=place, network=False)
anyio.run(caged.run, task)
assert (place / "out/d").stat().st_uid not in (0, os.geteuid())
subordinate = caged.subordinate
def none():
    raise caged.SandboxError("no users")
caged.subordinate = none
print(store.add(Path(sys.argv[2]), name="a").files > 0, sorted(os.listdir(store.directory / "unfinished")))
caged.subordinate = subordinate
print(store.prune(), os.listdir(store.directory / "unfinished"))
"""
)
BOOTSTRAPPED = (
    MINE
    + """
bootstrap.Caged = partial(Caged, network=False)  # an ordinary user may lack /dev/net/tun
caged.missing = lambda *_: []
made = "mkdir -p /out/root/bin /out/root/srv && cp /bin/sh /out/root/bin/sh &&" + OTHERS.format("/out/root/srv")
script = bootstrap._SCRIPT
bootstrap._SCRIPT = f"debootstrap() {{ {made}; }}\\n{script}"
image = anyio.run(bootstrap.bootstrap, store, settings, "debian:12")
print((image.root / "srv/d/e/f").read_text().strip(), os.listdir(store.directory / "unfinished"))
bootstrap._SCRIPT = f"debootstrap() {{ {made}; exit 9; }}\\n{script}"
try:
    anyio.run(bootstrap.bootstrap, store, settings, "debian:13")
except caged.ImageRefused:
    print("failed", os.listdir(store.directory / "unfinished"))
"""
)


@pytest.fixture
def home() -> Iterator[Path]:
    """The home of a new user with subordinate ids."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-test-user-"))
    directory.chmod(0o755)
    subprocess.run(
        [
            "useradd",
            "--no-create-home",
            "--home-dir",
            str(directory / "home"),
            "--add-subids-for-system",
            "--system",
            USER,
        ],
        check=True,
    )
    (directory / "home").mkdir(mode=0o755)
    shutil.chown(directory / "home", USER)
    yield directory
    subprocess.run(["userdel", USER], check=True)
    shutil.rmtree(directory)


async def test_an_ordinary_user_builds_an_image_and_starts_from_it(home: Path) -> None:
    if os.stat("/dev/net/tun").st_mode & 0o006 != 0o006:
        pytest.skip("only root may open /dev/net/tun here")
    assert await printed(home, PROGRAM) == ["['0', '1000'] ('built',) []"]


async def test_what_subordinate_users_own_in_a_killed_build_is_removed_and_ends_no_import(home: Path) -> None:
    assert await printed(home, LEFT) == [
        "True ['dead', 'dead.lock']",
        "Pruned(removed=(), bytes=0, in_use=0) []",
    ]


async def test_a_base_of_an_ordinary_user_has_the_closed_directories_of_its_packages(home: Path) -> None:
    assert await printed(home, BOOTSTRAPPED) == ["1 []", "failed []"]


async def printed(home: Path, program: str) -> list[str]:
    """The lines that a program of the new user prints. Its arguments: a directory of its own, and a root file system."""
    root = make_root(home / "root", python=False)
    path = readable_packages(home / "packages")
    result = await anyio.run_process(
        ["/usr/bin/python3", "-c", program, str(home / "home"), str(root)],
        user=USER,
        group=USER,
        extra_groups=[],
        check=False,
        env={
            "PYTHONPATH": path,
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(home / "home"),
            "TMPDIR": str(home / "home"),
        },
        cwd="/",
    )
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode().strip().splitlines()
