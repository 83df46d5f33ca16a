"""The values on a page equal those in the data pool."""

import re

import pytest
from playwright.async_api import expect
from pytest import approx

from orchestrator.pool.counter_names import UNKNOWN
from tests.browser.visitor import Visitor, shown
from tests.browser.world import BATCHES, World

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(300), pytest.mark.tier("browser")]

CLOSE = 6e-3  # three digits are shown
MEMBERS = """
select r.rollout_id, r.member, w.total, w.advantage, count(s.idx) as steps, sum(s.full_len - s.state_len) as sampled
  from rollouts r join rewards w using (rollout_id) join steps s on s.run_id = r.run_id and s.rollout_id = r.rollout_id and s.attempt = r.attempt
 where r.run_id = :run and r.group_id = :group group by 1, 2, 3, 4 order by 2"""
REWARD = "select performance, beta * speed as speed, alpha * process as process, total, advantage from rewards where rollout_id = :rollout"
STEPS = "select idx, agent, branch_reason, full_len - state_len as sampled from steps where run_id = :run and rollout_id = :rollout order by 1"
RUN = """
select (select max(version) from policy_versions where run_id = :run) as version,
       (select count(*) from train_steps where run_id = :run) as steps,
       (select metrics from train_steps where run_id = :run order by train_step desc limit 1) as metrics"""
DRAFTS = """
select convert_from(body, 'UTF8') as body from artifacts where rollout_id = any(:ids) and path = 'draft.txt' order by rollout_id"""
STEP = """
select state_len, full_len, v_lo, step_logprobs(run_id, rollout_id, attempt, idx) as logprobs, step_ids(run_id, rollout_id, attempt, idx) as ids
  from steps where run_id = :run and rollout_id = :rollout and idx = :idx"""
BY_INSTRUCTION = """
select rollout_id from rollouts r join groups g using (group_id) join tasks t using (task_id)
 where r.run_id = :run and t.body #>> '{files,instruction.md}' = :instruction order by 1 desc"""
TRAINED = "select t.metrics from train_steps t join batches b using (batch_id) where t.run_id = :run and b.batch_no = :batch"


async def test_the_run_says_its_version_batches_train_steps_and_what_the_last_one_merged(
    world: World, visitor: Visitor
) -> None:
    await world.until_at_rest()  # earlier tests leave work behind
    await visitor.open("/run")
    await expect(visitor.main.locator(".figure").first).to_be_visible()
    await expect(visitor.main.locator(".chart canvas").first).to_be_attached()
    figures = await visitor.figures()
    run = await world.seen.rows(RUN)
    assert shown(figures["policy version"]) == run[0].version >= BATCHES
    assert shown(figures["train steps"]) == run[0].steps >= BATCHES
    metrics = run[0].metrics
    assert shown(figures["merge ratio"]) == approx(
        metrics["tokens_naive"] / metrics["tokens_merged"], rel=CLOSE
    )
    await expect(visitor.heading).to_contain_text("visited")
    for chart in (
        "Reward of trained groups",
        "Entropy",
        "Staleness",
        "Merge ratio",
        "Loss and gradient norm",
        "Success while training",
    ):
        drawn = visitor.main.locator(".chart", has_text=chart).locator("canvas")
        assert await drawn.count() == 1, f"{chart} is empty"


async def test_the_queue_draws_every_position_in_its_colour_with_holes_and_the_mix(
    world: World, visitor: Visitor
) -> None:
    await world.until_at_rest()  # earlier tests leave work behind
    await visitor.open("/queue")
    await expect(visitor.main.locator(".strip-cell").first).to_be_attached()
    rows = await world.seen.rows(
        "select seq, state, domain from groups where run_id = :run and seq is not null order by 1"
    )
    assert await visitor.main.locator(".strip-cell").count() == len(rows) > 2 * BATCHES
    assert (
        await visitor.main.locator(".strip-cell.hole").count()
        == sum(row.state in ("filtered", "dead") for row in rows)
        >= 2
    )
    assert (
        await visitor.main.locator(".strip-cell.hole.failed").count()
        == sum(row.state == "dead" for row in rows)
        >= 1
    )
    assert await visitor.main.locator(".strip-cell.trained").count() == sum(
        row.state in ("taken", "trained") for row in rows
    )
    figures = await visitor.figures()
    assert shown(figures["dispatched"]) == await world.value("select next_seq from queue where run_id = :run")
    names = " ".join(await visitor.texts(".mix-name"))
    assert {row.domain for row in rows} == {"coding", "general"} and all(row.domain in names for row in rows)
    assert (await visitor.texts(".lead"))[0], "it says why it waits"


