"""One long call made of segments, without a server: the next request, and the end."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from orchestrator.contracts.marks import Finish
from orchestrator.gateway.servers.client import (
    FinishReason,
    Generation,
    SamplingParams,
    Timings,
    WeightSpan,
)
from orchestrator.gateway.servers.repetition import Repetition
from orchestrator.gateway.servers.segmented import (
    EMPTY_REPLY_WAIT_S,
    MAX_EMPTY_REPLIES,
    Continue,
    Done,
    Generated,
    Interruption,
    Reason,
    SegmentedGeneration,
    SegmentRequest,
)
from orchestrator.trajectory.routes import Routed

PROMPT = np.asarray([1, 2, 3], dtype="<i4")
END = 99  # the policy's end token
SURE, UNSURE = -0.001, -1.0
ROOM = float("inf")


def call(
    most: int = 10, rule: Repetition | None = None, *, ignore_eos: bool = False, **more: object
) -> SegmentedGeneration:
    return SegmentedGeneration(
        PROMPT,
        SamplingParams(max_new_tokens=most, stop=("END",), stop_token_ids=(END,), ignore_eos=ignore_eos),
        rule=rule or Repetition(),
        **more,  # type: ignore[arg-type]
    )


def next_request(segmented: SegmentedGeneration, version: int = 1, room: float = ROOM) -> SegmentRequest:
    request = segmented.next_request(version, room)
    assert isinstance(request, SegmentRequest)
    return request


def reply(
    request: SegmentRequest,
    ids: Sequence[int],
    kind: Finish = Finish.STOP,
    *,
    matched: int | str | None = None,
    version: str | None = None,
    logprob: float = UNSURE,
    timings: Timings | None = None,
) -> Generation:
    """A server's answer to `request`."""
    label = str(request.version) if version is None else version
    spans = (WeightSpan(version=label, start=0, end=len(ids)),) if ids else ()
    return Generation(
        rid="r",
        output_ids=tuple(ids),
        logprobs=(logprob,) * len(ids),
        spans=spans,
        finish=FinishReason(kind, matched),
        weight_version=label,
        prompt_tokens=len(request.ids),
        completion_tokens=len(ids),
        cached_tokens=0,
        retractions=0,
        timings=timings or Timings(0.0, 0.0),
        text="",
        sent=request.ids,
    )


def accepted(
    segmented: SegmentedGeneration,
    answer: Generation | None,
    *,
    sent: float = 0.0,
    now: float = 1.0,
    abandoned: bool = False,
) -> Continue | Done:
    return segmented.accept(answer, sent=sent, now=now, abandoned=abandoned)


def spans(made: Generated) -> list[tuple[int, int, int]]:
    return [(span.version, span.start, span.end) for span in made.spans]


def test_a_reply_that_ends_by_itself_is_the_whole_action() -> None:
    segmented = call()
    request = next_request(segmented)
    assert request.ids.tolist() == [1, 2, 3] and request.params.max_new_tokens == 10
    assert accepted(segmented, reply(request, [7, 8], matched=8)) == Done(Reason.STOP)
    made = segmented.result(1.0)
    assert (made.ids, made.finish, made.stop, made.segments) == ((7, 8), Finish.STOP, None, 1)
    assert made.seen.tolist() == [1, 2, 3, 7, 8] and not made.suspect


def test_an_action_that_a_weight_sync_interrupts_goes_on_behind_its_own_tokens_at_the_new_version() -> None:
    segmented = call(most=10)
    first = next_request(segmented, version=1)
    assert accepted(segmented, reply(first, [7, 8, 9], Finish.ABORT)) == Continue(Interruption.ABORTED)
    assert segmented.length == 6
    second = next_request(segmented, version=2)
    assert second.ids.tolist() == [1, 2, 3, 7, 8, 9]
    assert second.params == replace(first.params, max_new_tokens=7)
    assert accepted(segmented, reply(second, [4])) == Done(Reason.STOP)
    made = segmented.result(1.0)
    assert made.ids == (7, 8, 9, 4) and spans(made) == [(1, 0, 3), (2, 3, 4)] and made.segments == 2
    assert len(made.logprobs) == 4 and made.seen.tolist() == [1, 2, 3, 7, 8, 9, 4]


def test_segments_of_one_version_are_one_span() -> None:
    segmented = call()
    accepted(segmented, reply(next_request(segmented), [7], Finish.ABORT))
    accepted(segmented, reply(next_request(segmented), [8]))
    assert spans(segmented.result(1.0)) == [(1, 0, 2)]


