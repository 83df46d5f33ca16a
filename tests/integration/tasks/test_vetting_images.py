"""The control `leak` on an image: its files are read wherever they lie, also in volumes, and without tar."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.lab.root_filesystem import make_root
from orchestrator.contracts.vetting import Level
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.environment import build_context
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.vetting.findings import TaskFault
from orchestrator.vetting.leak import leak_findings
from orchestrator.vetting.readable import readable
from orchestrator.vetting.task import Options, vet
from orchestrator.vetting.trials import Trials
from sandboxes.images import rootfs
from sandboxes.images.build import Builder
from sandboxes.images.oci import Description
from sandboxes.images.settings import ImageSettings
from sandboxes.images.store import ImageStore
from sandboxes.images.unpack import Unpacker
from tests.integration.tasks.test_data_elsewhere import Lab, files

pytestmark = [pytest.mark.anyio, pytest.mark.tier("images")]
DOCKERFILE = b"FROM small\nRUN true\nWORKDIR /app\n"
WORKSPACE = b"FROM small\nRUN false\nWORKDIR /workspace\n"
BARE = b"FROM small\nRUN false\nWORKDIR /app\n"
SOLUTION = """sort rows.txt > sorted.txt
head -n 1 sorted.txt > first.txt
tail -n 1 sorted.txt > final.txt
"""
CONFIG = "LIMIT_OF_ROWS = 40817\nNAME_OF_DEPOT = 'depot-40817'\n"
COPIES = ("/data/s", "/workspace/s", "/oracle/s", "/opt/store/s", "/usr/share/doc/s", "/usr/lib/s")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """An image with the solution in many places."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-test-leaks-"))
    directory.chmod(0o755)
    root = make_root(directory / "root")
    for path in COPIES:
        (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (root / path[1:]).write_text(SOLUTION)
    store = ImageStore(directory / "store")
    settings = ImageSettings(directory=str(store.directory))
    store.add(root, name="small")

    def write(target: Unpacker) -> Description:
        rootfs.copy(root, target)
        return Description(work="/app")

    made = {DOCKERFILE: store.write(write, source="leaks", name="leaks", volumes=["/opt/store"])}
    (root / "workspace/backup").mkdir()
    (root / "workspace/backup/config.py").write_text(CONFIG)

    def elsewhere(target: Unpacker) -> Description:
        rootfs.copy(root, target)
        return Description(work="/workspace")

    made[WORKSPACE] = store.write(elsewhere, source="workspace", name="workspace")
    for name in ("wc", "head", "tar"):
        (root / "usr/bin" / name).unlink(missing_ok=True)
    made[BARE] = store.write(write, source="bare", name="bare")
    for dockerfile, image in made.items():
        context = build_context(Task.from_files(files(dockerfile=dockerfile)).bundle.below("environment/"))
        store.name(Builder(store, settings).key(context), image)
    section = SandboxSection(images={"directory": str(store.directory)})  # type: ignore[arg-type]
    yield Lab(store=store, section=section, root=directory)
    shutil.rmtree(directory)


async def test_a_solution_in_an_image_is_found_wherever_it_lies(lab: Lab) -> None:
    script = f"printf 'b\\na\\n' > rows.txt\n{SOLUTION}"
    task = Task.from_files(
        files(script, '[ "$(cat first.txt final.txt)" != "" ] && reward=1', dockerfile=DOCKERFILE)
    )
    trials = Trials(task, lab.provider(), section=lab.section)
    shown, _, note = await readable(trials.run, trials.provider, trials.section)
    assert (shown.unread, note) == ("", "")
    assert set(COPIES) <= set(shown.files)
    found, _ = await leak_findings(trials, await trials.solved(), shown)
    assert {(each.fault, each.where) for each in found} == {(TaskFault.LEAK_IN_FILE, path) for path in COPIES}


async def test_a_copy_of_a_new_file_in_the_work_directory_of_an_image_is_a_leak(lab: Lab) -> None:
    script = f"printf '%s' \"{CONFIG}\" > config.py"
    task = Task.from_files(files(script, "grep -q 40817 config.py && reward=1", dockerfile=WORKSPACE))
    trials = Trials(task, lab.provider(), section=lab.section)
    shown, _, _ = await readable(trials.run, trials.provider, trials.section)
    assert shown.work == "/workspace"
    found, _ = await leak_findings(trials, await trials.solved(), shown)
    assert "/workspace/backup/config.py" in {each.where for each in found}


async def test_an_image_that_cannot_be_read_does_not_pass_as_searched(lab: Lab) -> None:
    task = Task.from_files(files("echo 1 > out", "[ -e out ] && reward=1", dockerfile=BARE))
    options = Options(section=lab.section, times=1, until=Level.CONTROLS_HOLD)
    report = await vet("bare", task, lab.provider(), options)
    assert (report.faults, report.level) == ((TaskFault.NOT_SEARCHED,), Level.BUILDS), report
