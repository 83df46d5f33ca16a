"""A person's message with a value of another type inside a table of names, or with a byte order mark: the sentence names it."""

import codecs
import json

import pytest

from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.events import RolloutFinished, TaskSubmitted, VerdictReached, decode_written


@pytest.mark.parametrize(
    ("sampling", "named"),
    [
        ({"temperature": "1"}, "'sampling.temperature': Expected `float`, got `str`"),
        ({"top_k": 3, "top_p": None}, "'sampling.top_p': Expected `float`, got `null`"),
        ({"seed": "x", "top_k": True}, "'sampling.seed': Expected `float`, got `str`"),
        ({"temperature": []}, "'sampling.temperature': Expected `float`, got `array`"),
    ],
)
def test_a_value_of_another_type_in_a_table_is_refused_by_its_key(sampling: object, named: str) -> None:
    with pytest.raises(MessageError) as refused:
        decode_written(json.dumps({"task": {}, "sampling": sampling}).encode(), None, TaskSubmitted)
    assert str(refused.value) == f"TaskSubmitted: {named}"


@pytest.mark.parametrize(
    ("expected", "field"),
    [(RolloutFinished, "spent"), (VerdictReached, "components"), (VerdictReached, "process")],
)
def test_every_table_of_every_message_is_read_so(
    expected: type[RolloutFinished] | type[VerdictReached], field: str
) -> None:
    own = {"run": "a", "rollout": 1, "attempt": 1, "epoch": 1, "failure_class": "completed"}
    body = json.dumps({**own, field: {"a": 1.0, "b": "x"}}).encode()
    with pytest.raises(MessageError, match=rf"{expected.__name__}: '{field}\.b': Expected `float"):
        decode_written(body, None, expected)


def test_a_byte_order_mark_is_named() -> None:
    with pytest.raises(
        MessageError, match="TaskSubmitted: the body begins with a byte order mark: send UTF-8"
    ):
        decode_written(codecs.BOM_UTF8 + b'{"task": {}}', None, TaskSubmitted)