async def test_a_group_shows_the_reward_advantage_and_length_of_its_rollouts_and_how_their_files_differ(
    world: World, visitor: Visitor
) -> None:
    group = world.ids["group"]
    await visitor.open(f"/groups/{group}")
    members = await world.seen.rows(MEMBERS, group=group)
    assert len(members) == 2
    for member in members:
        await expect(visitor.main.locator(f'tr[data-key="{member.rollout_id}"]')).to_be_visible()
        cells = await visitor.row(member.rollout_id)
        assert cells[0].startswith(str(member.member)) and "verified" in cells[1]
        assert shown(cells[2]) == approx(member.total, rel=CLOSE, abs=1e-4)
        assert shown(cells[3]) == approx(member.advantage, rel=CLOSE, abs=1e-4)
        assert (shown(cells[5]), shown(cells[6])) == (member.steps, member.sampled)
    mean = sum(member.total for member in members) / 2
    assert shown((await visitor.figures())["mean reward"]) == approx(mean, rel=CLOSE, abs=1e-4)
    drafts = await world.seen.rows(DRAFTS, ids=[member.rollout_id for member in members])
    difference = visitor.main.locator(".difference", has_text="draft.txt")
    await expect(difference).to_contain_text(drafts[0].body.strip())
    await expect(difference).to_contain_text(drafts[1].body.strip())
    await expect(visitor.main).to_contain_text("The same in both: alike.txt")


async def test_a_rollout_shows_its_reward_parts_and_its_steps_with_the_branches_of_sub_agent_and_rewritten_context(
    world: World, visitor: Visitor
) -> None:
    rollout = world.ids["rollout"]
    await visitor.open(f"/rollouts/{rollout}")
    (reward,) = await world.seen.rows(REWARD, rollout=rollout)
    await expect(visitor.main.locator(".formula")).to_be_visible()
    formula = (await visitor.texts(".formula"))[0].replace("− process ", "+ process −").replace("−", "-")
    numbers = [float(text) for text in re.findall(r"-?[\d.]+(?:e-\d+)?", formula)]
    found = (reward.total, reward.performance, reward.speed, reward.process)
    assert numbers[:4] == [approx(value, rel=CLOSE, abs=1e-4) for value in found], formula
    figures = await visitor.figures()
    assert shown(figures["advantage"]) == approx(reward.advantage, rel=CLOSE, abs=1e-4)
    steps = await world.seen.rows(STEPS, rollout=rollout)
    assert [(step.idx, step.agent, step.branch_reason) for step in steps if step.idx in (1, 3)] == [
        (1, "main/helper", steps[1].branch_reason),
        (3, "main", "shortened"),
    ]
    assert shown(figures["steps"]) == len(steps) == 4
    for step in steps:
        article = visitor.main.locator(f"#step-{step.idx}")
        await expect(article.locator(".step-facts")).to_contain_text(f"{step.sampled} sampled")
        row = visitor.main.locator(f'.rail-row[data-idx="{step.idx}"]')
        if step.agent != "main":
            await expect(article).to_contain_text(step.agent)
            await expect(row).to_contain_text(step.agent)
        if step.branch_reason:
            await expect(row).to_contain_text(step.branch_reason.replace("_", " "))
    await expect(visitor.main.locator("#step-1")).to_contain_text("Help someone who received this: Say 0.")
    assert await visitor.main.locator(".rail-line.rewrites").count() == 1


async def test_the_token_view_shows_the_stored_logprobs_versions_and_ratios_of_a_step(
    world: World, visitor: Visitor
) -> None:
    rollout, key = world.ids["rollout"], {"rollout": world.ids["rollout"], "idx": 2}
    await visitor.open(f"/rollouts/{rollout}?view=tokens&step=2")
    (step,) = await world.seen.rows(STEP, **key)
    await expect(visitor.main.locator(".k.first")).to_be_visible()
    tokens = visitor.main.locator(".token-flow .k")
    assert await tokens.count() == step.full_len
    sampled = step.logprobs[-(step.full_len - step.state_len) :]
    ratios = await world.seen.rows(
        "select pos, ratio from token_ratios where run_id = :run and rollout_id = :rollout and idx = :idx order by pos",
        **key,
    )
    assert len(ratios) == len(sampled)
    inspector = visitor.main.locator(".inspector dl")
    for at, logprob in enumerate(sampled):
        token = tokens.nth(step.state_len + at)
        await expect(token).to_have_class(re.compile(rf"\bv{step.v_lo % 8}\b"))
        await token.click()
        await expect(inspector).to_contain_text(f"action token {at}")
        shown_values = dict(
            zip(await visitor.texts(".inspector dt"), await visitor.texts(".inspector dd"), strict=True)
        )
        assert shown_values["id"] == str(step.ids[step.state_len + at])
        assert shown(shown_values["logprob"]) == approx(logprob, rel=1e-3, abs=1e-6)
        assert shown(shown_values["ratio"]) == approx(ratios[at].ratio, rel=1e-3)
        assert f"sampled by v{step.v_lo}" in shown_values["written by"] and shown_values["trains"].startswith(
            "yes"
        )
    assert await visitor.main.locator(".token-legend", has_text=f"v{step.v_lo}").count() == 1


