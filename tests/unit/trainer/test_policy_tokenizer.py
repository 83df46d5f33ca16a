"""The policy's tokenizer: one id per word, and nothing that it cannot encode."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scaffolds.mini_swe import SUBMIT as SUBMISSION

from orchestrator.tasks.suite.record import demonstrations
from orchestrator.tasks.suite.words import COMMAND_WORDS, DONE, EXTENSIONS, WORDS
from trainer.policy.init import make_policy
from trainer.policy.tokenizer import CALL_CLOSE, CALL_OPEN, SPECIAL, SUBMIT, build_tokenizer, load_tokenizer
from trainer.policy.vocabulary import pieces_of, read_pieces, write_pieces

TOKENIZER = build_tokenizer()


def ids_of(text: str) -> list[int]:
    return [int(token) for token in TOKENIZER.encode(text).ids]


@pytest.mark.parametrize("word", [*WORDS, *EXTENSIONS, *COMMAND_WORDS, DONE])
def test_a_word_of_the_suite_is_the_same_single_token_wherever_it_stands(word: str) -> None:
    token = TOKENIZER.token_to_id(word)
    assert token is not None
    for before, after in (
        ("", ""),
        (" ", " "),
        ("\n", "\n"),
        ("/", "."),
        ("'=", "/"),
        (" > ", '"}}\n'),
        ("7", "7"),
    ):
        assert TOKENIZER.encode(before + word + after).ids.count(token) == 1


@pytest.mark.parametrize("scaffold", ["shell", "mini-swe-agent"])
def test_every_word_of_a_demonstration_is_one_token(scaffold: str) -> None:
    for demonstration in demonstrations(160, 0, {scaffold: 1.0}):
        script = demonstration.task.files["record/script.json"].data.decode()
        text = "\n".join([demonstration.task.instruction, *_strings(json.loads(script))]).replace(SUBMIT, "")
        missing = {word for word in re.findall("[A-Za-z]{2,}", text) if TOKENIZER.token_to_id(word) is None}
        assert not missing - {"observation"}, "remake pieces.txt: `python -m trainer.policy.vocabulary`"


def _strings(value: object) -> list[str]:
    """Every text value in a JSON value, without the names of tools."""
    if isinstance(value, dict):
        return [text for key, part in value.items() if key != "name" for text in _strings(part)]
    if isinstance(value, list):
        return [text for part in value for text in _strings(part)]
    return [value] if isinstance(value, str) else []


def test_the_submission_of_mini_swe_agent_starts_with_one_token() -> None:
    assert SUBMIT == SUBMISSION


def test_digits_are_single_tokens() -> None:
    assert len(set(ids_of("0123456789"))) == 10


@pytest.mark.parametrize(
    "text", [*SPECIAL, "<think>", "</think>", CALL_OPEN, CALL_CLOSE, SUBMIT, "assistant\n"]
)
def test_a_marker_of_the_format_is_one_token(text: str) -> None:
    assert len(ids_of(text)) == 1


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200))
def test_any_text_decodes_to_itself(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False) == text


def test_special_tokens_quoted_in_a_text_stay_text(tmp_path: Path) -> None:
    make_policy(tmp_path, seed=0)
    tokenizer = load_tokenizer(tmp_path)
    special = {tokenizer.token_to_id(text) for text in SPECIAL}
    for text in SPECIAL:
        assert special.isdisjoint(tokenizer.encode(f"say {text} now").ids)
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_a_directory_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_pieces_keep_every_word_and_the_repeated_punctuation(tmp_path: Path) -> None:
    pieces = pieces_of(["mv a1 > oak.txt", "cat > oak.txt", "rose | wc"])
    assert pieces == [" > ", "oak", "txt", "cat", "mv", "rose", "wc"]
    write_pieces(pieces, tmp_path / "pieces.txt")
    assert read_pieces(tmp_path / "pieces.txt") == pieces


def test_more_words_than_pieces_is_an_error() -> None:
    with pytest.raises(ValueError, match="3 different words do not fit into 2 pieces"):
        pieces_of(["oak elm fig"], most=2)
