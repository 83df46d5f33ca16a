"""A task whose WORKDIR is one of the sandbox's own places: the agent's work there reaches the tests, and what Penstock and programs keep does not."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from scaffolds.base import AgentLimits, TaskView
from scaffolds.scaffold_toml import from_toml

from ops.lab.root_filesystem import make_root
from orchestrator.contracts.errors import InfraFailure
from orchestrator.contracts.states import FailureClass, Left
from orchestrator.gateway_client import Activity, OpenSession
from orchestrator.probing import ProbeRun
from orchestrator.runner.blackbox import Sight, endpoint_of, run_black
from orchestrator.runner.clocks import Clocks
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.environment import build_context
from orchestrator.tasks.harbor import Task
from sandboxes.base import Limits
from sandboxes.images import rootfs
from sandboxes.images.build import Builder
from sandboxes.images.oci import Description
from sandboxes.images.settings import ImageSettings
from sandboxes.images.store import ImageStore
from sandboxes.images.unpack import Unpacker
from sandboxes.moves import TAKES
from tests.integration.tasks.test_data_elsewhere import Lab, files

pytestmark = [pytest.mark.anyio, pytest.mark.tier("images")]
SCAFFOLD = {
    "scaffold.toml": """name = "keeper"
version = "1"
wire = "chat"
tcp = false
argv = ["/usr/bin/python3", "/home/agent/.keeper/run.py", "{task.instruction}"]
[env]
NOTE = "/home/agent/.keeper/note"
PLACES = "/usr/bin:/home/agent/.keeper"
[files]
"/home/agent/.keeper/run.py" = "run.py"
"/home/agent/.keeper/note" = "note"
""",
    "run.py": """import os, pathlib, sys
home = pathlib.Path(os.environ["HOME"])
note = pathlib.Path(os.environ["NOTE"])
assert note.parent == pathlib.Path(__file__).parent == home / ".keeper"
assert os.environ["PLACES"] == f"/usr/bin:{note.parent}"
(home / ".state").write_text("mine")
pathlib.Path("out").write_text(f"{note.read_text()} {sys.argv[1]}")
""",
    "note": "noted",
}


def dockerfile(work: str) -> bytes:
    return f"FROM small\nRUN true\nWORKDIR {work}\n".encode()


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    directory = Path(tempfile.mkdtemp(prefix="penstock-test-own-"))
    directory.chmod(0o755)
    root = make_root(directory / "root")
    store = ImageStore(directory / "store")
    settings = ImageSettings(directory=str(store.directory))

    store.add(root, name="small")

    def made(work: str) -> None:
        def write(target: Unpacker) -> Description:
            rootfs.copy(root, target)
            return Description(work=work)

        image = store.write(write, source=work, name="own" + work.replace("/", "-"))
        context = build_context(
            Task.from_files(files(dockerfile=dockerfile(work))).bundle.below("environment/")
        )
        store.name(Builder(store, settings).key(context), image)

    for work in TAKES:
        made(work)
    section = SandboxSection(images={"directory": str(store.directory)})  # type: ignore[arg-type]
    yield Lab(store=store, section=section, root=directory)
    shutil.rmtree(directory)


@pytest.mark.parametrize("work", sorted(TAKES))
async def test_the_tests_see_the_work_and_begin_with_a_home_that_no_agent_wrote(lab: Lab, work: str) -> None:
    solution = (
        f"echo answer > {work}/out; echo planted > .planted; mkdir agent; echo planted > agent/.planted; "
        'echo mine > "$HOME/.state"; echo mine > "$TMPDIR/state"'
    )
    tests = (
        f'[ "$PWD" = {work} ] && [ "$(cat {work}/out /app/out | tr -d "\\n")" = answeranswer ] && [ -f .planted ] '
        '&& [ "$(cd agent && python3 -I "$PENSTOCK_UNTRUSTED" 30 cat ../out)" = answer ] '
        '&& [ -z "$(ls -A "$HOME"; HOME=; ls -A ~agent)" ] && [ ! -e "$TMPDIR/state" ] && reward=1'
    )
    for script, reward, paths in (
        (solution, 1.0, {"out", ".planted", "agent/.planted"}),
        ("true", 0.0, set()),
    ):
        task = Task.from_files(files(script, tests, dockerfile=dockerfile(work)))
        run = ProbeRun(task, lab.provider(), section=lab.section, agent_s=60.0)
        left = await run.solved()
        assert left is not None and not left.ended, left
        grade = await run.judged(left)
        assert grade.reward == reward, (grade, left)
        assert {file.path for file in left.artifacts if file.kind is Left.FILE} == paths


@pytest.mark.parametrize("work", sorted(TAKES))
async def test_a_program_finds_its_own_files_and_leaves_only_its_work(
    lab: Lab, work: str, tmp_path: Path
) -> None:
    for name, text in SCAFFOLD.items():
        (tmp_path / name).write_text(text)
    black = from_toml(tmp_path / "scaffold.toml").black()
    task = Task.from_files(files("true", "true", dockerfile=dockerfile(work)))
    view = TaskView(name="own", domain="general", instruction="/home/agent/x is where it begins")
    limits = AgentLimits(turns=1, context=2048, tool_timeout_s=10.0, timeout_s=60.0)
    session = OpenSession(
        token="t",
        path="/s/t/v1",
        base_url="http://gateway/s/t/v1",
        socket_path="/none",
        expires=0.0,
        context=2048,
    )
    environment = task.environment((), containers=True)
    spec = environment.spec(black.files(view, endpoint_of(session), limits), Limits())
    clocks = Clocks(timeout_s=60.0, stall_s=60.0, completion_s=60.0)
    async with lab.provider().open(spec) as sandbox:
        outcome = await run_black(
            black,
            view,
            sandbox,
            session=session,
            clocks=clocks,
            limits=limits,
            activity=unseen,
            sight=Sight(),
        )
        found = await sandbox.changed()
    assert outcome.failure is FailureClass.COMPLETED, outcome
    assert {path: file.data for path, file in found.added.items()} == {
        "out": b"noted " + view.instruction.encode()
    }


async def unseen() -> Activity:
    raise InfraFailure("this test has no gateway")
