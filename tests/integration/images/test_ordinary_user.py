"""An ordinary user builds an image, with subordinate ids, and runs a program in it."""

import os
import shutil
import subprocess
import sys
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
    root = make_root(home / "root", python=False)
    path = readable_packages(home / "packages")
    result = await anyio.run_process(
        ["/usr/bin/python3", "-c", PROGRAM, str(home / "home"), str(root)],
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
    assert result.stdout.decode().strip() == "['0', '1000'] ('built',) []", (result.stdout, sys.version)
