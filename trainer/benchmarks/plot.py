"""Speed-up against sharing, with the bound as a line, as an SVG."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

COLOURS = {"padded": "#b35806", "varlen": "#1b7837", "rollout": "#542788"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One shape against one baseline; all three ratios are baseline ÷ tree."""

    shape: str
    baseline: str
    tokens: float
    bound: float  # of the floating-point operations
    speed_up: float  # measured

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def draw(points: Sequence[Point], path: Path) -> None:
    """Write the picture; the same points give the same file. Raises OSError when it cannot be written."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    style = {"svg.fonttype": "none", "svg.hashsalt": "penstock", "font.size": 9}
    with pyplot.rc_context(style):
        figure, axes = pyplot.subplots(figsize=(7, 4.5))
        by_tokens = sorted(points, key=lambda point: (point.tokens, point.bound))
        ratios = [point.tokens for point in by_tokens]
        axes.plot(ratios, ratios, ":", color="#999999", label="token bound")
        axes.plot(ratios, [point.bound for point in by_tokens], "-", color="#555555", label="FLOP bound")
        for baseline, colour in COLOURS.items():
            series = [point for point in points if point.baseline == baseline]
            if not series:
                continue
            places = [point.tokens for point in series], [point.speed_up for point in series]
            axes.plot(*places, "o", color=colour, markersize=5, label=f"measured, against {baseline}")
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="tokens of the baseline ÷ tokens of the tree",
            ylabel="CPU time of the baseline ÷ of the tree",
        )
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(matplotlib.ticker.FixedLocator([1, 2, 5, 10, 20, 50, 100]))
            axis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g×"))
            axis.set_minor_locator(matplotlib.ticker.NullLocator())
        axes.grid(alpha=0.3)
        axes.legend()
        figure.tight_layout()
        figure.savefig(path, format="svg", metadata={"Date": None})
        pyplot.close(figure)
