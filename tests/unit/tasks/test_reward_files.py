"""reward.txt and reward.json: which file counts, and which content is not a reward."""

import json
import re

import pytest

from orchestrator.tasks.verdict import Scores, parse_reward, shell_options


@pytest.mark.parametrize(
    ("text", "json_text", "named", "reward"),
    [
        ("1", None, False, 1.0),
        (None, "1", False, 1.0),
        (None, '{"reward": 0.5}', False, 0.5),
        (None, '{"accuracy": 0.25}', False, 0.25),
        (None, '{"accuracy": 7, "reward": 0.5, "cost": -3e4}', True, 0.5),
        ("0", '{"reward": 1}', True, 1.0),
        ("0", '{"reward": 1}', False, 0.0),
        ("not a number", "0.5", True, 0.5),
    ],
)
def test_the_json_counts_where_the_tests_name_it_or_it_is_the_only_file(
    text: str | None, json_text: str | None, named: bool, reward: float
) -> None:
    assert parse_reward(text, json_text, named=named).reward == reward


DESCRIBED = [
    '{"score": 1.0, "status": "pass", "failures": []}', '{"tests": {"a": 1}}', '{"passed": true, "why": ""}', '{"reward": null, "why": ""}',
    '{"reward": 0.25, "why": ""}', '{"reward": 0.2498, "why": ""}', '{"passed": true}', '{"passed": false}',
]  # fmt: skip
AMBIGUOUS = [
    '{"reward": 1, "why": ""}', '{"reward": 0.2, "why": ""}', '{"reward": "0.25"}', '{"reward": {"a": 0.25}}', '{"reward": NaN, "why": ""}',
    '{"reward": 1%s, "why": ""}' % ("0" * 400), '{"reward": true, "why": ""}', '"pass"', "[0.25]", "null", "true",
    '{"reward": NaN}', '{"reward": 2}', '{"reward": true}', '{"reward": false}', '{"reward": true, "tests": 0.25}',
    '{"tests": 0.25, "style": 0}', '{"why": "", "why": ""}', '{"why": "', "",
]  # fmt: skip


@pytest.mark.parametrize("json_text", DESCRIBED)
def test_next_to_a_json_that_describes_the_result_the_text_is_the_reward_and_a_note_says_so(
    json_text: str,
) -> None:
    found = parse_reward("0.25", json_text, named=True)
    assert (found.reward, found.components) == (0.25, None)
    assert found.note is not None and found.note.startswith(
        "the reward is the number in /logs/verifier/reward.txt: /logs/verifier/reward.json: '"
    )


@pytest.mark.parametrize(
    ("text", "json_text", "performance"),
    [
        *(("0.25", json_text, "") for json_text in AMBIGUOUS),
        *((text, DESCRIBED[0], "") for text in (None, "", "pass", "nan", "1.5")),
        ("1", DESCRIBED[0], "score"),
    ],
)
def test_a_text_replaces_no_json_that_could_name_another_reward(
    text: str | None, json_text: str, performance: str
) -> None:
    for partial in (False, True) if performance else (False,):
        with pytest.raises(ValueError, match=r"^/logs/verifier/reward\.json"):
            parse_reward(text, json_text, named=True, performance=performance, partial=partial)


@pytest.mark.parametrize(
    "json_text",
    [
        "", "{}", "[1]", "null", "true", '"1"', "NaN", "1e999", "-0.1", "1.5", '{"reward": NaN}', '{"reward": "1"}', '{"reward": null}',
        '{"a": 1, "b": 1}', '{"a": true, "b": true}', '{"reward": [true]}', '{"reward": 1, "reward": 0}', '{"reward": 1, "a": Infinity}',
        '{"reward": {"a": 1}}', "[" * 4000, "1" + "0" * 400, "{",
    ],
)  # fmt: skip
def test_an_invalid_reward_is_a_failure_that_names_the_file(json_text: str) -> None:
    with pytest.raises(ValueError, match=r"^/logs/verifier/reward\.json"):
        parse_reward(None, json_text)


