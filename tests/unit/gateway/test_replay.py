"""A resume: which recorded step a request gets, which requests need no new completion, and when a request diverges from its record."""

import random
from dataclasses import replace
from itertools import count
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.contracts.marks import Finish, MarkReason
from orchestrator.gateway.messages.requests import CompletionRequest, body_digest
from orchestrator.gateway.messages.turns import Turn, read_messages
from orchestrator.gateway.render import Renderer
from orchestrator.gateway.sessions.node import Node
from orchestrator.gateway.sessions.replay import OWN_WIRE, Place, Replay
from orchestrator.gateway.sessions.session import Session, SessionSpec
from orchestrator.gateway_client import SessionBudget
from tests.unit.gateway.driver import Driver, Message, as_message, respond, saying, user

pytestmark = pytest.mark.anyio
SPEC = SessionSpec(
    rollout=1, attempt=1, epoch=2, budget=SessionBudget(max_turns=10, max_context=1000), expires=float("inf")
)
NOW = 0.01


class Program:
    """A conversation that is requested turn by turn; `run` twice, it makes the same requests."""

    def __init__(self, driver: Driver, *, agent: str = "main", wire: str = "chat") -> None:
        self.driver, self.agent, self.wire = driver, agent, wire
        self.messages: list[Message] = [user(f"I am {agent}")]
        self._calls = count()

    def request(self, **more: Any) -> CompletionRequest:
        body = {"messages": self.messages, "call": next(self._calls) if self.wire == OWN_WIRE else 0, **more}
        turns = tuple(read_messages(self.messages)[0])
        return CompletionRequest(
            turns=turns, tools=(), digest=body_digest(self.wire, body), agent=self.agent, wire=self.wire
        )

    def record(self, says: Turn, dice: random.Random) -> Node:
        """One turn, the first time."""
        request = self.request()
        stepped = self.driver.step(self.messages, says)
        node = stepped.node
        node.digest, node.agent = request.digest, self.agent
        self.messages = [*self.messages, stepped.message, *respond(stepped.message, dice)]
        return node

    def again(self) -> "Program":
        """The same program from its beginning."""
        return Program(self.driver, agent=self.agent, wire=self.wire)

    def hear(self, before: "Program") -> None:
        """Append the next reply and the messages that followed it the first time."""
        end = len(self.messages) + 1
        while end < len(before.messages) and before.messages[end]["role"] != "assistant":
            end += 1
        self.messages = before.messages[:end]


def talk(
    renderer: Renderer, turns: int, *, agent: str = "main", wire: str = "chat", driver: Driver | None = None
) -> tuple[Program, list[Node]]:
    """A program after so many turns."""
    dice, program = random.Random(7), Program(driver or Driver(renderer), agent=agent, wire=wire)
    return program, [program.record(saying(dice), dice) for _ in range(turns)]


def placed(program: Program, messages: list[Message] | None = None) -> Place:
    """The current placement of its request."""
    messages_now = list(messages or program.messages)
    return lambda before: program.driver.placing(messages_now, before=before)


def repeated(before: Program, replay: Replay, turns: int) -> list[Node | None]:
    """The steps that the program gets when it runs once more; it reads the same messages as before."""
    program, served = before.again(), []
    for _ in range(turns):
        served.append(replay.take(program.request(), placed(program)))
        program.hear(before)
    return served


@pytest.mark.parametrize("wire", ["chat", OWN_WIRE])
def test_a_program_that_runs_again_is_served_its_steps_in_their_order_and_each_once(
    renderer: Renderer, wire: str
) -> None:
    program, nodes = talk(renderer, 5, wire=wire)
    replay = Replay(nodes)
    assert repeated(program, replay, 5) == nodes
    assert replay.missing() == [] and not replay.open and replay.parted is None
    assert replay.summary()["replayed"] == replay.summary()["recorded"] == 5
    assert replay.take(program.again().request(), placed(program.again())) is None, "each once"


def test_other_metadata_in_a_body_does_not_matter_where_the_state_is_the_same_but_for_our_own_wire(
    renderer: Renderer,
) -> None:
    for wire, served in (("chat", True), (OWN_WIRE, False)):
        program, nodes = talk(renderer, 2, wire=wire)
        replay, again = Replay(nodes), program.again()
        found = replay.take(again.request(session_id="another"), placed(again))
        assert found is (nodes[0] if served else None) and replay.parted is None


