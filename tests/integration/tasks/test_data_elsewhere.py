"""A task on an image whose work lies outside of its work directory: the tests see what the agent changes there, and nothing of the system changes."""

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from ops.lab.root_filesystem import make_root
from orchestrator.contracts.events import ArtifactFile, RolloutFinished, decode, encode
from orchestrator.contracts.states import FailureClass, Left, Purpose
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.probing import ProbeRun
from orchestrator.queries.files import FileKind
from orchestrator.queries.files import files as left_files
from orchestrator.runner.grade import Grade
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.admit import check_admissible
from orchestrator.tasks.artifact_blobs import carried
from orchestrator.tasks.artifacts import limits_of
from orchestrator.tasks.environment import build_context
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.validate_results import check_result
from sandboxes.base import File, PathRefused, SandboxError, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.images import rootfs
from sandboxes.images.build import Builder
from sandboxes.images.mounted import Layering
from sandboxes.images.oci import Description
from sandboxes.images.settings import ImageSettings
from sandboxes.images.store import ImageStore
from sandboxes.images.unpack import Unpacker
from tests.integration.runner.rig import open_rig

pytestmark = [pytest.mark.anyio, pytest.mark.tier("images")]

DOCKERFILE = b"FROM small\nRUN true\n"
OTHER = b"FROM other\nRUN true\n"
VOLUMES = b"FROM volumes\nRUN true\n"
WORKING = b"FROM small\nWORKDIR /workspace\nRUN true\n"
INHERITING = b"FROM working\nRUN true\n"
ROOTS = "/root"
SOLUTION = f"""set -e
echo answer > /data/out.csv
echo new > {ROOTS}/config
chmod 600 {ROOTS}/config
rm /workspace/gone
rm -r /workspace/tree
echo file > /workspace/tree
mkdir -p /srv/new/dir
ln -s ../data/out.csv /srv/link
ln -s /data/out.csv /app/out
ln -s kept /data/within
chmod 700 /data/closed
"""
TESTS = f"""[ "$(cat /data/out.csv {ROOTS}/config /workspace/tree)" = "answer
new
file" ] && [ "$(stat -c %a {ROOTS}/config /data/closed | tr '\\n' ' ')" = "600 700 " ] && [ ! -e /workspace/gone ] && [ -d /srv/new/dir ] \\
&& [ "$(cat /srv/link /app/out)" = "answer
answer" ] && [ "$(readlink /data/within)" = kept ] && [ "$(cat /data/kept)" = kept ] && reward=1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A store with two images, and the section of a run that has it."""

    store: ImageStore
    section: SandboxSection
    root: Path

    def has(self, task: Task, folder: str, image: str) -> None:
        """Let an image of the store stand for the one that a folder of a task makes, so that nothing is built."""
        key = Builder(self.store, self.settings).key(build_context(task.bundle.below(folder)))
        self.store.name(key, self.store.find(image))

    @property
    def settings(self) -> ImageSettings:
        return ImageSettings(directory=str(self.store.directory))

    def provider(self, layering: Layering | None = None) -> BubblewrapProvider:
        return BubblewrapProvider(self.root / "boxes", images=self.settings, layering=layering)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    directory = Path(tempfile.mkdtemp(prefix="penstock-test-elsewhere-"))
    directory.chmod(0o755)
    root = make_root(directory / "root")
    store = ImageStore(directory / "store")
    shutil.copytree(root, directory / "plain", symlinks=True)
    for path, text in {
        "data/kept": "kept\n",
        "data/closed/x": "x",
        "root/config": "old\n",
        "workspace/gone": "x",
        "workspace/tree/a": "a",
        "srv/.keep": "",
        "app/gone": "x",
        "app/tree/a": "a",
        "opt/tool/bin/tool": "#!/bin/sh\n",
        "opt/tool/data/x": "x",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / "home/bob").mkdir(parents=True, exist_ok=True)
    for place in ("app", "workspace"):
        (root / place / "link").symlink_to("elsewhere")
    if os.geteuid() == 0:
        os.chown(root / "home/bob", 1234, 1234)

    def declared(target: Unpacker) -> Description:
        rootfs.copy(root, target)
        return Description(volumes=("/opt/tool/data", "/usr/share/x", "/var/lib/thing"))

    def working(target: Unpacker) -> Description:
        rootfs.copy(root, target)
        return Description(work="/workspace")

    at_work = store.write(working, source="working", name="working")
    images = {
        WORKING: at_work,
        INHERITING: at_work,
        DOCKERFILE: store.add(root, name="small"),
        OTHER: store.add(directory / "plain", name="other"),
        VOLUMES: store.write(declared, source="volumes", name="volumes"),
    }
    settings = ImageSettings(directory=str(store.directory))
    for dockerfile, image in images.items():
        context = build_context(Task.from_files(files(dockerfile=dockerfile)).bundle.below("environment/"))
        store.name(Builder(store, settings).key(context), image)
    section = SandboxSection(images={"directory": str(store.directory)})  # type: ignore[arg-type]
    yield Lab(store=store, section=section, root=directory)
    shutil.rmtree(directory)


