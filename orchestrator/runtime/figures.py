"""Figures as short texts for people. It imports nothing large: the command line starts with it."""

from collections.abc import Sequence
from typing import Final

BARS: Final = " ▁▂▃▄▅▆▇█"
"""The lowest value is blank."""
VISIBLE_BARS: Final = "▁▂▃▄▅▆▇█"
"""The lowest value is visible, and so differs from a gap."""


def sparkline(
    values: Sequence[float | None],
    *,
    low: float = 0.0,
    high: float = 1.0,
    width: int | None = None,
    bars: str = BARS,
) -> str:
    """Values as a line of bars on the scale from `low` to `high`, the first one left. None is a gap. With a `width`, each bar is the mean of as
    many values as make the line fit.

    >>> sparkline([0.0, None, 0.5, 1.0, 7.0]), sparkline([0.0, None, 0.5, 1.0], bars=VISIBLE_BARS)
    ('  ▄██', '▁ ▅█')
    """
    step = 1 if width is None else max(1, -(-len(values) // width))
    return "".join(
        _bar([value for value in values[start : start + step] if value is not None], low, high, bars)
        for start in range(0, len(values), step)
    )


def _bar(values: Sequence[float], low: float, high: float, bars: str) -> str:
    if not values:
        return " "
    share = (sum(values) / len(values) - low) / (high - low) if high > low else 0.0
    return bars[max(0, min(len(bars) - 1, round(share * (len(bars) - 1))))]


def age(seconds: float) -> str:
    """Seconds in readable form.

    >>> age(0.4), age(75), age(7300)
    ('0.4 s', '1 min 15 s', '2 h 1 min')
    """
    rounded = round(seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60} min"


def short_age(seconds: float | None) -> str:
    """Seconds in four characters or so; None is empty.

    >>> [short_age(s) for s in (None, 0.26, 75, 7300, -3)]
    ['', '0.3s', '1m15', '2h01', '-3s']
    """
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{seconds:.1f}s" if seconds >= 0 else f"{seconds:.0f}s"
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded}s"
    if rounded < 3600:
        return f"{rounded // 60}m{rounded % 60:02}"
    return f"{rounded // 3600}h{rounded % 3600 // 60:02}"
