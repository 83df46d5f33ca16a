"""The user of a sandbox's programs: the sandbox's own, root as another name of it, and users that need a range."""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from ops.lab.root_filesystem import make_root
from sandboxes import procfs
from sandboxes.base import File, ImageRefused, Sandbox, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.images.mounted import Layering
from sandboxes.images.settings import ImageSettings
from sandboxes.images.store import ImageStore
from sandboxes.local import LocalProvider
from sandboxes.owner import records
from sandboxes.reap import default_root, reap
from sandboxes.users import MAX_IDS, Account, Range, find, is_user, own
from tests.waiting import eventually

pytestmark = pytest.mark.anyio
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root's sandboxes have several users")
PASSWD = (
    "root:x:0:0::/:/bin/sh\nworker:x:1001:1002::/home/worker:/bin/sh\nagent:x:1000:1000::/:/bin/sh\nbroken\n"
)
GROUP = "root:x:0:\nstaff:x:50:worker,other\nworker:x:1002:\n"


async def printed(sandbox: Sandbox, script: str) -> str:
    result = await sandbox.exec(["sh", "-c", script])
    assert result.ok, result
    return result.stdout.decode()


def test_a_user_is_a_name_or_a_uid() -> None:
    wrong: object
    for value in (0, 1000, "0", "root", "agent", "www-data", "_apt", "build$", 2**31 - 1):
        assert is_user(value), value
    for wrong in (-1, True, 1.0, "", "1000:1000", "a b", "-x", "a/b", 2**31, "9" * 10, None, [], "ä"):
        assert not is_user(wrong), wrong


def test_the_sandboxs_own_user_and_root_need_no_range() -> None:
    assert [own(name) for name in ("", "agent", "1000", "01000", "root", "0")] == [
        1000,
        1000,
        1000,
        1000,
        0,
        0,
    ]
    assert own("worker") is None and own("1001") is None


def test_a_name_is_found_with_its_groups_and_a_uid_need_not_be_known() -> None:
    assert find("worker", PASSWD, GROUP, "the image") == Account(
        name="worker", uid=1001, gid=1002, groups=(50,)
    )
    assert find("1001", PASSWD, GROUP, "the image").name == "worker"
    assert find("4242", PASSWD, GROUP, "the image") == Account(name="4242", uid=4242, gid=0)


def test_a_name_that_the_image_lacks_is_one_sentence_with_those_it_has() -> None:
    with pytest.raises(
        ImageRefused, match=r"^the image has no user 'stranger': create it .* agent, root, worker$"
    ):
        find("stranger", PASSWD, GROUP, "the image")


def test_files_of_more_users_than_a_sandbox_has_are_refused() -> None:
    account = Account(name="w", uid=1, gid=1)
    Range.of(account, [(10 + number, 0) for number in range(MAX_IDS - 2)], 100)
    with pytest.raises(ImageRefused, match="more than 16 users"):
        Range.of(account, [(10 + number, 0) for number in range(MAX_IDS - 1)], 100)


@pytest.mark.parametrize(
    ("user", "uid", "name"),
    [
        ("", "1000", "agent"),
        ("agent", "1000", "agent"),
        ("1000", "1000", "agent"),
        ("root", "0", "root"),
        ("0", "0", "root"),
    ],
)
async def test_programs_run_as_the_sandboxs_own_user_under_either_of_its_numbers(
    root: Path, user: str, uid: str, name: str
) -> None:
    spec = SandboxSpec(user=user, files={"/app/in": File(b"text", 0o600)})
    async with BubblewrapProvider().open(spec) as sandbox:
        assert (await printed(sandbox, "id -u; id -g; stat -c %u in; whoami; echo $USER")).split() == [
            uid,
            uid,
            uid,
            name,
            name,
        ]
        for script in (
            "touch /etc/x",
            "touch /usr/x",
            "chown 5 in",
            "unshare -Ur true",
            "mount -t tmpfs x /tmp",
        ):
            assert not (await sandbox.exec(["sh", "-c", script])).ok, script


@as_root
async def test_a_uid_of_its_own_is_who_programs_are_and_whose_their_files_are(root: Path) -> None:
    spec = SandboxSpec(
        user="1234",
        files={"/app/in": File(b"text", 0o600), "/tests/t": File(b"x")},
        directories=("/logs/agent",),
    )
    async with BubblewrapProvider().open(spec) as sandbox:
        found = await printed(
            sandbox,
            "id -u; stat -c %u . in /logs/agent /home/agent /tmp; cat in; echo new >out; echo; echo $HOME",
        )
        assert found.split() == ["1234"] * 6 + ["text", "/home/agent"]
        await sandbox.put({"/app/late": File(b"late", 0o600)})
        assert await printed(sandbox, "cat late") == "late"
        assert not (await sandbox.exec(["sh", "-c", "echo x >/tests/t"])).ok
        found_changes = await sandbox.changed()
        assert set(found_changes.added) == {"out"} and not found_changes.deleted
        assert (await printed(sandbox, "cat out")).strip() == "new", "a later session has the same user"


