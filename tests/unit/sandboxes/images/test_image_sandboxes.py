"""Bubblewrap sandboxes on an image, beyond the port: what is read from their layer, who owns what, and what holds an image."""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest

from sandboxes.base import Artifacts, File, Sandbox, SandboxError, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.images.mounted import Layering
from sandboxes.images.sandbox import ImageSandbox
from sandboxes.images.settings import ImageSettings
from sandboxes.images.store import ImageStore
from tests.other_user import readable_packages
from tests.unit.sandboxes.images.archives import directory, layer, member, oci
from tests.waiting import eventually

pytestmark = pytest.mark.anyio
KINDS = (None, Layering.COPY)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")


def opened(
    images: ImageStore, *, kind: Layering | None = None, image: str = "small", **fields: object
) -> AbstractAsyncContextManager[Sandbox]:
    settings = ImageSettings(directory=str(images.directory))
    return BubblewrapProvider(images=settings, layering=kind).open(SandboxSpec(image=image, **fields))  # type: ignore[arg-type]


async def printed(sandbox: Sandbox, script: str) -> str:
    result = await sandbox.exec(["sh", "-c", script])
    assert result.ok, result
    return result.stdout.decode()


@pytest.mark.parametrize("kind", KINDS)
async def test_changes_against_an_image_are_those_that_programs_made(
    root: Path, images: ImageStore, kind: Layering | None
) -> None:
    async with opened(images, kind=kind) as sandbox:
        nothing = await sandbox.changed()
        assert nothing == Artifacts(added={}, modified={}, deleted=(), refused=(), complete=True)
        await printed(
            sandbox,
            "cat edited >same; rm same; touch kept; cp kept t; mv t kept; echo after >edited; rm gone link; echo x >new; chmod 600 d/sub/gone",
        )
        await printed(
            sandbox,
            "rm -r tree; mkdir tree; echo 1 >tree/own; rm -r again; echo file >again; chmod 750 shut; mv d/sub d/moved",
        )
        found = await sandbox.changed()
    assert {path: file.data for path, file in found.added.items()} == {
        "new": b"x\n",
        "tree/own": b"1\n",
        "d/moved/gone": b"2",
        "again": b"file\n",
    }
    assert {path: file.data for path, file in found.modified.items()} == {"edited": b"after\n"}
    assert found.deleted == ("again/x", "d/sub", "d/sub/gone", "gone", "link", "tree/a", "tree/b", "tree/b/c")
    assert found.complete and found.directories == {"shut": 0o750}, found


@pytest.mark.parametrize("kind", KINDS)
async def test_a_file_that_is_called_like_a_whiteout_of_archives_is_a_file(
    root: Path, images: ImageStore, kind: Layering | None
) -> None:
    provider = BubblewrapProvider(images=ImageSettings(directory=str(images.directory)), layering=kind)
    async with provider.open(SandboxSpec(image="small")) as sandbox:
        if provider.layering is Layering.FUSE:
            pytest.skip("fuse-overlayfs keeps these names to itself")
        await printed(
            sandbox,
            ": >.wh.kept; : >.wh.never; mkdir -p of/layer; : >of/layer/.wh..wh..opq; : >tree/.wh..wh..opq",
        )
        found = await sandbox.changed()
    assert {*found.added} == {".wh.kept", ".wh.never", "of/layer/.wh..wh..opq", "tree/.wh..wh..opq"}
    assert not found.deleted and found.complete


@pytest.mark.parametrize("kind", KINDS)
async def test_paths_left_out_of_an_image_are_absent_and_not_among_the_deleted(
    root: Path, images: ImageStore, kind: Layering | None
) -> None:
    without = ("/app/gone", "/app/tree", "/app/absent", "/app/kept/below")
    async with opened(images, kind=kind, without=without, files={"/app/gone": File(b"placed")}) as sandbox:
        assert (await printed(sandbox, "cat gone; ls -d tree 2>/dev/null || echo; cat kept")).split() == [
            "placed",
            "1",
        ]
        assert (await sandbox.changed()).deleted == ()
        await printed(sandbox, "mkdir tree; echo 1 >tree/a")
        found = await sandbox.changed()
        assert set(found.added) == {"tree/a"} and not found.modified and not found.deleted


