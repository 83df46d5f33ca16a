"""Which demonstrations share a label."""

from orchestrator.recording import label_of
from orchestrator.tasks.suite.record import demonstrations


def test_a_label_is_kept_by_the_same_demonstrations_only() -> None:
    label = label_of(demonstrations(12, 0, {"shell": 1.0}))
    assert label == label_of(demonstrations(12, 0, {"shell": 3.0}))
    others = [
        demonstrations(11, 0, {"shell": 1.0}),
        demonstrations(12, 1, {"shell": 1.0}),
        demonstrations(12, 0, {"shell": 1.0, "mini-swe-agent": 1.0}),
    ]
    assert len({label, *map(label_of, others)}) == 4
