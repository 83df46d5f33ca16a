"""People see exactly the data pool's content about groups, rollouts, steps and tokens."""

import difflib
import json
import math
import shlex
import time
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pytest
from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncEngine
from tokenizers import Tokenizer, decoders, models

from orchestrator.contracts.errors import NotFoundError
from orchestrator.contracts.events import StepMark
from orchestrator.pool import prune, tables
from orchestrator.queries import differences as differences_module
from orchestrator.queries import (
    groups,
    rollouts,
    search,
    steps,
    tokens,
)
from orchestrator.queries.differences import COMPARED, Side, difference
from orchestrator.queries.filters import RolloutFilters
from orchestrator.queries.token_text import Detokenizer
from tests import builders
from tests.integration.pool.rig import (
    Tree,
    a_row_in_every_table,
    context_of,
    ended,
    record,
    report,
    running,
    small,
)

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("look")]

HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m **bold** '; rm -rf / #\nEOF\n"


async def test_every_position_of_a_step_is_shown_with_its_author_and_logprob(
    engine: AsyncEngine,
) -> None:
    run = await builders.make_run(engine, small())
    [lease] = await running(engine, run, members=1)
    grown = Tree(5).grow(run.name, lease, 14)
    await record(engine, run, [step.event for step in grown])
    async with engine.connect() as connection:
        for step in grown:
            event = step.event
            token_map = await tokens.token_map(connection, run.run_id, event.rollout, 1, event.idx)
            pages = [
                await tokens.tokens(connection, run.run_id, event.rollout, 1, event.idx, None, start=at, n=7)
                for at in range(0, max(1, event.full_len), 7)
            ]
            assert [id for page in pages for id in page.ids] == step.full.tolist()
            assert [(s.start, s.end) for s in token_map.segments] == _tiled(
                token_map.segments, event.full_len
            )
            logprobs = [value for page in pages for value in page.logprobs]
            for segment in token_map.segments:
                known = logprobs[segment.start : segment.end]
                author = grown[segment.step]
                assert (segment.version is None) == (segment.part != "action") == (set(known) == {None})
                if segment.part == "action":
                    offset = author.event.state_len
                    expected = author.logprobs[segment.start - offset : segment.end - offset]
                    assert np.allclose(np.array(known, dtype=np.float64), expected, atol=1e-5)
                    first = segment.start - offset
                    assert any(
                        s.version == segment.version and s.start <= first < s.end for s in author.event.spans
                    )


def _tiled(segments: list[tokens.Segment], total: int) -> list[tuple[int, int]]:
    ends = [segment.end for segment in segments]
    assert not segments or ends[-1] == total
    return list(zip([0, *ends], ends, strict=False))


async def test_a_group_shows_its_members_with_the_parts_of_their_rewards(
    engine: AsyncEngine, unhurried: None
) -> None:
    run = await a_row_in_every_table(engine)
    async with engine.connect() as connection:
        shown = await groups.group(connection, run.run_id, 1)
        assert (shown.state, shown.batch_no, shown.task, shown.size) == ("trained", 0, "a", 4)
        first = shown.members[0]
        assert first.performance == 1.0 and first.speed_part and first.total is not None
        assert first.total == pytest.approx(
            first.performance + first.speed_part + (first.process_part or 0.0)
        )
        assert sum(member.advantage or 0.0 for member in shown.members) == pytest.approx(0.0)
        assert [(file.path, file.bytes) for file in first.files] == [("answer.txt", 1)]
        assert (first.tests_passed, first.tests) == (1, 1) and first.steps == 3
        [changed] = await groups.group_differences(connection, run.run_id, 1, 0, 1)
        assert (changed.path, changed.change) == ("answer.txt", "only_left") and "-7" in changed.lines
        for query in (
            groups.group(connection, run.run_id, 99),
            groups.group_differences(connection, run.run_id, 1, 0, 9),
        ):
            with pytest.raises(NotFoundError, match=r"group 99 does not exist|no member 9"):
                await query
    assert msgspec.json.decode(msgspec.json.encode(shown))["members"][0]["total"] == first.total