async def test_a_later_session_finds_what_an_earlier_one_wrote(root: Path, images: ImageStore) -> None:
    async with opened(images) as sandbox:
        await printed(sandbox, "echo one >edited; rm kept")
        await sandbox.changed()  # ends the session
        await sandbox.put({"/app/d/late": File(b"late")})
        assert await printed(sandbox, "cat edited d/late; test ! -e kept") == "one\nlate"
        assert await sandbox.get("/app/edited") == b"one\n"


async def test_the_agent_owns_the_work_directory_and_nothing_else(root: Path, images: ImageStore) -> None:
    async with opened(images) as sandbox:
        owners = await printed(
            sandbox,
            "id -u; stat -c %u /app /app/kept /app/shut /usr /etc/passwd; touch /app/shut/x; chmod 600 /app/kept",
        )
        assert owners.split()[:4] == ["1000"] * 4 and "1000" not in owners.split()[4:]
        for script in (
            "touch /etc/x",
            "echo x >>/etc/passwd",
            "rm /usr/bin/env",
            "touch /x",
            "mkdir /opt/x",
            "touch /var/x",
            "mv /app /gone",
        ):
            assert not (await sandbox.exec(["sh", "-c", script])).ok, script


async def test_the_settings_of_an_image_apply_and_those_of_the_sandbox_come_after(
    root: Path, images: ImageStore, shared: Path
) -> None:
    base = images.find("small")
    members = [
        directory("srv/code"),
        member("srv/code/f", b"1"),
        directory("home/other"),
        member("home/other/f", b"2"),
    ]
    place = oci(
        root / "oci",
        rootfs_layer(base.root),
        layer(members),
        config={"WorkingDir": "/srv/code", "Env": ["A=image", "B=image", "PATH=/usr/bin:/srv/bin"]},
    )
    images.add(place, name="configured")
    async with opened(images, image="configured", env={"B": "spec"}) as sandbox:
        assert await printed(sandbox, "pwd; echo $A $B $PATH $HOME; cat f /app/f /home/other/f; ls /app") == (
            "/srv/code\nimage spec /usr/bin:/srv/bin /home/agent\n112f\n"
        )
        await printed(sandbox, "echo 2 >f; ln -s /srv/code/f inner")
        found = await sandbox.changed()
        assert set(found.modified) == {"f"} and found.links == {"inner": "/app/f"}
    settings = ImageSettings(directory=str(images.directory))
    with pytest.raises(ValueError, match="work directory is"):
        async with BubblewrapProvider(images=settings).open(
            SandboxSpec(image="configured", binds={shared: "/srv"})
        ):
            pass


START_UP = [
    "BASH_ENV=/srv/image.sh",
    "LD_PRELOAD=/srv/image.so",
    "PENSTOCK_ROLLOUT=image",
    "PENSTOCK_DRAWS=image",
    "HOME=/srv",
]


async def test_our_variables_win_over_those_of_a_base_image_that_begin_programs(
    root: Path, images: ImageStore
) -> None:
    members = [directory("srv"), member("srv/image.sh", b"echo of the image\n")]
    place = oci(
        root / "oci", rootfs_layer(images.find("small").root), layer(members), config={"Env": START_UP}
    )
    images.add(place, name="starting")
    async with opened(
        images, image="starting", env={"PENSTOCK_ROLLOUT": "spec", "LD_PRELOAD": ""}
    ) as sandbox:
        shown = ["bash", "-c", 'echo "$PENSTOCK_ROLLOUT $PENSTOCK_DRAWS <$LD_PRELOAD> $HOME"']
        images_own = await sandbox.exec(shown)
        await printed(sandbox, "echo echo ours >ours.sh")
        ours = await sandbox.exec(
            shown, env={"BASH_ENV": "/app/ours.sh", "PENSTOCK_DRAWS": "7", "HOME": "/app"}
        )
    assert images_own.stdout == b"of the image\nspec image <> /srv\n"
    assert (ours.stdout, ours.stderr) == (b"ours\nspec 7 <> /app\n", b"")


