"""Which tasks get an image where the run's provider keeps images, and which are refused where it does not."""

from dataclasses import replace

import pytest

from orchestrator.settings.providers import ImagesSection
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.admit import check_admissible, faults
from orchestrator.tasks.bundle import Bundle
from orchestrator.tasks.harbor import Task
from sandboxes.base import File
from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.images.architecture import machine
from sandboxes.images.settings import ImageSettings

ON = SandboxSection(images=ImagesSection(directory="/srv/images"))
BASES = ("debian:12",)


def a_task(dockerfile: str) -> Task:
    return Task.from_files(
        {
            "task.toml": b'version = "1.0"\n[metadata]\nname = "boxed"\n',
            "instruction.md": b"do it",
            "tests/test.sh": b"true",
            "environment/Dockerfile": dockerfile.encode(),
            "environment/a": b"a",
        }
    )


def test_a_task_with_run_is_refused_in_one_sentence_that_names_the_key_and_admitted_where_images_are_on() -> (
    None
):
    task = a_task("FROM debian:12\nRUN make")
    with pytest.raises(
        ValueError,
        match=r"line 2: RUN is not one of .* \(bubblewrap has it with sandbox\.images\.directory\)",
    ):
        check_admissible(task, SandboxSection())
    check_admissible(task, ON)


@pytest.mark.parametrize(
    "text",
    [
        "FROM debian:12\nRUN make",
        "FROM python:3.12\nCOPY a /app/",
        "FROM debian:12\nCOPY a /srv/",
        "FROM debian:12\nUSER web",
    ],
)
def test_a_dockerfile_that_this_machines_system_cannot_serve_is_built(text: str) -> None:
    found = a_task(text).environment(BASES, containers=True, where_needed=True)
    assert found.build is not None and found.build["Dockerfile"] == File(text.encode())


def test_a_dockerfile_that_needs_no_image_gets_none() -> None:
    found = a_task("FROM debian:12\nCOPY a /app/").environment(BASES, containers=True, where_needed=True)
    assert found.build is None and set(found.files) == {"/app/a"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("FROM --platform=linux/s390x debian:12\nRUN make", f"linux/{machine()} alone"),
        ("RUN make", "begin with FROM"),
    ],
)
def test_what_no_machine_of_the_run_can_build_is_refused_before_it_is_published(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_admissible(a_task(text), ON)


def test_a_provider_builds_images_only_with_a_directory_for_them() -> None:
    assert not BubblewrapProvider(images=ImageSettings()).containers
    assert BubblewrapProvider(images=ImageSettings(directory="/srv/images")).containers


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"directory": "relative"}, "directory: must be an absolute path"),
        ({"most_mb": 0}, "most_mb"),
        ({"build_env": {"A B": "x"}}, "build_env"),
        ({"build_env": {"A": "x\ny"}}, "build_env"),
        ({"build_files": {"../x": "/etc/passwd"}}, "build_files"),
        ({"build_files": {"x": "relative"}}, "build_files"),
        ({"build_networks": ("10.0.0.0/99",)}, "build_networks"),
    ],
)
def test_a_setting_that_cannot_be_is_named(table: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ImagesSection(**table)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dockerfile", "user"),
    [
        ("FROM debian:12\nRUN useradd bob\nUSER bob:staff\n", "bob"),
        ("FROM debian:12\nUSER 1234\nRUN true\nUSER root\n", ""),
        ("FROM debian:12 AS one\nUSER bob\nFROM one\nRUN true\n", "bob"),
        ("FROM debian:12 AS one\nUSER bob\nFROM debian:12\nRUN true\n", ""),
        ("FROM debian:12\nARG WHO=bob\nARG GROUP=$WHO\nUSER ${WHO}:$GROUP\n", "bob"),
        ("ARG WHO=bob\nFROM debian:12 AS one\nARG WHO\nENV NAME=$WHO\nFROM one\nUSER $NAME\n", "bob"),
        ("FROM debian:12\nuser\tbob\n", "bob"),
        ("FROM debian:12\nARG WHO\nUSER ${WHO:-bob}\n", "bob"),
        ("FROM debian:12\nARG WHO\nUSER ${WHO-bob}${WHO:+by}\n", "bob"),
        ("ARG A=b B=${A}ob\nFROM debian:12\nARG B\nUSER $B\n", "bob"),
        ("ARG BASE=One\nFROM debian:12 AS one\nUSER bob\nFROM ${BASE}\nRUN true\n", "bob"),
        ('FROM debian:12 AS one\nUSER bob\nFROM "one"\nRUN true\n', "bob"),
    ],
)
def test_the_user_of_a_dockerfile_runs_agent_and_tests_unless_the_settings_name_another(
    dockerfile: str, user: str
) -> None:
    task = a_task(dockerfile)
    assert task.environment(BASES, containers=True).user == user
    assert task.verification(BASES, containers=True).user == user
    toml = b'[agent]\nuser = "agent"\n[verifier]\nuser = "root"\n'
    named = task.with_file("task.toml", toml)
    assert named.environment(BASES, containers=True).user == "agent"
    assert named.verification(BASES, containers=True).user == "root"


