"""What a runner saw of the gateway while a program ran: the only evidence for the platform's fault once the policy has spoken."""

import time

from orchestrator.clock import Clock
from orchestrator.flow.blackbox import Sight
from orchestrator.gateway_client import Activity

FIRST, SECOND = Activity(0, 1, 0.0, "first"), Activity(0, 0, 0.0, "second")


def test_a_gateway_that_stays_the_same_has_not_failed() -> None:
    sight = Sight()
    for seen in (FIRST, None, FIRST, None, None, FIRST):
        sight.looked(seen)
    assert sight.failed(60.0) == ""


def test_a_gateway_that_was_started_anew_has_failed_for_a_while() -> None:
    sight = Sight()
    sight.looked(FIRST)
    sight.looked(SECOND)
    assert sight.failed(60.0) == "it started anew while the program ran"
    sight.looked(SECOND)
    assert sight.failed(60.0) and not sight.failed(0.0)


def test_a_gateway_that_answers_nothing_for_long_has_failed() -> None:
    sight = Sight(seen_at=time.monotonic() - Clock().gateway_silent_s - 1)
    sight.looked(None)
    assert sight.failed(60.0) == "it was silent while the program ran"
