"""`penstock tasks check` names every fault of a task that can be seen by itself."""

import json
from pathlib import Path

import pytest

from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.admit import check_admissible, faults
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.sources import admissible, each, together

BASE = {"task.toml": "", "instruction.md": "Do it.", "tests/test.sh": "echo 1 >/logs/verifier/reward.txt\n"}


def a_task(toml: str = "", **files: str) -> Task:
    return Task.from_files(
        {path: text.encode() for path, text in {**BASE, "task.toml": toml, **files}.items()}
    )


@pytest.mark.parametrize(
    ("toml", "files", "named"),
    [
        ("", {}, []),
        (
            "[environment]\ncpus = 4096\nmemory_mb = 900000000\n",
            {"trajectory.json": "{}"},
            ["trajectory.json is not honoured", "memory_mb"],
        ),
        (
            "[agent]\nnetwork_mode = 'public'\n",
            {
                "environment/Dockerfile": "FROM debian:12\nENV BASH_ENV=x HTTP_PROXY=y\n",
                "trajectory.json": "{}",
            },
            ["trajectory.json is not honoured", "sets BASH_ENV", "sets HTTP_PROXY"],
        ),
        (
            "[agent]\nnetwork_mode = 'public'\nuser = 'stranger'\n[verifier]\nnetwork_mode = 'public'\n",
            {"environment/Dockerfile": "FROM nowhere:1\n"},
            ["[agent].network_mode", "[verifier].network_mode", "FROM nowhere:1"],
        ),
    ],
)
def test_each_fault_of_a_task_is_named_once_and_the_first_one_refuses_it(
    toml: str, files: dict[str, str], named: list[str]
) -> None:
    section = SandboxSection()
    task = a_task(toml, **files)
    found = list(faults(task, section))
    for word in named:
        assert sum(word in fault for fault in found) == 1, (word, found)
    assert len(found) >= len(named) and len(found) == len(set(found)), found
    if named:
        with pytest.raises(ValueError, match="task ") as refused:
            check_admissible(task, section)
        assert str(refused.value).endswith(found[0])
    else:
        assert not found
        check_admissible(task, section)


@pytest.mark.parametrize(
    ("toml", "files", "named"),
    [
        (
            "[environment]\ntype = 'cloud'\ngpus = 4\n",
            {"environment/setup.sh": "x"},
            [
                "[environment].type is not known",
                "[environment].gpus = 4",
                "environment/setup.sh is placed nowhere",
            ],
        ),
        (
            "[environment]\ngpus = 4\n",
            {"tests/test.sh": "", "solve.sh": "x", "environment/a": "x"},
            ["gpus = 4", "solve.sh is not read", "environment/a is placed", "tests/test.sh is empty"],
        ),
        (
            "[[steps]]\nname = 'one'\n[[steps]]\nname = 'two'\n",
            {"instruction.md": None, "steps/one/instruction.md": None, "tests/test.sh": None},
            ["steps/one/instruction.md is missing", "steps/two/instruction.md is missing"],
        ),
        (
            "[[steps]]\nnames = 'one'\n",
            {"instruction.md": None, "solve.sh": "x"},
            ["names", "solve.sh is not read"],
        ),
        (
            "",
            {f"environment/{n}": "x" for n in range(9)},
            ["environment/0 is", "environment/4 is", "; and 4 more"],
        ),
        ("[agent\n", {"solve.sh": "x"}, ["solve.sh is not read", "not valid TOML"]),
    ],
)
def test_a_task_that_cannot_be_read_is_refused_by_its_keys_and_its_files_in_one_sentence(
    toml: str, files: dict[str, str | None], named: list[str]
) -> None:
    given = {path: text for path, text in {**BASE, "task.toml": toml, **files}.items() if text is not None}
    with pytest.raises(ValueError, match=r"\w") as refused:
        Task.from_files({path: text.encode() for path, text in given.items()})
    found = str(refused.value)
    places = [found.find(word) for word in named]
    assert -1 not in places and places == sorted(places), (named, found)
    assert all(found.count(word) == 1 for word in named) and "\n" not in found


SKILL = {"environment/files/skills/count/SKILL.md": "count"}
COPIED = {"environment/Dockerfile": "FROM debian:12\nWORKDIR /app/work\nCOPY count /app/work/skills/count\n"}
COPIED["environment/count/SKILL.md"] = "count"


