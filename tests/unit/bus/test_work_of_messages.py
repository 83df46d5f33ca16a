"""The work of reading a person's message grows with its length, not with the square of it."""

import contextlib
import time
from collections.abc import Callable

import pytest

from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.events import TaskSubmitted, decode_written


def keys(n: int, last: str = "") -> bytes:
    return b"{%s%s}" % (b",".join(b'"k%d":""' % i for i in range(n)), last.encode())


def below_a_long_name(n: int) -> bytes:
    return b'{"task":{"%s":%s}}' % (b"x" * (n * 48), keys(n, ',"z":"\\ud800"'))


MADE: dict[str, Callable[[int], bytes]] = {
    "a key that comes twice": lambda n: b'{"task":{"files":%s}}' % keys(n, f',"k{n - 1}":""'),
    "each key twice": lambda n: b'{"task":{"files":%s}}' % keys(n, "," + keys(n).decode()[1:-1]),
    "half of a surrogate pair below a long name": below_a_long_name,
    "a long unknown key": lambda n: b'{"%s":1,"task":{}}' % (b"x" * (n * 8)),
    "values in lists": lambda n: b'{"task":{"a":[%s]}}' % b",".join([b"[]"] * n),
}


@pytest.mark.parametrize("name", MADE)
def test_the_work_of_a_message_grows_with_its_length(name: str) -> None:
    """CPU time of a message, compared with that of one of a quarter of its length."""

    def measured(n: int) -> float:
        body = MADE[name](n)
        started = time.process_time()
        with contextlib.suppress(MessageError):
            decode_written(body, None, TaskSubmitted)
        return time.process_time() - started

    draws = [(measured(20_000), measured(5_000)) for _ in range(3)]
    assert sum(long < 0.2 or long < 9 * short for long, short in draws) >= 2, draws


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b'{"task": {"a": 1, "b": 2, "b": 3, "a": 4}}', "the key 'b' comes twice"),
        (b'{"task": {}, "task": {}}', "the key 'task' comes twice"),
        (b'{"task": {"a": [{"b": 1}, {"c": ["x", "\\ud800"]}]}}', "task.a.1.c.1 has half"),
        (b'{"task": {"a": {"b": 1}, "c\\ud800": 1}}', r"the name of the key 'task.c\ud800'"),
    ],
)
def test_the_sentence_names_the_first_key_that_is_wrong(body: bytes, sentence: str) -> None:
    with pytest.raises(MessageError) as refused:
        decode_written(body, None, TaskSubmitted)
    assert sentence in str(refused.value)
