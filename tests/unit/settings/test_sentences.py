"""Every key of the configuration has one sentence about its meaning."""

from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from orchestrator.settings.config import Config
from orchestrator.settings.scope import model_in

LONGEST = 200


def described(model: type[BaseModel], before: str = "") -> Iterator[tuple[str, str]]:
    """Every dotted key, and those of the tables below it, with its sentence."""
    for name, field in model.model_fields.items():
        if before:
            yield f"{before}{name}", field.description or ""
        if (inner := model_in(field.annotation)) is not None and name != "then":
            yield from described(inner, f"{before}{name}.")


SENTENCES = dict(described(Config))


def test_there_are_keys() -> None:
    assert (
        len(SENTENCES) > 200 and "sandbox.kubernetes.ttl_s" in SENTENCES and "timeouts.resend_s" in SENTENCES
    )


@pytest.mark.parametrize("key", SENTENCES)
def test_a_key_has_one_sentence_that_is_short_and_ends(key: str) -> None:
    sentence = SENTENCES[key]
    assert sentence and sentence == sentence.strip() and sentence.endswith("."), f"{key}: {sentence!r}"
    assert len(sentence) <= LONGEST and "\n" not in sentence and ". " not in sentence.replace("e.g. ", ""), (
        f"{key}: {sentence!r}"
    )
    assert sentence[0].isupper() or sentence.split()[0] in ("podman", "function", "step"), (
        f"{key}: {sentence!r}"
    )


def test_no_two_keys_of_a_section_have_the_same_sentence() -> None:
    by_sentence: dict[tuple[str, str], str] = {}
    for key, sentence in SENTENCES.items():
        section = key.partition(".")[0]
        assert by_sentence.setdefault((section, sentence), key) == key


@pytest.mark.parametrize("key", [key for key in SENTENCES if key.endswith(("_s", "_seconds"))])
def test_a_duration_names_its_unit(key: str) -> None:
    assert "second" in SENTENCES[key].lower(), SENTENCES[key]
