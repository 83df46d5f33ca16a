"""Rewards that a thread computes: used once they are there, and only if what they were computed from is unchanged."""

import threading
from typing import Any

import pytest

from orchestrator.pool.transact import NotReady
from orchestrator.roles.reward import RewardedGroup
from orchestrator.roles.reward_threads import RewardThreads
from orchestrator.settings.timeouts import Timeouts, use

pytestmark = pytest.mark.anyio


def _rewards(sentence: str) -> RewardedGroup:
    return RewardedGroup([], None, (sentence,))


async def test_rewards_that_are_not_ready_come_with_the_next_transaction_if_the_group_is_unchanged() -> None:
    held, go = RewardThreads(), threading.Event()

    def slow() -> RewardedGroup:
        assert go.wait(60)
        return _rewards("old verdicts")

    with use(Timeouts(pool_idle_s=0.02)):
        with pytest.raises(NotReady) as caught:
            await held.rewards(1, "inputs", slow)
        with pytest.raises(NotReady):
            await held.rewards(1, "inputs", slow)
        go.set()
        await caught.value.ready()
    assert await held.rewards(1, "inputs", slow) == _rewards("old verdicts")
    assert await held.rewards(1, "inputs", lambda: _rewards("never")) == _rewards("old verdicts")
    assert await held.rewards(1, "other inputs", lambda: _rewards("new verdicts")) == _rewards("new verdicts")
    held.forget(1)
    assert await held.rewards(1, "other inputs", lambda: _rewards("again")) == _rewards("again")


async def test_rewards_that_never_come_are_given_up_and_an_error_is_raised() -> None:
    held, go = RewardThreads(), threading.Event()

    def never() -> RewardedGroup:
        go.wait(60)
        return _rewards("late")

    def ends() -> RewardedGroup:
        raise SystemExit(3)

    with use(Timeouts(pool_idle_s=0.02, rewards_s=0.1)):
        with pytest.raises(NotReady) as caught:
            await held.rewards(1, "inputs", never)
        await caught.value.ready()
        with pytest.raises(TimeoutError, match=r"timeouts\.rewards_s"):
            await held.rewards(1, "inputs", never)
    go.set()
    with pytest.raises(RuntimeError, match="SystemExit"):
        await held.rewards(2, "inputs", ends)


async def test_groups_that_are_computed_at_once_have_the_time_of_one_after_the_other() -> None:
    held, go = RewardThreads(), threading.Event()

    def slow() -> RewardedGroup:
        assert go.wait(60)
        return _rewards("in time")

    with use(Timeouts(pool_idle_s=0.02, rewards_s=50.0)):
        for group in range(3):
            with pytest.raises(NotReady):
                await held.rewards(group, "inputs", slow)
        allowed = [found._ends - found._began for found in held._computations.values()]
        assert allowed == pytest.approx([150.0] * 3)
        go.set()
        for group in range(3):
            await held._computations[group].over()
        assert await held.rewards(3, "inputs", lambda: _rewards("alone")) == _rewards("alone")
        last = held._computations[3]
    assert last._ends - last._began == pytest.approx(50.0)


async def test_a_machine_without_a_thread_to_spare_delays_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    with pytest.raises(NotReady):
        await RewardThreads().rewards(1, "inputs", lambda: _rewards("now"))