async def test_a_rollout_shows_its_steps_as_a_tree_with_rewards_marks_tools_and_its_batch(
    engine: AsyncEngine,
) -> None:
    run = await a_row_in_every_table(engine)
    async with engine.connect() as connection:
        shown = await rollouts.rollout(connection, run.run_id, 1)
        assert [(step.parent, step.kind) for step in shown.steps] == [
            (None, "root"),
            (0, "continues"),
            (1, "rewrites"),
        ]
        assert shown.steps[2].branch_reason == "rewritten" and shown.steps[0].marks == ["auxiliary"]
        assert [run.name for run in shown.steps[0].tool_runs] == ["bash"]
        assert all(step.rewards is not None for step in shown.steps)
        assert shown.batch is not None and (shown.batch.batch_no, shown.batch.staleness) == (0, 0)
        assert not shown.live and shown.resumes and shown.verdicts[0].checks[0].passed
        assert [sibling.member for sibling in shown.siblings] == [0, 1, 2, 3]
        assert "verified" in {change.to_state for change in shown.history}
        with pytest.raises(NotFoundError, match="no attempt 7"):
            await rollouts.rollout(connection, run.run_id, 1, attempt=7)
        with pytest.raises(NotFoundError, match="rollout 999 does not exist"):
            await rollouts.rollout(connection, run.run_id, 999)
    msgspec.json.encode(shown)


