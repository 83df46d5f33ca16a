"""The open batch."""

import pytest

from orchestrator.contracts.states import BatchState, GroupState
from orchestrator.scheduling.admission import QueueSettings
from orchestrator.scheduling.batching import BatchAction, batch_action
from orchestrator.scheduling.simulate import simulate


@pytest.mark.parametrize(
    ("taken", "intake_closed", "in_flight", "action"),
    [
        (0, False, 0, BatchAction.KEEP_OPEN),
        (3, False, 0, BatchAction.KEEP_OPEN),
        (3, True, 1, BatchAction.KEEP_OPEN),
        (4, False, 3, BatchAction.CLOSE),
        (4, True, 0, BatchAction.CLOSE),
        (3, True, 0, BatchAction.CLOSE_SHORT),
        (2, True, 0, BatchAction.CLOSE_SHORT),
        (1, True, 0, BatchAction.RUN_ENDED),
        (0, True, 0, BatchAction.RUN_ENDED),
    ],
)
def test_a_batch_of_four_closes_full_or_short_at_the_end(
    taken: int, intake_closed: bool, in_flight: int, action: BatchAction
) -> None:
    assert batch_action(taken, 4, 2, intake_closed=intake_closed, in_flight=in_flight) == action


@pytest.mark.parametrize(
    ("groups", "minimum", "sizes", "filtered"),
    [(12, None, [5, 5], 2), (13, None, [5, 5, 3], 0), (12, 2, [5, 5, 2], 0), (14, 5, [5, 5], 4)],
)
def test_the_last_groups_of_a_run_train_in_a_short_batch_or_are_filtered(
    groups: int, minimum: int | None, sizes: list[int], filtered: int
) -> None:
    settings = QueueSettings(
        capacity=10,
        batch_groups=5,
        group_size=2,
        max_staleness=1,
        running_rollouts=20,
        min_batch_groups=minimum,
    )
    assert settings.short_batch == (3 if minimum is None else minimum)
    queue = simulate(settings, [1.0 + seq % 3 for seq in range(groups)]).queue
    assert [len(b.groups) for b in queue.batches if b.state == BatchState.COMMITTED] == sizes
    assert len(queue.in_state(GroupState.FILTERED)) == filtered


def test_a_run_whose_last_group_resolves_still_closes_its_batch() -> None:
    settings = QueueSettings(capacity=4, batch_groups=4, group_size=2, max_staleness=0, running_rollouts=8)
    queue = simulate(settings, [1.0, 1.0, 1.0, 9.0], zero_signal=lambda seq: seq == 3).queue
    assert [b.groups for b in queue.batches] == [(0, 1, 2)]
    assert queue.batches[0].state == BatchState.COMMITTED
