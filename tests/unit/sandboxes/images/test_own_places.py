"""An image whose WORKDIR is one of the sandbox's own places: it is the work directory, and what the sandbox keeps there lies elsewhere."""

from pathlib import Path

import pytest

from sandboxes.base import File, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.images import rootfs
from sandboxes.images.mounted import Layering
from sandboxes.images.oci import Description
from sandboxes.images.settings import ImageSettings
from sandboxes.images.store import ImageStore
from sandboxes.images.unpack import Unpacker
from sandboxes.moves import ASIDE, TAKES

pytestmark = pytest.mark.anyio
OWN = {"/home/agent/.own": File(b"home"), "/tmp/own": File(b"tmp"), "/solution/own": File(b"solution")}


def image_of(images: ImageStore, work: str) -> str:
    """The name of the small image with this WORKDIR, in which it holds the file `seed`."""
    base = images.find("small").root

    def write(target: Unpacker) -> Description:
        rootfs.copy(base, target)
        parts = tuple(work.strip("/").split("/"))
        for end in range(1, len(parts) + 1):
            if not target.is_directory(parts[:end]):
                target.directory(parts[:end], 0o755)
        with Path(__file__).open("rb") as body:
            target.file((*parts, "seed"), 0o644, Path(__file__).stat().st_size, body)
        return Description(work=work)

    name = f"own{work.replace('/', '-')}"
    images.write(write, source=name, name=name)
    return name


@pytest.mark.parametrize("kind", [None, Layering.COPY])
@pytest.mark.parametrize("work", sorted(TAKES))
async def test_work_in_a_place_of_the_sandbox_is_kept_and_what_is_the_sandboxs_own_is_not(
    root: Path, images: ImageStore, work: str, kind: Layering | None
) -> None:
    provider = BubblewrapProvider(images=ImageSettings(directory=str(images.directory)), layering=kind)
    async with provider.open(SandboxSpec(image=image_of(images, work), files=OWN)) as sandbox:
        script = (
            'pwd; [ -s seed ] && [ -s /app/seed ] && grep ^agent: /etc/passwd | cut -d: -f6; echo "$HOME $TMPDIR"; cat "$@" && '
            f'echo 1 >{work}/new && echo 2 >"$HOME/mine" && echo 3 >"$TMPDIR/x" && rm seed'
        )
        result = await sandbox.exec(["sh", "-c", script, "sh", *map(sandbox.path, OWN)])
        home, temporary = map(sandbox.path, ("/home/agent", "/tmp"))
        lines = result.stdout.decode().splitlines()
        assert lines == [work, home, f"{home} {temporary}", "hometmpsolution"], result
        assert [home.startswith(ASIDE), temporary.startswith(ASIDE)] == [
            work.startswith("/home"),
            work == "/tmp",
        ]
        found = await sandbox.changed()
        assert (set(found.added), set(found.modified), found.deleted) == ({"new"}, set(), ("seed",))
        assert await sandbox.get("/home/agent/mine") == b"2\n" and await sandbox.get("/app/new") == b"1\n"


@pytest.mark.parametrize("work", ["/home", "/home/agent"])
async def test_no_program_starts_in_a_home_that_the_work_directory_holds(
    root: Path, images: ImageStore, work: str
) -> None:
    """Python runs what a home holds, also where HOME is not set."""
    provider = BubblewrapProvider(images=ImageSettings(directory=str(images.directory)))
    planted = {"/app/.bashrc": File(b"echo planted"), "/app/agent/.bashrc": File(b"echo planted")}
    named = {"HOME": "/home/agent"}  # as images often do
    spec = SandboxSpec(image=image_of(images, work), files=planted, env=named)
    async with provider.open(spec) as sandbox:
        for argv in (
            ["bash", "-ic", "cat ~agent/.bashrc ~/.bashrc; true"],
            ["env", "-i", "bash", "-c", "cat ~agent/.bashrc; true"],
        ):
            assert b"planted" not in (await sandbox.exec(argv)).stdout
