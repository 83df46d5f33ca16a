"""A visitor without access, and a visitor to a missing page, read why."""

import re

import pytest
from playwright.async_api import Browser, expect

from tests.browser.visitor import Visitor, visiting
from tests.browser.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(300), pytest.mark.tier("browser")]

NOT_OURS = "Failed to load resource"  # Chromium reports every refusal with this text


@pytest.mark.parametrize("query", ["", "?token=wrong", "?token="])
async def test_without_the_right_token_a_page_says_how_to_come_in_and_nothing_of_the_run(
    world: World, browser: Browser, query: str
) -> None:
    async with visiting(world, browser) as stranger:
        stranger.expected = (NOT_OURS,)
        for path in ("/", "/run", f"/groups/{world.ids['group']}", f"/rollouts/{world.ids['rollout']}"):
            answer = await stranger.page.goto(world.address + path + query)
            assert answer is not None and answer.status == 401
            await expect(stranger.main).to_contain_text("open the URL that `penstock up`", ignore_case=True)
            assert "visited" not in await stranger.page.content()
            assert await stranger.overflow() == []
        answer = await stranger.page.goto(world.address + "/api/run" + query)
        assert answer is not None and answer.status == 401 and "visited" not in await answer.text()
        assert stranger.complaints == []


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/nowhere", "no such page"),
        ("/groups/999999", "Group 999999 does not exist in this run"),
        ("/groups/x", "a group is named by its number"),
        ("/rollouts/999999", "Rollout 999999 does not exist"),
        ("/rollouts/%3Cscript%3E", "Rollout '<script>' does not exist"),
        ("/batches/999999", "Batch 999999 does not exist"),
        ("/run?run=unknown", "Run 'unknown' does not exist in this database"),
        ("/run?run=%3Cb%3E", "cannot name a run"),
    ],
)
async def test_a_missing_item_is_reported_in_one_sentence(visitor: Visitor, path: str, sentence: str) -> None:
    visitor.expected = (NOT_OURS,)
    await visitor.open(path)
    await expect(visitor.main).to_contain_text(sentence)
    assert "Traceback" not in await visitor.main.inner_text()
    await visitor.chord("q", "/queue")


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/groups?state=nonsense", "state must be one of"),
        ("/rollouts?reward_min=much", "reward_min must be a number, such as 0.5, not 'much'"),
        ("/rollouts?group_id=1.5", "group_id must be a whole number"),
        ("/rollouts?failure_class=%3Cimg%3E", "failure_class must be one of"),
    ],
)
async def test_a_filter_that_cannot_be_read_is_named(visitor: Visitor, path: str, sentence: str) -> None:
    visitor.expected = (NOT_OURS,)
    await visitor.open(path)
    await expect(visitor.main.locator(".status")).to_contain_text(re.compile(re.escape(sentence)))


async def test_a_step_and_an_attempt_that_are_not_there_leave_a_page_that_can_be_read(
    world: World, visitor: Visitor
) -> None:
    visitor.expected = (NOT_OURS,)
    await visitor.open(f"/rollouts/{world.ids['rollout']}?step=77")
    await expect(visitor.main.locator(".rail-row")).to_have_count(4)
    await visitor.open(f"/rollouts/{world.ids['rollout']}?attempt=7")
    await expect(visitor.main).to_contain_text("attempt 7")
