"""The users that a task names: where they are honoured, where they are refused, and how a step's replace the task's."""

import os
import re

import pytest

from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.admit import check_admissible
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.multi_step import steps_of
from sandboxes.base import Limits

OWN = ("agent", "1000", "root", "0")
IMAGES = {"images": {"directory": "/nonexistent/images"}, "base_images": ["debian:12"]}


def task(toml: str, **files: bytes) -> Task:
    named = {path.replace("__", "/"): body for path, body in files.items()}
    whole = {"instruction.md": b"do it", "tests/test.sh": b"true", **named}
    return Task.from_files(
        {"task.toml": toml.encode(), **{path: body for path, body in whole.items() if body}}
    )


def steps(*users: str, more: str = "") -> Task:
    toml = more + "".join(f"[[steps]]\nname = 's{n}'\n{user}\n" for n, user in enumerate(users))
    files = {f"steps/s{number}/instruction.md": b"do it" for number in range(len(users))}
    return Task.from_files({"task.toml": toml.encode(), "tests/test.sh": b"true", **files})


@pytest.fixture
def ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.mark.parametrize("user", OWN)
@pytest.mark.usefixtures("ordinary")
def test_the_sandboxs_own_user_needs_no_rights_under_any_of_its_names(user: str) -> None:
    found = task(f"[agent]\nuser = '{user}'\n[verifier]\nuser = '{user}'")
    check_admissible(found, SandboxSection())
    assert (
        found.environment(None).spec({}, Limits()).user
        == found.verification(None).spec({}, Limits()).user
        == user
    )


@pytest.mark.parametrize("user", ["agent", ""])
@pytest.mark.parametrize("provider", ["container", "kubernetes", "local", "bubblewrap"])
@pytest.mark.usefixtures("ordinary")
def test_every_provider_has_the_user_agent(provider: str, user: str) -> None:
    check_admissible(task(f"[agent]\nuser = '{user}'" if user else ""), SandboxSection(provider=provider))


@pytest.mark.parametrize(
    ("provider", "user", "sentence"),
    [
        ("bubblewrap", "1001", "[agent].user = '1001' is not honoured: a user of its own needs subordinate users"),
        ("bubblewrap", "worker", "[agent].user = 'worker' is not honoured: a user of its own needs subordinate users"),
        ("container", "worker", "[agent].user = 'worker' is not honoured: sandboxes of the provider container have other users only where"),
        ("container", "root", "[agent].user = 'root' is not honoured: containers have no user namespace"),
        ("kubernetes", "1001", "[agent].user = '1001' is not honoured: pods need sandbox.kubernetes.user_namespaces for users of their own"),
        ("local", "1001", "[agent].user = '1001' is not honoured: sandboxes of the provider local run programs as uid 4711 alone"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("ordinary")
def test_a_user_that_the_runs_sandboxes_do_not_have_is_refused_by_name(
    provider: str, user: str, sentence: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        check_admissible(task(f"[agent]\nuser = '{user}'"), SandboxSection(provider=provider))
    with pytest.raises(ValueError, match=re.escape(sentence.replace("[agent]", "[verifier]"))):
        check_admissible(task(f"[verifier]\nuser = '{user}'"), SandboxSection(provider=provider))
    with pytest.raises(ValueError, match=re.escape(sentence.replace("[agent]", "[verifier]"))):
        check_admissible(steps(f"[steps.verifier]\nuser = '{user}'"), SandboxSection(provider=provider))


@pytest.mark.usefixtures("ordinary")
def test_pods_with_user_namespaces_have_any_uid_but_no_names() -> None:
    section = SandboxSection.model_validate(
        {"provider": "kubernetes", "kubernetes": {"user_namespaces": True}}
    )
    check_admissible(task("[agent]\nuser = 1001\n[verifier]\nuser = '65535'"), section)
    for user in ("root", "worker", "65536"):
        with pytest.raises(ValueError, match="programs of a pod run as a uid from 1 to 65535"):
            check_admissible(task(f"[agent]\nuser = '{user}'"), section)


@pytest.mark.usefixtures("root")
def test_a_name_that_only_an_image_can_have_needs_one_and_a_uid_does_not() -> None:
    check_admissible(task("[agent]\nuser = 1001\n[verifier]\nuser = 1002"), SandboxSection())
    for table in ("agent", "verifier"):
        with pytest.raises(
            ValueError, match=re.escape(f"[{table}].user = 'worker' is not honoured: no image is built")
        ):
            check_admissible(task(f"[{table}]\nuser = 'worker'"), SandboxSection())


@pytest.mark.usefixtures("root")
def test_a_dockerfile_that_needs_no_image_gets_one_for_a_named_user() -> None:
    section = SandboxSection.model_validate(IMAGES)
    dockerfile = {"environment__Dockerfile": b"FROM debian:12\nWORKDIR /app\n"}
    found = task("[agent]\nuser = 'www-data'", **dockerfile)
    check_admissible(found, section)
    bases = section.base_images
    assert found.environment(bases, containers=True, where_needed=True).build is not None
    assert found.verification(bases, containers=True, where_needed=True).build is not None, (
        "the same system for both"
    )
    assert (
        task("[agent]\nuser = 33", **dockerfile).environment(bases, containers=True, where_needed=True).build
        is None
    )


@pytest.mark.usefixtures("root")
def test_a_steps_users_stand_in_place_of_the_tasks() -> None:
    found = steps("[steps.verifier]\nuser = 1003", "", more="[agent]\nuser = 1001\n[verifier]\nuser = 1002\n")
    check_admissible(found, SandboxSection())
    assert found.environment(None).user == "1001"
    assert [each.task.verification(None).user for each in steps_of(found)] == ["1003", "1002"]
    assert {each.task.environment(None).user for each in steps_of(found)} == {"1001"}


@pytest.mark.usefixtures("root")
def test_steps_share_the_user_of_their_sandbox() -> None:
    same = steps("[steps.agent]\nuser = 1001", "[steps.agent]\nuser = '1001'")
    check_admissible(same, SandboxSection())
    assert same.environment(None).user == "1001"
    for different in (
        steps("[steps.agent]\nuser = 1001", ""),
        steps("", "[steps.agent]\nuser = 1001", more="[agent]\nuser = 5\n"),
    ):
        with pytest.raises(ValueError, match="the steps of a task share one sandbox and its user"):
            check_admissible(different, SandboxSection())