def test_a_reply_of_newer_weights_than_were_pinned_counts_and_is_suspect() -> None:
    segmented = call()
    assert accepted(segmented, reply(next_request(segmented), [7], version="2")) == Done(Reason.STOP)
    made = segmented.result(1.0)
    assert made.suspect and spans(made) == [(2, 0, 1)]


@pytest.mark.parametrize("version", ["1", "default", "²", "", str(2**31), "9" * 5000])
def test_nothing_is_taken_from_weights_that_are_older_or_not_ours(version: str) -> None:
    segmented = call()
    request = next_request(segmented, version=2)
    assert accepted(segmented, reply(request, [7, 8], version=version)) == Continue(Interruption.LOST)
    again = next_request(segmented, version=2)
    assert again.ids.tolist() == [1, 2, 3] and again.params == request.params
    accepted(segmented, reply(again, [9]))
    made = segmented.result(1.0)
    assert (made.ids, spans(made), made.segments, made.suspect) == ((9,), [(2, 0, 1)], 1, False)


def test_a_retraction_before_the_first_token_asks_for_the_same_again() -> None:
    segmented = call()
    request = next_request(segmented)
    assert accepted(segmented, reply(request, [], Finish.ABORT)) == Continue(Interruption.ABORTED)
    again = next_request(segmented)
    assert (again.ids.tolist(), again.params) == (request.ids.tolist(), request.params)
    assert segmented.newest == (), "nothing was generated in between"
    accepted(segmented, reply(again, [7]))
    assert segmented.result(1.0).segments == 1


def test_a_lost_server_loses_its_segment_and_not_what_came_before() -> None:
    segmented = call()
    accepted(segmented, reply(next_request(segmented), [7, 8], Finish.ABORT))
    next_request(segmented)
    assert accepted(segmented, None) == Continue(Interruption.LOST)
    assert next_request(segmented).ids.tolist() == [1, 2, 3, 7, 8]


def test_after_so_many_empty_replies_in_a_row_the_call_has_no_answer() -> None:
    segmented = call()
    pauses = []
    for _ in range(MAX_EMPTY_REPLIES - 1):
        next_request(segmented)
        outcome = accepted(segmented, None)
        assert isinstance(outcome, Continue) and outcome.resubmitted == "lost"
        pauses.append(outcome.pause_s)
    assert pauses == [0.0, *(EMPTY_REPLY_WAIT_S * 2**n for n in range(2, MAX_EMPTY_REPLIES))]
    next_request(segmented)
    assert accepted(segmented, None) == Done(Reason.NO_ANSWER, Interruption.LOST)


def test_a_reply_with_a_token_begins_the_count_of_empty_ones_again() -> None:
    segmented = call(most=100)
    for _ in range(MAX_EMPTY_REPLIES - 1):
        accepted(segmented, reply(next_request(segmented), [], Finish.ABORT))
    assert accepted(segmented, reply(next_request(segmented), [7], Finish.ABORT)) == Continue(
        Interruption.ABORTED
    )
    assert accepted(segmented, reply(next_request(segmented), [], Finish.ABORT)) == Continue(
        Interruption.ABORTED
    )


def test_a_stop_string_that_a_later_segment_says_ends_the_action_and_is_named() -> None:
    segmented = call()
    first = next_request(segmented)
    accepted(segmented, reply(first, [7, 8], Finish.ABORT))
    second = next_request(segmented)
    assert second.params.stop == first.params.stop == ("END",)
    assert accepted(segmented, reply(second, [9], Finish.STOP, matched="END")) == Done(Reason.STOP)
    made = segmented.result(1.0)
    assert (made.ids, made.finish, made.stop, made.segments) == ((7, 8, 9), Finish.STOP, "END", 2)


def test_the_limit_of_tokens_holds_over_all_segments() -> None:
    segmented = call(most=5)
    accepted(segmented, reply(next_request(segmented), [7, 8, 9], Finish.ABORT))
    request = next_request(segmented)
    assert request.params.max_new_tokens == 2
    assert accepted(segmented, reply(request, [4, 5], Finish.LENGTH)) == Done(Reason.LENGTH)
    assert (segmented.result(1.0).ids, segmented.result(1.0).finish) == ((7, 8, 9, 4, 5), Finish.LENGTH)


