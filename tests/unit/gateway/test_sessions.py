"""Which step a repeated request stands for."""

from dataclasses import replace

from orchestrator.gateway.forest import Forest
from orchestrator.gateway.messages import Turn
from orchestrator.gateway.render import Renderer
from orchestrator.gateway.sessions import AUXILIARY, UNDELIVERED, Session, Terms
from orchestrator.gateway_client import Budget
from tests.unit.gateway.driver import Driver

TERMS = Terms(1, 1, 1, Budget(10, 1000), expires=float("inf"))


def test_a_step_that_was_given_up_does_not_hide_the_answer_that_its_retry_got_meanwhile(
    renderer: Renderer,
) -> None:
    driver, session = Driver(renderer), Session(TERMS, Forest(renderer))
    whole, given_up = (driver.step([{"role": "user", "content": "oak"}], Turn("assistant", "elm")).node for _ in range(2))  # fmt: skip
    whole.digest = given_up.digest = "asked"
    given_up.finish = "abort"
    session.remember(whole)
    session.remember(given_up)
    assert session.newest["asked"] is whole
    whole.delivered = True  # asked once more after that, and given up
    session.remember(given_up)
    assert session.newest["asked"] is given_up


def test_auxiliary_and_given_up_steps_spend_no_turns_undelivered_ones_do(renderer: Renderer) -> None:
    driver, session = Driver(renderer), Session(TERMS, Forest(renderer))
    nodes = [
        driver.step([{"role": "user", "content": f"oak {i}"}], Turn("assistant", "elm")).node
        for i in range(4)
    ]
    session.forest = driver.forest
    session.mark(nodes[1], AUXILIARY)
    session.mark(nodes[2], UNDELIVERED)
    nodes[3].finish = "abort"
    assert session.turns == 2


def test_a_session_names_its_group_in_the_log_where_the_runner_said_it(renderer: Renderer) -> None:
    plain = {"rollout": 1, "attempt": 1, "epoch": 1}
    assert Session(TERMS, Forest(renderer)).ids == plain
    assert Session(replace(TERMS, group=5), Forest(renderer)).ids == {**plain, "group": 5}
