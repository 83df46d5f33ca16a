"""Sizing is arithmetic that can be checked: closed forms, bounds that nothing exceeds, and warnings with their figures."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given as drawn
from hypothesis import settings as slowly
from hypothesis import strategies as st

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.deploy.cluster.queueing import asymptotic, mean_values, parallel
from orchestrator.deploy.cluster.reading import load
from orchestrator.deploy.cluster.rehearsal import (
    Durations,
    Rehearsal,
    apart,
    rehearse,
)
from orchestrator.deploy.cluster.size import (
    Plan,
    _stages,
    bytes_of_step,
    plan_of,
    rehearsed,
    size,
    slot_s,
    train_s,
)
from orchestrator.deploy.cluster.workload import (
    PRODUCT,
    Workload,
    changed,
    given,
    read,
    written,
)
from orchestrator.scheduling.admission import QueueSettings
from tests.unit.cluster.test_topology import CLUSTER, FILES

RAW = {
    "turns": 8, "new_tokens": 400, "added_tokens": 600, "tool_s": 2, "overhead_s": 1.5, "verify_s": 10, "stream_tokens_s": 60,
    "server_tokens_s": 1800, "train_tokens_s": 20000, "slot_cv": 0.5,
}  # fmt: skip
WORK = given(RAW, "here")
QUEUE = QueueSettings(capacity=48, batch_groups=16, group_size=4, max_staleness=2, running_rollouts=67)
PLAN = Plan(slots=64, verify_slots=32, servers=2, gateways=2, orchestrators=2, queue=QUEUE)


def repairmen(machines: int, broken_s: float, works_s: float) -> float:
    """Repairs per second of one repairman with so many machines, from the Erlang form of the classic chain."""
    weights = [
        math.factorial(machines) / math.factorial(machines - n) * (broken_s / works_s) ** n
        for n in range(machines + 1)
    ]
    return (1 - weights[0] / sum(weights)) / broken_s


@pytest.mark.parametrize(("machines", "broken", "works"), [(1, 1, 9), (5, 2, 10), (20, 1, 10)])
def test_mean_values_are_those_of_the_machine_repairman(machines: int, broken: float, works: float) -> None:
    assert mean_values(machines, [broken], works).throughput == pytest.approx(
        repairmen(machines, broken, works)
    )


@slowly(deadline=None, max_examples=40)
@drawn(
    st.integers(1, 200),
    st.lists(st.floats(0.001, 10), min_size=1, max_size=4),
    st.floats(0, 100),
)
def test_no_network_leaves_its_asymptotic_bounds(count: int, demands: list[float], think: float) -> None:
    bounds, found = asymptotic(count, demands, think), mean_values(count, demands, think)
    assert bounds.least * (1 - 1e-9) <= found.throughput <= bounds.most * (1 + 1e-9)
    assert found.cycle == pytest.approx(count / found.throughput)


def test_a_station_of_many_is_exact_where_it_is_idle_and_where_it_is_full() -> None:
    queue, delay = parallel(8.0, 4)
    assert mean_values(1, [queue], delay).throughput == pytest.approx(1 / 8)
    assert mean_values(400, [queue], delay).throughput == pytest.approx(4 / 8, rel=0.01)


@slowly(deadline=None, max_examples=40)
@drawn(
    st.integers(1, 4),
    st.integers(2, 4),
    st.integers(0, 3),
    st.integers(4, 40),
    st.floats(0.1, 9),
    st.floats(0, 5),
    st.integers(0, 99),
)
def test_no_rehearsal_does_more_than_slots_and_trainer_can(
    batch: int, members: int, stale: int, slots: int, slot: float, train: float, seed: int
) -> None:
    queue = QueueSettings(
        capacity=3 * batch,
        batch_groups=batch,
        group_size=members,
        max_staleness=stale,
        running_rollouts=slots + members - 1,
    )
    found = rehearse(
        queue, slots, slots, Durations(slot=slot, verify=0.1, train=train, slot_cv=0.0), batches=12, seed=seed
    )
    assert found.groups == 11 * batch
    assert found.seconds >= 11 * train * (1 - 1e-9)
    # A rollout that left its slot in this time was in it for `slot`; those at work at the first commit had done part of it.
    assert (found.rollouts - slots) * slot <= slots * found.seconds * (1 + 1e-9)
    assert found.stalest <= stale + -(-(queue.window - 1) // batch)


def test_a_trainer_that_binds_is_always_at_work_and_sets_the_pace() -> None:
    found = rehearse(QUEUE, 64, 64, Durations(slot=1.0, verify=0.1, train=60.0, slot_cv=0.5), batches=10)
    assert found.trainer_busy == pytest.approx(1.0) and found.seconds == pytest.approx(9 * 60.0)


def test_a_round_that_waits_for_everything_takes_the_sum_of_its_waits() -> None:
    queue = QueueSettings(
        capacity=2, batch_groups=2, group_size=2, max_staleness=0, running_rollouts=5
    )  # a batch at a time, and nothing else in flight
    waits = Durations(
        slot=2.0,
        verify=3.0,
        train=7.0,
        dispatch=0.5,
        settle=0.25,
        claim=0.125,
        admit=1.0,
        conclude=0.0625,
        report=0.03125,
    )
    found = rehearse(queue, 4, 4, waits, batches=11)
    assert found.seconds == pytest.approx(
        10 * (2.0 + 3.0 + 7.0 + 0.5 + 0.25 + 0.125 + 1.0 + 0.0625 + 2 * 0.03125)
    )
    assert (found.staleness, found.stalest) == (0.0, 0)


def test_waits_that_differ_make_a_group_wait_for_its_slowest() -> None:
    same = rehearse(
        QUEUE, 64, 64, Durations(slot=1.0, verify=0.1, train=0.1, dispatch=1.0, settle=1.0), batches=40
    )
    differ = rehearse(
        QUEUE,
        64,
        64,
        Durations(slot=1.0, verify=0.1, train=0.1, dispatch=1.0, settle=1.0, dispatch_cv=1.0, settle_cv=1.0),
        batches=40,
    )
    assert differ.seconds > 1.2 * same.seconds


def test_members_that_are_alike_do_not_make_a_group_wait_for_its_slowest() -> None:
    queue = QueueSettings(
        capacity=2, batch_groups=2, group_size=4, max_staleness=0, running_rollouts=11
    )  # a batch at a time: it waits for the slowest of all
    apart_, alike = (
        rehearse(
            queue,
            8,
            8,
            Durations(slot=10.0, verify=0.1, train=0.1, slot_cv=0.5, slot_alike=share),
            batches=40,
        )
        for share in (0.0, 0.99)
    )
    assert alike.seconds < 0.85 * apart_.seconds
    between, within = apart(0.6, 0.3)
    assert (1 + between**2) * (1 + within**2) == pytest.approx(1 + 0.6**2) and between**2 == pytest.approx(
        0.3 * 0.36
    )


def test_a_slot_is_free_before_its_result_is_recorded() -> None:
    queue = QueueSettings(
        capacity=400, batch_groups=4, group_size=4, max_staleness=99, running_rollouts=400
    )  # slots bind
    found = rehearse(queue, 4, 64, Durations(slot=1.0, verify=0.1, train=0.1, report=1.0), batches=40)
    assert found.slots_busy > 0.97 and found.rollouts / found.seconds == pytest.approx(4.0, rel=0.03)


def test_rollouts_wait_for_as_many_others_as_are_in_slots_and_not_for_as_many_as_could_be() -> None:
    crowded = WORK.model_copy(update={"server_tokens_s": 200.0})
    idle = crowded.model_copy(update={"train_fixed_s": 4000.0})  # most of the time no rollout runs
    assert rehearsed(PLAN, idle)[1] < 0.7 * rehearsed(PLAN, crowded)[1]
    assert rehearsed(PLAN, crowded)[1] == pytest.approx(slot_s(PLAN, crowded, 64), rel=0.05)
    assert slot_s(PLAN, crowded, 2.0) < slot_s(PLAN, crowded, 2.5) < slot_s(PLAN, crowded, 3.0)


def test_filtered_groups_are_generated_and_not_trained() -> None:
    found = rehearse(
        QUEUE, 64, 64, Durations(slot=10.0, verify=0.1, train=0.1, slot_cv=0.3, filtered=0.5), batches=40
    )
    assert found.rollouts / 4 == pytest.approx(2 * found.groups, rel=0.15)


@pytest.mark.parametrize(
    ("plan", "work", "binds"),
    [
        (PLAN, WORK, "slots"),
        (replace(PLAN, verify_slots=4), WORK, "verifiers"),
        (PLAN, WORK.model_copy(update={"train_tokens_s": 1000.0}), "trainer"),
        (PLAN, WORK.model_copy(update={"server_tokens_s": 200.0}), "rollout servers"),
        (
            replace(PLAN, slots=400, verify_slots=400, queue=replace(QUEUE, capacity=16)),
            WORK.model_copy(update={"verify_s": 60.0, "new_tokens": 40.0}),
            "queue",
        ),
        (
            replace(
                PLAN,
                slots=10**6,
                verify_slots=10**6,
                servers=10**5,
                queue=QueueSettings(
                    capacity=10**6,
                    batch_groups=1000,
                    group_size=4,
                    max_staleness=10**4,
                    running_rollouts=10**6,
                ),
            ),
            WORK.model_copy(update={"train_tokens_s": 1e12}),
            "gateways",
        ),
    ],
)
def test_what_is_short_is_what_binds(plan: Plan, work: Workload, binds: str) -> None:
    assert plan.slots < 1000 or binds == "gateways"
    if plan.slots >= 1000:  # by the stages alone: a million slots are not rehearsed
        quiet = Rehearsal(
            seconds=1.0,
            batches=1,
            groups=1,
            rollouts=1,
            slots_busy=0.5,
            verifiers_busy=0.5,
            trainer_busy=0.5,
            staleness=0.0,
            stalest=0,
        )
        stages = _stages(plan, work, 60.0, train_s(plan, work), 1.0, quiet)
        assert min(stages, key=lambda stage: stage.most).name == binds
        return
    found = size(plan, work)
    assert found.binds == binds
    most = min(stage.most for stage in found.stages)
    assert found.groups_h / 3600 <= most * 1.1  # a rehearsal's edges


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_example_is_sized(file: Path) -> None:
    found = size(plan_of(load(file)), WORK.model_copy(update={"checkpoint_gb": 16.0}))
    assert found.groups_h > 0 and found.completions > 0 and found.least_in_flight > 0
    assert all(math.isfinite(stage.most) and stage.most > 0 for stage in found.stages)


def test_more_of_what_binds_is_more_and_enough_in_flight_ends_the_queue() -> None:
    tight = replace(PLAN, queue=replace(QUEUE, capacity=16))
    found = size(tight, WORK)
    assert any("the queue lets 16 groups be in flight" in warning for warning in found.warnings)
    wide = QueueSettings(
        capacity=found.least_in_flight,
        batch_groups=16,
        group_size=4,
        max_staleness=found.least_staleness,
        running_rollouts=67,
        window_fraction=1.0,
    )
    better = size(replace(PLAN, queue=wide), WORK)
    assert better.groups_h > found.groups_h * 1.2
    assert not any("the queue lets" in warning for warning in better.warnings)
    assert better.binds != "queue" and max(stage.utilisation for stage in better.stages) > 0.85


def test_staleness_lets_fewer_groups_be_in_flight_than_capacity() -> None:
    assert QUEUE.places == 48 and replace(QUEUE, max_staleness=1).places == 32


def test_a_step_of_the_benchmark_takes_the_bytes_that_were_measured() -> None:
    work = WORK.model_copy(update={"added_tokens": 768.0, "new_tokens": 256.0})
    measured = 5.54 + 0.040 + 0.57 + 0.040 + 0.20 + 0.009
    assert bytes_of_step(work) == pytest.approx(1024 * measured)


def test_every_figure_of_the_product_stands_in_the_file_that_it_names() -> None:
    text = {figure.source: (CLUSTER.parents[1] / figure.source).read_text() for figure in PRODUCT.values()}
    for name, sentence in {
        "completions_cpu": "683 completions per CPU-second",
        "completions_target": "target 500",
        "session_cpu": "4.4 CPU-ms",
        "gateway_wait": "p50 4.1 ms",
        "step_rows": "4,130 rows/s",
        "changes": "5,216 changes/s",
        "relayed": "3,870 messages per CPU-second",
        "step_bytes": "steps 5.54 + 0.040 in indexes (least: 5.00)",
        "message_bytes": "messages 0.57 + 0.040",
        "prompt_bytes": "prompts 0.20 + 0.009",
    }.items():
        assert sentence in text[PRODUCT[name].source], name
    assert "p50 50.3" in text["ops/benchmarks/pool.md"]


def test_a_checkpoint_that_does_not_fit_is_reported_with_its_arithmetic() -> None:
    found = size(
        replace(PLAN, keep_checkpoints=3, shared_gb=50), WORK.model_copy(update={"checkpoint_gb": 16.0})
    )
    assert any(
        "3 + 1 × 16 = 64 GB exceed shared.size_gb = 50" in warning or "4 × 16 = 64 GB exceed" in warning
        for warning in found.warnings
    )


def test_missing_values_are_requested_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"new_tokens, added_tokens, .* must be given: measure them"):
        given({"turns": 3}, "here")
    with pytest.raises(ConfigurationError, match="speed: is not a known key"):
        given({**RAW, "speed": 3}, "here")
    with pytest.raises(ConfigurationError, match="--set 'turns' is not of the form"):
        changed({}, ["turns"])
    with pytest.raises(ConfigurationError, match=r"runners\.3\.slots"):
        changed({"runners": [{}]}, ["runners.3.slots=4"])
    with pytest.raises(ConfigurationError, match="No such file"):
        read(tmp_path / "none.toml")
    file = tmp_path / "workload.toml"
    file.write_text(written(WORK))
    assert given(changed(read(file), ["turns=9", "tool_s=0.5"]), "here") == WORK.model_copy(
        update={"turns": 9.0, "tool_s": 0.5}
    )


def test_the_example_of_the_guide_is_what_comes_out() -> None:
    guide = (CLUSTER.parent / "guides" / "sizing.md").read_text()
    found = size(plan_of(load(CLUSTER / "topology.toml")), given(read(CLUSTER / "workload.toml"), "workload"))
    for stage in found.stages:
        assert f"| {stage.name} | {stage.why} | {3600 * stage.most:,.0f} |" in guide
    binding = next(stage for stage in found.stages if stage.name == found.binds)
    assert (
        f"What binds: {binding.name}, {3600 * binding.most:,.0f} groups/h; the rehearsal reaches {found.groups_h:,.0f}"
        in guide
    )
    assert (
        f"N ≥ {found.least_in_flight}, W ≥ {found.least_window}, S ≥ {found.least_staleness} are needed"
        in guide
    )
    assert f"{found.postgres_gb_day:.4g} GB/day" in guide