def test_an_action_that_is_interrupted_exactly_at_the_limit_is_over() -> None:
    segmented = call(most=2)
    assert accepted(segmented, reply(next_request(segmented), [7, 8], Finish.ABORT)) == Done(Reason.LENGTH)
    assert segmented.result(1.0).finish == Finish.LENGTH


def test_a_server_that_ends_for_lack_of_room_ends_the_action() -> None:
    segmented = call(most=10)
    request = next_request(segmented, room=4)
    assert request.params.max_new_tokens == 4 and request.left == 10
    assert accepted(segmented, reply(request, [7], Finish.LENGTH)) == Done(Reason.LENGTH)


def test_a_server_without_room_for_more_ends_the_action_by_length() -> None:
    segmented = call(most=10)
    accepted(segmented, reply(next_request(segmented), [7, 8], Finish.ABORT))
    assert segmented.next_request(1, 0) == Done(Reason.NO_ROOM)
    made = segmented.result(1.0)
    assert (made.ids, made.finish, made.stop) == ((7, 8), Finish.LENGTH, None)


def test_a_full_segment_is_followed_by_the_next_one_at_once() -> None:
    segmented = call(most=10, rule=Repetition(4, 0.9))
    request = next_request(segmented)
    assert request.params.max_new_tokens == 4 and request.left == 10
    assert accepted(segmented, reply(request, [7, 8, 9, 4], Finish.LENGTH)) == Continue()
    assert next_request(segmented).ids.tolist() == [1, 2, 3, 7, 8, 9, 4]


def test_the_repetition_stop_counts_its_run_over_segments_and_drops_what_follows_it() -> None:
    segmented = call(most=20, rule=Repetition(6, 0.9))
    accepted(segmented, reply(next_request(segmented), [7, 7], Finish.ABORT, logprob=SURE))
    # The server gives more than was requested: the sixth token in a row is the fourth of these.
    outcome = accepted(segmented, reply(next_request(segmented), [7, 7, 7, 7, 8], logprob=SURE))
    assert outcome == Done(Reason.REPETITION)
    made = segmented.result(1.0)
    assert (made.ids, made.finish, made.stop, made.repeats) == ((7,) * 6, Finish.LENGTH, None, True)
    assert spans(made) == [(1, 0, 6)] and made.seen.tolist() == [1, 2, 3, *(7,) * 6]


def test_an_action_whose_own_end_completes_the_run_ended_by_itself() -> None:
    segmented = call(rule=Repetition(3, 0.9))
    assert accepted(segmented, reply(next_request(segmented), [7, 7, 7], logprob=SURE)) == Done(Reason.STOP)
    assert not segmented.result(1.0).repeats


def test_a_repeating_action_of_a_call_that_was_given_up_is_aborted() -> None:
    segmented = call(rule=Repetition(2, 0.9))
    outcome = accepted(segmented, reply(next_request(segmented), [7, 7, 8], logprob=SURE), abandoned=True)
    assert outcome == Done(Reason.REPETITION)
    assert (segmented.result(1.0).ids, segmented.result(1.0).finish) == ((7, 7), Finish.ABORT)


def test_what_a_call_that_is_given_up_has_is_an_aborted_action() -> None:
    segmented = call()
    outcome = accepted(segmented, reply(next_request(segmented), [7, 8], Finish.ABORT), abandoned=True)
    assert outcome == Done(Reason.ABANDONED)
    made = segmented.result(1.0)
    assert (made.ids, made.finish, spans(made)) == ((7, 8), Finish.ABORT, [(1, 0, 2)])


def test_a_call_that_is_given_up_before_a_server_has_it_has_nothing() -> None:
    segmented = call()
    assert segmented.give_up() == Done(Reason.ABANDONED)
    assert (segmented.result(1.0).ids, segmented.result(1.0).finish) == ((), Finish.ABORT)


@pytest.mark.parametrize("answer", ["lost", "full"])
def test_a_call_that_is_given_up_asks_for_nothing_more_whatever_came_back(answer: str) -> None:
    segmented = call(rule=Repetition(4, 0.9))
    request = next_request(segmented)
    came = None if answer == "lost" else reply(request, [7] * 4, Finish.LENGTH)
    assert accepted(segmented, came, abandoned=True) == Done(Reason.ABANDONED)
    assert segmented.result(1.0).finish == Finish.ABORT