def test_equal_requests_get_their_steps_in_recorded_order_and_a_retry_gets_the_same_once_more(
    renderer: Renderer,
) -> None:
    program = Program(Driver(renderer))
    request = program.request()
    nodes = []
    for word in ("oak", "elm", "oak"):
        node = program.driver.step(program.messages, Turn(role="assistant", text=word)).node
        node.digest, node.delivered = request.digest, None
        nodes.append(node)
    replay = Replay(nodes)
    assert replay.repeated(request) is None
    assert replay.take(request, placed(program)) is nodes[0]
    assert replay.repeated(request) is nodes[0], "its reply did not come through"
    nodes[0].delivered = True
    assert replay.repeated(request) is None
    assert replay.repeated(replace(request, retries=1)) is nodes[0], "it says that it asks again"
    assert [replay.take(request, placed(program)) for _ in range(3)] == [*nodes[1:], None]


def twins(program: Program, says: Turn, *also: Turn) -> list[Node]:
    """The steps of one request that was sent several times, in this order; the program's state is unchanged."""
    request, nodes = program.request(), []
    for reply in (says, *also):
        node = program.driver.step(program.messages, reply).node
        node.digest, node.agent = request.digest, program.agent
        nodes.append(node)
    return nodes


@pytest.mark.parametrize("metadata", [{}, {"session_id": "another"}], ids=["by body", "by state"])
def test_of_two_replies_to_a_request_that_was_sent_again_the_one_that_the_program_went_on_with_is_served(
    renderer: Renderer, metadata: dict[str, str]
) -> None:
    program = Program(Driver(renderer))
    lost, got = twins(program, Turn(role="assistant", text="oak"), Turn(role="assistant", text="elm"))
    before = list(program.messages)
    program.messages = [*before, as_message(got), user("go on")]
    onward = program.record(Turn(role="assistant", text="ash"), random.Random(7))
    assert onward.parent is got
    replay, again = Replay([lost, got, onward]), program.again()
    assert replay.take(again.request(**metadata), placed(again)) is got
    again.messages = program.messages[: len(before) + 2]
    assert replay.take(again.request(), placed(again)) is onward
    assert replay.missing() == [], "the lost one need not be requested"
    assert replay.take(program.again().request(), placed(program.again())) is lost, "but may be"


def test_of_two_replies_one_that_certainly_never_arrived_is_served_last(renderer: Renderer) -> None:
    program = Program(Driver(renderer))
    lost, got = twins(program, Turn(role="assistant", text="oak"), Turn(role="assistant", text="elm"))
    replay = Replay([lost, got], needless={lost.idx})
    request = program.request()
    assert [replay.take(request, placed(program)) for _ in range(2)] == [got, lost]


def test_later_records_have_no_part_in_the_state_of_a_step_that_is_requested_again(
    renderer: Renderer,
) -> None:
    program = Program(Driver(renderer))
    example = program.messages
    program.messages = [*example, {"role": "assistant", "content": "oak", "tool_calls": []}, user("and you?")]
    first = program.record(Turn(role="assistant", text="elm"), random.Random(7))
    later = program.driver.step(example, Turn(role="assistant", text="oak", reasoning="It is one.")).node
    again, messages_now = program.again(), [*example, *program.messages[1:3]]
    again.messages = messages_now
    assert placed(again)(None).parent is later, "by now the policy has written the reply of the example"
    replay = Replay([first, later])
    assert replay.take(again.request(), placed(again)) is first and replay.parted is None


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=st.lists(st.integers(1, 4), min_size=2, max_size=4), seed=st.integers(0, 2**32))
def test_agents_that_work_at_the_same_time_are_served_their_own_steps_in_whatever_order_they_come(
    qwen: Renderer, turns: list[int], seed: int
) -> None:
    dice, driver = random.Random(seed), Driver(qwen)
    programs = [Program(driver, agent=f"main/{n}", wire=OWN_WIRE) for n in range(len(turns))]
    record: list[Node] = []
    spoken: dict[str, list[Node]] = {}
    order = [n for n, many in enumerate(turns) for _ in range(many)]
    dice.shuffle(order)
    for n in order:
        node = programs[n].record(saying(dice), dice)
        record.append(node)
        spoken.setdefault(node.agent, []).append(node)
    replay = Replay(record)
    runs = [program.again() for program in programs]
    dice.shuffle(order)
    for n in order:
        expected = spoken[runs[n].agent].pop(0)
        assert replay.missing(runs[n].agent)[0] == expected.idx
        assert replay.take(runs[n].request(), placed(runs[n])) is expected
        runs[n].hear(programs[n])
    assert replay.missing() == [] and replay.parted is None