def files(
    solution: str = SOLUTION,
    tests: str = TESTS,
    toml: str = "",
    dockerfile: bytes = DOCKERFILE,
    **more: bytes,
) -> Mapping[str, bytes]:
    judge = f"reward=0\n{tests}\nmkdir -p /logs/verifier\necho $reward > /logs/verifier/reward.txt\n"
    return {
        "task.toml": f'version = "1.0"\n{toml}'.encode(),
        "instruction.md": b"Do it.",
        "environment/Dockerfile": dockerfile,
        "solution/solve.sh": solution.encode(),
        "tests/test.sh": judge.encode(),
        **more,
    }


async def tried(
    lab: Lab, given: Mapping[str, bytes], layering: Layering | None = None
) -> tuple[list[ArtifactFile], Grade]:
    """The files that a task's solution leaves, as the orchestrator takes them, and the verdict on them."""
    run = ProbeRun(Task.from_files(given), lab.provider(layering), section=lab.section, agent_s=60.0)
    left = await run.solved()
    assert left is not None and not left.ended, left
    limits = limits_of(lab.section)
    carry = carried(list(left.artifacts), left.answer)
    result = RolloutFinished(
        run="r", rollout=1, attempt=1, epoch=1, failure_class=FailureClass.COMPLETED, artifacts=carry.listed
    )
    read = decode(encode(result), None, RolloutFinished)
    check_result(read, limits)
    return read.artifacts, await run.judged(left)


def digest_of(image: Path) -> str:
    """Every path of an image, with its mode, times and content."""
    found = hashlib.sha256()
    for path in sorted(image.rglob("*")):
        status = path.lstat()
        found.update(f"{path} {status.st_mode} {status.st_uid} {status.st_mtime_ns}".encode())
        if stat.S_ISREG(status.st_mode):
            found.update(path.read_bytes())
    return found.hexdigest()


@pytest.mark.parametrize("layering", [None, Layering.COPY])
async def test_the_tests_see_what_a_solution_changed_in_the_directories_of_data(
    lab: Lab, layering: Layering | None
) -> None:
    before = digest_of(lab.store.find("small").root)
    left, grade = await tried(lab, files(), layering)
    assert grade.reward == 1.0, (grade, left)
    assert {file.path: stat.S_IFMT(file.mode) for file in left if file.path.startswith("/")} == {
        "/data/out.csv": 0,
        "/data/closed": stat.S_IFDIR,
        "/data/within": stat.S_IFLNK,
        f"{ROOTS}/config": 0,
        "/srv/link": stat.S_IFLNK,
        "/srv/new/dir": stat.S_IFDIR,
        "/workspace/gone": stat.S_IFCHR,
        "/workspace/tree": 0,
        "/workspace/tree/a": stat.S_IFCHR,
    }
    assert digest_of(lab.store.find("small").root) == before


@pytest.mark.services
async def test_a_run_keeps_what_an_attempt_left_there_and_its_verifier_sees_it(
    lab: Lab, database_url: str, nats_server: EmbeddedNats, directory: Path, model: Path
) -> None:
    images = {"images": {"directory": str(lab.store.directory)}}
    async with open_rig(database_url, nats_server.url, directory, model, sandbox=images) as rig:
        rig.start_runner()
        rig.start_verifier()
        rollout = await rig.submit(Task.from_files(files()), scaffold="oracle", purpose=Purpose.EVAL)
        await rig.state(rollout, "verified", "lost", "dead")
        query = """SELECT r.run_id, a.attempt, v.reward FROM rollouts r JOIN attempts a USING (rollout_id) JOIN verdicts v USING (rollout_id)
                    WHERE rollout_id = :id"""
        (found,) = await rig.rows(query, id=rollout)
        assert found.reward == 1.0
        async with rig.context.engine.connect() as connection:
            shown = await left_files(connection, found.run_id, rollout, found.attempt)
        kinds = {file.path: (file.kind, file.bytes) for file in shown if not file.path.startswith("/root")}
        assert kinds == {
            "/data/closed": (FileKind.DIRECTORY, 0),
            "/data/out.csv": (FileKind.TEXT, 7),
            "/data/within": (FileKind.LINK, 4),
            "/srv/link": (FileKind.LINK, 15),
            "/srv/new/dir": (FileKind.DIRECTORY, 0),
            "/workspace/gone": (FileKind.DELETED, 0),
            "/workspace/tree": (FileKind.TEXT, 5),
            "/workspace/tree/a": (FileKind.DELETED, 0),
            "out": (FileKind.LINK, 13),
        }


