"""Which step a repeated request gets."""

import time
from collections.abc import Sequence
from dataclasses import replace

import anyio
import anyio.lowlevel
import pytest

from orchestrator.contracts.marks import Finish, MarkReason
from orchestrator.gateway.messages.turns import Turn
from orchestrator.gateway.problems import Problem
from orchestrator.gateway.render import Renderer
from orchestrator.gateway.sessions.forest import Forest
from orchestrator.gateway.sessions.session import REST, WAIT_TURN, Session, SessionSpec, token_hash
from orchestrator.gateway_client import SessionBudget
from tests.unit.gateway.driver import Driver
from tests.waiting import stays_true_for

SPEC = SessionSpec(
    rollout=1, attempt=1, epoch=1, budget=SessionBudget(max_turns=10, max_context=1000), expires=float("inf")
)


def test_a_step_that_was_given_up_does_not_hide_the_answer_that_its_retry_got(
    renderer: Renderer,
) -> None:
    driver, session = Driver(renderer), Session(SPEC, Forest(renderer))
    whole, given_up = (
        driver.step([{"role": "user", "content": "oak"}], Turn(role="assistant", text="elm")).node
        for _ in range(2)
    )
    whole.digest = given_up.digest = "digest"
    given_up.finish = Finish.ABORT
    session.remember(whole)
    session.remember(given_up)
    assert session.newest["digest"] is whole
    whole.delivered = True  # requested once more after that, and broken off
    session.remember(given_up)
    assert session.newest["digest"] is given_up


def session_with(renderer: Renderer, kinds: Sequence[tuple[str, str]]) -> Session:
    """A session whose steps ended like this, each with the mark that it names."""
    driver = Driver(renderer)
    session = Session(SPEC, driver.forest)
    for number, (finish, mark) in enumerate(kinds):
        node = driver.step(
            [{"role": "user", "content": f"oak {number}"}], Turn(role="assistant", text="elm")
        ).node
        node.finish = Finish(finish)
        session.remember(node, [mark] if mark else [])
    return session


def test_auxiliary_and_given_up_steps_spend_no_turns_undelivered_ones_do(renderer: Renderer) -> None:
    session = session_with(
        renderer,
        [("stop", ""), ("stop", MarkReason.AUXILIARY), ("stop", MarkReason.UNDELIVERED), ("abort", "")],
    )
    assert session.turns == 2


def test_what_the_end_of_an_attempt_cut_off_stays_so_after_a_restart_and_is_undelivered_after_a_resume(
    renderer: Renderer,
) -> None:
    kinds = [("stop", ""), ("abort", MarkReason.CUT_OFF), ("abort", "")]
    forest = session_with(renderer, kinds).forest
    marks = {1: {str(MarkReason.CUT_OFF)}}

    def again(recorded: int) -> Session:
        for node in forest.nodes:  # as they are rebuilt from the data pool
            node.delivered = None
        return Session(SPEC, forest, marks=marks, recorded=recorded)

    def marked(session: Session) -> list[tuple[int, str]]:
        return [(mark.idx, mark.reason) for mark in session.seal().marks]

    assert marked(again(recorded=0)) == [(1, "cut_off"), (2, "undelivered")]
    resumed = again(recorded=3)
    assert marked(resumed) == [(1, "cut_off"), (1, "undelivered"), (2, "undelivered")]
    assert resumed.replay is not None and resumed.replay.missing() == [0]


def recounted(session: Session) -> tuple[int, int, int, int]:
    """The counters of a session from all of its steps: turns, auxiliary calls and their tokens, sampled tokens."""
    nodes = session.forest.nodes
    aside = [node for node in nodes if MarkReason.AUXILIARY in session.marks.get(node.idx, ())]
    turns = [node for node in nodes if node not in aside and node.finish != "abort"]
    spent_aside, spent = (sum(len(node.action) for node in each) for each in (aside, nodes))
    return len(turns), len(aside), spent_aside, spent


def counters(session: Session) -> tuple[int, int, int, int]:
    return session.turns, session.auxiliary_calls, session.auxiliary_tokens, session.sampled_tokens


def test_the_counters_of_a_session_are_what_a_recount_of_its_steps_gives(renderer: Renderer) -> None:
    kinds = [
        (finish, mark)
        for finish in ("stop", "length", "abort")
        for mark in ("", MarkReason.AUXILIARY, MarkReason.UNDELIVERED)
    ]
    for steps in range(len(kinds) + 1):
        session = session_with(renderer, kinds[:steps])
        assert counters(session) == recounted(session)
        rebuilt = Session(SPEC, session.forest, marks=session.marks)
        assert counters(rebuilt) == counters(session)
    assert counters(session)[:2] == (4, 3) and counters(session)[3] > counters(session)[2] > 0


def test_a_session_names_its_group_in_the_log_if_the_runner_gave_it(renderer: Renderer) -> None:
    plain = {"rollout": 1, "attempt": 1, "epoch": 1}
    assert Session(SPEC, Forest(renderer)).ids == plain
    assert Session(replace(SPEC, group=5), Forest(renderer)).ids == {**plain, "group": 5}


def test_a_token_that_is_not_text_still_has_a_hash() -> None:
    assert len(token_hash(b"\xff\xfe".decode("utf-8", "surrogateescape"))) == 32


@pytest.mark.anyio
async def test_a_session_that_asks_in_a_loop_has_its_part_of_the_event_loop_and_others_wait_for_nothing(
    renderer: Renderer,
) -> None:
    greedy, other = Session(SPEC, Forest(renderer)), Session(SPEC, Forest(renderer))
    worked = 0.0

    async def ask() -> None:
        nonlocal worked
        while True:
            await greedy.turn()
            with greedy.working():
                until = time.monotonic() + 0.02
                while time.monotonic() < until:
                    pass
            worked += 0.02
            await anyio.lowlevel.checkpoint()

    began = time.monotonic()
    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(ask)

        async def has_its_turn() -> bool:
            await other.turn()
            return True

        await stays_true_for(1.0, has_its_turn)
        tasks.cancel_scope.cancel()
    assert 0.02 < worked <= (time.monotonic() - began + 0.1) / REST + 0.1


@pytest.mark.anyio
async def test_very_many_requests_of_one_session_do_not_wait_to_be_read(renderer: Renderer) -> None:
    session = Session(SPEC, Forest(renderer))
    session.charge_time(60.0)
    async with anyio.create_task_group() as tasks:
        for _ in range(WAIT_TURN):
            tasks.start_soon(session.turn)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(Problem, match="wait to be read") as refused:
            await session.turn()
        tasks.cancel_scope.cancel()
    assert refused.value.status == 503
