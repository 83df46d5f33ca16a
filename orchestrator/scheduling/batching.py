"""When the open batch closes. A batch is open while it takes groups: each take is a row and moves the window at once."""

from enum import StrEnum


class BatchAction(StrEnum):
    """The action for the open batch after a take, or when no further group can arrive."""

    KEEP_OPEN = "keep_open"
    CLOSE = "close"  # it holds P groups
    CLOSE_SHORT = "close_short"  # no further group can arrive, and it holds at least P_min
    RUN_ENDED = "run_ended"  # no further group can arrive, too few are in: they become filtered(run_ended)


def batch_action(
    taken: int, batch_groups: int, short_batch: int, *, intake_closed: bool, in_flight: int
) -> BatchAction:
    """Decide the action for the open batch, which holds `taken` groups.

    `intake_closed`: nothing more will be dispatched. `in_flight`: groups dispatched or ready and not taken. An empty batch
    that no group can enter is `RUN_ENDED` without a group to filter.

    >>> [batch_action(n, 4, 2, intake_closed=True, in_flight=0).value for n in (4, 3, 2, 1)]
    ['close', 'close_short', 'close_short', 'run_ended']
    """
    assert 0 <= taken <= batch_groups and 1 <= short_batch <= batch_groups
    if taken == batch_groups:
        return BatchAction.CLOSE
    if not intake_closed or in_flight:
        return BatchAction.KEEP_OPEN
    return BatchAction.CLOSE_SHORT if taken >= short_batch else BatchAction.RUN_ENDED
