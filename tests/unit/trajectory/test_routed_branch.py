"""Recorded routes are stored at their tokens."""

import numpy as np

from orchestrator.pool.routes import RecordedRoutes, routed_branch
from orchestrator.trajectory.branch import Branch
from orchestrator.trajectory.routes import NOT_RECORDED


def test_routes_that_begin_behind_a_steps_first_token_leave_what_is_before_them_unrecorded() -> None:
    rows = np.array([7, 8, 9], np.int16).reshape(3, 1, 1)
    above = Branch(own=np.arange(5, dtype=np.int32))
    step = routed_branch(np.arange(5, 10, dtype=np.int32), above, 5, RecordedRoutes(7, rows), rows)
    assert step.routes is not None
    assert step.routes.ravel().tolist() == [NOT_RECORDED, NOT_RECORDED, 7, 8, 9]
