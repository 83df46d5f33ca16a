"""The store of images: what is imported, under which digest, what is refused, and what is left after a failure."""

import errno
import fcntl
import io
import json
import os
import platform
import stat
import tarfile
import threading
from pathlib import Path

import pytest

from sandboxes.base import ImageRefused, SandboxFull
from sandboxes.images.build import Builder
from sandboxes.images.export import write_archive
from sandboxes.images.settings import ImageSettings
from sandboxes.images.store import Image, ImageStore, UnknownImage
from sandboxes.images.unpack import Bounds, Unpacker
from tests.unit.sandboxes.images.archives import (
    BASE,
    SHELL,
    Members,
    archived,
    directory,
    layer,
    link,
    member,
    oci,
)


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "store")


def added(store: ImageStore, tmp_path: Path, *layers: Members, **options: object) -> Image:
    place = tmp_path / f"oci-{len(list(tmp_path.iterdir()))}"
    return store.add(oci(place, *(layer(each) for each in layers), **options))  # type: ignore[arg-type]


def refusal(store: ImageStore, tmp_path: Path, *layers: Members, **options: object) -> str:
    with pytest.raises(ImageRefused) as refused:
        added(store, tmp_path, *layers, **options)
    assert remains(store) == []
    return str(refused.value)


def remains(store: ImageStore) -> list[str]:
    """Everything in the store that is neither a whole image nor a name."""
    places = ("images", "unfinished")
    return [name for place in places for name in os.listdir(store.directory / place)]


def test_an_image_has_the_files_of_its_layers_and_the_settings_of_its_configuration(
    store: ImageStore, tmp_path: Path
) -> None:
    image = added(
        store,
        tmp_path,
        BASE,
        [directory("srv/code"), member("srv/code/a.py", b"1", mode=0o755)],
        config={"Env": ["A=1", "B=x=y"], "WorkingDir": "/srv/code", "User": "web"},
        compress=True,
    )
    assert (image.root / "srv/code/a.py").read_bytes() == b"1"
    assert stat.S_IMODE((image.root / "srv/code/a.py").stat().st_mode) == 0o755
    assert (image.work, image.env, image.user) == ("/srv/code", {"A": "1", "B": "x=y"}, "web")
    assert "agent:x:1000:1000" in (image.root / "etc/passwd").read_text()


def test_the_same_content_has_one_digest_from_an_archive_a_directory_and_a_root_file_system(
    store: ImageStore, tmp_path: Path
) -> None:
    first = added(store, tmp_path, BASE, [member("app/f", b"same")])
    second = store.add(archived(oci(tmp_path / "again", layer([*BASE, member("app/f", b"same")]))))
    root = tmp_path / "root"
    for path, data, mode in (("bin/sh", SHELL, 0o755), ("app/f", b"same", 0o644)):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
        (root / path).chmod(mode)
    assert first.digest == second.digest == store.add(root).digest
    assert first.digest != added(store, tmp_path, BASE, [member("app/f", b"other")]).digest
    assert first.digest != added(store, tmp_path, BASE, [member("app/f", b"same", mode=0o600)]).digest
    assert len(store.all()) == 3


def test_a_later_layer_replaces_removes_and_empties(store: ImageStore, tmp_path: Path) -> None:
    first = [
        *BASE,
        member("app/gone"),
        member("app/d/old"),
        member("app/d/sub/old"),
        member("app/file", b"1"),
        member("app/was/file"),
    ]
    second = [
        *(member("app/.wh.gone"), member("app/d/new"), member("app/d/sub/new"), member("app/d/.wh..wh..opq")),
        *(
            directory("app/file"),
            member("app/file/in"),
            member("app/was", b"now a file"),
            member("app/.wh.never"),
            member("app/.wh..wh.plnk"),
        ),
    ]
    work = added(store, tmp_path, first, second).root / "app"
    found = sorted(str(path.relative_to(work)) for path in work.rglob("*") if not path.is_dir())
    assert found == ["d/new", "d/sub/new", "file/in", "was"]


def test_rights_owners_and_devices_are_dropped(store: ImageStore, tmp_path: Path) -> None:
    image = added(
        store,
        tmp_path,
        [
            *BASE,
            member("app/suid", b"x", mode=0o6755, uid=1000),
            member("dev/null", type=tarfile.CHRTYPE),
            member("pipe", type=tarfile.FIFOTYPE),
        ],
    )
    status = (image.root / "app/suid").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o755, os.geteuid())
    assert not (image.root / "dev/null").exists() and not (image.root / "pipe").exists()