async def test_the_untouched_task_earns_nothing_and_sees_nothing_of_an_earlier_attempt(lab: Lab) -> None:
    await tried(lab, files())
    left, grade = await tried(
        lab, files("ls /data > /app/seen", tests="grep -q out.csv /app/seen || reward=1")
    )
    assert [file.path for file in left] == ["seen"] and grade.reward == 1.0
    left, grade = await tried(lab, files("true"))
    assert (left, grade.reward) == ([], 0.0)


@pytest.mark.parametrize(
    "path",
    [
        "/usr/bin/python3",
        "/etc/ld.so.preload",
        "/bin/sh",
        "/usr/local/bin/new",
        "/opt/tool/bin/tool",
        "/opt/new",
        "/var/new",
        "/new/file",
        "/etc/profile",
        "/lib/new",
    ],
)
async def test_the_system_cannot_be_written_and_nothing_of_it_crosses(lab: Lab, path: str) -> None:
    solution = f"""exec 2> /app/errors
mkdir -p {path.rpartition("/")[0]}; echo x > {path}; rm -f {path}; mv {path} /data/taken; ln -sf /data/x {path}; true"""
    tests = '[ "$(grep -c "Read-only file system" /app/errors)" -ge 1 ] && reward=1'
    left, grade = await tried(lab, files(solution, tests))
    assert grade.reward == 1.0
    assert {file.path for file in left} <= {"errors", "/data/taken"}


async def test_artifacts_of_a_task_name_places_that_the_image_lacks_or_keeps(lab: Lab) -> None:
    toml = 'artifacts = ["/output/result.json", "/opt/tool/data"]\n'
    solution = "echo 1 > /output/result.json; echo 2 > /opt/tool/data/x; echo 3 > /output/more"
    tests = "[ \"$(cat /output/result.json /opt/tool/data/x /output/more | tr -d '\\n')\" = 123 ] && reward=1"
    _, grade = await tried(lab, files(solution, tests, toml))
    assert grade.reward == 1.0, grade


async def test_programs_write_the_volumes_of_an_image_and_the_tests_see_the_changes(lab: Lab) -> None:
    solution = """set -e
echo 1 > /var/lib/thing/new
echo 2 > /opt/tool/data/x
for path in /usr/share/x/a /opt/tool/bin/a /opt/tool/a /var/lib/a; do ! touch $path 2>>/app/errors; done
"""
    tests = "[ \"$(cat /var/lib/thing/new /opt/tool/data/x | tr -d '\\n')\" = 12 ] && reward=1"
    left, grade = await tried(lab, files(solution, tests, dockerfile=VOLUMES))
    assert grade.reward == 1.0, grade
    assert {file.path for file in left} == {"errors", "/var/lib/thing/new", "/opt/tool/data/x"}
    with pytest.raises(AssertionError, match=r"Read-only file system|No such file"):
        await tried(lab, files("set -e; echo 1 > /opt/tool/data/x", tests))


SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'


async def test_tests_with_an_image_of_their_own_get_the_declared_changes_at_their_paths(lab: Lab) -> None:
    toml = f'artifacts = ["/data/out", "/srv/made/x"]\n{SEPARATE}'
    solution = "mkdir -p /data/out /srv/made; echo 1 > /data/out/a; echo 2 > /srv/made/x; echo no > /data/b; ln -s /data/kept /data/out/l"
    tests = "[ \"$(cat /data/out/a /srv/made/x | tr -d '\\n')\" = 12 ] && [ ! -e /data/b ] && [ ! -e /data/out/l ] && [ ! -e /data/kept ] && reward=1"
    given = files(solution, tests, toml, **{"tests/Dockerfile": OTHER})
    lab.has(Task.from_files(given), "tests/", "other")
    _, grade = await tried(lab, given)
    assert grade.reward == 1.0, grade
    given = files(solution, "", toml, **{"tests/Dockerfile": OTHER})
    lab.has(Task.from_files(given), "tests/", "other")
    _, grade = await tried(lab, given)
    assert grade.reward == 0.0 and grade.reason is not None
    assert "/data/out/l' is a symbolic link outside of the tests' work directory" in grade.reason


