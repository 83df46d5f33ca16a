"""A person's message with half of a surrogate pair: the sentence names the key."""

import pytest

from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.events import TaskSubmitted, decode_written


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (
            b'{"task": {"files": {"a.txt": "x\\ud800"}}}',
            "TaskSubmitted: task.files.a.txt has half of a surrogate pair",
        ),
        (b'{"task": {}, "label": "\\udcff"}', "TaskSubmitted: label has half of a surrogate pair"),
        (b'{"task": {"\\ud800": 1}}', "the name of the key"),
    ],
)
def test_half_of_a_surrogate_pair_is_refused_by_the_key_that_holds_it(body: bytes, sentence: str) -> None:
    with pytest.raises(MessageError) as refused:
        decode_written(body, None, TaskSubmitted)
    assert sentence in str(refused.value)
