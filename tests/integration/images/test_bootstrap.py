"""A base image from a Debian mirror, a package in a layer above it, and a program that runs there."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxes.base import File, ImageRefused, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.images.bootstrap import bootstrap, suite_of
from sandboxes.images.settings import ImageSettings

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.tier("images"),
]


@pytest.fixture
def directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="penstock-test-bootstrap-"))
    directory.chmod(0o711)
    yield directory
    shutil.rmtree(directory)


@pytest.mark.timeout(900)
async def test_a_bootstrapped_base_carries_a_build_with_a_package(directory: Path) -> None:
    settings = ImageSettings(directory=str(directory / "store"), bases={"python:3.11": "debian:12"})
    store = settings.store()
    assert store is not None
    base = await bootstrap(store, settings, "debian:12", include=("python3-minimal",))
    assert store.find("debian:12") == base and not (base.root / "dev/null").exists()
    text = b"FROM python:3.11\nRUN apt-get update && apt-get install -y --no-install-recommends tree\nWORKDIR /srv/x\nRUN mkdir a && touch a/b"
    async with BubblewrapProvider(images=settings).open(
        SandboxSpec(build={"Dockerfile": File(text)})
    ) as sandbox:
        result = await sandbox.exec(
            [
                "sh",
                "-c",
                "tree --noreport --charset=ascii; python3 -c 'print(6 * 7)'; . /etc/os-release; echo $VERSION_ID",
            ]
        )
        assert result.ok and result.stdout.decode().split() == [".", "`--", "a", "`--", "b", "42", "12"], (
            result
        )


@pytest.mark.parametrize(
    ("name", "suite"),
    [("debian:12", "bookworm"), ("debian:bookworm-slim", "bookworm"), ("ubuntu:24.04", "noble")],
)
def test_a_name_of_a_base_leads_to_its_suite(name: str, suite: str) -> None:
    assert suite_of(name)[1] == suite


@pytest.mark.parametrize("name", ["python:3.11", "debian", "debian:9", ""])
def test_a_base_that_debootstrap_does_not_make_is_refused_with_those_that_it_makes(name: str) -> None:
    with pytest.raises(ImageRefused, match="debootstrap makes debian:11"):
        suite_of(name)


@pytest.mark.parametrize(
    "mirror", ["deb.example.org", "http://a b", "http://a\ndeb http://b x main", "[trusted=yes] http://a"]
)
async def test_a_mirror_that_the_sources_of_apt_would_read_otherwise_is_refused(
    directory: Path, mirror: str
) -> None:
    settings = ImageSettings(directory=str(directory / "store"))
    store = settings.store()
    assert store is not None
    with pytest.raises(
        ImageRefused, match="is not the URL of a mirror: write it as apt reads it, http://deb"
    ):
        await bootstrap(store, settings, "debian:12", mirror=mirror)


async def test_a_failed_bootstrap_leaves_nothing(directory: Path) -> None:
    settings = ImageSettings(directory=str(directory / "store"))
    store = settings.store()
    assert store is not None
    with pytest.raises(ImageRefused, match=r"bootstrapping debian:12 from http://127\.0\.0\.1:9/none failed"):
        await bootstrap(store, settings, "debian:12", mirror="http://127.0.0.1:9/none")
    assert list((store.directory / "unfinished").iterdir()) == [] and store.all() == []
