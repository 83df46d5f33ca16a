"""Curves of the run: each shows the values that its train steps measured, runs appear side by side, and a run without curves reports that."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.pool import batches
from orchestrator.pool.batches import NewVersion
from orchestrator.pool.runs import StoredRun
from orchestrator.scheduling.queue_policies import queue_policy
from tests import builders
from tests.browser.alone import looking
from tests.browser.visitor import Visitor
from tests.integration.pool.rig import small
from tests.integration.queries.evaluations_rig import evaluated

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("browser")]

MEASURED = {
    "applied": True, "reward": 0.75, "loss": 0.5, "gradient_norm": 2.5, "kl_k1": 0.01, "kl_k3": 0.02, "clip_fraction": 0.03, "cut_fraction": 0.04,
    "entropy": 0.6, "merge_ratio": 4.0, "action_tokens": 100, "tokens_naive": 400, "tokens_merged": 100, "wall_s": 2.0, "cpu_s": 1.5,
    "staleness": {"0": 75, "2": 25}, "seconds": {"forward": 1.25, "backward": 0.5},
    "domains": {"coding": {"reward": 0.75, "performance": 0.25, "token_share": 1.0, "rollouts": 4}},
}  # fmt: skip
EARLIER: Sequence[Mapping[str, Any]] = (
    {"reward": 0.1, "loss": 3.0, "gradient_norm": 9.5, "kl_k1": 0.3, "kl_k3": 0.4, "clip_fraction": 0.5, "entropy": 2.6, "merge_ratio": 14.0},
    {"reward": 0.2, "loss": 2.0, "gradient_norm": 7.5, "kl_k1": 0.2, "kl_k3": 0.1, "clip_fraction": 0.4, "entropy": 1.6, "merge_ratio": 24.0},
)  # fmt: skip
# Chart → its values for its last train step; ": " at the end: a value of the clock.
TEXTS = {
    "Success while training": "all: 25% of 8, coding: 25% of 8",
    "Held-out success": "held: 50% of 2 (9.5%–91%), coding: 50% of 2 (9.5%–91%)",
    "Reward of trained groups": "all: 0.75, coding: 0.75",
    "Staleness": "mean: 0.5, oldest token: 2",
    "Rollouts at once": "running: ",
    "KL to the behavior policy": "k3: 0.02, k1: 0.01",
    "Clip fraction": "clipped: 3.00%, masked or truncated: 4.00%",
    "Entropy": "entropy: 0.6",
    "Merge ratio": "merge ratio: 4",
    "Tokens per second": "in a train step: 200, over the run: ",
    "Loss and gradient norm": "loss: 0.5, gradient norm: 2.5",
    "Seconds of a train step": "whole: 1.8 s, forward: 1.3 s, backward: 500 ms",
}
PAGES = {
    "/run": "curves come with the first ones",
    "/queue": "Nothing is open",
    "/groups": "No group fits",
    "/rollouts": "No rollout fits",
    "/batches": "No batch",
    "/system": "No process of this run reported",
}


async def trained(engine: AsyncEngine, name: str, **changes: Any) -> StoredRun:
    """A run with three committed batches of one train step each."""
    run = await builders.make_run(engine, small(name))
    async with engine.begin() as connection:
        await builders.publish_first(connection, run)
    for n in range(3):
        await builders.ready_groups(engine, run, [f"{n}-{each}" for each in "ab"], builders.Author())
        async with engine.begin() as connection:
            batch = await batches.take(connection, run.run_id, queue_policy("greedy", 6, 0.3), 2, 1)
            assert batch is not None
            new = NewVersion(version=n + 1, parent=n, path=f"/v{n + 1}", manifest_sha="11")
            measured = MEASURED if n == 2 else {**MEASURED, **EARLIER[n]}
            steps = [{**measured, **changes}]
            assert await batches.commit(
                connection, run.run_id, name, batch=batch, new=new, metrics=steps, subject="policy.x"
            )
    return run


async def text_of(visitor: Visitor, chart: str) -> str:
    """A chart's text for screen readers: each line's name and last value."""
    picture = visitor.main.locator(f"figure.chart:has(h2:text-is('{chart}')) .chart-picture")
    return str(await picture.get_attribute("aria-label")).removeprefix(f"{chart}. ")


async def test_every_chart_is_drawn_of_what_the_train_steps_measured(
    engine: AsyncEngine, database_url: str, browser: Browser, tmp_path: Path
) -> None:
    run = await trained(engine, "one")
    await evaluated(engine, run, "held", 3, {"coding": (1.0, 0.0)})
    async with looking("one", database_url, browser, tmp_path) as visitor:
        await visitor.open("/run")
        await expect(visitor.main.locator(".chart canvas").first).to_be_attached()
        assert await visitor.texts("figure.chart h2") == list(TEXTS)
        texts: dict[str, str] = {}
        for chart, expected in TEXTS.items():
            figure = visitor.main.locator(f"figure.chart:has(h2:text-is('{chart}'))")
            ink = await visitor.ink(figure)
            assert ink and min(ink.values()) > 0, f"{chart} draws {ink}"
            text = await text_of(visitor, chart)
            texts[chart] = text[: len(expected)] if expected.endswith(": ") else text
        assert texts == TEXTS
        costs = visitor.main.locator(".spent")
        await expect(costs).to_have_count(2)
        await expect(costs.nth(1)).to_contain_text("forward")
        await expect(costs.nth(1)).to_contain_text("1.5 s of CPU time each")


async def test_a_line_that_is_hidden_is_not_drawn_and_another_theme_has_other_colours(
    engine: AsyncEngine, database_url: str, browser: Browser, tmp_path: Path
) -> None:
    await trained(engine, "one")
    async with looking("one", database_url, browser, tmp_path) as visitor:
        await visitor.open("/run")
        figure = visitor.main.locator("figure.chart:has(h2:text-is('Loss and gradient norm'))")
        await expect(figure.locator("canvas")).to_be_attached()
        line = figure.get_by_role("button", name="gradient norm")
        assert (await visitor.ink(figure))["gradient norm"] > 0
        await line.click()
        await expect(line).to_have_attribute("aria-pressed", "false")
        assert "gradient norm" not in await text_of(visitor, "Loss and gradient norm")
        hidden = await visitor.ink(figure)
        assert hidden["gradient norm"] == 0 < hidden["loss"]
        await line.click()
        await visitor.press("t")
        await expect(visitor.page.locator("html")).to_have_attribute("data-theme", "dark")
        await expect(visitor.page.get_by_role("button", name="Light theme")).to_be_visible()
        both = await visitor.ink(figure)
        assert min(both.values()) > 0, "in the colours of the dark theme"


async def test_runs_of_one_database_are_compared_and_the_address_keeps_the_comparison(
    engine: AsyncEngine, database_url: str, browser: Browser, tmp_path: Path
) -> None:
    await trained(engine, "one")
    await trained(engine, "two", loss=0.25)
    async with looking("one", database_url, browser, tmp_path) as visitor:
        await visitor.open("/run")
        await expect(visitor.main.locator(".chart canvas").first).to_be_attached()
        assert "one" not in await text_of(visitor, "Loss and gradient norm")
        await visitor.main.get_by_label("two", exact=True).check()
        lines = visitor.main.locator("figure.chart:has(h2:text-is('Loss and gradient norm')) .legend-item")
        await expect(lines).to_have_count(4)
        both = await text_of(visitor, "Loss and gradient norm")
        assert "one: loss: 0.5" in both and "two: loss: 0.25" in both
        address = visitor.page.url
        assert "compare=two" in address
        await visitor.open(address.removeprefix(visitor.world.address))
        await expect(lines).to_have_count(4)
        await visitor.main.get_by_label("two", exact=True).uncheck()
        await expect(lines).to_have_count(2)


async def test_an_empty_run_has_pages_that_say_so(
    engine: AsyncEngine, database_url: str, browser: Browser, tmp_path: Path
) -> None:
    await builders.make_run(engine, small("fresh"))
    async with looking("fresh", database_url, browser, tmp_path) as visitor:
        for path, sentence in PAGES.items():
            await visitor.open(path)
            await expect(visitor.main).to_contain_text(sentence)
            assert await visitor.overflow() == []