async def test_another_request_in_the_place_of_a_recorded_one_parts_from_the_record(
    renderer: Renderer,
) -> None:
    program, nodes = talk(renderer, 3)
    replay, again = Replay(nodes), program.again()
    assert replay.take(again.request(), placed(again)) is nodes[0]
    again.messages = [*program.messages[:2], user("something else happened")]
    assert replay.take(again.request(), placed(again)) is None
    with anyio.fail_after(60):
        await replay.used_up("main", NOW)
    assert replay.parted == "another request came in the place of step 1"


async def test_a_new_request_waits_for_its_own_agents_record_and_for_no_other(renderer: Renderer) -> None:
    program, nodes = talk(renderer, 2, agent="main/one")
    _, others = talk(renderer, 2, agent="main/two", driver=program.driver)
    replay, waited = Replay([*nodes, *others]), anyio.Event()

    async def wait() -> None:
        await replay.used_up("main/one", 60.0)
        waited.set()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            assert repeated(program, replay, 1) == nodes[:1] and not waited.is_set()
            await anyio.wait_all_tasks_blocked()
            assert not waited.is_set()
            again = program.again()
            again.hear(program)
            assert replay.take(again.request(), placed(again)) is nodes[1]
            await waited.wait()
    assert replay.parted is None and replay.missing() == [node.idx for node in others]


def test_the_same_body_with_other_ids_parts_from_the_record(renderer: Renderer) -> None:
    program, nodes = talk(renderer, 2)
    replay, again = Replay(nodes), program.again()
    elsewhere = [user("another beginning")]
    assert replay.take(again.request(), placed(again, elsewhere)) is None
    assert replay.parted == "the request of step 0 has other ids than are recorded"


def test_given_up_undelivered_and_auxiliary_steps_need_not_be_requested_again_and_the_last_two_may(
    renderer: Renderer,
) -> None:
    program, nodes = talk(renderer, 4)
    nodes[0].finish = Finish.ABORT
    marks: dict[int, set[str]] = {
        nodes[1].idx: {MarkReason.UNDELIVERED},
        nodes[2].idx: {MarkReason.AUXILIARY},
    }
    session = Session(SPEC, program.driver.forest, marks=marks, recorded=4)
    assert session.replay is not None and session.replay.missing() == [3]
    assert repeated(program, session.replay, 4) == [None, *nodes[1:]]
    assert session.seal().missing == 0


def test_the_seal_says_how_many_steps_were_served_again_and_how_many_are_missing(renderer: Renderer) -> None:
    program, nodes = talk(renderer, 3)
    for node in nodes:
        node.generation_s = 2.0
    session = Session(SPEC, program.driver.forest, recorded=3)
    assert session.replay is not None
    repeated(program, session.replay, 2)
    seal = session.seal()
    assert (seal.recorded, seal.replayed, seal.missing, seal.parted) == (3, 2, 1, None)
    assert seal.replayed_s == 4.0 and seal.steps == 3


def test_steps_that_were_generated_at_the_same_time_are_served_again_as_the_time_that_they_took_together(
    renderer: Renderer,
) -> None:
    """Also if the gateway was restarted in between."""
    for replayed in (None, [0]):
        program, nodes = talk(renderer, 3)
        for node in nodes:
            node.generation_s, node.ended_at = 2.0, 1000.0 + 0.5 * node.idx
        replay = Replay(nodes, replayed=replayed)
        repeated(program, replay, 3)
        assert len(replay.replayed) == 3 and replay.replayed_s == 3.0
        assert replay.summary()["replayed_s"] == 3.0


def test_after_a_restart_of_the_gateway_a_program_that_goes_on_with_a_reply_has_received_it(
    renderer: Renderer,
) -> None:
    program, nodes = talk(renderer, 4)
    replay = Replay(nodes, replayed=[0])
    again = program.again()
    again.messages = program.messages
    new = placed(again)
    assert new(None).parent is nodes[3]
    assert replay.take(again.request(), new) is None
    assert replay.missing() == [] and replay.summary()["replayed"] == 4
