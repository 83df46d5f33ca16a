"""The demo's output without a terminal: one line each, nothing that was not measured."""

import io
import re
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from ops.lab.demo import progress
from ops.lab.demo.outcome import QUESTIONS, DemoOutcome
from ops.lab.demo.phases import Client
from ops.lab.demo.progress import Progress
from ops.lab.demo.report import show_outcome

pytestmark = pytest.mark.anyio
LONG = 2**40


@dataclass
class Counted:
    """A run whose steps at each look are known."""

    steps: list[int]
    looks: int = field(default=0)

    async def rows(self, statement: str) -> list[Any]:
        assert statement is progress.SNAPSHOT
        self.looks += 1
        return [
            SimpleNamespace(
                version=1,
                trained=2,
                filtered=3,
                in_flight=4,
                waiting=5,
                running=6,
                verifying=7,
                head=8,
                ready=9,
                stale=None,
                reward=0.5,
                by_domain="agent 0.25  coding 0.75",
                steps=self.steps.pop(0),
            )
        ]


async def test_a_rate_is_of_the_time_between_two_lines_and_the_last_line_is_where_it_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, run, out = [100.0], Counted([919, 1019, 1049]), io.StringIO()
    monkeypatch.setattr("ops.lab.demo.progress.anyio.current_time", lambda: now[0])
    shown = Progress(client=cast("Client", run), console=Console(file=out, width=80))
    for now[0] in (100.0, 102.5, 105.0, 109.9, 110.0, 113.0):  # a look takes its time, too
        await shown.tick()
    now[0] = 116.0
    await shown.end()
    lines = out.getvalue().splitlines()
    assert [re.findall(r"^ *(\d+) s .* ([\d-]+) steps/s", line) for line in lines] == [
        [("0", "-")],
        [("10", "10")],
        [("16", "5")],
    ]
    assert all(line.endswith("reward 0.5 [agent 0.25  coding 0.75]") for line in lines)


async def test_queries_and_figures_stand_on_a_line_each_and_can_be_read() -> None:
    out = io.StringIO()
    question, statement = QUESTIONS[0]
    run = DemoOutcome(
        run_id=7, ledger=600, lost=0, trained_twice=0, groups=LONG, rollouts=LONG, blackbox=LONG, steps=LONG, tokens_stored=LONG,
        tokens_naive=LONG, merge_ratio=2.5, train_steps=16, version=16, checkpoint="x", first_attempt=1.0, first_step=2.0,
        curve=[(n, 0.5) for n in range(10)], answers=[(question, statement, ["domain", "n"], [("coding", 12), ("agent", 3)])],
    )  # fmt: skip
    show_outcome(Console(file=out, width=80), run)
    lines = out.getvalue().splitlines()
    assert not re.search(r"(?<!:):(run|ledger)\b", out.getvalue())
    (lost,) = [line for line in lines if line.endswith(" as lost")]
    assert "s.run_id = 7 and" in lost and "cast(<the 600 names in ledger.txt> as text[])" in lost
    assert lines[lines.index(question) + 1 :][:3] == ["domain  n", "coding  12", "agent   3"]
    assert (
        f"{LONG} groups, {LONG} rollouts ({LONG} black-box), {LONG} steps; tokens stored {LONG}"
        in out.getvalue()
    )
