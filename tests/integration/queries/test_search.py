"""Lists of rollouts and groups: every filter holds, pages meet without a gap, and a search reports how far it came."""

import dataclasses
import random

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.queries import search
from orchestrator.queries.filters import FilterError, GroupFilters, RolloutFilters
from tests import builders
from tests.integration.pool.rig import Tree, a_row_in_every_table, record, running, small

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("look")]


async def _ids(engine: AsyncEngine, run_id: int, **filters: str) -> list[int]:
    async with engine.connect() as connection:
        page = await search.rollout_list(connection, run_id, RolloutFilters.of(filters), budget_s=60)
        return [row.rollout_id for row in page.rollouts]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, [12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1]),
        ({"state": "verified", "purpose": "train"}, [8, 7, 6, 5, 4, 3, 2, 1]),
        ({"purpose": "eval"}, [12, 11, 10, 9]),
        ({"reward_min": "0.9"}, [5, 1]),
        ({"reward_min": "0.1", "reward_max": "0.2"}, []),
        ({"group_id": "2"}, [8, 7, 6, 5]),
        ({"task": "A", "steps_min": "3"}, [4, 3, 2, 1]),
        ({"steps_max": "0"}, [12, 11, 10, 9]),
        ({"length_min": "1", "length_max": "100"}, [8, 7, 6, 5, 4, 3, 2, 1]),
        ({"staleness_min": "0"}, [8, 7, 6, 5, 4, 3, 2, 1]),
        ({"staleness_min": "1"}, []),
        ({"version": "0", "domain": "coding", "scaffold": "shell"}, [8, 7, 6, 5, 4, 3, 2, 1]),
        ({"failure_class": "timeout"}, []),
        ({"text": "DONE", "group_id": "1"}, [4, 3, 2, 1]),
        ({"tool": "bash"}, []),
    ],
)
async def test_every_filter_holds(engine: AsyncEngine, filters: dict[str, str], expected: list[int]) -> None:
    run = await a_row_in_every_table(engine)
    assert await _ids(engine, run.run_id, **filters) == expected


async def test_pages_meet_without_a_gap_however_small_their_chunks_are(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await a_row_in_every_table(engine)
    monkeypatch.setattr(search, "CHUNK", 2)
    for filters in (RolloutFilters(), RolloutFilters(reward_min=0.9), RolloutFilters(purpose="train")):
        found: list[int] = []
        before: int | None = None
        for _ in range(20):
            async with engine.connect() as connection:
                page = await search.rollout_list(
                    connection, run.run_id, filters, before=before, n=2, budget_s=0
                )
            found += [row.rollout_id for row in page.rollouts]
            before = page.next
            if before is None:
                break
        async with engine.connect() as connection:
            whole = await search.rollout_list(connection, run.run_id, filters)
        assert before is None and found == [row.rollout_id for row in whole.rollouts]


@pytest.mark.parametrize(
    "wanted", ['say "hi"', "back\\slash", "100%_", "line\nbreak", "ÜBER", "<b>", "漢", "' OR 1=1 --"]
)
async def test_text_is_found_as_it_was_written_whatever_characters_it_has(
    engine: AsyncEngine, wanted: str
) -> None:
    run = await builders.make_run(engine, small())
    leases = await running(engine, run, members=3)
    for lease, content in zip(leases, (f"before {wanted} after", "100x1 nothing", "line break"), strict=True):
        [one] = Tree(1).grow(run.name, lease, 1)
        await record(
            engine, run, [msgspec.structs.replace(one.event, appended=[{"role": "user", "content": content}])]
        )
    async with engine.connect() as connection:
        page = await search.rollout_list(connection, run.run_id, RolloutFilters.of({"text": wanted}))
    [row] = page.rollouts
    assert row.rollout_id == leases[0].rollout_id and page.next is None and page.searched == 3
    assert row.found is not None and (row.found.before, row.found.text, row.found.after) == (
        "before ",
        wanted,
        " after",
    )


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"reward_min": "much"}, "reward_min must be a number"),
        ({"steps_min": "1.5"}, "steps_min must be a whole number"),
        ({"colour": "red"}, "unknown filter 'colour'"),
        ({"state": "asleep"}, "state must be one of waiting"),
        ({"reward_min": "nan"}, "reward_min must be a number, such as 0.5"),
        ({"version": "9" * 30}, "version must be a whole number from 0 to 2147483647"),
        ({"text": "a\0b"}, "NUL"),
    ],
)
def test_a_filter_that_cannot_be_read_is_named(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(FilterError, match=sentence):
        RolloutFilters.of(given)


async def test_groups_are_listed_with_the_rewards_of_their_members(engine: AsyncEngine) -> None:
    run = await a_row_in_every_table(engine)
    async with engine.connect() as connection:
        page = await search.group_list(connection, run.run_id)
        assert [(row.group_id, row.seq, row.done, row.batch_no) for row in page.groups] == [
            (3, None, 0, None),
            (2, 1, 4, 0),
            (1, 0, 4, 0),
        ]
        assert page.groups[1].lowest == 0.0 and (page.groups[1].highest or 0) > 1.0
        named = await search.group_list(
            connection, run.run_id, GroupFilters.of({"task": "B", "state": "trained"})
        )
        assert [row.group_id for row in named.groups] == [2] and named.next is None
    with pytest.raises(FilterError, match="state must be one of accepted"):
        GroupFilters.of({"state": "gone"})


EDGES = [0, 1, 2**15, 2**31 - 1, 2**31, 2**62, 2**63 - 1, 2**63, 10**25, 10**4999, -1]


async def test_a_number_in_a_filter_is_answered_or_refused_in_a_sentence_that_names_it(
    engine: AsyncEngine,
) -> None:
    run = await a_row_in_every_table(engine)
    numeric = [f.name for f in dataclasses.fields(RolloutFilters) if str(f.type).startswith(("int", "float"))]
    assert len(numeric) >= 9
    rng = random.Random(6)
    with_digits = [rng.randrange(10**n) for n in range(1, 24)]
    async with engine.connect() as connection:
        for name in numeric:
            for value in [*EDGES, *rng.sample(with_digits, 3)]:
                try:
                    filters = RolloutFilters.of({name: f"1{'0' * 4999}" if value == 10**4999 else str(value)})
                except FilterError as error:
                    assert f"the filter {name} must be a " in str(error) and len(str(error)) < 200
                    continue
                await search.rollout_list(connection, run.run_id, filters, n=2, budget_s=60)