@pytest.mark.parametrize(
    ("named", "files", "missing"),
    [
        ("/opt/skills", {}, True),
        ("/opt/skills", SKILL, True),
        ("/opt/skills", COPIED, True),
        ("skills", {}, True),
        ("skills/count/SKILL.md", SKILL, True),
        ("../skills", SKILL, True),
        ("skills", SKILL, False),
        ("/app/skills/", SKILL, False),
        ("//app/./skills", SKILL, False),
        ("skills", COPIED, False),
        ("/app/skills", COPIED, True),
        ("/usr/share/skills", {}, False),
    ],
)
def test_a_place_of_skills_that_no_sandbox_can_have_is_refused(
    named: str, files: dict[str, str], missing: bool
) -> None:
    found = list(faults(a_task(f'[environment]\nskills_dir = "{named}"', **files), SandboxSection()))
    assert [fault.split(": ")[0] for fault in found] == ["task.toml"] * missing, found
    assert all("skills_dir" in fault and "no directory of the task lies there" in fault for fault in found)


@pytest.mark.parametrize(
    ("image", "folder"), [("", "environment/files/"), ('docker_image = "debian:12"', "environment/")]
)
def test_a_missing_place_of_skills_names_the_folder_that_is_placed(image: str, folder: str) -> None:
    (fault,) = faults(a_task(f'[environment]\nskills_dir = "skills"\n{image}'), SandboxSection())
    assert f"put the skills below {folder}, and" in fault


def test_skills_of_an_image_are_known_when_it_is_built() -> None:
    section = SandboxSection(provider="container")
    task = a_task(
        '[environment]\nskills_dir = "/opt/skills"',
        **{"environment/Dockerfile": "FROM debian:12\nRUN mkdir -p /opt/skills\n"},
    )
    assert not [fault for fault in faults(task, section) if "skills_dir" in fault]


TOO_LONG = "is longer than an attempt may take"
STEPS = '[[steps]]\nname = "a"\nagent.timeout_sec = 30\n[[steps]]\nname = "b"\n'


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("[agent]\nreference_sec = 900", None),
        ("[agent]\nreference_sec = 901", f"{TOO_LONG} (900 s)"),
        ("[agent]\ntimeout_sec = 20\nreference_sec = 20000.0", f"{TOO_LONG} (20 s)"),
        ("[agent]\nreference_sec = 0.001", None),
        ("[agent]\nreference_sec = 1e-300", "is shorter than times are measured (0.001 s)"),
        (f"{STEPS}[agent]\ntimeout_sec = 20\nreference_sec = 50", None),
        (f"{STEPS}[agent]\ntimeout_sec = 20\nreference_sec = 51", f"{TOO_LONG} (50 s)"),
    ],
)
def test_a_reference_time_that_makes_every_attempt_equally_quick_is_refused(
    toml: str, words: str | None
) -> None:
    found = [fault for fault in faults(a_task(toml), SandboxSection()) if "reference_sec" in fault]
    assert (not found) if words is None else (len(found) == 1 and words in found[0]), found


@pytest.mark.parametrize("value", ["[]", "{}", '"x"', "true", "-1"])
def test_a_reference_time_next_to_a_time_that_cannot_be_read_gives_the_fault_of_that_time_alone(
    value: str,
) -> None:
    toml = f'[agent]\nreference_sec = 50\n[[steps]]\nname = "a"\nagent.timeout_sec = {value}\n'
    found = [fault for fault in faults(a_task(toml), SandboxSection()) if "_sec" in fault]
    assert len(found) == 1 and "[[steps]].agent.timeout_sec must be a number of seconds" in found[0], found


def test_faults_of_several_tasks_are_lines_below_the_number_of_tasks(tmp_path: Path) -> None:
    for name, toml in (("one", ""), ("two", "[agent]\nnetwork_mode = 'public'\nuser = 'stranger'\n")):
        for path, text in {**BASE, "task.toml": toml, "trajectory.json": "{}"}.items():
            target = tmp_path / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
    (tmp_path / "two" / "trajectory.json").unlink()
    tasks, refused = admissible(each([tmp_path]), SandboxSection())
    assert not tasks and [len(each) for each in refused] == [1, 2], json.dumps(refused)
    lines = together(refused, "nothing is published").splitlines()
    assert lines[0] == "2 tasks cannot be taken, nothing is published:" and len(lines) == 4
    assert all(f"  {tmp_path}/" in line for line in lines[1:])