def rootfs_layer(root: Path) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in ("usr", "bin", "lib", "lib64"):
            archive.add(root / name, arcname=name)
    return packed.getvalue()


@pytest.fixture
def hostile(images: ImageStore, shared: Path) -> Iterator[tuple[str, Path]]:
    """An image whose links lead out wherever the sandbox has a place, and the directory of this machine to which they lead."""
    outside = shared / "outside"
    outside.mkdir(mode=0o777)
    outside.chmod(0o777)
    (outside / "secret").write_text("secret")
    root = shared / "hostile"
    shutil.copytree(shared / "root", root, symlinks=True)
    for name in ("home", "logs", "tests", "solution", "run", "proc", "dev", "opt"):
        (root / name).symlink_to(f"/oldroot{outside}")
    (root / "tmp").rmdir()
    (root / "tmp").symlink_to(outside)
    images.add(root, name="hostile")
    yield "hostile", outside
    shutil.rmtree(root)
    shutil.rmtree(outside)


@pytest.mark.parametrize("kind", KINDS)
async def test_links_of_an_image_lead_no_place_of_the_sandbox_out_to_the_machine(
    root: Path, images: ImageStore, hostile: tuple[str, Path], kind: Layering | None
) -> None:
    image, outside = hostile
    (root / "tools").mkdir(mode=0o755)
    (root / "tools" / "f").write_text("tool")
    binds = {root / "tools": "/opt/tools"}
    async with opened(
        images, kind=kind, image=image, binds=binds, files={"/tests/t": File(b"t"), "/tmp/f": File(b"f")}
    ) as sandbox:
        assert await printed(
            sandbox,
            "cat /tests/t /tmp/f /opt/tools/f; touch /home/agent/x /logs/x /tmp/x; ls /home /run /opt | sort -u | tr '\\n' ' '",
        ) == ("tftool/home: /opt: /run: agent penstock-init tools ").replace("/home:", " /home:")
        assert not (
            await sandbox.exec(["sh", "-c", f"cat {outside}/secret || cat /oldroot{outside}/secret"])
        ).ok
    assert os.listdir(outside) == ["secret"]


async def test_an_image_in_use_is_not_pruned(root: Path, images: ImageStore, shared: Path) -> None:
    (shared / "root" / "app" / "extra").touch()
    image = images.add(shared / "root")
    (shared / "root" / "app" / "extra").unlink()
    async with opened(images, image=image.digest) as sandbox:
        assert images.prune().in_use == 1
        assert await printed(sandbox, "cat kept") == "1"
    assert images.prune().removed == (image.digest,)
    with pytest.raises(SandboxError, match="is not in"):
        async with opened(images, image=image.digest):
            pass