def test_directories_outside_of_the_work_directory_are_open_and_those_in_it_keep_their_permissions(
    store: ImageStore, tmp_path: Path
) -> None:
    image = added(
        store,
        tmp_path,
        [*BASE, directory("root", 0o700), directory("app", 0o700), directory("app/own", 0o710)],
    )
    modes = {name: stat.S_IMODE((image.root / name).stat().st_mode) for name in ("root", "app", "app/own")}
    assert modes == {"root": 0o755, "app": 0o755, "app/own": 0o710}


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (member("/etc/x"), "leads out of it"),
        (member("../x"), "leads out of it"),
        (member("a/../../x"), "leads out of it"),
        (member("n" * 256), "too long"),
        (member("d/" * 120 + "x"), "more than 99 parts"),
        (member("hard", type=tarfile.LNKTYPE, linkname="absent"), "no file of its own"),
        (member("hard", type=tarfile.LNKTYPE, linkname="../../etc/passwd"), "leads out of it"),
        (member("hard", type=tarfile.LNKTYPE, linkname="bin"), "no file of its own"),
        (member(".wh..", b""), "without a name"),
        (member("."), "root directory"),
        (member("odd", type=b"Z"), "unknown kind"),
    ],
)
def test_what_no_layer_may_hold_is_refused(
    store: ImageStore, tmp_path: Path, entry: tuple[tarfile.TarInfo, bytes], why: str
) -> None:
    assert why in refusal(store, tmp_path, [*BASE, entry])


@pytest.mark.parametrize("below", ["out/planted", "out/deep/planted"])
def test_nothing_is_written_or_removed_through_a_link(store: ImageStore, tmp_path: Path, below: str) -> None:
    host = tmp_path / "host"
    host.mkdir()
    (host / "kept").touch()
    for entry in (
        member(below),
        directory(below),
        link(below, "x"),
        member("out/.wh.kept"),
        member("out/.wh..wh..opq"),
    ):
        assert "below a link" in refusal(store, tmp_path, [*BASE, link("out", str(host))], [entry])
    assert os.listdir(host) == ["kept"]


