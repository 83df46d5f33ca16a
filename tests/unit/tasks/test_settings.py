"""`task.toml`: the keys that are read, and the sentence for each error."""

import pytest

from orchestrator.bus import subjects
from orchestrator.contracts.errors import ArgumentError
from orchestrator.publish import PublishOptions
from orchestrator.settings.tasks import TasksSection
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.settings import parse_settings, variables_of


def test_an_empty_file_means_the_defaults() -> None:
    settings = parse_settings("")
    assert settings.metadata.domain == "general"
    assert (settings.agent.timeout_sec, settings.agent.stall_s, settings.agent.max_turns) == (
        900.0,
        None,
        None,
    )
    assert settings.verifier.timeout_sec == 600.0


def test_a_task_written_for_harbor_is_read() -> None:
    settings = parse_settings(
        """
        version = "1.0"
        source = "somewhere"
        [metadata]
        author_name = "A. Author"
        difficulty = "hard"
        category = "programming"
        tags = ["files", "shell"]
        [verifier]
        timeout_sec = 120
        env = { KEY = "value" }
        [agent]
        timeout_sec = 30.5
        [environment]
        build_timeout_sec = 600.0
        cpus = 1
        memory = "2G"
        [solution.env]
        KEY = "value"
        """
    )
    assert settings.metadata.tags == ("files", "shell")
    assert settings.agent.timeout_sec == 30.5
    assert settings.verifier.timeout_sec == 120.0
    assert settings.environment == {"build_timeout_sec": 600.0, "cpus": 1, "memory": "2G"}
    assert (settings.verifier.env, settings.solution.env) == ({"KEY": "value"}, {"KEY": "value"})


@pytest.mark.parametrize(
    ("toml", "domain", "difficulty", "tags"),
    [
        ('domain = "life-sciences"\ntags = "oaks"', "life-sciences", "unknown", ("oaks",)),
        ('domain = "Life Sciences (Botany)"', "general", "unknown", ()),
        ('domain = "all"', "general", "unknown", ()),
        ("domain = 3\ndifficulty = 3\ntags = [1, true, {}]", "general", "3", ("1",)),
        ('difficulty = ["a"]\nphrasing = "formal"\nfamily = {}\nname = []', "general", "unknown", ()),
        ("difficulty = nan\ntags = nan\nwhen = 2024-01-01", "general", "nan", ("nan",)),
    ],
)
def test_whatever_an_author_writes_into_metadata_is_taken(
    toml: str, domain: str, difficulty: str, tags: tuple[str, ...]
) -> None:
    metadata = parse_settings(f"[metadata]\n{toml}").metadata
    assert (metadata.domain, metadata.difficulty, metadata.tags) == (domain, difficulty, tags)


def test_a_name_holds_nothing_that_cannot_be_shown_or_kept() -> None:
    assert parse_settings('[metadata]\nname = "a\\u0000b\\u0007"').metadata.name == "a\ufffdb\ufffd"


def test_the_reference_time_of_a_task_is_read_and_goes_with_it() -> None:
    settings = parse_settings("[agent]\nreference_sec = 20")
    assert settings.agent.reference_sec == 20.0
    assert settings.model_dump(mode="json")["agent"]["reference_sec"] == 20.0
    assert parse_settings("").agent.reference_sec is None


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        ("[agent]\ntimeout_sec = 'x'", "task.toml: [agent].timeout_sec must be a number, got 'x'"),
        ("[agent]\ntimeout_sec = true", "task.toml: [agent].timeout_sec must be a number, got True"),
        ("[agent]\ntimeout_sec = 0", "task.toml: [agent].timeout_sec must be more than 0, got 0"),
        ("[agent]\ntimeout_sec = nan", "task.toml: [agent].timeout_sec must be a finite number, got nan"),
        ("[agent]\nstall_s = 1e9", "task.toml: [agent].stall_s must be at most 604800, got 1000000000.0"),
        ("[agent]\nreference_sec = 0", "task.toml: [agent].reference_sec must be more than 0, got 0"),
        ("[agent]\nreference_sec = -3.0", "task.toml: [agent].reference_sec must be more than 0, got -3.0"),
        ("[agent]\nreference_sec = inf", "task.toml: [agent].reference_sec must be a finite number, got inf"),
        ("[agent]\nreference_sec = '9'", "task.toml: [agent].reference_sec must be a number, got '9'"),
        ("[agent]\nmax_turns = 2.5", "task.toml: [agent].max_turns must be a whole number, got 2.5"),
        ("[verifier]\ntimeout_sec = []", "task.toml: [verifier].timeout_sec must be a number, got []"),
        ("version = 1", "task.toml: version must be text, got 1"),
        ("agent = 3", "task.toml: [agent] must be a table, got 3"),
        ("environment = 'x'", "task.toml: [environment] must be a table, got 'x'"),
        ("metadata = 3", "task.toml: [metadata] must be a table, got 3"),
    ],
)
def test_a_wrong_value_is_one_sentence_with_its_key(toml: str, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_settings(toml)
    assert str(caught.value) == sentence


def test_broken_toml_says_where_it_breaks() -> None:
    with pytest.raises(ValueError, match=r"^task.toml: not valid TOML: .* \(at line 2, column 4\)$"):
        parse_settings("[agent]\nx  y")


@pytest.mark.parametrize("toml", ["a = " + "9" * 5000, "a = " + "[" * 5000, 'a = "\0"', "a = 2024-13-45"])
def test_toml_that_no_reader_takes_is_refused_with_a_sentence(toml: str) -> None:
    with pytest.raises(ValueError, match=r"^task\.toml: not valid TOML: "):
        parse_settings(toml)


def test_a_task_without_a_domain_is_of_the_one_that_the_run_gives_its_category() -> None:
    domains = {"software-engineering": "coding"}
    for toml, domain in (
        ('[metadata]\ncategory = "software-engineering"', "coding"),
        ('[metadata]\ncategory = "software-engineering"\ndomain = "mine"', "mine"),
        ('[metadata]\ncategory = "games"', "general"),
        ("", "general"),
    ):
        metadata = parse_settings(toml).metadata
        assert metadata.domain_in(domains) == domain, toml
        assert metadata.domain_in({}) == metadata.domain
        files = {"task.toml": toml.encode(), "instruction.md": b"x", "tests/test.sh": b"true"}
        published, _ = PublishOptions(domains=domains).event(Task.from_files(files))
        assert published == domain
    assert parse_settings('[metadata]\ncategory = "games"').model_dump()["metadata"]["category"] == "games"


def test_the_word_for_every_domain_names_none() -> None:
    sentence = "'all' is not .* but not all, which stands for every domain"
    with pytest.raises(ArgumentError, match=sentence):
        PublishOptions(domain="all")
    with pytest.raises(ValueError, match=sentence):
        TasksSection(domains={"games": "all"})
    with pytest.raises(ValueError, match=sentence):
        subjects.tasks("first", "all")


def test_variables_mean_what_they_mean_to_harbor_on_a_machine_that_has_none_of_theirs() -> None:
    values = {"A": "pre ${FOO}", "B": "${FOO:-b:-c}", "C": "${FOO:-}", "D": "${A}${B}", "E": "${"}
    table = ", ".join(f'{name} = "{text}"' for name, text in values.items())
    settings = parse_settings(f"[environment]\nenv = {{{table}}}\n[verifier]\nenv = {{{table}}}\n")
    wanted = {**values, "B": "b:-c", "C": ""}
    assert variables_of(settings.environment) == wanted == settings.verifier.env