@pytest.mark.parametrize("tests_of", [OTHER, WORKING, INHERITING])
async def test_tests_with_another_work_directory_get_files_of_the_agents_at_their_paths(
    lab: Lab, tests_of: bytes
) -> None:
    toml = f'artifacts = ["/workspace/out", "/workspace/closed"]\n{SEPARATE}'
    solution = (
        "mkdir -p out/a closed && echo 1 > out/a/x && echo no > b && chmod 700 closed && chmod 755 out/a/x"
    )
    tests = """[ "$(cat /workspace/out/a/x)" = 1 ] && [ -x /workspace/out/a/x ] && [ ! -e /workspace/b ] \\
&& [ "$(stat -c %a /workspace/closed)" = 700 ] && reward=1"""
    given = files(solution, tests, toml, WORKING, **{"tests/Dockerfile": tests_of})
    task = Task.from_files(given)
    check_admissible(task, lab.section)
    lab.has(task, "tests/", {OTHER: "other"}.get(tests_of, "working"))
    _, grade = await tried(lab, given)
    assert grade.reward == 1.0, grade


@pytest.mark.parametrize("tests_of", [b"", OTHER, WORKING, INHERITING])
async def test_an_artifact_in_a_work_directory_that_only_the_base_image_names_reaches_the_tests(
    lab: Lab, tests_of: bytes
) -> None:
    toml = 'artifacts = ["/workspace/out", "/workspace/tree", "/data/x"]\n'
    solution = (
        "mkdir -p out && echo 1 > out/x && echo 2 > /data/x && echo no > b && rm tree/a && echo 3 > tree/c"
    )
    tests = "[ \"$(cat /workspace/out/x /data/x /workspace/tree/c | tr -d '\\n')\" = 123 ] && [ ! -e /workspace/tree/a ] && reward=1"
    own = {"tests/Dockerfile": tests_of} if tests_of else {}
    given = files(solution, tests, toml + (SEPARATE if tests_of else ""), INHERITING, **own)
    task = Task.from_files(given)
    check_admissible(task, lab.section)
    if tests_of:
        lab.has(task, "tests/", {OTHER: "other"}.get(tests_of, "working"))
    left, grade = await tried(lab, given)
    assert grade.reward == 1.0, grade
    assert {file.path for file in left} >= {"/workspace/out/x", "/workspace/tree/a", "/data/x", "b"}


async def test_a_link_that_leads_to_files_of_the_tests_stays_behind_by_name(lab: Lab) -> None:
    targets = (
        "/tests/x",
        "/logs/x",
        "/home/agent/x",
        "/etc/x",
        "../../tests/x",
        "a/../../tests/x",
        "/proc/1",
        "/tmp/x",
    )
    solution = "; ".join(f"ln -s {target} /data/closed/l{n}" for n, target in enumerate(targets))
    left, grade = await tried(lab, files(solution, ""))
    assert {file.path: file.kind for file in left} == {
        f"/data/closed/l{n}": Left.BEHIND for n in range(len(targets))
    }
    assert grade.reward == 0.0 and "'/data/closed/l0' is a symbolic link" in (grade.reason or "")


ROOM = 8


async def test_what_is_written_outside_of_the_work_directory_counts_for_the_limits(lab: Lab) -> None:
    section = lab.section.model_copy(update={"disk_mb": ROOM})
    given = files("head -c 32000000 /dev/zero > /data/big; sleep 60", "")
    left = await ProbeRun(Task.from_files(given), lab.provider(), section=section, agent_s=60.0).solved()
    assert left is not None and "disk" in left.ended
    section = lab.section.model_copy(update={"artifact_files": 20})
    given = files("for n in $(seq 12); do echo $n > /app/$n; echo $n > /data/$n; done", "")
    left = await ProbeRun(Task.from_files(given), lab.provider(), section=section, agent_s=60.0).solved()
    assert left is not None and "artifacts" in left.ended and left.artifacts == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's sandboxes have several users")
