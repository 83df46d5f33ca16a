"""A trajectory's texts and tokens at their edges: ten million characters, bytes, a request as curl, masked and clipped text."""

from pathlib import Path

import msgspec
import pytest
from playwright.async_api import Browser, expect
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.ids import logprobs_from_bytes, logprobs_to_bytes
from tests import builders
from tests.browser.alone import looking
from tests.integration.pool.rig import Tree, a_row_in_every_table, record, running, small

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("browser")]

LONG = 10_000_000
BYTES = "\x7fELF\x02\x01\x00\ufffd" * 512


async def test_a_long_observation_is_cut_and_shown_whole_on_request_and_bytes_are_named(
    engine: AsyncEngine, database_url: str, browser: Browser, tmp_path: Path
) -> None:
    run = await builders.make_run(engine, small("long"))
    [lease] = await running(engine, run, members=1)
    [one] = Tree(2).grow(run.name, lease, 1)
    added = [
        {"role": "tool", "content": "0123456789" * (LONG // 10)},
        {"role": "tool", "content": BYTES.replace("\x00", "\x01")},
    ]
    await record(engine, run, [msgspec.structs.replace(one.event, appended=added)])
    async with looking("long", database_url, browser, tmp_path) as visitor:
        await visitor.open(f"/rollouts/{lease.rollout_id}")
        step = visitor.main.locator("#step-0")
        more = step.get_by_role("button", name="Show all 10M characters")
        await expect(more).to_be_visible()
        assert len(await step.inner_text()) < 30_000
        await expect(step).to_contain_text("Binary: 4.1k characters that are not text.")
        assert "ELF" not in await step.inner_text()
        await more.click()
        await expect(step.locator("pre.block").nth(LONG // 50_000 - 1)).to_be_attached()
        length = (
            "one => [...one.querySelectorAll('pre')].reduce((sum, pre) => sum + pre.textContent.length, 0)"
        )
        assert await step.evaluate(length) >= LONG
        await step.get_by_role("button", name="Show them spelled out").click()
        await expect(step).to_contain_text("␡ELF␂␁␁")
        assert await visitor.overflow() == []


async def test_the_request_of_a_step_is_copied_as_curl(
    engine: AsyncEngine, database_url: str, browser: Browser, tmp_path: Path
) -> None:
    run = await a_row_in_every_table(engine)
    async with looking(run.name, database_url, browser, tmp_path) as visitor:
        await visitor.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await visitor.open("/rollouts/1")
        button = visitor.main.locator("#step-1 .step-tools button[title^='copy the request']")
        await button.click()
        await expect(button).to_have_text("Copied")
        copied = await visitor.page.evaluate("navigator.clipboard.readText()")
        answer = await visitor.page.context.request.get(
            f"{visitor.world.address}/api/rollouts/1/curl?attempt=1&step=1"
        )
        assert copied == (await answer.json())["text"] and copied.startswith("curl ")


async def test_tokens_are_dim_where_they_do_not_train_and_named_where_their_ratio_is_outside_bounds(
    engine: AsyncEngine, database_url: str, browser: Browser, tmp_path: Path
) -> None:
    run = await a_row_in_every_table(engine)  # step 0 has a mark
    async with engine.begin() as connection:
        where = "run_id = :run AND rollout_id = 1 AND attempt = 1 AND idx = 1"
        step = (
            await connection.execute(
                text(f"SELECT state_len, full_len, logprobs FROM steps WHERE {where}"), {"run": run.run_id}
            )
        ).one()
        trained = logprobs_from_bytes(step.logprobs).copy()
        trained[0] += 2.0  # a ratio of e² = 7.4, above the 5 of ratio_max
        await connection.execute(
            text(
                "INSERT INTO trained_steps (run_id, rollout_id, attempt, idx, batch_id, part, logprobs) VALUES (:run, 1, 1, 1, 1, 0, :own)"
            ),
            {"run": run.run_id, "own": logprobs_to_bytes(trained)},
        )
    async with looking(run.name, database_url, browser, tmp_path) as visitor:
        tokens = visitor.main.locator(".token-flow .k")
        inspector = visitor.main.locator(".inspector")
        await visitor.open("/rollouts/1?view=tokens&step=1")
        await expect(visitor.main.locator(".k.first")).to_be_visible()
        assert await tokens.count() == step.full_len
        classes = [str(await token.get_attribute("class")).split() for token in await tokens.all()]
        assert [("off" in names) for names in classes] == [at < step.state_len for at in range(step.full_len)]
        assert [at for at, names in enumerate(classes) if "clipped" in names] == [step.state_len]
        await tokens.nth(step.state_len).click()
        await expect(inspector).to_contain_text("7.389 outside bounds")
        await expect(inspector).to_contain_text("yes")
        await visitor.open("/rollouts/1?view=tokens&step=0")
        await expect(visitor.main.locator(".token-top")).to_contain_text("It does not train: auxiliary.")
        await expect(visitor.main.locator(".k.first")).to_be_visible()
        assert await tokens.count() == await visitor.main.locator(".token-flow .k.off").count() > 0
