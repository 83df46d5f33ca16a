"""The program that sends the files of a sandbox out, on a directory that stands for an image's root."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.vetting.collecting import FRAMES, SCRIPT, members

OWN = [
    "/app/a.txt",
    "/data/x/answer.txt",
    "/workspace/solve.sh",
    "/oracle/s.sh",
    "/.hidden/notes",
    "/opt/app/b",
    "/usr/local/bin/tool",
    "/usr/share/hints/h.txt",
    "/usr/lib/answers.txt",
    "/usr/bin/solve",
    "/usr/lib/python3/dist-packages/solved.py",
    "/usr/lib/python3/__pycache__/mine.cpython-311.pyc",
    "/data/with space/a\\b\n.txt",
]
SYSTEM = [
    "/usr/bin/env",
    "/usr/lib/python3/os.py",
    "/usr/lib/python3/__pycache__/os.cpython-311.pyc",
    "/usr/lib/python3/__pycache__/os.cpython-311.opt-1.pyc",
    "/usr/share/common/license",
    "/proc/version",
    "/dev/shm/x",
    "/run/secret",
    "/boot/vmlinuz",
]
NEEDED = ("bash", "cat", "awk", "tr", "wc", "head")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A root file system with files of packages, of its system and of its author."""
    root = tmp_path / "root"
    packaged = [path for path in SYSTEM if path.startswith("/usr") and not path.endswith(".pyc")]
    lists = {"/var/lib/dpkg/info/base.list": "\n".join(["/.", "/usr", *packaged]) + "\n", "/proc/mounts": ""}
    for path, text in {**{path: path for path in (*OWN, *SYSTEM)}, **lists}.items():
        (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (root / path[1:]).write_text(text)
    (root / "bin").symlink_to("usr/bin")
    return root


def sent(
    root: Path, image: bool, *more: str, tar: bool = True, most: int = 1 << 20, after: str = ""
) -> bytes:
    """The output of the program; without `tar` it has only `NEEDED` and `more` of the machine's programs."""
    words = ["-c", SCRIPT, "bash", str(root), str(int(image)), str(most), after, str(root / "app")]
    programs = root.parent / "-".join(("bin", *more))
    if not tar:
        programs.mkdir(exist_ok=True)
        for name in (*NEEDED, *more):
            found = shutil.which(name)
            assert found is not None
            (programs / name).unlink(missing_ok=True)
            (programs / name).symlink_to(found)
    path = os.environ["PATH"] if tar else str(programs)
    return subprocess.run(
        [shutil.which("bash") or "", *words], env={"PATH": path}, capture_output=True, check=False
    ).stdout


@pytest.mark.parametrize(
    ("tar", "more"),
    [(True, ()), (False, ("find",)), (False, ())],
    ids=["GNU tar", "no tar", "neither tar nor find"],
)
def test_every_file_that_no_package_brought_is_read_wherever_it_lies(
    tar: bool, more: tuple[str, ...], image: Path
) -> None:
    got = sent(image, True, *more, tar=tar)
    assert got.startswith(FRAMES) is not tar
    found = members(got, str(image))
    assert {path for path in found if not path.startswith("/var/")} == set(OWN)
    assert all(data.decode() == path for path, data in found.items() if path in OWN)


@pytest.mark.parametrize("tar", [True, False])
def test_the_files_after_those_that_were_sent_come_in_further_rounds(tar: bool, image: Path) -> None:
    whole, found, after = members(sent(image, True, tar=tar), str(image)), dict[str, bytes](), ""
    most = 12_000 if tar else 400  # GNU tar fills 10 KiB
    for _ in range(50):
        got = sent(image, True, tar=tar, most=most, after=after)
        assert len(got) <= most
        found |= (these := members(got, str(image)))
        if len(got) < most:
            break
        after = str(image) + list(these)[-1]
    assert found == whole and after


def test_on_the_system_of_this_machine_only_the_named_places_are_read(image: Path) -> None:
    assert set(members(sent(image, False), str(image))) == {"/app/a.txt"}


def test_what_was_cut_is_read_as_far_as_it_came(image: Path) -> None:
    for got in (sent(image, True), sent(image, True, tar=False)):
        whole, half = members(got, str(image)), members(got[: len(got) // 2], str(image))
        assert len(half) < len(whole) and set(half) <= set(whole)
    assert members(b"") == members(FRAMES) == {}
