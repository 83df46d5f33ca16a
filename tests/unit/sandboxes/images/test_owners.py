"""The owners that an image's author gave its files: kept through layers, part of the digest, and carried into archives."""

import tarfile
from pathlib import Path

import pytest

from sandboxes.base import SandboxError
from sandboxes.images import export
from sandboxes.images.owners import Owners, read_system_file
from sandboxes.images.store import Image, ImageStore
from tests.unit.sandboxes.images.archives import BASE, Members, layer, link, member, oci

WORK = member("app", type=tarfile.DIRTYPE, mode=0o755)


def owned(name: str, uid: int, gid: int | None = None, **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    return member(
        name, b"x" if "type" not in fields else b"", uid=uid, gid=uid if gid is None else gid, **fields
    )


def added(tmp_path: Path, *layers: Members, name: str = "one") -> Image:
    place = oci(tmp_path / name, *(layer(each) for each in layers), config={"WorkingDir": "/app"})
    return ImageStore(tmp_path / "store").add(place)


def test_the_last_layer_decides_the_owner_of_an_entry(tmp_path: Path) -> None:
    first = [
        *(*BASE, WORK, owned("app/a", 1001), owned("app/again", 1001), owned("app/gone", 1001)),
        *(
            owned("app/dir", 1001, type=tarfile.DIRTYPE, mode=0o755),
            owned("app/dir/in", 1001, 70),
            owned("etc/x", 33),
        ),
    ]
    second = [
        *(owned("app/again", 0), member("app/.wh.gone"), owned("app/gone/implied", 5), member("app/.wh.dir")),
        *(
            member("app/hard", type=tarfile.LNKTYPE, linkname="app/a"),
            owned("app/dir/in", 0),
            owned("app/b", 1001),
        ),
    ]
    image = added(tmp_path, first, second)
    paths = ("", "a", "again", "hard", "dir", "dir/in", "gone", "gone/implied", "b")
    found = {path: image.owners.at(f"app/{path}".rstrip("/"), "app") for path in paths}
    assert found == {
        "": (0, 0), "a": (1001, 1001), "again": (0, 0), "hard": (1001, 1001), "dir": (0, 0), "dir/in": (0, 0), "gone": (0, 0),
        "gone/implied": (5, 5), "b": (1001, 1001),
    }  # fmt: skip
    assert image.owners.at("etc/x", "app") == (33, 33) and image.owners.at("bin/sh", "app") == (0, 0)


def test_what_most_entries_have_is_not_listed_for_each(tmp_path: Path) -> None:
    files = [owned(f"app/f{number}", 1001) for number in range(9)]
    owners = added(tmp_path, [*BASE, WORK, *files, owned("app/other", 7)]).owners
    assert owners.usual == (1001, 1001) and owners.others == {"": (0, 0), "other": (7, 7)}
    assert owners.ids == {(1001, 1001), (0, 0), (7, 7)}


def test_owners_are_part_of_the_digest_and_travel_with_an_archive(tmp_path: Path) -> None:
    one = added(tmp_path, [*BASE, WORK, owned("app/a", 1001), owned("etc/x", 33)])
    two = added(tmp_path, [*BASE, WORK, owned("app/a", 1002), owned("etc/x", 33)], name="two")
    assert one.digest != two.digest
    export.write_archive(one, tmp_path / "one.tar")
    again = ImageStore(tmp_path / "elsewhere").add(tmp_path / "one.tar")
    assert again.digest == one.digest and again.owners == one.owners


def test_an_image_of_an_earlier_version_has_no_owners_and_is_exported_as_roots(tmp_path: Path) -> None:
    image = added(tmp_path, [*BASE, WORK, owned("app/a", 1001)])
    (image.root.parent / "owners.json").write_text("{}")
    with pytest.raises(SandboxError, match="has no owners of its files: import or build it again"):
        _ = image.owners
    (image.root.parent / "owners.json").unlink()
    export.write_archive(image, tmp_path / "old.tar")
    assert ImageStore(tmp_path / "elsewhere").add(tmp_path / "old.tar").owners.ids == {(0, 0)}


def test_a_name_for_the_number_of_the_sandboxs_user_stays_in_an_image(tmp_path: Path) -> None:
    passwd = b"root:x:0:0::/:/bin/sh\nworker:x:1000:1000::/w:/bin/sh\nagent:x:7:7::/:/bin/sh\n"
    image = added(tmp_path, [*BASE, member("etc/passwd", passwd)])
    lines = read_system_file(image.root, "etc/passwd").splitlines()
    assert [line.split(":")[0] for line in lines] == ["root", "agent", "worker"]
    assert [line.split(":")[2] for line in lines] == ["0", "1000", "1000"]


def test_a_file_of_the_system_is_never_read_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    image = added(tmp_path, [*BASE, link("srv", str(tmp_path)), link("etc/x", str(tmp_path / "secret"))])
    assert read_system_file(image.root, "srv/secret") == read_system_file(image.root, "etc/x") == ""
    assert read_system_file(image.root, "absent/x") == read_system_file(image.root, "etc") == ""


def test_owners_are_read_as_they_were_written(tmp_path: Path) -> None:
    owners = Owners(usual=(1, 2), others={"a": (3, 4)}, system={"etc/x": (5, 6)})
    (tmp_path / "file").write_text(owners.text())
    assert Owners.read(tmp_path / "file") == owners