async def test_a_batch_shows_its_groups_and_a_prefix_tree_of_as_many_tokens_as_its_trainer_saw(
    world: World, visitor: Visitor
) -> None:
    await visitor.open("/batches/1")
    groups = await world.seen.rows(
        "select i.group_id from batch_items i join batches b using (batch_id) where b.run_id = :run and b.batch_no = 1 and not i.voided"
    )
    for row in groups:
        await expect(visitor.main.locator(f'tr[data-key="{row.group_id}"]')).to_be_visible()
    ((metrics,),) = await world.seen.rows(TRAINED, batch=1)
    summary = visitor.main.locator(".tree-sum")
    await expect(summary).to_contain_text(
        f"{metrics['samples']} samples hold {metrics['tokens_naive']:,} tokens, {metrics['tokens_merged']:,} of them different"
    )
    assert shown((await visitor.figures())["merge ratio"]) == approx(
        metrics["tokens_naive"] / metrics["tokens_merged"], rel=CLOSE
    )
    await visitor.open("/batches")
    assert (await visitor.row(1))[2].startswith(f"{len(groups)} of 2")


async def test_a_list_is_filtered_and_searched_by_its_address(world: World, visitor: Visitor) -> None:
    await visitor.open("/groups?state=trained&domain=coding")
    wanted = await world.seen.rows(
        "select group_id from groups where run_id = :run and state = 'trained' and domain = 'coding' order by 1 desc"
    )
    await expect(visitor.main.locator("tbody tr")).to_have_count(len(wanted))
    assert [await row.get_attribute("data-key") for row in await visitor.main.locator("tbody tr").all()] == [
        str(row.group_id) for row in wanted
    ]
    await expect(visitor.main.get_by_label("State")).to_have_value("trained")
    await visitor.open("/rollouts?text=Help+someone+who+received+this%3A+Say+1.")
    found = await world.seen.rows(BY_INSTRUCTION, instruction="Say 1.")
    await expect(visitor.main.locator("tbody tr")).to_have_count(len(found))
    assert [await row.get_attribute("data-key") for row in await visitor.main.locator("tbody tr").all()] == [
        str(row.rollout_id) for row in found
    ]
    await visitor.main.locator("a.found").first.click()
    await visitor.at(f"/rollouts/{found[0].rollout_id}")
    await expect(visitor.main.locator(".rail-row.here")).to_have_attribute("data-idx", "1")


async def test_the_system_shows_every_process_server_and_dead_letter(world: World, visitor: Visitor) -> None:
    await visitor.open("/system")
    for process in ("orchestrator", "gateway", "runner", "verifier", "trainer"):
        await expect(visitor.main.get_by_role("cell", name=re.compile(f"^{process}")).first).to_be_visible()
    (server,) = await world.seen.rows("select url, version from rollout_servers where run_id = :run")
    cells = await visitor.row(server.url)
    assert "ready" in cells[1] and shown(cells[2]) == server.version
    (dead,) = await world.seen.rows(
        "select reason from groups where run_id = :run and group_id = :group", group=world.ids["dead"]
    )
    assert dead.reason.replace("_", " ") in " ".join(await visitor.row(f"g{world.ids['dead']}")).replace(
        "_", " "
    )
    (letter,) = await world.seen.rows(
        "select reason from dead_letters where dead_letter_id = :id", id=world.ids["letter"]
    )
    row = visitor.main.locator(f'tr[data-key="m{world.ids["letter"]}"]')
    await expect(row).to_contain_text(letter.reason)
    meanings = await visitor.texts("td[data-name='what it means']")
    assert meanings and not [each for each in meanings if not each or UNKNOWN in each]
    await row.get_by_role("button", name=f"m{world.ids['letter']}").click()
    body = visitor.page.locator("dialog.letter[open] pre")
    await expect(body).to_contain_text("<script>")
    assert "\x1b" not in await body.inner_text()
