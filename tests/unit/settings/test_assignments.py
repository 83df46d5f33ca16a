"""`--set` takes one key and one value, and drops nothing of what it was given."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.deploy.cluster.workload import changed
from orchestrator.settings.assignments import MAX_DEPTH, assigned
from orchestrator.settings.config import load

MANY_DIGITS = "9" * 5000


@pytest.mark.parametrize(
    ("assignment", "key", "value"),
    [
        ("queue.capacity=18", ("queue", "capacity"), 18),
        (" queue . capacity = 18 # groups", ("queue", "capacity"), 18),
        ("queue.capacity=18\n", ("queue", "capacity"), 18),
        ('"queue".capacity=18', ("queue", "capacity"), 18),
        ("run.name=a=b", ("run", "name"), "a=b"),
        ("run.name=", ("run", "name"), ""),
        ("run.name = first run ", ("run", "name"), "first run"),
        ('run.name="a\\nb"', ("run", "name"), "a\nb"),
        ("servers.urls=[\n'a',\n'b',\n]", ("servers", "urls"), ["a", "b"]),
        ("rollout.scaffolds./srv/agent=1", ("rollout", "scaffolds", "/srv/agent"), 1),
        ('rollout.scaffolds."a/b.toml"=1', ("rollout", "scaffolds", "a/b.toml"), 1),
        ("rollout.scaffolds.'a=\"b\".py:Mine'=1", ("rollout", "scaffolds", 'a="b".py:Mine'), 1),
        ('rollout.scaffolds."\\u00e9\\""=1', ("rollout", "scaffolds", 'é"'), 1),
        ("runners.0.slots=64", ("runners", "0", "slots"), 64),
        ("a={value=1}", ("a",), {"value": 1}),
    ],
)
def test_a_key_and_a_value_are_read_as_toml_reads_them(
    assignment: str, key: tuple[str, ...], value: Any
) -> None:
    assert assigned(assignment) == (key, value)


@pytest.mark.parametrize(
    ("assignment", "fault"),
    [
        ("queue.capacity=18\nqueue.group_size=7", "has more than one key"),
        ("queue.capacity=18\n[queue]\ngroup_size=7", "has more than one key"),
        ("queue.capacity=18\nvaluable=7", "has more than one key"),
        ("queue.capacity=" + 5000 * "[", "is nested too deeply"),
        ("queue.capacity=" + 5000 * "{a=", "is nested too deeply"),
        (f"queue.capacity={MANY_DIGITS}", "has a number with too many digits"),
        (f"queue.capacity=[1, -{MANY_DIGITS}]", "has a number with too many digits"),
        ("a." * MAX_DEPTH + "b=1", "is not of the form section.key=value"),
        *(
            (wrong, "is not of the form section.key=value")
            for wrong in ("turns", "", "=1", ".a=1", "a.=1", "a..b=1", 'a"b=1', '"a=1', "a b=1", "a.'b'c=1")
        ),
        ('"\\q".a=1', "has an invalid key"),
    ],
)
def test_an_assignment_that_is_not_one_key_with_one_value_is_refused_in_one_short_sentence(
    assignment: str, fault: str
) -> None:
    for called, refusing in (
        ("override", lambda: load(None, [assignment])),
        ("--set", lambda: changed({}, [assignment])),
    ):
        with pytest.raises(ConfigurationError) as error:
            refusing()
        sentence = str(error.value)
        assert sentence.startswith(f"{called} '") or sentence.startswith(f'{called} "')
        assert fault in sentence and "\n" not in sentence and len(sentence) < 250


def test_a_value_below_a_quoted_key_counts_and_an_error_in_it_names_the_assignment(tmp_path: Path) -> None:
    scaffold = 'rollout.scaffolds."a/b.toml"'
    assert load(None, [f"{scaffold}=0.5"]).rollout.scaffolds[str(Path.cwd() / "a/b.toml")] == 0.5
    with pytest.raises(ConfigurationError, match=r'^override rollout\.scaffolds\."a/b\.toml"=some: '):
        load(None, [f"{scaffold}=some"])