def test_a_hard_link_never_reaches_through_a_link(store: ImageStore, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    hard = member("copy", type=tarfile.LNKTYPE, linkname="out/secret")
    assert "below a link" in refusal(store, tmp_path, [*BASE, link("out", str(tmp_path)), hard])
    hard = member("copy", type=tarfile.LNKTYPE, linkname="out")
    assert "no file of its own" in refusal(
        store, tmp_path, [*BASE, link("out", str(tmp_path / "secret")), hard]
    )


def test_a_link_is_kept_as_it_is_and_replaced_by_a_directory_of_a_later_layer(
    store: ImageStore, tmp_path: Path
) -> None:
    image = added(
        store,
        tmp_path,
        [*BASE, link("kept", "/etc/shadow"), link("home", str(tmp_path))],
        [directory("home"), member("home/f")],
    )
    assert os.readlink(image.root / "kept") == "/etc/shadow"
    assert not (image.root / "home").is_symlink() and not (tmp_path / "f").exists()


@pytest.mark.parametrize("bounds", [Bounds(files=20), Bounds(bytes=400)])
def test_an_image_above_a_limit_is_refused(tmp_path: Path, bounds: Bounds) -> None:
    store = ImageStore(tmp_path / "store", bounds)
    many = [member(f"app/{number}", b"x" * 30) for number in range(30)]
    assert "is larger than" in refusal(store, tmp_path, [*BASE, *many])
    removed = [entry for number in range(30) for entry in (member("app/f", b"x" * 30), member("app/.wh.f"))]
    assert "is larger than" in refusal(store, tmp_path, [*BASE, *removed])


@pytest.mark.parametrize(
    ("work", "why"),
    [
        ("/tmp/x", "taken"),
        ("/usr", "taken"),
        ("/logs", "taken"),
        ("/tests", "taken"),
        ("/run/penstock/x", "taken"),
        ("/home/agent/x", "taken"),
        ("app", "not an absolute"),
    ],
)
def test_a_work_directory_that_the_sandbox_needs_itself_is_refused(
    store: ImageStore, tmp_path: Path, work: str, why: str
) -> None:
    assert why in refusal(store, tmp_path, BASE, config={"WorkingDir": work})


def test_a_work_directory_behind_a_link_is_refused(store: ImageStore, tmp_path: Path) -> None:
    image = [*BASE, link("srv", str(tmp_path))]
    assert "is not a directory in the image" in refusal(
        store, tmp_path, image, config={"WorkingDir": "/srv/code"}
    )
    assert "is not a directory in the image" in refusal(store, tmp_path, [*BASE, link("app", "/etc")])


def test_files_of_etc_are_never_written_through_a_link(store: ImageStore, tmp_path: Path) -> None:
    victim = tmp_path / "passwd"
    victim.write_text("untouched")
    image = added(
        store,
        tmp_path,
        [*BASE, link("etc/passwd", str(victim)), member("etc/group", b"web:x:33:\nother:x:1000:\n")],
    )
    assert victim.read_text() == "untouched" and not (image.root / "etc/passwd").is_symlink()
    assert (image.root / "etc/group").read_text() == "web:x:33:\nagent:x:1000:\nother:x:1000:\n"
    assert "below a link" in refusal(
        ImageStore(tmp_path / "second"), tmp_path, [*BASE, link("etc", str(tmp_path))]
    )


def test_another_architecture_is_refused_by_the_configuration_and_by_the_shell(
    store: ImageStore, tmp_path: Path
) -> None:
    assert "is for linux/s390x" in refusal(store, tmp_path, BASE, architecture="s390x")
    foreign = SHELL[:18] + b"\x16\0" + SHELL[20:]
    assert "the image is for s390x" in refusal(store, tmp_path, [member("bin/sh", foreign)])
    assert "has no shell" in refusal(store, tmp_path, [member("app/f")])
    assert added(store, tmp_path, BASE, architecture=platform.machine()) == added(store, tmp_path, BASE)


def test_a_layer_that_is_not_what_its_digest_says_is_refused(store: ImageStore, tmp_path: Path) -> None:
    assert "not what its digest says" in refusal(store, tmp_path, BASE, wrong=True)
    assert "not what its digest says" in refusal(
        store, tmp_path, BASE, [member("app/f")], wrong=True, compress=False
    )


def test_a_truncated_layer_is_refused(store: ImageStore, tmp_path: Path) -> None:
    whole = layer([*BASE, member("app/f", b"x" * 4096)])
    for data in (whole[:3000], b"\x1f\x8bnot gzip", b"\x28\xb5\x2f\xfdzstd"):
        with pytest.raises(ImageRefused, match=r"cannot be read|ends within|zstd|no shell"):
            store.add(oci(tmp_path / f"cut-{len(data)}", data))
    assert remains(store) == []


def test_what_is_not_an_image_is_refused(store: ImageStore, tmp_path: Path) -> None:
    with pytest.raises(ImageRefused, match="does not exist"):
        store.add(tmp_path / "absent")
    empty = tmp_path / "empty.tar"
    with tarfile.open(empty, "w") as archive:
        archive.addfile(tarfile.TarInfo("other"), io.BytesIO())
    with pytest.raises(ImageRefused, match=r"has no index\.json"):
        store.add(empty)


def test_a_full_disk_leaves_nothing_and_is_named(
    store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Unpacker, "file", full)
    with pytest.raises(SandboxFull, match="takes no image"):
        added(store, tmp_path, BASE)
    assert remains(store) == []


def test_two_imports_of_the_same_at_once_give_one_image(store: ImageStore, tmp_path: Path) -> None:
    source = oci(
        tmp_path / "oci", layer([*BASE, *(member(f"app/{number}", b"x" * 999) for number in range(200))])
    )
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(store.add(source, name="same").digest)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len(set(found)) == 1
    assert os.listdir(store.directory / "unfinished") == [] and len(store.all()) == 1


def test_what_a_killed_import_left_is_removed_by_the_next_and_a_living_one_is_not_touched(
    store: ImageStore, tmp_path: Path
) -> None:
    store.prepare()
    unfinished = store.directory / "unfinished"
    for name in ("dead", "alive"):
        (unfinished / name / "root").mkdir(parents=True)
        (unfinished / f"{name}.lock").touch()
    with (unfinished / "alive.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        added(store, tmp_path, BASE)
        assert sorted(os.listdir(unfinished)) == ["alive", "alive.lock"]


def test_a_directory_that_is_closed_to_us_is_named_and_never_left_out(
    store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    for path in ("bin", "srv/closed", "tmp/closed"):
        (root / path).mkdir(parents=True)
    (root / "bin/sh").write_bytes(SHELL)
    access = os.access

    def closed(path: str, mode: int, *, dir_fd: int | None = None) -> bool:
        """As an ordinary user finds it: tests run as root too."""
        return path != "closed" and access(path, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "access", closed)
    with pytest.raises(ImageRefused, match="root/srv/closed is closed to this user: permit reading, or do"):
        store.add(root)
    (root / "srv/closed").rmdir()
    assert store.add(root).files


def test_an_image_is_found_by_its_name_and_by_a_part_of_its_digest(store: ImageStore, tmp_path: Path) -> None:
    image = added(store, tmp_path, BASE)
    store.name("docker.io/library/debian:12", image)
    for reference in ("docker.io/library/debian:12", image.reference, image.digest, image.digest[:12]):
        assert store.find(reference) == image
    for reference in ("debian:13", "f" * 64, image.digest[:5], "../images", ""):
        with pytest.raises(UnknownImage, match="penstock images"):
            store.find(reference)
    for name in ("", "UPPER", "a b", "-x", image.digest):
        with pytest.raises(ImageRefused, match="cannot name an image"):
            store.name(name, image)


def test_a_tag_may_have_capital_letters_and_a_repository_may_not(store: ImageStore, tmp_path: Path) -> None:
    image, builds = added(store, tmp_path, BASE), Builder(store, ImageSettings())
    for name in ("texlive/texlive:TL2023-historic", "localhost:5000/foo/bar:V1", "a:_B.c-D"):
        with pytest.raises(ImageRefused, match=f"--name {name}`"):
            builds.base(f"docker.io/{name}")
        store.name(name, image)
        assert store.find(name) == builds.base(f"docker.io/{name}") == image and name in store.names()
    for name in ("Texlive/texlive", "A:b", "a:B/c", "a:-B", f"a:{'B' * 129}", f"a:{'b' * 200}"):
        with pytest.raises(ImageRefused, match="cannot name an image"):
            store.name(name, image)


def test_prune_removes_images_without_a_name_and_never_one_in_use(store: ImageStore, tmp_path: Path) -> None:
    named, unnamed, used = (added(store, tmp_path, BASE, [member(f"app/{name}")]) for name in "abc")
    store.name("named", named)
    with store.using(used.digest) as held:
        pruned = store.prune()
        assert pruned.removed == (unnamed.digest,) and pruned.in_use == 1
        assert held.root.is_dir() and not unnamed.root.exists()
    assert store.prune().removed == (used.digest,)
    assert [image.digest for image, _ in store.all()] == [named.digest]
    assert store.prune(keep=lambda *_: False).removed == (named.digest,) and store.names() == {}
    assert remains(store) == []


def test_directories_of_data_are_kept_and_travel_and_others_mean_nothing(
    store: ImageStore, tmp_path: Path
) -> None:
    volumes: dict[str, dict[str, str]] = {"/data/": {}, "//srv/a": {}, "relative": {}, "/": {}, "/x\0": {}}
    declared = store.add(oci(tmp_path / "a", layer(BASE), config={"Volumes": volumes}), name="a")
    plain = store.add(oci(tmp_path / "b", layer(BASE)))
    assert declared.volumes == store.find("a").volumes == ("/data", "/srv/a") and plain.volumes == ()
    assert declared.digest != plain.digest
    assert "volumes" not in (plain.root.parent / "image.json").read_text(), "earlier versions read it"
    write_archive(declared, tmp_path / "a.tar")
    assert ImageStore(tmp_path / "other").add(tmp_path / "a.tar").digest == declared.digest


def test_an_image_that_a_newer_version_has_stored_is_refused_by_what_is_unknown_of_it(
    store: ImageStore, tmp_path: Path
) -> None:
    image = added(store, tmp_path, BASE)
    about = image.root.parent / "image.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "signed_by": "x"}))
    with pytest.raises(UnknownImage, match="by a newer version of Penstock, which says signed_by of it: upg"):
        store.find(image.digest)
    assert store.all() == []
