"""`penstock size` on a real run: its predictions from the primitive measurements of each half of a run equal the measurements of the other half."""

import json
from pathlib import Path

import pytest

from orchestrator.deploy.cluster.measured import (
    Held,
    both_ways,
    predicted_against,
    rounds,
    span,
)
from orchestrator.deploy.cluster.size import plan_of_config
from orchestrator.settings.config import Config, load
from tests.e2e.observer import Observer, observing
from tests.e2e.stack_rig import Stack, until

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(400), pytest.mark.tier("sizing")]

SETTLED = 4  # commits until the queue is as full as it stays, and every program has been loaded once
LEAST = 48  # batches after that
ENOUGH_S = 100.0  # and how long they must take, so that the machine's other work comes often
TASKS = 600  # more than a quick machine trains in that time
NEAR = 0.2
"""Of the measured figure."""
NOT_HELD = {"bytes per step"}
"""In tables of a few hundred steps, the first pages of the tables and of their indexes are nearly everything."""


async def trained(seen: Observer) -> int:
    """Wait for enough batches; returns the number of the last committed batch."""
    took = "select extract(epoch from max(committed) - min(committed)) from batches where run_id = :run and batch_no >= :first"

    async def enough() -> bool:
        return float(await seen.value(took, first=SETTLED)) >= ENOUGH_S

    await seen.until_batches(SETTLED + LEAST + 1, 240.0)
    await until(enough, f"batches of {ENOUGH_S:g} s are committed", 2 * ENOUGH_S)
    return await seen.batches() - 1


async def later_from_earlier(seen: Observer, config: Config, last: int) -> list[Held]:
    """Shown and not asserted: other work on the machine may have come or gone between the two."""
    one = rounds(plan_of_config(config).queue)
    half = (last - SETTLED) // 2 // one * one
    async with seen.engine.connect() as connection:
        first = await span(connection, seen.run_id, SETTLED, SETTLED + half)
        second = await span(connection, seen.run_id, SETTLED + half, SETTLED + 2 * half)
        return await predicted_against(connection, seen.run_id, config, calibrate=first, against=second)


async def test_what_size_predicts_from_half_a_run_is_within_a_fifth_of_what_its_other_half_did(
    stack: Stack, model: Path
) -> None:
    stack.configure(model, batches=TASKS)  # it does not end during the test
    config = load(stack.directory / "penstock.toml")
    await stack.up()
    async with observing(stack.home) as seen:
        await seen.publish(TASKS)  # they wait until the end
        last = await trained(seen)
        async with seen.engine.connect() as connection:
            halves = await both_ways(connection, seen.run_id, config, SETTLED, last)
        later = await later_from_earlier(seen, config, last)
    print(f"{last + 1} batches")
    done = stack.penstock_alone("size", "--from-run", str(stack.directory), "--check", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(stack.penstock_alone("size", "--from-run", str(stack.directory), "--check").stdout)
    print(json.dumps(found["workload"]))
    print("each half from the other:", *halves, sep="\n")
    print("later from earlier:", *later, sep="\n")
    for held in halves:
        if held.name not in NOT_HELD:
            assert held.predicted == pytest.approx(held.measured, rel=NEAR), halves
    assert stack.penstock("down").stdout == "stopped\n"
