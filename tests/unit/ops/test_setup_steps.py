"""`ops/setup`, with a pip and a uv that only note what they are to do: registries that are away, set-ups that were killed, a full disk."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.package_index import NO_SETTINGS
from tests.waiting import eventually_blocking

pytestmark = pytest.mark.tier("gate")

REPOSITORY = Path(__file__).resolve().parents[3]
UV_VERSION = (REPOSITORY / "ops/setup").read_text().partition('UV="uv==')[2].partition('"')[0]
STEPS = ("setup_uv.lock", "requirements.lock", "torch.lock", "-e .", "setup_nats.lock")
LOCKS = ("requirements.lock", "torch.lock", "setup_uv.lock", "setup_nats.lock")
PROGRAM = """import os, pathlib, sys, time
if sys.argv[1:] == ["--version"]:
    print("uv VERSION (a stub)")
    sys.exit()
notes, words = pathlib.Path(os.environ["STUB_NOTES"]), " ".join((PREFIX, *sys.argv[1:]))
times = (notes.read_text() if notes.exists() else "").splitlines().count(words)
with notes.open("a") as file:
    print(words, file=file)
how = os.environ.get("STUB_HOW", "")
if how == "away" or how == "away once" and not times:
    sys.exit("error: Failed to fetch")
if how == "no space" and "requirements.lock" in words:
    sys.exit("error: No space left on device (os error 28)")
if how == "slow" and "requirements.lock" in words:
    time.sleep(3600)
""".replace("VERSION", UV_VERSION)
PIP = """
known = pathlib.Path(__file__).parents[1] / "uv-0.dist-info"
if not known.exists() or "--ignore-installed" in sys.argv:
    known.mkdir(exist_ok=True)
    uv = pathlib.Path(sys.prefix) / "bin/uv"
    uv.write_text(UV)
    uv.chmod(0o755)
"""

VENV = """import pathlib, shutil, sys
if __name__ == "__main__":
    shutil.copytree("{whole}", "{packages}", dirs_exist_ok=True)
    pathlib.Path(sys.argv[1], "bin/activate").write_text("# a stub")
