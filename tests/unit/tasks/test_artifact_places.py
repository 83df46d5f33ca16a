"""Where artifacts of a task can lie: in the work directory of its image or of the sandbox's own system, and in two places outside of it."""

import re
import stat
from collections.abc import Mapping
from contextlib import nullcontext

import pytest

from orchestrator.contracts.events import ArtifactFile
from orchestrator.contracts.states import Left
from orchestrator.runner.step_grades import work_of
from orchestrator.settings.providers import ImagesSection
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.admit import check_admissible
from orchestrator.tasks.artifact_modes import GONE, type_of
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.last_stage import workdir_of
from orchestrator.tasks.multi_step import steps_of
from orchestrator.tasks.work_dir import begins_in
from sandboxes.base import File

IMAGES = SandboxSection(images=ImagesSection(directory="/srv/images"))
SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'
LEFT = [ArtifactFile(path=path, body="") for path in ("out.txt", "sub/out.txt", "sub/a.log", "other")]
HOME = "/root"


def a_task(toml: str, dockerfile: str = "", more: Mapping[str, bytes] = {}) -> Task:
    files = {"task.toml": toml.encode(), "instruction.md": b"do it", "tests/test.sh": b"true", **more}
    return Task.from_files(files | ({"environment/Dockerfile": dockerfile.encode()} if dockerfile else {}))


def seen(task: Task, *, images: bool = True) -> list[str]:
    environment = task.environment(
        SandboxSection().base_images if not images else ("debian:12",), containers=images, where_needed=True
    )
    return [file.path for file in task.seen_by_tests(LEFT, environment)]


@pytest.mark.parametrize(
    ("dockerfile", "work"),
    [
        ("FROM debian:12\nRUN true\nWORKDIR /srv/w", "/srv/w"),
        ("FROM debian:12\nRUN true\nWORKDIR /srv\nWORKDIR w/", "/srv/w"),
        ("FROM debian:12\nARG TOP=/srv\nENV W=${TOP}/w\nWORKDIR $W\nRUN true", "/srv/w"),
        ('ARG TOP=/srv\nFROM debian:12\nARG TOP\nWORKDIR "$TOP/w"', "/srv/w"),
        ("FROM debian:12 AS a\nWORKDIR /srv\nFROM debian:12\nFROM A\nWORKDIR w", "/srv/w"),
        ("FROM scratch\nCOPY a /\nWORKDIR w", "/w"),
        ("FROM a AS one\nWORKDIR /srv\nFROM b", None),
        ("FROM debian:12\nWORKDIR $HOME/w", None),
        ("FROM debian:12\nENV W=$HOME\nWORKDIR $W/w", None),
        ("FROM debian:12\nENV W=/a\nENV W=$HOME\nWORKDIR $W", None),
        ("FROM debian:12\nWORKDIR w", None),
        ("FROM debian:12\nRUN <<E\nWORKDIR /no\nE\n", None),
    ],
)
def test_the_work_directory_of_an_image_is_read_from_its_dockerfile(
    dockerfile: str, work: str | None
) -> None:
    assert workdir_of(dockerfile) == work


@pytest.mark.parametrize("source", ["/srv/w/out.txt", "out.txt", "/app/out.txt", "/srv/w/./out.txt"])
def test_tests_of_their_own_get_artifacts_in_the_work_directory_of_the_image(source: str) -> None:
    task = a_task(f'artifacts = ["{source}"]\n{SEPARATE}', "FROM debian:12\nRUN true\nWORKDIR /srv/w")
    check_admissible(task, IMAGES)
    assert seen(task) == ["out.txt"]


def test_an_artifact_in_a_work_directory_below_app_is_relative_to_where_it_is_mounted() -> None:
    toml = f'artifacts = ["/app/sub/out.txt"]\n{SEPARATE}'
    assert seen(a_task(toml, "FROM debian:12\nRUN true\nWORKDIR /app/sub")) == ["out.txt"]
    assert seen(a_task(toml, "FROM debian:12\nWORKDIR sub"), images=False) == ["sub/out.txt"]
    toml = f'artifacts = ["out.txt"]\n{SEPARATE}'
    assert seen(a_task(toml, "FROM debian:12\nWORKDIR sub"), images=False) == ["sub/out.txt"]