@as_root
async def test_no_program_of_a_range_becomes_another_user_or_makes_a_namespace(root: Path) -> None:
    become = "import os, sys\ntry:\n    os.{0}\nexcept OSError:\n    sys.exit(0)\nsys.exit('became it')"
    async with BubblewrapProvider().open(SandboxSpec(user="1234")) as sandbox:
        for call in ("setuid(0)", "setgroups([1000])", "setresuid(-1, 0, -1)", "chown('/app', 0, 0)"):
            result = await sandbox.exec(["python3", "-c", become.format(call)])
            assert result.ok, (call, result)
        assert (await printed(sandbox, "cat /proc/sys/user/max_user_namespaces")).strip() == "0"
        for script in ("unshare -U true", "unshare -r true", "echo 5 >/proc/sys/user/max_user_namespaces"):
            assert not (await sandbox.exec(["sh", "-c", script])).ok, script
        assert not (await sandbox.exec(["sh", "-c", "cat /proc/1/environ"])).ok, "process 1 is another user's"
        copied = "cp /usr/bin/id mine; chmod 4755 mine; ./mine -u"
        assert (await printed(sandbox, copied)).strip() == "1234"


@as_root
async def test_everything_ends_with_the_sandbox_whatever_user_it_has(root: Path) -> None:
    async with BubblewrapProvider().open(SandboxSpec(user="1234")) as sandbox:
        await sandbox.exec(["sh", "-c", "setsid sleep 300 >/dev/null 2>&1 &"])
        (record,) = records(default_root())
        assert record.users == MAX_IDS
        owners = {
            os.stat(f"/proc/{pid}").st_uid - record.uid for pid in procfs.owned_by(record.uid, record.users)
        }
        assert owners == {0, 1}, "process 1 and the program are two users"
    await eventually(
        lambda: not list(procfs.owned_by(record.uid, record.users))
    )  # a killed process takes a moment to end


_OWNER = """
import anyio, sys
from sandboxes.base import SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider
async def main():
    async with BubblewrapProvider().open(SandboxSpec(user="1234")) as sandbox:
        await sandbox.exec(["sh", "-c", "setsid sleep 300 >/dev/null 2>&1 &"])
        print("ready", flush=True)
        await anyio.sleep_forever()
anyio.run(main)
"""


@as_root
async def test_nothing_of_either_user_outlives_a_killed_owner(root: Path) -> None:
    async with await anyio.open_process([sys.executable, "-c", _OWNER]) as owner:
        assert owner.stdout is not None and (await owner.stdout.receive()).startswith(b"ready")
        (record,) = records(default_root())
        assert len(list(procfs.owned_by(record.uid, record.users))) >= 2
        owner.send_signal(signal.SIGKILL)

    async def gone() -> bool:
        return (
            not list(procfs.owned_by(record.uid, record.users)) and not (default_root() / record.id).exists()
        )

    reap(default_root())
    await eventually(gone)


async def test_a_user_that_a_sandbox_without_an_image_does_not_know_is_one_sentence(root: Path) -> None:
    with pytest.raises(ImageRefused, match=r"no user 'worker'|needs subordinate users"):
        async with BubblewrapProvider().open(SandboxSpec(user="worker")):
            pass


