"""Which failed calls of a session still count when it is sealed."""

import pytest

from orchestrator.gateway.sessions.call import CompletionCall
from orchestrator.gateway.sessions.failures import Failures

pytestmark = pytest.mark.anyio


def call(began: float, agent: str = "main", *, auxiliary: bool = False) -> CompletionCall:
    made = CompletionCall(agent=agent, auxiliary=auxiliary)
    made.began = began
    return made


async def test_a_later_call_of_the_same_agent_or_of_the_main_one_ends_a_failure_and_no_other_does() -> None:
    failures = Failures()
    failures.failed(call(1.0, "a"), "full", 2.0)
    failures.failed(call(1.0, "b"), "no server", 3.0)
    assert failures.newest == "no server"
    failures.served(call(1.5, "b"))
    failures.served(call(4.0, "c"))
    failures.served(call(4.0, "b", auxiliary=True))
    assert failures.newest == "no server"
    failures.served(call(4.0, "b"))
    assert failures.newest == "full"
    failures.served(call(5.0))
    assert failures.newest is None


async def test_the_failure_of_an_auxiliary_call_counts_until_any_later_call_is_served() -> None:
    for later in (call(3.0), call(3.0, "a"), call(3.0, auxiliary=True)):
        failures = Failures()
        failures.failed(call(1.0, auxiliary=True), "full", 2.0)
        failures.served(call(1.5))
        seen = [failures.newest, failures.last]
        failures.served(later)
        assert [*seen, failures.newest] == ["full", None, None]


async def test_the_call_that_began_last_decides_whichever_ends_last_and_auxiliary_ones_do_not() -> None:
    failures, seen = Failures(), list[str | None]()
    failures.failed(call(1.0, "a"), "full", 5.0)
    seen.append(failures.last)
    failures.served(call(2.0, "b"))
    failures.failed(call(1.5, "c"), "no server", 6.0)
    failures.failed(call(3.0, auxiliary=True), "no server", 7.0)
    seen.append(failures.last)
    failures.failed(call(4.0), "stopped", 8.0)
    failures.served(call(3.5))
    seen.append(failures.last)
    assert seen == ["full", None, "stopped"]