def test_the_key_workdir_names_the_work_directory_that_a_dockerfile_does_not() -> None:
    toml = f'artifacts = ["/srv/w/out.txt"]\n{SEPARATE}[environment]\nworkdir = "/srv/w"\n'
    task = a_task(toml, "FROM debian:12\nRUN true")
    check_admissible(task, IMAGES)
    assert seen(task) == ["out.txt"]
    assert begins_in(task.environment((), containers=True)) == "/srv/w"


@pytest.mark.parametrize(
    ("dockerfile", "says"),
    [
        (
            "FROM debian:12\nRUN true\nWORKDIR /srv/w",
            "artifacts has '/etc/x': files can be taken from /srv/w, /logs/artifacts, /tmp and directories of data such as /data alone",
        ),
        ("FROM debian:12\nRUN true", "the Dockerfile does not say which that is: write it into"),
        ("", "files can be taken from /app, /logs/artifacts and /tmp alone"),
    ],
)
def test_an_artifact_that_cannot_be_collected_is_refused_with_the_places_that_can(
    dockerfile: str, says: str
) -> None:
    for toml in ("", SEPARATE):
        with pytest.raises(ValueError, match=says):
            check_admissible(a_task(f'artifacts = ["/tmp/x", "/etc/x"]\n{toml}', dockerfile), IMAGES)


@pytest.mark.parametrize(
    ("source", "tests", "says"),
    [
        ("/usr/src/w/out.txt", "WORKDIR /judge", "in the agent's WORKDIR /usr/src/w: the tests would find it in their WORKDIR, /judge; give both"),
        ("/usr/src/w", "RUN true", "their WORKDIR, which its Dockerfile does not name; give both the same, or write '/app' there"),
        ("/usr/src/w/./a/out.txt", "WORKDIR /", "their WORKDIR, /app; give both the same, or write '/app/a/out.txt' there"),
        ("/usr/src/w/out.txt", "WORKDIR /usr/src\nWORKDIR w", ""),
        ("/app/out.txt", "WORKDIR /judge", ""),
        ("out.txt", "WORKDIR /judge", ""),
        ("/data/x", "WORKDIR /judge", ""),
        ("/tmp/x", "WORKDIR /tmp", "artifacts has '/tmp/x', in the tests' WORKDIR /tmp: only files of the agent's WORKDIR lie there"),
        ("/tmp/x", "WORKDIR /judge", ""),
        ("/app/sub/out", "WORKDIR /app/sub", "the tests would find it in their WORKDIR, /app/sub; give both the same"),
    ],
)  # fmt: skip
def test_an_artifact_that_the_tests_would_find_at_another_path_is_refused(
    source: str, tests: str, says: str
) -> None:
    own = {"tests/Dockerfile": f"FROM debian:12\n{tests}\nRUN true\n".encode()}
    toml = f'artifacts = ["{source}"]\n{SEPARATE}'
    task = a_task(toml, "FROM debian:12\nRUN true\nWORKDIR /usr/src/w", own)
    if not says:
        check_admissible(task, IMAGES)
        return
    with pytest.raises(ValueError, match=re.escape(says)):
        check_admissible(task, IMAGES)


