"""A stop string ends an action even if a weight sync has cut the action in two."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from orchestrator.contracts.events import StepTimings
from orchestrator.contracts.marks import Finish
from orchestrator.contracts.spans import VersionSpan
from orchestrator.gateway.completions.stops import cut_at_stop
from orchestrator.gateway.servers.segmented import Generated


def made(text: str, boundary: int, state: int = 3) -> Generated:
    """An action of one token per character, from version 1 up to `boundary` and from version 2 after it."""
    ids = tuple(ord(letter) for letter in text)
    spans = (VersionSpan(1, 0, boundary), VersionSpan(2, boundary, len(ids)))
    seen = np.asarray([0] * state + list(ids), dtype="<i4")
    logprobs = tuple(-float(n) for n in range(len(ids)))
    return Generated(
        ids=ids,
        logprobs=logprobs,
        spans=spans,
        finish=Finish.LENGTH,
        stop=None,
        suspect=False,
        timings=StepTimings(),
        seen=seen,
        segments=2,
    )


def text_of(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


@pytest.mark.parametrize("boundary", range(1, 9))
def test_it_ends_with_the_token_that_completes_the_stop_string(boundary: int) -> None:
    cut = cut_at_stop(made("go on END and on", boundary), ("END", "and"), text_of, ())
    assert (text_of(cut.ids), cut.finish, cut.stop) == ("go on END", "stop", "END")
    assert cut.logprobs == tuple(-float(n) for n in range(9))
    assert [(span.version, span.start, span.end) for span in cut.spans] == [
        (1, 0, boundary),
        (2, boundary, 9),
    ]
    assert cut.seen.tolist() == [0, 0, 0, *cut.ids]


def test_spans_behind_the_stop_string_are_dropped() -> None:
    cut = cut_at_stop(made("END and on", 5), ("END",), text_of, ())
    assert [(span.version, span.start, span.end) for span in cut.spans] == [(1, 0, 3)]


def test_an_action_that_would_have_repeated_itself_behind_the_stop_string_did_not() -> None:
    repeating = replace(made("go on END and on", 3), repeats=True)
    assert not cut_at_stop(repeating, ("END",), text_of, ()).repeats
    assert cut_at_stop(repeating, ("never",), text_of, ()).repeats


def test_an_action_without_one_stays_as_it_is() -> None:
    action = made("go on", 2)
    assert cut_at_stop(action, ("END",), text_of, ()) is action


def test_an_end_token_is_not_a_stop_string_whatever_its_text() -> None:
    action = made("go on|", 2)
    assert cut_at_stop(action, ("|",), text_of, {ord("|")}) is action
    cut = cut_at_stop(made("g|o on|", 2), ("|",), text_of, {ord("|")})
    assert (text_of(cut.ids), cut.stop) == ("g|", "|")
