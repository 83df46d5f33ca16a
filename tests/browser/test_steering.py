"""A person's order on the page is carried out and recorded."""

import pytest
from playwright.async_api import expect

from tests.browser.visitor import Visitor
from tests.browser.world import World, a_task

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(300), pytest.mark.tier("browser")]

OPEN = "select admission_open from queue where run_id = :run"
ACTIONS = "select what, target, who, reason from actions where run_id = :run and action_id > :since order by action_id"
AGAIN = """
select count(*) from groups
 where run_id = :run and group_id <> :group and submission like (select submission from groups where group_id = :group) || '%'"""


async def newest(world: World) -> int:
    return int(await world.value("select coalesce(max(action_id), 0) from actions"))


async def ordered(visitor: Visitor, verb: str, reason: str) -> None:
    """Enter a reason in the open dialog, and confirm."""
    dialog = visitor.page.locator("dialog.order[open]")
    await dialog.get_by_label("Reason").fill(reason)
    await dialog.get_by_role("button", name=verb, exact=True).click()
    await expect(dialog).to_be_hidden()


async def test_admission_is_paused_and_resumed(world: World, visitor: Visitor) -> None:
    since = await newest(world)
    await visitor.open("/queue")
    await visitor.main.get_by_role("button", name="Pause admission").click()
    await ordered(visitor, "Pause", "a look by <b>hand</b>")
    assert not await world.value(OPEN)
    await expect(visitor.main).to_contain_text("Admission is closed")
    await expect(visitor.main).to_contain_text("a look by <b>hand</b>")
    await visitor.main.get_by_role("button", name="Resume admission").click()
    await ordered(visitor, "Resume", "seen enough")
    assert await world.value(OPEN)
    await expect(visitor.main.get_by_role("button", name="Pause admission")).to_be_visible()
    done = await world.seen.rows(ACTIONS, since=since)
    assert [(row.what, row.reason) for row in done] == [
        ("pause", "a look by <b>hand</b>"),
        ("resume", "seen enough"),
    ]
    assert all(row.who.endswith("(dashboard)") for row in done)
    await visitor.open("/system")
    await expect(visitor.main.locator("table", has_text="seen enough")).to_contain_text(
        "a look by <b>hand</b>"
    )


async def test_a_runner_and_a_server_are_drained_and_work_again(world: World, visitor: Visitor) -> None:
    since = await newest(world)
    await visitor.open("/system")
    runner = (
        visitor.main.locator("tr", has_text="runner").filter(has=visitor.page.get_by_role("button")).first
    )
    await runner.get_by_role("button", name="Drain").click()
    await ordered(visitor, "Drain", "an upgrade")
    await expect(runner).to_contain_text("drain", timeout=30_000)
    await runner.get_by_role("button", name="Work again").click()
    await ordered(visitor, "Work again", "upgraded")
    await expect(runner.get_by_role("button", name="Drain")).to_be_visible(timeout=30_000)
    url = await world.value(
        "select url from rollout_servers where run_id = :run and lease_until > now() limit 1"
    )
    server = (
        visitor.main.locator("tr", has_text=str(url)).filter(has=visitor.page.get_by_role("button")).first
    )
    await server.get_by_role("button", name="Drain").click()
    await ordered(visitor, "Drain", "a new driver")
    await expect(server).to_contain_text("drained", timeout=30_000)
    await server.get_by_role("button", name="Work again").click()
    await ordered(visitor, "Work again", "done")
    done = await world.seen.rows(ACTIONS, since=since)
    assert [(row.what, row.reason) for row in done] == [
        ("drain", "an upgrade"),
        ("undrain", "upgraded"),
        ("drain", "a new driver"),
        ("undrain", "done"),
    ]


async def test_an_order_that_is_not_confirmed_is_none(world: World, visitor: Visitor) -> None:
    since = await newest(world)
    await visitor.open("/queue")
    button = visitor.main.get_by_role("button", name="Pause admission")
    for leave in ("Escape", "Leave it"):
        await button.click()
        dialog = visitor.page.locator("dialog.order[open]")
        await expect(dialog.get_by_label("Reason")).to_be_focused()
        if leave == "Escape":
            await visitor.press("Escape")
        else:
            await dialog.get_by_role("button", name=leave).click()
        await expect(dialog).to_be_hidden()
    assert await world.value(OPEN) and await newest(world) == since


