"""An open page shows new events, without a reload."""

import pytest
from playwright.async_api import Browser, expect

from tests.browser.visitor import Visitor, visiting
from tests.browser.world import World, a_task

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(300), pytest.mark.tier("browser")]

MARK = "() => { window.sameDocument = true; }"
HOLD = "() => { window.held = document.activeElement; }"
HELD = "window.held !== document.body && window.held === document.activeElement"


async def test_a_task_that_is_published_appears_and_trains_on_pages_that_are_open(
    world: World, visitor: Visitor, browser: Browser
) -> None:
    async with visiting(world, browser) as other:
        await other.enter()
        await other.open("/batches")
        await visitor.open("/queue")
        await expect(visitor.light).to_have_attribute("data-state", "live")
        await expect(visitor.main.locator(".strip-cell").first).to_be_attached()
        committed = other.main.locator("tbody tr", has_text="committed")
        cells, rows = await visitor.main.locator(".strip-cell").count(), await committed.count()
        for window in (visitor, other):
            await window.page.evaluate(MARK)
        groups = await world.submit(a_task("Say it live."), a_task("Say it live again."))
        await expect(visitor.main.locator(".strip-cell")).to_have_count(cells + 2)
        for group in groups:
            await world.until_group(group, "trained")
            seq = await world.value(
                "select seq from groups where run_id = :run and group_id = :group", group=group
            )
            title = visitor.main.locator(f'.strip-hit[data-seq="{seq}"] title')
            await expect(title).to_contain_text(f"group {group}")
            await expect(title).to_contain_text("trained")
        batch = "select max(b.batch_no) from batch_items i join batches b using (batch_id) where i.group_id = any(:groups) and not i.voided"
        row = other.main.locator(f'tr[data-key="{await world.value(batch, groups=groups)}"]')
        await expect(row).to_contain_text("committed")
        await expect(row).to_contain_text("2 of 2")
        assert await committed.count() > rows
        for window in (visitor, other):
            assert await window.page.evaluate("window.sameDocument")
        assert other.complaints == []


async def test_a_list_that_is_open_shows_new_groups_and_rollouts(
    world: World, visitor: Visitor, browser: Browser
) -> None:
    async with visiting(world, browser) as other:
        await other.enter()
        await other.open("/rollouts?purpose=record")
        await visitor.open("/groups?purpose=record")
        for window in (visitor, other):
            await expect(window.main.locator("tbody tr").first).to_be_visible()
            await window.page.evaluate(MARK)
        (group,) = await world.submit(a_task("For the lists."), purpose="record")
        await expect(visitor.main.locator(f'tr[data-key="{group}"]')).to_contain_text("scored")
        rollout = await world.value(
            "select min(rollout_id) from rollouts where run_id = :run and group_id = :group", group=group
        )
        await expect(other.main.locator(f'tr[data-key="{rollout}"]')).to_contain_text("verified")
        for window in (visitor, other):
            assert await window.page.evaluate("window.sameDocument")
        assert other.complaints == []


async def test_a_trajectory_shows_a_step_as_soon_as_it_is_recorded(world: World, visitor: Visitor) -> None:
    go = world.stack.directory / "tmp" / f"go-{world.published}"
    (group,) = await world.submit(a_task(f"Wait for {go}"), scaffold="Waiting", purpose="record")
    rollout = "select min(rollout_id) from rollouts where run_id = :run and group_id = :group"
    of = "(select rollout_id from rollouts where run_id = :run and group_id = :group)"
    await world.until(
        f"select count(*) = 1 from steps where run_id = :run and rollout_id in {of}",
        "its first step is stored",
        group=group,
    )
    await visitor.open(f"/rollouts/{await world.value(rollout, group=group)}")
    await expect(visitor.heading).to_contain_text("running")
    await expect(visitor.main.locator(".rail-row")).to_have_count(1)
    await visitor.page.evaluate(MARK)
    go.touch()
    await expect(visitor.main.locator(".rail-row")).to_have_count(2)
    await expect(visitor.main.locator("#step-1")).to_contain_text("Now go on.")
    await expect(visitor.heading).to_contain_text("verified")
    await expect(visitor.main.locator(".formula")).to_be_visible()
    assert await visitor.page.evaluate("window.sameDocument")


async def test_the_focused_element_keeps_the_focus_while_the_page_is_redrawn(
    world: World, visitor: Visitor
) -> None:
    await visitor.open("/queue")
    await visitor.main.get_by_role("button", name="Pause admission").focus()
    await visitor.page.evaluate(HOLD)
    for group in await world.submit(a_task("Say it and look."), a_task("Say it and look again.")):
        await world.until_group(group, "trained")
        seq = await world.value(
            "select seq from groups where run_id = :run and group_id = :group", group=group
        )
        title = visitor.main.locator(f'.strip-hit[data-seq="{seq}"] title')
        await expect(title).to_contain_text("trained")
    assert await visitor.page.evaluate(HELD)


async def test_a_click_holds_over_five_seconds_of_live_updates(world: World, visitor: Visitor) -> None:
    await visitor.open("/system")
    row = visitor.main.locator("tr", has_text="runner").filter(has=visitor.page.get_by_role("button")).first
    button = row.get_by_role("button", name="Drain")
    await button.focus()
    await visitor.page.evaluate(HOLD)
    await button.hover()
    await visitor.page.mouse.down()
    for _ in range(5):  # new data may read the same: heartbeats can come in step with the looks
        await visitor.page.wait_for_event("response", lambda answer: "/api/system" in answer.url)
    await visitor.page.mouse.up()
    dialog = visitor.page.locator("dialog.order[open]")
    await expect(dialog).to_be_visible()
    await visitor.press("Escape")
    await expect(dialog).to_be_hidden()
    assert await visitor.page.evaluate(HELD)
