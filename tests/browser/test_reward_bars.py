"""How a reward is drawn and explained: its parts, a process that pays or costs, and a cap."""

from pathlib import Path

import pytest
from playwright.async_api import Browser
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.browser.alone import looking
from tests.integration.pool.rig import a_row_in_every_table

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(300), pytest.mark.tier("browser")]

DRAWN = """async () => {
  const { render } = await import("/static/vendor/preact.js");
  const { rewardBar, rewardLegend, scaleOf } = await import("/static/trajectory/reward.js");
  const { Reward } = await import("/static/trajectory/verdict.js");
  const { html } = await import("/static/vendor/preact.js");
  const within = (drawn) => {
    const host = document.createElement("div");
    render(drawn, host);
    return host;
  };
  const part = (one) => {
    const [x, width] = ["x", "width"].map((name) => Number(one.getAttribute(name)));
    return [one.getAttribute("class"), [x, x + width]];
  };
  const bar = (parts) => {
    const found = within(rewardBar(parts, scaleOf([parts]), 100, 10)).querySelectorAll("rect");
    return Object.fromEntries([...found].map(part));
  };
  const reward = {
    total: 1.1, performance: 1, beta: 0.5, speed: 0.8, alpha: 0.5, process: -0.6, baseline: null, divisor: null, t_agent: 4, t_base: 8,
    t_base_origin: "siblings", process_by_signal: { language_mixing: -0.3, tool_errors: 0 }, silent: "equal returns", sd_log_t: 0.1, speed_noise: 0.2,
  };
  const lines = (changes) => {
    const host = within(html`<${Reward} reward=${{ ...reward, ...changes }} />`);
    return [...host.querySelectorAll(".reward-line > .soft")].map((one) => one.textContent);
  };
  return {
    pays: bar({ performance: 1, speed_part: 0.5, process_part: 0.5, total: 2 }),
    costs: bar({ performance: 0.5, speed_part: 0, process_part: -1, total: -0.5 }),
    legend: [...within(rewardLegend).querySelectorAll(".chip")].map((one) => one.textContent),
    capped: lines({}),
    whole: lines({ alpha: 1, t_base: null, silent: null }),
    unknown: lines({ t_base_origin: null, process_by_signal: {}, silent: null }),
  };
}"""


async def test_each_part_of_a_reward_is_drawn_at_its_place_and_explained(
    engine: AsyncEngine, database_url: str, browser: Browser, tmp_path: Path
) -> None:
    await a_row_in_every_table(engine)
    async with looking("full", database_url, browser, tmp_path) as visitor:
        await visitor.open("/run")
        drawn = await visitor.page.evaluate(DRAWN)
    pays, costs = drawn["pays"], drawn["costs"]
    assert (pays["part-performance"], pays["part-speed"], pays["part-process"]) == (
        [0, 50],
        [50, 75],
        [75, 100],
    )
    assert (costs["part-process"], costs["part-performance"]) == ([0, 50], [50, 75])
    assert "part-speed" not in costs
    assert drawn["legend"] == ["performance", "speed", "process"]
    assert drawn["capped"] == [
        "speed: 4.0 s against 8.0 s, the median of its successful siblings",
        "process: language mixing −0.3, each already times 0.5 by the cap",
        "the group gives no training signal: equal returns; sd(log T) 0.1, noise 0.2",
    ]
    assert drawn["whole"] == ["process: language mixing −0.3"]
    assert drawn["unknown"] == ["speed: 4.0 s against 8.0 s, origin not recorded"]
