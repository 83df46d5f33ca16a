"""A runner's observations of the gateway while a program ran: the only evidence for the platform's fault once the policy has replied."""

import time
from dataclasses import replace

from orchestrator.gateway_client import Activity
from orchestrator.runner.blackbox import Sight
from orchestrator.settings.timeouts import Timeouts

FIRST, SECOND = (
    Activity(in_flight=0, calls=1, queued_s=0.0, instance="first"),
    Activity(in_flight=0, calls=0, queued_s=0.0, instance="second"),
)


def test_a_gateway_that_stays_the_same_has_not_failed() -> None:
    sight = Sight()
    for seen in (FIRST, None, FIRST, None, None, FIRST):
        sight.looked(seen)
    assert sight.failed(60.0) is None


def test_a_gateway_that_was_restarted_has_failed_for_a_while() -> None:
    sight = Sight()
    sight.looked(FIRST)
    sight.looked(SECOND)
    assert sight.failed(60.0) == "it started again while the program ran"
    sight.looked(SECOND)
    assert sight.failed(60.0) and not sight.failed(0.0)


def test_a_gateway_that_answers_nothing_for_long_has_failed() -> None:
    sight = Sight(seen_at=time.monotonic() - Timeouts().gateway_silent_s - 1)
    sight.looked(None)
    sight.looked(FIRST)
    assert sight.failed(60.0) == "it was silent while the program ran"


def test_a_silence_that_the_sessions_own_requests_took_is_not_the_gateways_fault() -> None:
    silence_s = Timeouts().gateway_silent_s + 1
    sight = Sight(instance="first", seen_at=time.monotonic() - silence_s)
    sight.looked(None)
    sight.looked(replace(FIRST, worked_s=silence_s))
    assert sight.failed(60.0) is None
