"""The files of this machine that builds read are part of the name of a built image."""

from pathlib import Path

import pytest

from sandboxes.base import File, SandboxError
from sandboxes.images.build import Builder
from sandboxes.images.settings import ImageSettings
from sandboxes.images.store import ImageStore
from tests.unit.sandboxes.images.archives import BASE, layer, oci

CONTEXT = {"Dockerfile": File(b"FROM base\nRUN cat /run/penstock-build/a")}


def test_a_context_with_a_file_that_not_everyone_may_read_has_a_name_of_its_own(tmp_path: Path) -> None:
    key(tmp_path)
    builds = Builder(ImageStore(tmp_path / "store"), ImageSettings())
    names = {builds.key({**CONTEXT, "a": File(b"", mode)}) for mode in (0o600, 0o644, 0o640, 0o755)}
    assert len(names) == 4


def key(tmp_path: Path, **files: Path) -> str:
    store = ImageStore(tmp_path / "store")
    if not store.directory.exists():
        store.add(oci(tmp_path / "oci", layer(BASE)), name="base")
    settings = ImageSettings(build_files={name: str(path) for name, path in files.items()})
    return Builder(store, settings).key(CONTEXT)


def test_the_name_of_a_built_image_follows_the_files_that_its_build_reads(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("1")
    two.write_text("1")
    found = [key(tmp_path), key(tmp_path, a=one)]
    assert key(tmp_path, a=two) == found[1], "the place of a file does not matter"
    found.append(key(tmp_path, b=one))
    one.write_text("other")
    found.append(key(tmp_path, a=one))
    one.chmod(0o755)
    found.append(key(tmp_path, a=one))
    assert len({*found}) == len(found)
    one.write_text("1")
    one.chmod(0o644)
    two.chmod(0o644)
    assert key(tmp_path, a=one) == key(tmp_path, a=two)


def test_the_name_of_a_built_image_follows_the_content_of_a_directory_that_its_build_reads(
    tmp_path: Path,
) -> None:
    wheels = tmp_path / "wheels"
    (wheels / "below").mkdir(parents=True)
    found = [key(tmp_path, a=wheels)]
    (wheels / "below" / "file").write_text("1")
    found.append(key(tmp_path, a=wheels))
    (wheels / "below" / "file").write_text("other")
    found.append(key(tmp_path, a=wheels))
    (wheels / "link").symlink_to("below")
    found.append(key(tmp_path, a=wheels))
    (wheels / "link").unlink()
    (wheels / "link").symlink_to("below/file")
    found.append(key(tmp_path, a=wheels))
    assert len({*found}) == len(found)
    other = tmp_path / "other"
    other.symlink_to(wheels)
    assert key(tmp_path, a=wheels) == key(tmp_path, a=other) == found[-1]


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        SandboxError, match=rf"^sandbox\.images\.build_files: a: {tmp_path}/no does not exist$"
    ):
        key(tmp_path, a=tmp_path / "no")