def test_a_user_of_a_dockerfile_that_sandboxes_do_not_have_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(
        ValueError, match="environment/Dockerfile: USER bob is not honoured: a user of its own needs"
    ):
        check_admissible(a_task("FROM debian:12\nRUN useradd bob\nUSER bob\n"), ON)
    for line in ("ARG WHO", "RUN true"):
        with pytest.raises(
            ValueError,
            match=r"Dockerfile line 3: USER '\$WHO' is not honoured: the Dockerfile does not set its variable",
        ):
            a_task(f"FROM debian:12\n{line}\nUSER $WHO\n").environment(BASES, containers=True)


def named(image: str, dockerfile: str, table: str = "environment", where: str = "environment") -> Task:
    files = {
        "task.toml": f'[{table}]\ndocker_image = "{image}"\n'.encode(),
        "instruction.md": b"do it",
        "tests/test.sh": b"true",
        "environment/Dockerfile": b"FROM debian:12\nCOPY a /app/",
        "environment/a": b"a",
        "environment/files/b": b"b",
    }
    return Task.from_files(files | {f"{where}/Dockerfile": dockerfile.encode()})


def test_a_dockerfile_stands_for_the_image_that_a_task_names_where_that_cannot_be_had() -> None:
    found = named("a/x:1", "FROM debian:12\nCOPY a /app/").environment(BASES, containers=True)
    assert found.build is not None and set(found.build) == {"Dockerfile", "a", "files/b"}
    assert found.prebuilt == {"Dockerfile": File(b"FROM a/x:1\n")} and found.files == {}
    task = named("a/x:1", "FROM debian:12\nCOPY a /app/")
    check_admissible(task, SandboxSection())
    assert set(task.environment(BASES).files) == {"/app/a"}
    assert set(named("debian:12", "FROM y").environment(BASES).files) == {"/app/b"}


BARE = {
    "task.toml": b'[environment]\ndocker_image = "debian:12"\n',
    "instruction.md": b"do it",
    "tests/test.sh": b"true",
    "environment/data.csv": b"1",
    "environment/files/b": b"2",
    "environment/.gitkeep": b"",
}
ALL = {"/app/data.csv", "/app/files/b", "/app/.gitkeep"}


def test_all_of_environment_lies_in_the_work_directory_of_an_image_without_a_dockerfile_as_in_harbor() -> (
    None
):
    task = Task.from_files(BARE)
    check_admissible(task, SandboxSection())
    for containers in (False, True):
        assert set(task.environment(BASES, containers=containers).files) == ALL
        assert set(task.verification(BASES, containers=containers).files) == ALL
    links, directories = {"environment/l": "data.csv"}, {"environment/e": 0o700}
    bundle = replace(Bundle.of(BARE), links=links, directories=directories)
    found = Task.of(bundle).environment(BASES, containers=True)
    assert (found.links, found.modes) == ({"/app/l": "data.csv"}, {"/app/e": 0o700})
    with pytest.raises(ValueError, match=r"^environment/l is a link to '/data', which leads out of /app: "):
        Task.of(replace(bundle, links={"environment/l": "/data"})).environment(BASES)


def test_files_of_an_image_that_the_own_system_stands_for_lie_where_workdir_is() -> None:
    toml = BARE["task.toml"] + b'workdir = "/app/in"\n'
    task = Task.from_files({**BARE, "task.toml": toml})
    assert set(task.environment(BASES).files) == {path.replace("/app/", "/app/in/") for path in ALL}
    assert set(task.environment(BASES, containers=True).files) == ALL  # its WORKDIR is /app/in


def test_an_image_of_the_tests_own_gets_no_file_of_the_environment_and_a_compose_file_takes_all_but_files() -> (
    None
):
    toml = BARE["task.toml"] + b'[verifier.environment]\ndocker_image = "debian:12"\n'
    task = Task.from_files({**BARE, "task.toml": toml})
    assert set(task.environment(BASES).files) == ALL
    for containers in (False, True):
        assert task.verification(BASES, containers=containers).files == {}
    separate = BARE["task.toml"] + b'[verifier]\nenvironment_mode = "separate"\n'
    task = Task.from_files({**BARE, "task.toml": separate})
    assert set(task.verification(BASES, containers=True).files) == ALL
    composed = Task.from_files({**BARE, "environment/docker-compose.yaml": b"services: {db: {image: a}}"})
    assert set(composed.environment(BASES, containers=True).files) == {"/app/b"}