@pytest.mark.parametrize(
    ("json_text", "performance", "reward", "components"),
    [
        ("0.5", "", 0.5, None),
        ('{"tests": 0.25, "style": 3}', "tests", 0.25, {"tests": 0.25, "style": 3.0}),
        ('{"tests": 0.25, "reward": 1}', "tests", 0.25, {"tests": 0.25, "reward": 1.0}),
        ('{"tests": 0.25, "reward": 1}', "", 1.0, {"tests": 0.25, "reward": 1.0}),
        ('{"tests": 0.25}', "", 0.25, {"tests": 0.25}),
    ],
)
def test_a_setting_names_the_number_that_is_the_reward_and_all_are_kept(
    json_text: str, performance: str, reward: float, components: dict[str, float] | None
) -> None:
    assert parse_reward(None, json_text, performance=performance) == Scores(reward, components)


@pytest.mark.parametrize(
    ("text", "json_text", "components"),
    [
        (None, '{"reward": true}', {"reward": 1.0}),
        (None, '{"passed": false}', {"passed": 0.0}),
        *(
            (text, '{"reward": 0.5, "format_ok": true}', {"reward": 0.5, "format_ok": 1.0})
            for text in (None, "0.25")
        ),
    ],
)
def test_true_and_false_in_an_object_are_one_and_zero_as_in_harbor(
    text: str | None, json_text: str, components: dict[str, float]
) -> None:
    reward = next(iter(components.values()))
    assert parse_reward(text, json_text, named=True) == Scores(reward, components)


def test_true_and_false_that_name_no_reward_describe_the_result_next_to_a_text_alone() -> None:
    json_text = '{"compiles": true, "tests": false}'
    for partial in (False, True):
        found = parse_reward("0.25", json_text, named=True, partial=partial)
        assert (found.reward, found.components) == (0.25, None) and found.note is not None
    with pytest.raises(ValueError, match="must say which of its numbers is the reward"):
        parse_reward(None, json_text)
    assert parse_reward("1", '{"reward": true}', named=True).reward == 1.0
    assert parse_reward(None, json_text, partial=True) == Scores(0.0, {"compiles": 1.0, "tests": 0.0})
    assert parse_reward("0.25", json_text, named=True, performance="compiles").reward == 1.0


@pytest.mark.parametrize(
    ("text", "json_text", "performance", "sentence"),
    [
        (
            None,
            '{"tests": 1, "style": 1}',
            "",
            "call it 'reward', or name it in [verifier].performance, got 'tests', 'style'",
        ),
        (
            None,
            '{"tests": 1, "style": 1}',
            "test",
            "has no number 'test', which [verifier].performance asks for, got 'tests', 'style'",
        ),
        (None, '{"tests": 7, "style": 1}', "tests", "must hold a reward from 0 to 1, got 7"),
        (None, '{"a\\u0000": 1}', "", "is not a name: use 1 to 64 printable characters"),
        (None, json.dumps({f"n{n}": 0 for n in range(65)} | {"reward": 1}), "", "66 names are more than 64"),
        ("1", "0.5", "tests", "has no number 'tests', which [verifier].performance asks for, got 'reward'"),
        ("1", None, "tests", "holds one number without a name, and [verifier].performance asks for 'tests'"),
    ],
)
def test_numbers_that_name_no_reward_are_a_failure(
    text: str | None, json_text: str | None, performance: str, sentence: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        parse_reward(text, json_text, performance=performance, named=True)


def test_without_either_file_the_reward_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"wrote no /logs/verifier/reward\.txt and no /logs/verifier/reward\.json"
    ):
        parse_reward(None)


@pytest.mark.parametrize(
    ("script", "options"),
    [
        (b"echo", ()),
        (b"#!/bin/bash\n", ()),
        (b"#!/bin/bash -eu\n", ("-eu",)),
        (b"#!/usr/bin/env -S bash -e\n", ("-e",)),
        (b"#! /bin/sh\n", ()),
    ],
)
def test_the_options_of_a_scripts_first_line_hold(script: bytes, options: tuple[str, ...]) -> None:
    assert shell_options(script) == options