@pytest.mark.parametrize(
    ("work", "source", "tests", "at"),
    [
        ("/srv/w", "/srv/w/out.txt", "WORKDIR /judge", ["/srv/w/out.txt"]),
        ("/workspace", "/workspace", "RUN true", ["/workspace/out.txt", "/workspace/sub/out.txt"]),
        (HOME, f"{HOME}/./sub", "WORKDIR /app", [f"{HOME}/sub/a.log", f"{HOME}/sub/out.txt"]),
        ("/srv/w", "/srv/w/out.txt", "WORKDIR /srv/w", ["out.txt"]),
        ("/srv/w", "out.txt", "WORKDIR /judge", ["out.txt"]),
        ("/srv/w", "/srv/w/out.txt", "WORKDIR /srv", None),
        ("/srv/w", "/srv/w/out.txt", "WORKDIR /srv/w/sub", None),
    ],
)
def test_an_artifact_of_another_work_directory_keeps_its_path_where_images_have_data(
    work: str, source: str, tests: str, at: list[str] | None
) -> None:
    own = {"tests/Dockerfile": f"FROM debian:12\n{tests}\nRUN true\n".encode()}
    toml = f'artifacts = ["{source}"]\n{SEPARATE}'
    task = a_task(toml, f"FROM debian:12\nRUN true\nWORKDIR {work}", own)
    if at is None:
        with pytest.raises(ValueError, match=f"in the agent's WORKDIR {work}: the tests would find it in"):
            check_admissible(task, IMAGES)
        return
    check_admissible(task, IMAGES)
    assert set(at) <= set(seen(task))
    with pytest.raises(ValueError, match="their WORKDIR") if at[0].startswith("/") else nullcontext():
        check_admissible(task, SandboxSection(provider="container"))  # writes its WORKDIR alone


@pytest.mark.parametrize("whole", ["/srv/w", "/srv/w/out"])
def test_a_file_that_two_artifacts_name_lies_at_both_places(whole: str) -> None:
    own = {"tests/Dockerfile": b"FROM debian:12\nRUN true\n"}
    toml = f'artifacts = ["/app/out", "{whole}"]\n{SEPARATE}'
    task = a_task(toml, "FROM debian:12\nRUN true\nWORKDIR /srv/w", own)
    check_admissible(task, IMAGES)
    left = [
        ArtifactFile(path="out/a", body="YQ=="),
        ArtifactFile(path="out/large", body=None, parts=["0" * 64], size=7),
        ArtifactFile(path="out/pipe", body=None, kind=Left.BEHIND, why="a pipe"),
    ]
    environment = task.environment((), containers=True)
    found = [file.path for file in task.seen_by_tests(left, environment)]
    assert sorted(found) == ["/srv/w/out/a", "/srv/w/out/large", "out/a", "out/large", "out/pipe"]
    large = File(b"content")
    work = work_of(steps_of(task)[0], "", left, environment, {"out/large": large})
    assert work.stored["/srv/w/out/large"] is work.stored["out/large"] is large


def test_all_kinds_of_changes_of_another_work_directory_keep_their_paths() -> None:
    own = {"tests/Dockerfile": b"FROM debian:12\nWORKDIR /judge\nRUN true\n"}
    task = a_task(f'artifacts = ["/srv/w"]\n{SEPARATE}', "FROM debian:12\nRUN true\nWORKDIR /srv/w", own)
    left = [
        ArtifactFile(path="gone", body=None, step=1),
        ArtifactFile(path="run", body="YQ==", mode=0o755),
        ArtifactFile(path="large", body=None, parts=["0" * 64], size=7),
        ArtifactFile(path="folder", body="", mode=0o700, kind=Left.DIRECTORY),
        ArtifactFile(path="system", body="L3Vzci9iaW4=", mode=0o777, kind=Left.LINK),
        ArtifactFile(path="within", body="cnVu", mode=0o777, kind=Left.LINK),
        ArtifactFile(path="pipe", body=None, kind=Left.BEHIND, why="is a pipe"),
    ]
    found = {file.path: file for file in task.seen_by_tests(left, task.environment((), containers=True))}
    assert (type_of(found["/srv/w/gone"]), found["/srv/w/gone"].step) == (GONE, 1)
    assert found["/srv/w/run"] == ArtifactFile(
        path="/srv/w/run", body="YQ==", mode=0o755, kind=Left.COLLECTED
    )
    assert (found["/srv/w/large"].parts, found["/srv/w/large"].size) == (["0" * 64], 7)
    assert found["/srv/w/folder"].mode == stat.S_IFDIR | 0o700
    # A link could lead to files of the tests' own image.
    behind = {path for path, file in found.items() if file.kind is Left.BEHIND}
    assert behind == {"/srv/w/system", "/srv/w/within", "pipe"} and found["pipe"] == left[-1]
    assert str(found["/srv/w/within"].why).startswith(
        "is a symbolic link outside of the tests' work directory"
    )
    large = File(b"content")
    work = work_of(steps_of(task)[0], "", left, task.environment((), containers=True), {"large": large})
    assert work.stored["/srv/w/large"] is large