def test_user_and_entrypoint_of_a_dockerfile_count_also_where_it_stands_for_an_image() -> None:
    task = named("a/x:1", "FROM debian:12\nUSER bob\n")
    assert task.environment(BASES, containers=True).user == "bob"
    assert task.verification(BASES, containers=True).user == "bob"
    own = named("a/x:1", "FROM debian:12\nUSER eve", table="verifier.environment", where="tests")
    assert own.verification(BASES, containers=True).user == "eve"
    unset = named("a/x:1", "FROM debian:12\nUSER $X", table="verifier.environment", where="tests")
    with pytest.raises(ValueError, match=r"^tests/Dockerfile line 2: USER '\$X' is not honoured"):
        unset.verification(BASES, containers=True)
    starts = named("a/x:1", 'FROM debian:12\nENTRYPOINT ["serve"]\n')
    with pytest.raises(ValueError, match="line 2: ENTRYPOINT starts 'serve'"):
        check_admissible(starts, ON)
    check_admissible(named("a/x:1", "FROM debian:12\nENTRYPOINT sleep infinity\n"), ON)


def test_a_dockerfile_that_cannot_stand_for_an_image_is_named_after_the_key() -> None:
    with pytest.raises(
        ValueError, match=r"docker_image = 'a/x:1'.*; its Dockerfile cannot stand for it: .* RUN"
    ):
        check_admissible(named("a/x:1", "FROM debian:12\nRUN true"), SandboxSection())


def test_the_image_of_tests_is_made_by_their_own_dockerfile() -> None:
    task = named("a/x:1", "FROM debian:12\nCOPY test.sh /", table="verifier.environment", where="tests")
    found = task.verification(BASES, containers=True)
    assert found.build is not None and set(found.build) == {"Dockerfile", "test.sh"}
    assert found.prebuilt == {"Dockerfile": File(b"FROM a/x:1\n")}


def test_a_work_directory_of_its_own_is_that_of_the_image_and_of_its_dockerfile() -> None:
    task = named('a/x:1"\nworkdir = "/srv/w', "FROM debian:12")
    found = task.environment(BASES, containers=True)
    assert found.build is not None and found.prebuilt is not None
    for context in (found.build, found.prebuilt):
        written = context["Dockerfile"]
        assert isinstance(written, File) and written.data.endswith(b"\nWORKDIR /srv/w\n")


@pytest.mark.parametrize(
    ("volume", "why"),
    [
        ('VOLUME ["/data", "/var/lib/thing"]', ""),
        ("ARG TOP=/srv\nVOLUME $TOP/a /srv/work/b", ""),
        ("VOLUME /tmp/x /logs/agent /home/agent/x sub", ""),
        ("VOLUME $UNKNOWN/x", ""),
        ("VOLUME /usr/local/lib/x", "line 3: VOLUME '/usr/local/lib/x' is not honoured: the system keeps"),
        ("volume\t/data /etc/y", "line 3: VOLUME '/etc/y' is not honoured"),
        (
            "VOLUME usr/x",
            "line 3: VOLUME '/usr/x' is not honoured: the system keeps",
        ),  # from the root, not from WORKDIR
        ("VOLUME /var", "VOLUME '/var' is not honoured"),
        ("VOLUME /usr\nFROM debian:12\nRUN true", ""),
    ],
)
def test_a_volume_is_a_directory_of_data_or_refused_by_its_line(volume: str, why: str) -> None:
    task = a_task(f"FROM debian:12\nWORKDIR /srv/work\n{volume}\n")
    assert why in next(faults(task, ON), "") and bool(why) == bool(list(faults(task, ON)))


def test_a_volume_of_the_tests_own_image_is_named_by_their_dockerfile() -> None:
    toml = b'[verifier]\nenvironment_mode = "separate"\n'
    task = a_task("FROM debian:12\nRUN true\n").with_file("task.toml", toml)
    separate = task.with_file("tests/Dockerfile", b"FROM debian:12\nWORKDIR /app\nVOLUME /etc/y\n")
    (fault,) = faults(separate, ON)
    assert fault.startswith("tests/Dockerfile line 3: VOLUME '/etc/y' is not honoured")


def test_a_volume_outside_of_the_work_directory_is_refused_where_programs_cannot_write_it() -> None:
    section = SandboxSection(provider="container")
    task = a_task("FROM debian:12\nWORKDIR /app\nVOLUME /data\n")
    (fault,) = faults(task, section)
    assert "VOLUME '/data' is not honoured: of an image, sandboxes of the provider container" in fault
    assert not list(faults(a_task("FROM debian:12\nWORKDIR /data\nVOLUME /data\n"), section))


@pytest.mark.parametrize(
    ("patterns", "sentence"),
    [
        ("*.log\n**/x\n", ""),
        ("a**/b\n", "the pattern 'a**/b' of its .dockerignore is not read: let ** stand"),
    ],
)
def test_an_ignore_file_that_the_provider_container_does_not_read_is_refused_before_a_build(
    patterns: str, sentence: str
) -> None:
    task = a_task("FROM debian:12\nRUN true\nWORKDIR /app\n").with_file(
        "environment/.dockerignore", patterns.encode()
    )
    found = list(faults(task, SandboxSection(provider="container")))
    assert [fault for fault in found if sentence not in fault] == [] and bool(found) == bool(sentence)
    assert not list(faults(task, ON))
