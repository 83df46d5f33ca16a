"""Every duration is a setting, and one scale divides them all."""

import anyio
import pytest
from pydantic import BaseModel

from orchestrator.bus import subjects
from orchestrator.bus.pull import Timing
from orchestrator.pool.engine import _keep_alive
from orchestrator.settings.config import Config
from orchestrator.settings.timeouts import (
    SCALED,
    Timeouts,
    from_argument,
    timeouts,
    to_argument,
    use,
)


def durations(config: Config) -> dict[str, float]:
    """Every scaled key with its value."""
    return {
        f"{section}.{key}": getattr(getattr(config, section), key)
        for section, field in Config.model_fields.items()
        if isinstance(model := field.annotation, type) and issubclass(model, BaseModel)
        for key, declared in model.model_fields.items()
        if SCALED in declared.metadata
    }


def test_a_scale_divides_every_duration_and_nothing_else() -> None:
    config = Config.model_validate({"rollout": {"lease_ttl_s": 40.0}})
    before, after = durations(config), durations(config.faster(20.0))
    assert after == {key: value / 20.0 for key, value in before.items()}
    assert after["rollout.lease_ttl_s"] == 2.0 and after["timeouts.bus_ack_wait_s"] == 1.5
    as_it_was, scaled = config.to_json(), config.faster(20.0).to_json()
    for key in before:
        section, _, name = key.partition(".")
        del as_it_was[section][name], scaled[section][name]
    assert as_it_was == scaled


def test_a_clock_goes_through_a_command_line_and_back() -> None:
    fast = Config().faster(20.0).timeouts
    assert from_argument(to_argument(fast)) == fast and from_argument(to_argument(Timeouts())) == Timeouts()
    for wrong in ("bus_poll_interval_s=soon", "no_such_key=1.0", "bus_poll_interval_s"):
        with pytest.raises(ValueError):
            from_argument(wrong)


# Durations that belong to a run's purpose, not to its patience.
OF_THE_RUN = {
    "stage.end_seconds": "how long a stage lasts",
    "sandbox.cpu_s": "CPU seconds of a program, not of the wall",
}


def test_every_key_in_seconds_is_scaled_unless_it_says_what_a_run_is_for() -> None:
    keys = {
        f"{section}.{key}"
        for section, field in Config.model_fields.items()
        if isinstance(model := field.annotation, type) and issubclass(model, BaseModel)
        for key in model.model_fields
        if key.endswith(("_s", "_seconds"))
    }
    assert keys - set(durations(Config())) == set(OF_THE_RUN)


def test_the_clock_holds_within_and_the_defaults_outside() -> None:
    with use(Timeouts(bus_ack_wait_s=1.0, bus_fetch_s=2.0, bus_heartbeat_s=0.5, bus_poll_interval_s=0.25)):
        assert subjects.consume_steps("demo").ack_wait_s == 1.0
        assert Timing.of(timeouts()) == Timing(2.0, 0.5, 0.25)
    assert subjects.consume_steps("demo").ack_wait_s == 30.0 == timeouts().bus_ack_wait_s


@pytest.mark.anyio
async def test_tasks_that_are_started_within_have_the_same_clock() -> None:
    seen: list[float] = []

    async def look() -> None:
        seen.append(timeouts().resend_s)

    with use(Timeouts(resend_s=0.5)):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look)
    assert seen == [0.5]


@pytest.mark.parametrize(("silence_s", "first", "between"), [(25.0, 10, 5), (50.0, 20, 10), (1.25, 1, 1)])
def test_silence_is_as_long_as_its_probes_and_never_shorter_than_the_kernel_can(
    silence_s: float, first: int, between: int
) -> None:
    with use(Timeouts(pool_silence_s=silence_s)):
        assert _keep_alive() == (first, between)
