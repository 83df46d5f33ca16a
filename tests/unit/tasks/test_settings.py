"""`task.toml`: what is read, and the sentence for each thing that is wrong."""

import re

import pytest

from orchestrator.tasks.settings import check_spelling, parse_settings


def test_an_empty_file_means_the_defaults() -> None:
    settings = parse_settings("")
    assert settings.metadata.domain == "general"
    assert (settings.agent.timeout_sec, settings.agent.stall_s, settings.agent.max_turns) == (
        900.0,
        60.0,
        None,
    )
    assert settings.verifier.timeout_sec == 300.0


def test_a_task_written_for_harbor_is_read_and_its_other_keys_are_left_alone() -> None:
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


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        ("[agent]\ntimeout_sec = 'x'", "task.toml: [agent].timeout_sec must be a number, got 'x'"),
        ("[agent]\ntimeout_sec = true", "task.toml: [agent].timeout_sec must be a number, got True"),
        ("[agent]\ntimeout_sec = 0", "task.toml: [agent].timeout_sec must be more than 0, got 0"),
        ("[agent]\ntimeout_sec = nan", "task.toml: [agent].timeout_sec must be a finite number, got nan"),
        ("[agent]\nstall_s = 1e9", "task.toml: [agent].stall_s must be at most 604800, got 1000000000.0"),
        ("[agent]\nmax_turns = 2.5", "task.toml: [agent].max_turns must be a whole number, got 2.5"),
        ("[verifier]\ntimeout_sec = []", "task.toml: [verifier].timeout_sec must be a number, got []"),
        ("version = 1", "task.toml: version must be text, got 1"),
        ("agent = 3", "task.toml: [agent] must be a table, got 3"),
        ("environment = 'x'", "task.toml: [environment] must be a table, got 'x'"),
        ("[metadata]\ntags = 'x'", "task.toml: [metadata].tags must be a list, got 'x'"),
        ("[metadata]\ntags = ['x', 2]", "task.toml: [metadata].tags item 2 must be text, got 2"),
        ("[metadata]\nphrasing = -1", "task.toml: [metadata].phrasing must be at least 0, got -1"),
        (
            "[metadata]\ndomain = 'cooking'",
            "task.toml: [metadata].domain must be one of reasoning, coding, agent, general, got 'cooking'",
        ),
    ],
)
def test_a_wrong_value_is_one_sentence_with_its_key(toml: str, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_settings(toml)
    assert str(caught.value) == sentence


def test_broken_toml_says_where_it_breaks() -> None:
    with pytest.raises(ValueError, match=r"^task.toml: not valid TOML: .* \(at line 2, column 4\)$"):
        parse_settings("[agent]\nx  y")


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        (
            "[agent]\ntimeout_secs = 5",
            "task.toml: [agent].timeout_secs is not known: write [agent].timeout_sec",
        ),
        ("[verifer]\ntimeout_sec = 5", "task.toml: [verifer] is not known: write [verifier]"),
        (
            '[metadata]\ndomian = "agent"',
            "task.toml: [metadata].domian is not known: write [metadata].domain",
        ),
    ],
)
def test_a_misspelt_key_is_not_admitted(toml: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence) + "$"):
        check_spelling(toml)
    parse_settings(toml)  # of a task that was accepted before


@pytest.mark.parametrize("other", ["timeout_sec = 5\ntimeout_secs = 6", "max_timeout_sec = 6"])
def test_a_key_that_cannot_be_meant_for_one_of_ours_is_passed_over(other: str) -> None:
    check_spelling(f"[agent]\n{other}")