async def test_a_group_is_cancelled(world: World, visitor: Visitor) -> None:
    since = await newest(world)
    never = world.stack.directory / "tmp" / "never"
    (group,) = await world.submit(a_task(f"Wait for {never}"), scaffold="Waiting")
    await world.until_group(group, "dispatched")
    seq = await world.value("select seq from groups where run_id = :run and group_id = :group", group=group)
    await visitor.open("/queue")
    await visitor.main.locator(f'.strip-hit[data-seq="{seq}"]').click()
    await expect(visitor.main.locator(".strip-detail")).to_contain_text(f"group {group}")
    await visitor.main.locator(".strip-detail").get_by_role("button", name="Cancel the group").click()
    await ordered(visitor, "Cancel the group", "it never ends")
    (row,) = await world.seen.rows(
        "select state, reason from groups where run_id = :run and group_id = :group", group=group
    )
    assert (row.state, row.reason) == ("filtered", "cancelled")
    (done,) = await world.seen.rows(ACTIONS, since=since)
    assert (done.what, done.reason) == ("cancel", "it never ends") and str(group) in done.target
    await expect(visitor.main.locator(".strip-detail")).to_contain_text("cancelled")


async def test_the_mix_of_domains_is_changed_and_given_back(world: World, visitor: Visitor) -> None:
    since = await newest(world)
    shares = "select shares from queue where run_id = :run"
    await visitor.open("/queue")
    await visitor.main.get_by_role("button", name="Change the mix").click()
    dialog = visitor.page.locator("dialog.order[open]")
    await dialog.locator('input[data-domain="coding"]').fill("3")
    await dialog.locator('input[data-domain="general"]').fill("1")
    await ordered(visitor, "Set them", "more code")
    assert (await world.value(shares))["domains"] == {"coding": 3, "general": 1}
    await expect(visitor.main.locator(".mix-row", has_text="coding")).to_contain_text("offered 75%")
    await visitor.main.get_by_role("button", name="Change the mix").click()
    await dialog.get_by_label("as the stage is configured").check()
    await ordered(visitor, "Set them", "as it was")
    assert await world.value(shares) is None
    assert [row.what for row in await world.seen.rows(ACTIONS, since=since)] == ["reweigh", "reweigh"]


async def test_a_dead_group_is_tried_again_and_a_dead_message_dropped(world: World, visitor: Visitor) -> None:
    since, letter = await newest(world), await world.a_dead_message()
    before = await world.value(AGAIN, group=world.ids["dead"])
    await visitor.open("/system")
    await (
        visitor.main.locator(f'tr[data-key="g{world.ids["dead"]}"]')
        .get_by_role("button", name="Retry")
        .click()
    )
    await ordered(visitor, "Retry", "perhaps it was the weather")
    assert await world.value(AGAIN, group=world.ids["dead"]) == before + 1
    row = visitor.main.locator(f'tr[data-key="m{letter}"]')
    await row.get_by_role("button", name="Drop").click()
    await ordered(visitor, "Drop", "junk")
    await expect(row).to_have_count(0)
    assert await world.value("select count(*) from dead_letters where dead_letter_id = :id", id=letter) == 0
    assert [(row.what, row.reason) for row in await world.seen.rows(ACTIONS, since=since)] == [
        ("retry", "perhaps it was the weather"),
        ("drop", "junk"),
    ]


async def test_without_the_key_in_its_header_an_order_is_refused(world: World, visitor: Visitor) -> None:
    visitor.expected = ("Failed to load resource",)
    since = await newest(world)
    await visitor.open("/queue")
    for headers in ("{}", '{"X-Penstock-Steer": "wrong"}'):
        status, answer = await visitor.page.evaluate(
            f"""async () => {{
                const answer = await fetch("/api/steer/pause", {{ method: "POST", headers: {headers}, body: "{{}}" }});
                return [answer.status, await answer.text()];
            }}"""
        )
        assert status == 403 and "X-Penstock-Steer" in answer
    assert await world.value(OPEN) and await newest(world) == since
