"""The output of tasks, policies, tools and messages is text everywhere on the pages."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, expect

from tests.browser.visitor import PATIENCE_MS, Visitor
from tests.browser.world import HOSTILE_NAME, HOSTILE_SEEN, IMAGE, LONG, MARKDOWN, SCRIPT, World

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(300), pytest.mark.tier("browser")]

# Elements that only foreign text could have made.
MADE = 'script, img, iframe, object, embed, style, u, a[href^="javascript:"], [onerror], [onclick]'
CONTROLS = "".join(
    map(
        chr,
        [*range(9), *range(11, 32), *range(127, 160), 0x200B, *range(0x202A, 0x202F), *range(0x2066, 0x206A)],
    )
)


async def harmless(inside: Locator, *texts: str) -> None:
    """The text reads exactly like this, nothing in it acts, and nothing in it reverses the reading direction."""
    for text in texts:
        await expect(inside).to_contain_text(text)
    assert await inside.locator(MADE).count() == 0
    shown = await inside.inner_text()
    assert not [letter for letter in CONTROLS if letter in shown]
    assert "owned" not in await inside.page.title()


async def test_a_hostile_task_is_text_in_its_group(world: World, visitor: Visitor) -> None:
    await visitor.open(f"/groups/{world.ids['hostile']}")
    task = visitor.main.locator(".panel", has=visitor.page.get_by_role("heading", name="Task", exact=True))
    await harmless(
        task, SCRIPT, IMAGE, MARKDOWN, LONG, "</pre></main><style>*{display:none}</style>", *HOSTILE_SEEN
    )
    await expect(visitor.main.locator(".lead")).to_contain_text(
        # A label keeps the printable characters.
        HOSTILE_NAME.replace("\u202e", "\ufffd").replace("\x1b", "\ufffd")
    )
    await expect(visitor.main.locator(".difference, .panel", has_text="a<b>.html").first).to_be_visible()
    await harmless(visitor.main, SCRIPT)


async def test_hostile_reasoning_calls_and_observations_are_text_in_the_trajectory(
    world: World, visitor: Visitor
) -> None:
    await visitor.open(f"/rollouts/{world.ids['hostile_rollout']}")
    await harmless(
        visitor.main.locator("#step-0"),
        SCRIPT,
        IMAGE,
        *HOSTILE_SEEN,
        f"I think {SCRIPT}",
        "cat > 'a<b>.html'",
    )
    await harmless(visitor.main.locator("#step-1"), "␛[31m<b>seen</b>", IMAGE, HOSTILE_SEEN[1])
    await harmless(visitor.main, SCRIPT)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        ("tokens&step=0", "document.title"),
        ("timings", "step 0"),
        ("verdict", "<u>0</u>"),
        ("files", "a<b>.html"),
    ],
)
async def test_hostile_tokens_logs_and_files_are_text_in_every_view_of_the_trajectory(
    world: World, visitor: Visitor, view: str, expected: str
) -> None:
    await visitor.open(f"/rollouts/{world.ids['hostile_rollout']}?view={view}")
    await harmless(visitor.main, expected)


@pytest.mark.parametrize("wanted", [SCRIPT, "<img src=http://penstock.invalid", "</pre></main>"])
async def test_hostile_text_is_found_by_a_search_for_it_and_is_text_in_the_list(
    world: World, visitor: Visitor, wanted: str
) -> None:
    await visitor.open("/rollouts?purpose=any")
    await visitor.main.locator("input[type=search]").fill(wanted)
    await expect(visitor.main.locator("mark").first).to_have_text(wanted)
    keys = [await row.get_attribute("data-key") for row in await visitor.main.locator("tbody tr").all()]
    assert str(world.ids["hostile_rollout"]) in keys and len(keys) == 2
    await harmless(visitor.main, wanted)


async def test_a_saved_trajectory_opened_from_disk_asks_for_nothing_and_is_text(
    world: World, visitor: Visitor, browser: Browser, tmp_path: Path
) -> None:
    rollout = world.ids["hostile_rollout"]
    await visitor.open(f"/rollouts/{rollout}")
    async with visitor.page.expect_download() as started:
        await visitor.main.get_by_role("link", name="Save as HTML").click()
    download = await started.value
    assert download.suggested_filename == f"rollout-{rollout}.html"
    file = tmp_path / download.suggested_filename
    await download.save_as(file)

    context = await browser.new_context()
    try:
        page = await context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        messages: list[str] = []
        requested: list[str] = []
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: requested.append(request.url))
        await page.goto(file.as_uri())
        body = page.locator("body")
        assert await page.title() == f"Rollout {rollout} of visited"
        for details in await page.locator("details").all():
            await details.evaluate("one => { one.open = true; }")
        await harmless(
            body, SCRIPT, IMAGE, MARKDOWN, LONG, *HOSTILE_SEEN, "␛[31m<b>seen</b>", "a<b>.html", "<u>0</u>"
        )
        for width in (1280, 360):
            await page.set_viewport_size({"width": width, "height": 800})
            assert await page.evaluate(
                "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
            ), width
        assert (requested, messages) == ([file.as_uri()], [])
    finally:
        await context.close()
