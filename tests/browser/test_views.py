"""Every view, on a real run: opened by its address and by following links, on wide and narrow screens, by day and by night."""

import re
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.browser.visitor import LARGE, NARROW, PHONE, WIDE, Visitor
from tests.browser.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(300), pytest.mark.tier("browser")]

# View → its address and an element that is there once it shows its data.
VIEWS = {
    "run": ("/run", ".chart canvas"),
    "run-by-time": ("/run?x=time&smooth=1&domain=coding", ".chart canvas"),
    "queue": ("/queue", ".strip-cell"),
    "groups": ("/groups", "tbody tr"),
    "groups-filtered": ("/groups?state=trained&domain=coding", "tbody tr"),
    "group": ("/groups/{group}", ".difference"),
    "group-dead": ("/groups/{dead}", "tbody tr"),
    "group-hostile": ("/groups/{hostile}", ".answers"),
    "rollouts": ("/rollouts", "tbody tr"),
    "rollouts-found": ("/rollouts?text=Say", "mark"),
    "rollout": ("/rollouts/{rollout}", ".turn.policy"),
    "rollout-tokens": ("/rollouts/{rollout}?view=tokens&step=2", ".k.first"),
    "rollout-timings": ("/rollouts/{rollout}?view=timings", ".bar.generation"),
    "rollout-verdict": ("/rollouts/{rollout}?view=verdict", ".log"),
    "rollout-files": ("/rollouts/{rollout}?view=files", ".log"),
    "rollout-hostile": ("/rollouts/{hostile_rollout}", ".call"),
    "rollout-hostile-tokens": ("/rollouts/{hostile_rollout}?view=tokens", ".k"),
    "batches": ("/batches", "tbody tr"),
    "batch": ("/batches/1", ".tree-node"),
    "system": ("/system", "tr[data-key=g{dead}]"),
}
UNFIT = re.compile(r"\[object |undefined|NaN|null")
# The page's own words: without the texts of tasks, policies and tools.
OWN = """(main) => {
  const copy = main.cloneNode(true);
  for (const one of copy.querySelectorAll("pre, .verbatim, .k, .tree-text, mark, code")) one.remove();
  return copy.textContent;
}"""
BATCH = "select b.batch_no from batch_items i join batches b using (batch_id) where i.group_id = :group and not i.voided"


async def test_on_a_narrow_screen_every_page_of_the_navigation_can_be_seen(visitor: Visitor) -> None:
    await visitor.open("/run")
    await visitor.resized(NARROW, "light")
    for link in await visitor.page.locator("nav[aria-label=Pages] a").all():
        box = await link.bounding_box()
        assert box and box["x"] >= 0 and box["x"] + box["width"] <= NARROW[0], await link.inner_text()


async def test_lists_begin_with_training_and_show_the_rest_at_one_click(
    world: World, visitor: Visitor
) -> None:
    await visitor.open("/groups")
    hostile = visitor.main.locator(f'tr[data-key="{world.ids["hostile"]}"]')
    await expect(visitor.main.locator(f'tr[data-key="{world.ids["group"]}"]')).to_be_visible()
    await expect(hostile).to_have_count(0)
    await visitor.main.get_by_role("button", name="recordings").click()
    await expect(hostile).to_be_visible()
    await visitor.main.get_by_role("button", name="all", exact=True).click()
    await expect(hostile).to_be_visible()
    await expect(visitor.main.get_by_role("button", name="all", exact=True)).to_have_attribute(
        "aria-pressed", "true"
    )
    await expect(visitor.main.locator(f'tr[data-key="{world.ids["group"]}"]')).to_be_visible()