async def test_an_ordinary_user_is_refused_a_range_by_name(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert (
        BubblewrapProvider.refuses_user("root") is None and BubblewrapProvider.refuses_user("agent") is None
    )
    assert "subordinate users" in (BubblewrapProvider.refuses_user("worker") or "")
    with pytest.raises(ImageRefused, match="programs cannot run as 1234: a user of its own needs"):
        async with BubblewrapProvider().open(SandboxSpec(user="1234")):
            pass


@pytest.mark.filterwarnings("ignore::sandboxes.local.NoIsolationWarning")
async def test_local_runs_programs_as_its_own_user_alone(root: Path) -> None:
    async with LocalProvider().open(SandboxSpec(user=str(os.geteuid()))) as sandbox:
        assert (await printed(sandbox, "id -u")).strip() == str(os.geteuid())
    with pytest.raises(ImageRefused, match="programs cannot run as 4242"):
        async with LocalProvider().open(SandboxSpec(user="4242")):
            pass


@pytest.fixture(scope="module")
def owned() -> Iterator[ImageStore]:
    """A store with an image whose work directory belongs to two users."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-test-images-"))
    directory.chmod(0o755)
    root = make_root(directory / "root", python=False)
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/passwd").write_text(
        "root:x:0:0::/root:/bin/sh\nfirst:x:1000:1000::/:/bin/sh\nworker:x:1001:1001::/:/bin/sh\n"
    )
    (root / "etc/group").write_text("root:x:0:\nworker:x:1001:\nfirst:x:1000:\nshared:x:70:worker\n")
    work = root / "app"
    (work / "mine" / "deep").mkdir(parents=True)
    for path, mode, owner in (
        ("secret", 0o600, (0, 0)),
        ("readable", 0o644, (0, 0)),
        ("own", 0o600, (1001, 1001)),
        ("mine/deep/file", 0o644, (1001, 1001)),
        ("shared", 0o640, (0, 70)),
        ("third", 0o600, (1000, 1000)),
    ):
        (work / path).write_text(path)
        (work / path).chmod(mode)
        os.chown(work / path, *owner)
    for path in ("mine", "mine/deep"):
        os.chown(work / path, 1001, 1001)
    (work / "link").symlink_to("own")
    os.lchown(work / "link", 1001, 1001)
    store = ImageStore(directory / "store")
    store.add(root, name="owned")
    yield store
    shutil.rmtree(directory)


def on_image(
    owned: ImageStore, user: str, kind: Layering | None = None
) -> tuple[BubblewrapProvider, SandboxSpec]:
    settings = ImageSettings(directory=str(owned.directory))
    return BubblewrapProvider(images=settings, layering=kind), SandboxSpec(image="owned", user=user)


@as_root
@pytest.mark.parametrize("kind", [None, Layering.COPY])
async def test_the_files_of_an_image_have_the_owners_that_its_author_gave_them(
    root: Path, owned: ImageStore, kind: Layering | None
) -> None:
    provider, spec = on_image(owned, "worker", kind)
    async with provider.open(spec) as sandbox:
        assert (await printed(sandbox, "id -u; id -G; echo $USER")).split() == [
            "1001",
            "1001",
            "70",
            "worker",
        ]
        listed = await printed(
            sandbox, "stat -c '%n %u %g' . secret readable own mine/deep/file shared third link"
        )
        assert dict(line.split(" ", 1) for line in listed.splitlines()) == {
            ".": "0 0",
            "secret": "0 0",
            "readable": "0 0",
            "own": "1001 1001",
            "mine/deep/file": "1001 1001",
            "shared": "0 70",
            "third": "1000 1000",
            "link": "1001 1001",
        }
        assert (
            await printed(sandbox, "cat own readable shared mine/deep/file")
            == "ownreadablesharedmine/deep/file"
        )
        for script in (
            "cat secret",
            "cat third",
            "echo x >readable",
            "rm secret",
            "touch new",
            "chmod 644 secret",
            "mv secret mine/",
        ):
            assert not (await sandbox.exec(["sh", "-c", script])).ok, script
        assert (await sandbox.changed()).complete
        await printed(sandbox, "echo more >>own; rm mine/deep/file; echo new >mine/new")
        found = await sandbox.changed()
        assert (set(found.added), set(found.modified), found.deleted) == (
            {"mine/new"},
            {"own"},
            ("mine/deep/file",),
        )


@as_root
async def test_a_name_for_the_number_of_the_sandboxs_own_user_keeps_the_image_s_owners(
    root: Path, owned: ImageStore
) -> None:
    provider, spec = on_image(owned, "first")
    async with provider.open(spec) as sandbox:
        assert (await printed(sandbox, "id -u; cat third; stat -c %u secret")).split() == ["1000", "third0"]
        assert not (await sandbox.exec(["cat", "secret"])).ok


@as_root
async def test_without_a_user_the_agent_owns_the_whole_work_directory(root: Path, owned: ImageStore) -> None:
    provider, spec = on_image(owned, "")
    async with provider.open(spec) as sandbox:
        assert set((await printed(sandbox, "stat -c %u . secret own third")).split()) == {"1000"}


@as_root
async def test_an_image_of_an_earlier_version_says_what_to_do(root: Path, owned: ImageStore) -> None:
    image = owned.find("owned")
    file = image.root.parent / "owners.json"
    kept = file.read_bytes()
    provider, spec = on_image(owned, "worker")
    file.unlink()
    try:
        with pytest.raises(Exception, match="has no owners of its files: import or build it again"):
            async with provider.open(spec):
                pass
    finally:
        file.write_bytes(kept)


@as_root
async def test_many_sandboxes_of_one_user_do_not_see_each_others_files(root: Path, owned: ImageStore) -> None:
    provider, spec = on_image(owned, "worker")

    async def one(number: int) -> None:
        async with provider.open(spec) as sandbox:
            await printed(sandbox, f"echo {number} >>own")
            assert await printed(sandbox, "cat own") == f"own{number}\n"

    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(one, number)