async def test_a_running_rollout_is_live_and_its_steps_appear_as_they_are_stored(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    [lease, _] = await running(engine, run)
    grown = Tree(1).grow(run.name, lease, 5)
    events = [step.event for step in grown]
    await record(engine, run, events[:3])
    async with engine.connect() as connection:
        shown = await rollouts.rollout(connection, run.run_id, lease.rollout_id)
        assert shown.live and [step.idx for step in shown.steps] == [0, 1, 2] and shown.reward is None
    await record(engine, run, events[3:])
    context = context_of(engine, run)
    assert await report(
        context, ended(run.name, lease, events, marks=[StepMark(1, "undelivered")], log="it ran")
    )
    async with engine.connect() as connection:
        after = await steps.steps(connection, run.run_id, lease.rollout_id, 1, first=3)
        assert [step.idx for step in after.steps] == [3, 4] and after.next is None
        shown = await rollouts.rollout(connection, run.run_id, lease.rollout_id)
        assert shown.attempts[0].log is not None and shown.attempts[0].log.text == "it ran"
        assert (await tokens.token_map(connection, run.run_id, lease.rollout_id, 1, 1)).weight == 0.0


async def test_big_texts_are_cut_with_their_length_and_fetched_whole(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    [lease] = await running(engine, run, members=1)
    [one] = Tree(2).grow(run.name, lease, 1)
    big = "0123456789" * 1_000_000
    observation = {"role": "tool", "content": big}
    call = {"name": "bash", "arguments": {"command": "ls " + "x" * 9_000}}
    reply = {"role": "assistant", "content": "", "reasoning": "r" * 7_000, "tool_calls": [call]}
    event = msgspec.structs.replace(one.event, appended=[observation], reply=reply)
    await record(engine, run, [event])
    async with engine.connect() as connection:
        page = await steps.steps(connection, run.run_id, lease.rollout_id, 1)
        [shown] = page.steps
        assert shown.appended[0].content.length == 10_000_000 and len(msgspec.json.encode(page)) < 30_000
        assert shown.reasoning is not None and not shown.reasoning.whole
        for part, whole in (
            ("appended.0.content", big),
            ("reasoning", "r" * 7_000),
            ("calls.0", json.dumps(call["arguments"])),
        ):
            assert await steps.whole_step_text(connection, run.run_id, lease.rollout_id, 1, 0, part) == whole
        for part in (
            "",
            "appended",
            "appended.9.content",
            "appended.x.content",
            "calls.4",
            "role",
            "appended.0",
        ):
            with pytest.raises(NotFoundError, match="no text"):
                await steps.whole_step_text(connection, run.run_id, lease.rollout_id, 1, 0, part)


async def test_the_request_of_a_step_as_curl_is_one_ascii_line_that_a_shell_reads_back(
    engine: AsyncEngine,
) -> None:
    run = await builders.make_run(engine, small())
    [lease] = await running(engine, run, members=1)
    author = builders.Author(turns=2)
    first, second, rewrite = author.trajectory(lease, run.name, author.ids(8, 9))
    call = {"name": "bash", "arguments": {"command": HOSTILE}}
    shown = [{"role": "tools", "content": "", "tools": [{"type": "function", "function": {"name": "bash"}}]}]
    turns = [{"role": "system", "content": HOSTILE}, {"role": "user", "content": "go"}]
    first = msgspec.structs.replace(
        first, appended=shown + turns, reply={"role": "assistant", "content": "", "tool_calls": [call]}
    )
    results = [{"role": "tool", "content": "7"}, {"role": "tool", "content": "of no call", "answers": None}]
    second = msgspec.structs.replace(second, appended=results)
    await record(engine, run, [first, second, rewrite])
    async with engine.connect() as connection:
        command = await steps.curl(connection, run.run_id, lease.rollout_id, 1, 1)
        assert command.isascii() and command.isprintable()
        words = shlex.split(command)
        body = json.loads(words[words.index("--data-raw") + 1])
        assert (
            words[1] == "$GATEWAY_URL/v1/chat/completions" and "Authorization: Bearer $SESSION_TOKEN" in words
        )
        assert [message["role"] for message in body["messages"]] == [
            "system",
            "user",
            "assistant",
            "tool",
            "tool",
        ]
        assert body["messages"][0]["content"] == HOSTILE and body["tools"][0]["function"]["name"] == "bash"
        [made] = body["messages"][2]["tool_calls"]
        assert made["id"] == "call_s0_0" and json.loads(made["function"]["arguments"]) == call["arguments"]
        assert [message["tool_call_id"] for message in body["messages"][3:]] == ["call_s0_0", "unknown"]
        # A rewrite continues no conversation: its appended messages are all of it.
        messages, _ = await steps.conversation(connection, run.run_id, lease.rollout_id, 1, 2)
        assert [message["content"] for message in messages] == ["go on"]
        with pytest.raises(NotFoundError, match="no step 3"):
            await steps.curl(connection, run.run_id, lease.rollout_id, 1, 3)


async def test_files_are_shown_as_text_or_marked_as_binary_and_cut(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    [lease] = await running(engine, run, members=1)
    bodies = {"a.txt": "é".encode() * 70_000, "b.bin": b"\x00\x01", "c.bin": b"\xff\xfe", "gone": None}
    async with engine.begin() as connection:
        for path, body in bodies.items():
            key = {"run_id": run.run_id, "rollout_id": lease.rollout_id, "attempt": 1}
            await connection.execute(insert(tables.artifacts).values(**key, path=path, mode=0o644, body=body))
        shown = await rollouts.rollout(connection, run.run_id, lease.rollout_id)
    assert [(file.path, file.kind, file.bytes) for file in shown.files] == [
        ("a.txt", "text", 140_000),
        ("b.bin", "binary", 2),
        ("c.bin", "binary", 2),
        ("gone", "deleted", 0),
    ]
    assert (
        shown.files[0].text is not None
        and set(shown.files[0].text.text) == {"é"}
        and not shown.files[0].text.whole
    )


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons that a pause of the machine does not end."""
    monkeypatch.setattr(differences_module, "EACH_S", 60.0)
    monkeypatch.setattr(differences_module, "ALL_S", 60.0)


def side(body: bytes | None = b"", *, there: bool = True) -> Side:
    """A file of an attempt; a body of None: the agent deleted it."""
    return Side(there, None if body is None else len(body), (body or b"")[:COMPARED])


def test_differences_name_what_changed_and_never_show_bytes(unhurried: None) -> None:
    end = time.monotonic() + 60
    found = difference("f", side(b"a\nb\n"), side(b"a\nc\n"), same=False, end=end)
    assert found.lines == ["--- a/f", "+++ b/f", "@@ -1,2 +1,2 @@", " a", "-b", "+c"] and found.compared
    assert difference("f", side(b"\x00"), side(b"a"), same=False, end=end).change == "binary"
    assert difference("f", Side(False), side(b"a"), same=False, end=end).change == "only_right"
    assert difference("f", side(None), side(None), same=False, end=end).change == "same"
    assert difference("f", side(b"a\n"), side(None), same=False, end=end).lines[-1] == "-a"


def test_hunks_are_those_of_a_unified_difference(unhurried: None) -> None:
    random = Random(6)
    for _ in range(60):
        before = [random.choice("abcde") for _ in range(random.randrange(30))]
        after = [line for line in before if random.random() > 0.15] + [
            random.choice("xyz")
        ] * random.randrange(3)
        sides = (
            side("".join(f"{x}\n" for x in before).encode()),
            side("".join(f"{x}\n" for x in after).encode()),
        )
        if before != after:
            expected = list(difflib.unified_diff(before, after, "a/f", "b/f", lineterm=""))
            assert difference("f", *sides, same=False, end=time.monotonic() + 60).lines == expected


def test_files_that_take_long_to_compare_are_named_with_their_sizes_instead() -> None:
    """Each by a limit of its own, not by that of the whole answer, unless that has passed."""
    large = b"wool and wolf and roses\n" * 5_000
    for one, other in ((large, large + b"x"), (b"a\n" * 2_500, b"b\n" * 2_500)):
        found = difference("f", side(one), side(other), same=False, end=math.inf)
        assert (found.change, found.compared, found.lines) == ("changed", False, [])
        assert (found.left, found.right) == (len(one), len(other))
    # Single lines that both have, between lines that only one has, as often as difflib still looks at: it finds one at a time.
    woven = [b"".join(b"%d\n%s%d\n" % (n % 50, name, n) for n in range(1_000)) for name in (b"x", b"y")]
    pairs = [side(each) for each in woven]
    assert not difference("f", *pairs, same=False, end=math.inf).compared
    # A whole answer after the time limit.
    assert not difference("f", *pairs, same=False, end=time.monotonic()).compared


def test_characters_that_several_tokens_spell_stand_whole_at_the_first(tmp_path: Path) -> None:
    alphabet = {character: number for number, character in enumerate(_byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_end|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    detokenizer = Detokenizer(tmp_path)
    text = "aé漢🙂\n"
    ids = list(text.encode())
    texts = detokenizer.texts([*ids, 256, 0xE6, 0xBC, 256, 0xFF, 65, 9_999])
    assert "".join(texts[: len(ids)]) == text and texts[1:3] == ["é", ""] and texts[3:6] == ["漢", "", ""]
    assert texts[len(ids) :] == ["<|im_end|>", "\ufffd", "\ufffd", "<|im_end|>", "\ufffd", "A", "<9999>"]
    for cut in range(len(ids)):  # a page may start inside a character
        assert len(detokenizer.texts(ids[cut:])) == len(ids) - cut


def _byte_characters() -> list[str]:
    from orchestrator.queries.token_text import _alphabet

    known = {byte: character for character, byte in _alphabet().items()}
    return [known[byte] for byte in range(256)]


async def test_a_pruned_run_says_so_and_keeps_what_is_left(engine: AsyncEngine) -> None:
    run = await a_row_in_every_table(engine)
    async with engine.begin() as connection:
        await connection.execute(
            text("UPDATE runs SET state = 'ended', ended = now(), pruned = now() WHERE run_id = :run"),
            {"run": run.run_id},
        )
    async with engine.connect() as connection:
        announced = await connection.scalar(text("SELECT steps FROM attempts WHERE rollout_id = 1"))
    await prune.drop(engine, run.run_id)
    async with engine.connect() as connection:
        page = await search.rollout_list(connection, run.run_id, RolloutFilters(group_id=1))
        side_by_side = await groups.group(connection, run.run_id, 1)
        view = text(
            "SELECT steps, action_tokens, longest, ill_formed, branches FROM rollout_summary WHERE rollout_id = 1"
        )
        assert page.pruned and side_by_side.pruned and announced > 0
        for row in (page.rollouts[-1], side_by_side.members[0]):
            assert (row.rollout_id, row.steps) == (1, announced)
            assert (row.action_tokens, row.longest, row.v_lo, row.v_hi) == (None,) * 4
        assert (await connection.execute(view)).one() == (announced, *(None,) * 4)
        shown = await rollouts.rollout(connection, run.run_id, 1)
        assert shown.pruned and shown.steps == [] and shown.reward is not None and shown.verdicts
        assert (await steps.steps(connection, run.run_id, 1, 1)).steps == []
        with pytest.raises(NotFoundError, match="no step 0"):
            await tokens.token_map(connection, run.run_id, 1, 1, 0)
