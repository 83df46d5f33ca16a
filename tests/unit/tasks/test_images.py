"""Which tasks get an image where the run's provider keeps images, and which are refused where it does not."""

import pytest

from orchestrator.settings.providers import ImagesSection
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.admit import check_admissible
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