@pytest.mark.parametrize(
    ("source", "tests", "refused"),
    [
        ("/app/sub/out", "FROM debian:12", False),  # without an image WORKDIR only says where programs begin
        ("/app/sub/out", "FROM debian:12\nRUN true\nWORKDIR /judge", False),
        ("/app/sub/out", "FROM debian:12\nRUN true\nWORKDIR /app/sub", True),
        ("/app/out", "FROM debian:12\nRUN true\nWORKDIR /app/sub", False),
    ],
)
def test_an_artifact_of_an_agent_without_an_image_lies_below_app(
    source: str, tests: str, refused: bool
) -> None:
    own = {"tests/Dockerfile": f"{tests}\n".encode()}
    task = a_task(f'artifacts = ["{source}"]\n{SEPARATE}', "FROM debian:12\nWORKDIR /app/sub", own)
    with pytest.raises(ValueError, match=r"/app/sub; give both the same$") if refused else nullcontext():
        check_admissible(task, IMAGES.model_copy(update={"base_images": ("debian:12",)}))


def test_patterns_leave_out_files_of_the_work_directory() -> None:
    table = 'artifacts = [{ source = ".", exclude = ["*.log", "other", "sub/out.txt"] }]\n'
    task = a_task(table + SEPARATE)
    check_admissible(task, SandboxSection())
    assert seen(task) == ["out.txt"]
    assert seen(a_task(table)) == [file.path for file in LEFT]


@pytest.mark.parametrize("work", ["/tmp/x", "/usr", "/logs", "/home/agent/x", "/tests", "/proc/x", "/etc"])
def test_a_work_directory_that_no_sandbox_can_have_is_refused_before_an_image_is_built(work: str) -> None:
    key = a_task(f'[environment]\nworkdir = "{work}"\n', "FROM debian:12\nRUN true")
    with pytest.raises(
        ValueError, match=r"\[environment\]\.workdir = .*: WORKDIR .* is taken by the sandbox itself"
    ):
        check_admissible(key, IMAGES)
    with pytest.raises(
        ValueError, match=r"environment/Dockerfile line 3: WORKDIR .* is taken by the sandbox itself"
    ):
        check_admissible(a_task("", f"FROM debian:12\nRUN true\nWORKDIR {work}"), IMAGES)
    tests = {"tests/Dockerfile": f"FROM debian:12\nWORKDIR {work}\n".encode()}
    made = a_task('[verifier]\nenvironment_mode = "separate"\n', "FROM debian:12\nRUN true", tests)
    with pytest.raises(
        ValueError, match=r"tests/Dockerfile line 2: WORKDIR .* is taken by the sandbox itself"
    ):
        check_admissible(made, IMAGES)


@pytest.mark.parametrize(
    ("work", "begins"),
    [
        ("/", "/app"),
        *((each, each) for each in ("/usr/src/app", "/root", "/home/agent", "/home", "/tmp", "/solution")),
    ],
)
def test_a_work_directory_that_a_build_takes_is_admitted(work: str, begins: str) -> None:
    for toml, line in (
        (f'[environment]\nworkdir = "{work}"\n', "RUN true"),
        ("", f"WORKDIR {work}\nRUN true"),
    ):
        task = a_task(toml, f"FROM debian:12\n{line}")
        check_admissible(task, IMAGES)
        assert begins_in(task.environment((), containers=True)) == begins
    check_admissible(a_task('[environment]\nworkdir = "/"\n'), SandboxSection())
