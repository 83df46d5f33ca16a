"""The dashboard by the keyboard alone."""

import re

import pytest
from playwright.async_api import expect

from tests.browser.visitor import Visitor
from tests.browser.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(300), pytest.mark.tier("browser")]

WALK = 60  # presses of Tab that reach the first row of any list


async def tab_to(visitor: Visitor, selector: str) -> None:
    """Press Tab until the focus is inside an element that matches."""
    for _ in range(WALK):
        await visitor.press("Tab")
        assert await visitor.visible_focus(), "the focus cannot be seen"
        if await visitor.page.evaluate(
            "(selector) => document.activeElement.closest(selector) !== null", selector
        ):
            return
    raise AssertionError(f"{WALK} presses of Tab do not reach {selector}")


async def test_g_and_a_letter_go_to_every_page(visitor: Visitor) -> None:
    await visitor.open("/run")
    for letter, path in (
        ("q", "/queue"),
        ("g", "/groups"),
        ("o", "/rollouts"),
        ("b", "/batches"),
        ("s", "/system"),
        ("r", "/run"),
    ):
        await visitor.chord(letter, path)


async def test_a_question_mark_shows_the_keys_of_the_page_and_escape_hides_them(
    world: World, visitor: Visitor
) -> None:
    await visitor.open(f"/rollouts/{world.ids['rollout']}")
    await expect(visitor.main.locator(".rail-row").first).to_be_visible()
    await visitor.press("?")
    shown = visitor.page.locator("dialog.keys")
    for what in ("go to Queue", "search", "light or dark", "next step", "next rollout of the group"):
        await expect(shown).to_contain_text(what)
    await visitor.press("g", "q")  # keys are for the dialog now
    await expect(shown).to_be_visible()
    await visitor.press("Escape")
    await expect(shown).to_be_hidden()


async def test_a_slash_goes_to_the_search_where_letters_are_letters(visitor: Visitor) -> None:
    for path in ("/groups", "/rollouts"):
        await visitor.open(path)
        await expect(visitor.main.locator("tbody tr").first).to_be_visible()
        await visitor.press("/")
        field = visitor.main.locator("input[type=search]")
        await expect(field).to_be_focused()
        assert await visitor.visible_focus()
        await visitor.press("g", "q", "?")
        await expect(field).to_have_value("gq?")
        await expect(visitor.page).to_have_url(re.compile(rf"{path}\?purpose=train&(task|text)=gq%3F$"))
        await visitor.press("Escape")
        await expect(field).not_to_be_focused()


async def test_the_rows_of_a_list_are_walked_and_opened(visitor: Visitor) -> None:
    await visitor.open("/groups?state=trained")
    rows = visitor.main.locator("tbody tr")
    await expect(rows.nth(2)).to_be_visible()
    await tab_to(visitor, "tbody tr")
    for key, at in (("ArrowDown", 1), ("j", 2), ("k", 1), ("ArrowUp", 0), ("j", 1)):
        await visitor.press(key)
        await expect(rows.nth(at).locator("a").first).to_be_focused()
    wanted = await rows.nth(1).get_attribute("data-key")
    await visitor.press("Enter")
    await visitor.at(f"/groups/{wanted}")


async def test_the_first_press_of_tab_offers_to_skip_the_navigation(visitor: Visitor) -> None:
    await visitor.open("/queue")
    await visitor.press("Tab")
    skip = visitor.page.locator(".skip")
    await expect(skip).to_be_focused()
    await expect(skip).to_be_in_viewport()
    await visitor.press("Enter")
    await expect(visitor.main).to_be_focused()
    await visitor.at("/queue#main")


async def test_arrow_keys_walk_the_positions_of_the_queue_and_enter_opens_the_group(
    world: World, visitor: Visitor
) -> None:
    await visitor.open("/queue")
    await expect(visitor.main.locator(".strip-cell").first).to_be_attached()
    detail = visitor.main.locator(".strip-detail")
    await visitor.press("ArrowRight")
    first = str(await detail.locator("a").first.inner_text())
    await visitor.press("ArrowLeft")
    await visitor.press("k")
    for _ in range(30):  # to the first position
        await visitor.press("ArrowLeft")
    seq = await world.value("select min(seq) from groups where run_id = :run and seq is not null")
    group = await world.value("select group_id from groups where run_id = :run and seq = :seq", seq=seq)
    await expect(detail.locator("a").first).to_have_text(f"group {group}")
    await visitor.press("j")
    await expect(detail.locator("a").first).not_to_have_text(f"group {group}")
    assert first.startswith("group ")
    await visitor.press("k", "Enter")
    await visitor.at(f"/groups/{group}")


async def test_steps_rollouts_and_views_are_walked_without_a_mouse(world: World, visitor: Visitor) -> None:
    group, rollout = world.ids["group"], world.ids["rollout"]
    await visitor.open(f"/groups/{group}")
    await expect(visitor.main.locator("tbody tr").first).to_be_visible()
    await visitor.press("Enter")
    await visitor.at(f"/rollouts/{rollout}")
    here = visitor.main.locator(".rail-row.here")
    await expect(visitor.main.locator(".rail-row")).to_have_count(4)
    await visitor.press("j")
    await expect(here).to_have_count(1)
    start = int(str(await here.get_attribute("data-idx")))
    await visitor.press("j")
    await expect(here).to_have_attribute("data-idx", str(start + 1))
    await expect(visitor.page).to_have_url(re.compile(rf"step={start + 1}"))
    await visitor.press("k")
    await expect(here).to_have_attribute("data-idx", str(start))
    for number, view in (("2", "tokens"), ("3", "timings"), ("4", "verdict"), ("5", "files")):
        await visitor.press(number)
        await expect(visitor.page).to_have_url(re.compile(f"view={view}"))
        await expect(visitor.main.locator('.tabs [aria-current="true"]')).to_have_attribute("data-view", view)
    await visitor.press("1", "ArrowRight")
    other = await world.value(
        "select max(rollout_id) from rollouts where run_id = :run and group_id = :group", group=group
    )
    await visitor.at(f"/rollouts/{other}")
    await expect(visitor.main.locator(".rail-row").first).to_be_visible()
    await visitor.press("u")
    await visitor.at(f"/groups/{group}")


async def test_the_tokens_of_a_step_are_walked(world: World, visitor: Visitor) -> None:
    rollout, step = await world.longest_step()
    await visitor.open(f"/rollouts/{rollout}?view=tokens&step={step}")
    first = visitor.main.locator(".k.first")
    await expect(first).to_be_visible()
    await visitor.main.locator(".token-flow").focus()
    inspector = visitor.main.locator(".inspector")
    for key, at in (("ArrowRight", 0), ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1)):
        await visitor.press(key)
        await expect(inspector).to_contain_text(f"action token {at}")


async def test_the_prefix_tree_is_walked_by_arrow_keys(visitor: Visitor) -> None:
    await visitor.open("/batches/1")
    tree = visitor.main.locator(".icicle")
    await expect(visitor.main.locator(".tree-node").first).to_be_attached()
    await tree.focus()
    before = await visitor.main.locator(".tree-detail").inner_text()
    await visitor.press("ArrowDown")
    await expect(visitor.main.locator(".tree-detail")).not_to_have_text(before)
    await visitor.press("o")
    await expect(visitor.page).to_have_url(re.compile(r"/rollouts/\d+\?step=\d+"))