def test_an_action_that_has_ended_by_itself_stays_whole_though_its_call_was_given_up() -> None:
    segmented = call()
    assert accepted(segmented, reply(next_request(segmented), [7]), abandoned=True) == Done(Reason.STOP)
    assert segmented.result(1.0).finish == Finish.STOP


def test_an_action_that_is_full_stays_whole_though_its_call_was_given_up() -> None:
    segmented = call(most=2)
    assert accepted(segmented, reply(next_request(segmented), [7, 8], Finish.LENGTH), abandoned=True) == Done(
        Reason.LENGTH
    )
    assert segmented.result(1.0).finish == Finish.LENGTH


@pytest.mark.parametrize("kind", [Finish.LENGTH, Finish.ABORT])
@pytest.mark.parametrize("abandoned", [False, True])
def test_an_end_token_at_the_last_place_of_a_segment_ends_the_action(kind: Finish, abandoned: bool) -> None:
    segmented = call(most=20, rule=Repetition(4, 0.9))
    accepted(segmented, reply(next_request(segmented, version=1), [7, 8, 9, 4], Finish.LENGTH))
    answer = reply(next_request(segmented, version=2), [5, 6, 5, END], kind)
    assert accepted(segmented, answer, abandoned=abandoned) == Done(Reason.STOP)
    made = segmented.result(1.0)
    assert made.ids == (7, 8, 9, 4, 5, 6, 5, END) and spans(made) == [(1, 0, 4), (2, 4, 8)]
    assert (made.finish, made.stop, made.segments) == (Finish.STOP, None, 2)
    assert made.seen.tolist() == [1, 2, 3, *made.ids]


def test_an_action_whose_end_token_is_the_last_that_it_may_have_is_complete() -> None:
    segmented = call(most=2)
    assert accepted(segmented, reply(next_request(segmented), [7, END], Finish.LENGTH)) == Done(Reason.STOP)
    assert segmented.result(1.0).finish == Finish.STOP


def test_an_end_token_that_completes_the_run_of_the_repetition_stop_ended_the_action() -> None:
    segmented = call(rule=Repetition(3, 0.9))
    answer = reply(next_request(segmented), [7, 7, END], Finish.LENGTH, logprob=SURE)
    assert accepted(segmented, answer) == Done(Reason.STOP)
    assert not segmented.result(1.0).repeats


def test_an_end_token_ends_nothing_where_the_call_ignores_it() -> None:
    segmented = call(rule=Repetition(2, 0.9), ignore_eos=True)
    assert accepted(segmented, reply(next_request(segmented), [7, END], Finish.LENGTH)) == Continue()


def test_all_time_but_the_generation_was_waiting_and_the_first_token_lies_in_the_generation() -> None:
    segmented = call(began=100.0)
    first = reply(next_request(segmented), [7], Finish.ABORT, timings=Timings(1.0, 1.5))
    accepted(segmented, first, sent=102.0, now=105.0)
    assert list(segmented.newest) == [(103.0, 105.0)]
    next_request(segmented)
    accepted(segmented, None, sent=105.0, now=109.0)
    assert segmented.newest == ()
    last = reply(next_request(segmented), [8], timings=Timings(0.5, 0.6))
    accepted(segmented, last, sent=110.0, now=111.0)
    made = segmented.result(112.0)
    assert made.generating == ((103.0, 105.0), (110.5, 111.0))
    assert (made.timings.generation, made.timings.queue, made.timings.first_byte) == (2.5, 9.5, 0.5)


@pytest.mark.parametrize(("longest", "first"), [(2, 2), (3, 0)])
def test_routes_of_other_weights_are_wanted_again_where_the_context_is_short_enough(
    longest: int, first: int
) -> None:
    segmented = call(routed=Routed(2, 1), longest_routed=longest)
    assert next_request(segmented, version=1).routes_from == 2
    assert next_request(segmented, version=2).routes_from == first


def test_a_later_segment_wants_the_routes_from_the_last_token_before_it_on() -> None:
    segmented = call(routed=Routed(2, 1), longest_routed=3)
    request = next_request(segmented)
    routes = np.zeros((2, 1, 1), dtype="<i2")  # of the last prompt token, and the first of two new tokens
    accepted(segmented, replace(reply(request, [7, 8], Finish.ABORT), routes=routes))
    assert next_request(segmented, version=2).routes_from == 4
    made = segmented.result(1.0)
    assert made.routes_from == 2 and made.routes is not None and len(made.routes) == 2