@pytest.mark.parametrize("view", VIEWS)
async def test_every_view_opens_by_its_address_and_fits_wide_and_narrow_screens_by_day_and_by_night(
    world: World, visitor: Visitor, pictures: Path | None, view: str
) -> None:
    path, there = VIEWS[view]
    await visitor.open(path.format(**world.ids))
    await expect(visitor.main.locator(there.format(**world.ids)).first).to_be_attached()
    assert len(await visitor.main.inner_text()) > 100, "it is blank"
    assert not UNFIT.findall(await visitor.main.evaluate(OWN)), "a value that is for programs"
    assert await visitor.main.locator(".message").count() == 0, await visitor.main.inner_text()
    assert (await visitor.page.title()).endswith(" · Penstock")
    for size in (LARGE, WIDE, PHONE, NARROW):
        for theme in ("light", "dark"):
            await visitor.resized(size, theme)
            await visitor.picture(pictures, f"{view}-{size[0]}-{theme}")
            assert await visitor.overflow() == [], f"{view} is wider than {size[0]} px"
            assert await visitor.orphans() == [], f"{view} has a tile alone in its row at {size[0]} px"
            assert await visitor.colourless() == [], f"{view} has invisible swatches"
            if size in (PHONE, NARROW):
                assert await visitor.outside() == [], f"{view} has content outside {size[0]} px"
                assert await visitor.cramped() == [], f"{view} has texts without room at {size[0]} px"
            assert await visitor.faint() == [], f"{view} has texts that are hard to read, {theme}"


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
async def test_every_page_of_the_navigation_can_be_reached_on_every_screen(
    visitor: Visitor, size: tuple[int, int]
) -> None:
    await visitor.resized(size, "light")
    await visitor.open("/")
    links = visitor.page.locator("nav[aria-label=Pages] a")
    assert [text.strip() for text in await links.all_inner_texts()] == [
        "Run",
        "Queue",
        "Groups",
        "Rollouts",
        "Batches",
        "System",
    ]
    for link in await links.all():
        await link.scroll_into_view_if_needed()
        box = await link.bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= size[0], (
            await link.inner_text()
        )
        await link.click()
        await visitor.at(str(await link.get_attribute("data-path")))
        await expect(link).to_have_attribute("aria-current", "page")
    choice = visitor.page.get_by_label("Run", exact=True)
    box = await choice.bounding_box()
    assert box is not None and box["x"] + box["width"] <= size[0]
    await expect(choice).to_have_value("visited")


async def test_links_lead_from_a_list_to_a_group_its_rollout_its_batch_and_back(
    world: World, visitor: Visitor
) -> None:
    group, rollout = world.ids["group"], world.ids["rollout"]
    await visitor.open("/groups?state=trained")
    await visitor.main.locator(f'a[href^="/groups/{group}"]').first.click()
    await visitor.at(f"/groups/{group}")
    await visitor.main.locator(f'a[href^="/rollouts/{rollout}"]').first.click()
    await visitor.at(f"/rollouts/{rollout}")
    batch = visitor.main.locator('a[href^="/batches/"]').first
    number = await world.value(BATCH, group=group)
    await expect(batch).to_have_text(f"batch {number}")
    await batch.click()
    await visitor.at(f"/batches/{number}")
    await visitor.main.locator(f'tr[data-key="{group}"] a').first.click()
    await visitor.at(f"/groups/{group}")
    for path in (f"/batches/{number}", f"/rollouts/{rollout}", f"/groups/{group}", "/groups"):
        await visitor.page.go_back()
        await visitor.at(path)


async def test_the_theme_that_a_person_chose_stays(visitor: Visitor) -> None:
    await visitor.open("/queue")
    ground = "getComputedStyle(document.body).backgroundColor"
    by_day = await visitor.page.evaluate(ground)
    await visitor.page.get_by_role("button", name=re.compile("Dark theme")).click()
    by_night = await visitor.page.evaluate(ground)
    assert by_night != by_day
    await visitor.open("/system")
    assert await visitor.page.evaluate(ground) == by_night
    await visitor.press("t")
    assert await visitor.page.evaluate(ground) == by_day