"""


@dataclass(frozen=True, slots=True)
class Checkout:
    """A directory with ops/setup and what it needs."""

    place: Path

    @property
    def venv(self) -> Path:
        return self.place / ".venv"

    @property
    def stamp(self) -> Path:
        return self.venv / ".penstock-setup"

    @property
    def notes(self) -> list[str]:
        """The arguments of pip and uv."""
        file = self.place / "notes"
        return file.read_text().splitlines() if file.exists() else []

    def start(self, how: str = "") -> subprocess.Popen[str]:
        """Set it up, in a session of its own."""
        environment = {
            "PENSTOCK_VENV": str(self.venv),
            "PENSTOCK_TRY_WAITS": "0 0",
            "PYTHON": sys.executable,
            "PIP_NO_INDEX": "1",
        }
        stub = {"STUB_NOTES": str(self.place / "notes"), "STUB_HOW": how}
        return subprocess.Popen(
            [self.place / "ops/setup"],
            env={**os.environ, **NO_SETTINGS, **environment, **stub},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def set_up(self, how: str = "") -> tuple[int, str]:
        """(exit status, what it printed)"""
        process = self.start(how)
        _, err = process.communicate(timeout=180)
        return process.returncode, err


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    ops = tmp_path / "ops"
    ops.mkdir()
    for name in ("setup", "help", "tries", "torch_options", *LOCKS):
        shutil.copy(REPOSITORY / "ops" / name, ops)
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    (ops / "setup_harness").write_text("#!/bin/sh\n")  # tests/unit/scaffolds/test_programs.py
    (ops / "setup_harness").chmod(0o755)
    checkout = Checkout(tmp_path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", checkout.venv], check=True)
    packages = only(checkout.venv, "lib/python3*/site-packages")
    uv = f"#!{checkout.venv}/bin/python\n{PROGRAM.replace('PREFIX', repr('uv'))}"
    files = {
        "pip/__main__.py": f"{PROGRAM.replace('PREFIX', repr('pip'))}UV = {uv!r}\n{PIP}",
        "pip-99.dist-info/METADATA": "Metadata-Version: 2.1\nName: pip\nVersion: 99\n",
        "pip-99.dist-info/RECORD": "pip/__main__.py,,\n",
    }
    for name, text in files.items():
        (packages / name).parent.mkdir(exist_ok=True)
        (packages / name).write_text(text)
    return checkout


def only(directory: Path, pattern: str) -> Path:
    [found] = directory.glob(pattern)
    return found


def sentence_of(printed: str) -> str:
    """The one sentence of ops/setup, which is its last line."""
    [sentence] = [line for line in printed.splitlines() if line.startswith("penstock set-up: ")]
    assert printed.endswith(f"{sentence}\n")
    return sentence


def test_registries_that_are_away_at_first_do_not_end_a_set_up(checkout: Checkout) -> None:
    status, printed = checkout.set_up("away once")
    assert status == 0, printed
    assert printed.count("try 1 of 3 failed") == 5 and "try 2" not in printed
    first, second = checkout.notes[::2], checkout.notes[1::2]
    assert first == second and all(step in note for step, note in zip(STEPS, first, strict=True))
    assert checkout.set_up() == (0, "") and len(checkout.notes) == 10, "it is set up"


def test_every_package_of_a_registry_is_installed_by_its_hash(checkout: Checkout) -> None:
    lock = checkout.place / "ops/torch.lock"
    machine = f"{sys.version_info.major}.{sys.version_info.minor}-{os.uname().machine}"
    lock.write_text(f"# Its hashes are those for: 3.99-none {machine}\ntorch==1 --hash=sha256:00\n")
    assert checkout.set_up()[0] == 0
    from_registries = [note for note in checkout.notes if "-e ." not in note]
    assert len(from_registries) == len(LOCKS) and all("--require-hashes" in note for note in from_registries)
    [own] = [note for note in checkout.notes if "-e ." in note]
    assert "--no-deps --no-build-isolation" in own, "what builds it is in the lock"


def test_a_build_of_torch_whose_hash_is_not_known_is_installed_with_a_sentence(checkout: Checkout) -> None:
    lock = checkout.place / "ops/torch.lock"
    lock.write_text("# Its hashes are those for: 3.99-none\ntorch==1 --hash=sha256:00\n")
    status, printed = checkout.set_up()
    assert status == 0 and "ops/torch.lock has no hash for torch's CPU build for Python 3." in printed
    [note] = [note for note in checkout.notes if "torch.lock" in note]
    assert "--no-verify-hashes" in note and "--require-hashes" not in note


def test_a_registry_that_stays_away_is_shown_and_then_named(checkout: Checkout) -> None:
    status, printed = checkout.set_up("away")
    assert status == 1 and "pip could not install uv; check the network" in sentence_of(printed)
    assert printed.count("error: Failed to fetch") == len(checkout.notes) == 3


def test_a_full_disk_is_one_sentence_and_the_next_set_up_installs_all_again(checkout: Checkout) -> None:
    status, printed = checkout.set_up("no space")
    assert status == 1 and "check the network and the disk space" in sentence_of(printed)
    assert printed.count("No space left on device") == 1 and len(checkout.notes) == 2
    status, printed = checkout.set_up()
    assert status == 0, printed
    assert ["--reinstall" in note for note in checkout.notes] == [False] * 2 + [True] * 4


def test_a_set_up_that_was_killed_while_packages_arrived_installs_all_again(checkout: Checkout) -> None:
    assert checkout.set_up()[0] == 0 and checkout.stamp.exists() and len(checkout.notes) == 5
    with (checkout.place / "ops/requirements.lock").open("a") as lock:
        lock.write("# a change\n")
    process = checkout.start("slow")
    eventually_blocking(lambda: len(checkout.notes) == 6)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert not checkout.stamp.exists(), "the environment is of neither lock"
    status, printed = checkout.set_up()
    assert status == 0 and checkout.stamp.exists(), printed
    assert ["--reinstall" in note for note in checkout.notes] == [False] * 6 + [True] * 4


def test_a_set_up_that_was_killed_while_it_made_the_environment_makes_what_is_missing(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = only(checkout.venv, "lib/python3*/site-packages")
    (checkout.place / "venv.py").write_text(VENV.format(packages=packages, whole=checkout.place / "whole"))
    monkeypatch.setenv("PYTHONPATH", str(checkout.place))  # a stub: pip takes seconds to unpack
    shutil.copytree(packages, checkout.place / "whole")
    (packages / "pip/__main__.py").rename(packages / "pip/part.py")
    (packages / "pip-99.dist-info/RECORD").unlink()  # it is written last
    (checkout.venv / "bin/activate").unlink()
    status, printed = checkout.set_up()
    assert status == 0 and len(checkout.notes) == 5, printed
    assert not (packages / "pip/part.py").exists() and (checkout.venv / "bin/activate").exists()


def test_a_uv_that_was_written_in_part_is_installed_again(checkout: Checkout) -> None:
    assert checkout.set_up()[0] == 0
    checkout.stamp.unlink()
    (checkout.venv / "bin/uv").write_text("#!/bin/sh\nexit 126\n")
    status, printed = checkout.set_up()
    assert status == 0, printed
    assert [note for note in checkout.notes[5:] if "pip install -qq --ignore-installed" in note]
    assert len(checkout.notes) == 11


def test_an_environment_whose_python_does_not_start_is_named(checkout: Checkout) -> None:
    python = checkout.venv / "bin/python"
    python.unlink()
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    status, printed = checkout.set_up()
    assert status == 1 and "remove" in sentence_of(printed) and str(checkout.venv) in sentence_of(printed)