async def test_a_named_user_owns_what_the_image_gives_it(lab: Lab) -> None:
    solution = "! echo x > /data/mine && echo 1 > /home/bob/new && ! echo x > /app/mine"
    tests = '[ "$(cat /home/bob/new)" = 1 ] && [ ! -e /data/mine ] && [ ! -e /app/mine ] && reward=1'
    toml = '[agent]\nuser = 1234\n[verifier]\nuser = "1234"\n'
    _, grade = await tried(lab, files(solution, tests, toml))
    assert grade.reward == 1.0, grade


REPLACE = """for place in /data /srv; do
  rmdir $place; rm -rf $place; mv $place /moved; mv $place /tmp/moved; ln -sfn /etc $place; mkdir /moved; mkdir $place/../moved
done 2>/dev/null
[ -d /data ] && [ ! -L /data ] && [ ! -e /moved ] && echo kept
"""


@pytest.mark.parametrize("layering", [None, Layering.COPY])
async def test_a_place_cannot_be_replaced_and_a_link_in_it_leads_the_platform_nowhere(
    lab: Lab, layering: Layering | None
) -> None:
    provider, image = lab.provider(layering), lab.store.find("small").digest
    outside = lab.root / f"outside-{layering}"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    async with provider.open(SandboxSpec(image=image)) as sandbox:
        result = await sandbox.exec(["sh", "-c", REPLACE])
        assert result.stdout == b"kept\n", result
        for way in (f"ln -s {outside} /data/way", "mkdir /srv/in && ln -s ../../../../.. /srv/in/way"):
            assert (await sandbox.exec(["sh", "-c", way])).ok, way
        for path in ("/data/way/secret", f"/srv/in/way{outside}/secret"):
            with pytest.raises((PathRefused, FileNotFoundError, ValueError)):
                await sandbox.get(path, max_bytes=100)
        left = await sandbox.changed()
        assert {path for path, _ in left.refused} >= {"/data/way", "/srv/in/way"} and not left.links, left
    for links, path in (
        ({"/data/way": str(outside)}, "/data/way/planted"),
        ({"/srv/way": "../data", "/data/closer": str(outside)}, "/srv/way/closer/planted"),
    ):
        spec = SandboxSpec(image=image, links=links, files={path: File(b"x")})
        with pytest.raises((PathRefused, ValueError, SandboxError)):
            async with provider.open(spec):
                pass
    assert {path.name for path in outside.iterdir()} == {"secret"}
    assert (outside / "secret").read_text() == "secret"


CHANGES = {
    "a file, an empty directory": ("rm {0}/gone && mkdir {0}/gone", "[ -d {0}/gone ]"),
    "a file, a directory with a file": (
        "rm {0}/gone && mkdir {0}/gone && echo in > {0}/gone/x",
        '[ "$(cat {0}/gone/x)" = in ]',
    ),
    "a file, a link": ("rm {0}/gone && ln -s kept {0}/gone", '[ "$(readlink {0}/gone)" = kept ]'),
    "a directory, a file": ("rm -r {0}/tree && echo in > {0}/tree", '[ "$(cat {0}/tree)" = in ]'),
    "a directory, a link": ("rm -r {0}/tree && ln -s kept {0}/tree", '[ "$(readlink {0}/tree)" = kept ]'),
    "a directory, another one": (
        "rm -r {0}/tree && mkdir {0}/tree && echo in > {0}/tree/b",
        '[ "$(ls {0}/tree)" = b ]',
    ),
    "a link, a file": (
        "rm {0}/link && echo in > {0}/link",
        '[ -f {0}/link ] && [ ! -L {0}/link ] && [ "$(cat {0}/link)" = in ]',
    ),
    "a link, an empty directory": ("rm {0}/link && mkdir {0}/link", "[ -d {0}/link ] && [ ! -L {0}/link ]"),
    "a link, a directory with a file": (
        "rm {0}/link && mkdir {0}/link && echo in > {0}/link/x",
        '[ ! -L {0}/link ] && [ "$(cat {0}/link/x)" = in ]',
    ),
}


@pytest.mark.parametrize("layering", [None, Layering.COPY])
@pytest.mark.parametrize("place", ["/app", "/workspace"])
@pytest.mark.parametrize("change", CHANGES)
async def test_what_became_something_of_another_kind_arrives_as_that(
    lab: Lab, change: str, place: str, layering: Layering | None
) -> None:
    solution, tests = (text.format(place) for text in CHANGES[change])
    left, grade = await tried(lab, files(solution, f"{tests} && reward=1"), layering)
    assert grade.reward == 1.0, (grade, left)