def mounts_of(directory: Path) -> list[str]:
    """Processes that have a mount below `directory`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found += [process.name] if f" {directory}" in (process / "mountinfo").read_text() else []
        except OSError:
            continue
    return found


@as_root
@pytest.mark.parametrize("kind", [Layering.IDMAPPED, Layering.FUSE])
async def test_the_mounts_of_a_killed_owner_are_gone(root: Path, images: ImageStore, kind: Layering) -> None:
    if kind not in Layering.candidates(own_user=True):
        pytest.skip("fuse-overlayfs is not installed, or /dev/fuse cannot be opened")
    program = (
        "import anyio, sys\nfrom pathlib import Path\nfrom sandboxes.base import SandboxSpec\nfrom sandboxes.bubblewrap import BubblewrapProvider\n"
        "from sandboxes.images.mounted import Layering\nfrom sandboxes.images.settings import ImageSettings\n"
        "async def main():\n"
        "    provider = BubblewrapProvider(Path(sys.argv[1]), images=ImageSettings(directory=sys.argv[2]), layering=Layering(sys.argv[3]))\n"
        "    async with provider.open(SandboxSpec(image='small')) as sandbox:\n"
        "        process = await sandbox.start(['sh', '-c', 'echo up; exec sleep 600'])\n        await process.read()\n"
        "        print('up', flush=True)\n        await process.wait()\n"
        "anyio.run(main)\n"
    )
    boxes = root / "boxes"
    command = [sys.executable, "-c", program, str(boxes), str(images.directory), kind.value]
    async with await anyio.open_process(command, stdin=None, stderr=None) as owner:
        try:
            assert owner.stdout is not None and (await owner.stdout.receive()).startswith(b"up")
            assert mounts_of(boxes)
        finally:
            owner.kill()
    await eventually(lambda: not mounts_of(boxes))
    await eventually(lambda: not list(boxes.glob("*.json")))


async def test_a_closed_sandbox_leaves_no_mount_and_no_descriptor(root: Path, images: ImageStore) -> None:
    async with opened(images) as sandbox:
        await printed(sandbox, "true")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        async with opened(images) as sandbox:
            assert isinstance(sandbox, ImageSandbox)
            await printed(sandbox, "echo 1 >kept")
    assert len(os.listdir("/proc/self/fd")) == before
    assert mounts_of(root) == []


@as_root
async def test_an_ordinary_user_has_images_too(root: Path, shared: Path) -> None:
    """Unprivileged: overlayfs in a user namespace, over an image unpacked as that user."""
    program = (
        "import anyio, json, sys\nfrom pathlib import Path\nfrom sandboxes.base import File, SandboxSpec\n"
        "from sandboxes.bubblewrap import BubblewrapProvider\n"
        "from sandboxes.images.settings import ImageSettings\n"
        "async def main():\n"
        "    home = Path(sys.argv[1])\n    settings = ImageSettings(directory=str(home / 'store'))\n"
        "    store = settings.store()\n    store.add(Path(sys.argv[2]), name='small')\n"
        "    provider = BubblewrapProvider(home / 'boxes', images=settings)\n"
        "    spec = SandboxSpec(image='small', files={'/app/placed': File(b'p')}, without=('/app/tree',))\n"
        "    async with provider.open(spec) as sandbox:\n"
        "        script = 'id -u; stat -c %u kept; cat placed; echo 2 >>kept; rm gone; rm -r again; mkdir again; ls tree; touch /etc/x; exit 0'\n"
        "        result = await sandbox.exec(['sh', '-c', script])\n"
        "        found = await sandbox.changed()\n"
        "        again = await sandbox.exec(['cat', 'kept'])\n"
        "        print(json.dumps([provider.layering, result.stdout.decode(), result.stderr.decode(), sorted(found.modified), found.deleted,\n"
        "                          again.stdout.decode()]))\n"
        "anyio.run(main)\n"
    )
    path = readable_packages(root / "packages")
    home = root / "nobody"
    home.mkdir(mode=0o755)
    os.chown(home, 65534, 65534)
    own = root / "own"
    shutil.copytree(shared / "root", own, symlinks=True)

    async def imports() -> subprocess.CompletedProcess[bytes]:
        return await anyio.run_process(
            ["/usr/bin/python3", "-c", program, str(home), str(own)], user=65534, group=65534, extra_groups=[], check=False,
            env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(home), "TMPDIR": str(home)}, cwd="/",
        )  # fmt: skip

    result = await imports()  # root's closed directory is named, not left out
    assert f"{own}/app/shut is closed to this user: permit reading".encode() in result.stderr
    (own / "app/shut").chmod(0o755)
    result = await imports()
    assert result.returncode == 0, result.stderr.decode()
    kind, out, err, modified, deleted, again = json.loads(result.stdout)
    assert kind in (Layering.USER, Layering.FUSE, Layering.COPY)
    assert out.split() == ["1000", "1000", "p"] and "Read-only" in err and "tree" in err
    assert (modified, deleted, again) == (["kept"], ["again/x", "gone"], "12\n")
