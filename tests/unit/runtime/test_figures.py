"""Figures as texts: curves on one scale, of a bounded width, with gaps."""

from orchestrator.runtime.figures import BARS, VISIBLE_BARS, sparkline


def test_curves_share_a_scale_and_a_width() -> None:
    assert sparkline([0.0, None, 0.5, 1.0], bars=VISIBLE_BARS) == "▁ ▅█"
    assert len(sparkline([float(n) for n in range(1000)], low=0.0, high=999.0, width=40)) <= 40
    assert sparkline([1.0, 1.0], low=1.0, high=1.0, bars=VISIBLE_BARS) == "▁▁"


def test_a_value_off_the_scale_is_at_its_end() -> None:
    assert sparkline([-3.0, 7.0], bars=VISIBLE_BARS) == "▁█"
    assert sparkline([n / 8 for n in range(9)]) == BARS
