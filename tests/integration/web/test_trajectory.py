"""Trajectories in the dashboard: every question has an answer or one sentence, and no text of a model acts on its reader."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import numpy as np
import pytest
from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncEngine
from tokenizers import Tokenizer, models

from orchestrator.contracts.events import ArtifactFile, ToolCallTimed
from orchestrator.contracts.ids import b64, logprobs_to_bytes
from orchestrator.pool import tables
from orchestrator.pool.runs import StoredRun
from orchestrator.queries import token_text, tokens
from orchestrator.queries.groups import group
from orchestrator.queries.rollouts import rollout
from orchestrator.queries.texts import visible
from orchestrator.web.files import STATIC
from orchestrator.web.standalone_page import STYLE, standalone_page
from tests import builders
from tests.integration.pool.rig import a_row_in_every_table, context_of, ended, record, report, running, small
from tests.integration.web.rig import configured, dashboard

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("look")]

HOSTILE = (
    "</pre></style></script><script>alert(1)</script><img src=x onerror=alert(2)> <a href='javascript:alert(3)'>x</a> "
    "<meta http-equiv=refresh content='0;url=http://elsewhere.example/'> **bold** ![](http://elsewhere.example/i.png) "
    "\x1b[2J\x1b]0;title\x07 \u202eesrever\u202c \u2066x\u2069 a\u200bb \x08 \x9b31m &lt;b&gt; \" ' `\n\u2028"
)
ANSWERED = (
    "/api/rollouts",
    "/api/rollouts?text=go&state=verified&reward_min=-1&n=3",
    "/api/rollouts/1",
    "/api/rollouts/1?attempt=1",
    "/api/rollouts/1/steps?attempt=1&step=1&n=1",
    "/api/rollouts/1/text?attempt=1&step=0&part=content",
    "/api/rollouts/1/curl?step=2",
    "/api/rollouts/1/token-map?step=2",
    "/api/rollouts/1/tokens?step=2&start=3&n=5",
    "/api/groups",
    "/api/groups?state=trained&before=2",
    "/api/groups/1",
    "/api/groups/1/difference?left=0&right=3",
    "/api/batches",
    "/api/batches/0",
    "/api/batches/0/tree",
    "/api/batches/0/tree?part=0&of=2",
)
REFUSED = {
    "/api/rollouts/99": (404, "rollout 99 does not exist"),
    "/api/rollouts/x": (404, "rollout 'x' does not exist"),
    "/api/rollouts/1?attempt=9": (404, "no attempt 9"),
    "/api/rollouts/1/steps?attempt=zero": (400, "attempt must be a whole number"),
    "/api/rollouts/1/text?step=0&part=__class__": (404, "no text"),
    "/api/rollouts/1/curl?step=9": (404, "no step 9"),
    "/api/rollouts/1/tokens?step=9": (404, "no step 9"),
    "/api/rollouts/1/tokens?step=2&n=999999999": (400, "n must be a whole number"),
    "/api/rollouts/1/file?path=../../etc/passwd": (404, "left no file"),
    "/api/rollouts/99.html": (404, "rollout 99 does not exist"),
    "/api/rollouts?reward_min=much": (400, "reward_min must be a number"),
    "/api/rollouts?colour=red": (400, "unknown filter 'colour'"),
    "/api/rollouts?n=0": (400, "n must be a whole number"),
    "/api/rollouts?version=99999999999999": (400, "version must be a whole number from 0 to 2147483647"),
    "/api/rollouts?staleness_min=99999999999": (
        400,
        "staleness_min must be a whole number from 0 to 2147483647",
    ),
    "/api/rollouts?text=%00": (400, "text must not hold a NUL character"),
    "/api/groups?task=%00": (400, "task must not hold a NUL character"),
    f"/api/rollouts/{'9' * 5000}": (404, "a rollout is named by its number, from 0 to 9223372036854775807"),
    "/api/groups/99": (404, "group 99 does not exist"),
    "/api/groups/1/difference?left=0&right=17": (404, "no member 17"),
    "/api/batches/7": (404, "batch 7 does not exist"),
    f"/api/batches/{2**40}": (404, "does not exist"),
    "/api/batches/0/tree?part=3&of=2": (404, "no part 3"),
}


async def test_every_query_has_an_answer_and_missing_things_are_reported_in_a_sentence(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    await a_row_in_every_table(engine, "first")
    async with dashboard(configured("first", database_url), tmp_path) as web:
        for path in ANSWERED:
            status, body = await web.get(path)
            assert status == 200 and body, f"{path}: {body}"
        for path, (expected, sentence) in REFUSED.items():
            status, body = await web.get(path)
            assert status == expected and sentence in body["error"] and "Traceback" not in body["error"], (
                f"{path}: {body}"
            )
        for page in ("/rollouts", "/rollouts/1?step=2&view=tokens", "/groups/1", "/batches/0"):
            async with web.session.get(web.address + page, headers=web.bearer) as got:
                assert got.status == 200 and got.content_type == "text/html"


async def test_an_empty_run_has_empty_lists(engine: AsyncEngine, database_url: str, tmp_path: Path) -> None:
    await builders.make_run(engine, small("empty"))
    async with dashboard(configured("empty", database_url), tmp_path) as web:
        nothing = {"next": None, "searched": 0}
        assert await web.get("/api/rollouts?text=x") == (200, {"rollouts": [], "pruned": False, **nothing})
        assert await web.get("/api/groups") == (200, {"groups": [], **nothing})
        assert await web.get("/api/batches") == (200, [])


async def _hostile(engine: AsyncEngine) -> tuple[StoredRun, int]:
    """A finished rollout whose texts are all hostile; (run, rollout)."""
    run = await builders.make_run(engine, small("hostile"))
    [lease, _] = await running(engine, run, name=HOSTILE[:60])
    events = builders.Author().trajectory(lease, run.name, builders.Author().ids(8, 9))
    call = {"name": HOSTILE, "arguments": {HOSTILE: HOSTILE, "n": 1}}
    events = [
        msgspec.structs.replace(
            event,
            agent=HOSTILE[:64],
            finish=HOSTILE,
            branch_reason=HOSTILE if event.idx == 2 else None,
            appended=[
                {"role": HOSTILE, "content": HOSTILE},
                {"role": "tool", "content": "\x00\x01\ufffd" * 50},
            ],
            reply={"role": "assistant", "content": HOSTILE, "reasoning": HOSTILE, "tool_calls": [call]},
        )
        for event in events
    ]
    await record(engine, run, events)
    files = [
        ArtifactFile(path=f'"{HOSTILE}.txt', body=b64(HOSTILE.encode())),
        ArtifactFile(path="image.png", body=b64(bytes(range(256)))),
    ]
    tools = [ToolCallTimed(step=0, call=0, name=HOSTILE, start=0.1, end=0.4, exit=1, bytes=9)]
    result = ended(
        run.name,
        lease,
        events,
        log=HOSTILE,
        answer=HOSTILE,
        artifacts=files,
        tool_calls=tools,
        reason=HOSTILE,
    )
    assert await report(context_of(engine, run), result)
    return run, lease.rollout_id


class _Tags(HTMLParser):
    """The tags that a browser would find in a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


INERT = {
    "html", "head", "meta", "title", "style", "body", "header", "h1", "h2", "h3", "p", "dl", "div", "dt", "dd", "section", "nav", "ol", "ul", "li",
    "a", "em", "b", "small", "span", "article", "pre", "details", "summary", "i", "svg", "text", "rect",
}  # fmt: skip
ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "class", "id", "href", "value", "title", "role", "aria-label", "viewbox", "width", "height",
    "x", "y",
}  # fmt: skip


async def test_a_saved_trajectory_is_inert_whatever_it_holds_and_sends_no_requests(
    engine: AsyncEngine,
) -> None:
    run, rollout_id = await _hostile(engine)
    async with engine.connect() as connection:
        page = await standalone_page(connection, run.run_id, run.name, rollout_id)
    found = _Tags()
    found.feed(page)
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    metas = [attributes for tag, attributes in found.tags if tag == "meta"]
    assert metas[1]["http-equiv"] == "Content-Security-Policy"
    assert (
        metas[1]["content"]
        == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    assert len([tag for tag, _ in found.tags if tag == "style"]) == 1 and f"<style>{STYLE}</style>" in page
    assert {tag for tag, _ in found.tags} <= INERT
    assert {name for _, attributes in found.tags for name in attributes} <= ATTRIBUTES
    links = {attributes["href"] for tag, attributes in found.tags if tag == "a"}
    assert (
        links == {"#step-0", "#step-1", "#step-2"}
        and "http-equiv=refresh" not in page.lower().replace("&#x27;", "")[:2000]
    )
    assert "url(" not in STYLE and "@import" not in STYLE
    text = "".join(found.text)
    assert text.count(visible(HOSTILE)) >= 15 and visible(text) == text
    assert "image.png" in text and "binary, 256 bytes" in text


async def test_text_of_a_model_leaves_the_api_as_json_and_its_files_as_downloads(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    _, rollout_id = await _hostile(engine)
    async with dashboard(configured("hostile", database_url), tmp_path) as web:
        for path in ("", "/steps?attempt=1", "/curl?step=1", "/token-map?step=1"):
            async with web.session.get(
                f"{web.address}/api/rollouts/{rollout_id}{path}", headers=web.bearer
            ) as got:
                assert (got.status, got.content_type) == (200, "application/json")
                assert got.headers["X-Content-Type-Options"] == "nosniff"
        _, rollout = await web.get(f"/api/rollouts/{rollout_id}")
        for file in rollout["files"]:
            address = f"{web.address}/api/rollouts/{rollout_id}/file"
            async with web.session.get(
                address, params={"attempt": 1, "path": file["path"]}, headers=web.bearer
            ) as got:
                name = re.fullmatch(
                    r'attachment; filename="([A-Za-z0-9._-]+)"', got.headers["Content-Disposition"]
                )
                assert got.status == 200 and got.content_type == "application/octet-stream" and name
                assert len(await got.read()) == file["bytes"]
        async with web.session.get(
            f"{web.address}/api/rollouts/{rollout_id}.html", headers=web.bearer
        ) as got:
            assert got.status == 200 and got.headers["Content-Disposition"].startswith("attachment")
            assert "default-src 'none'" in got.headers["Content-Security-Policy"]


async def test_long_texts_of_a_rollout_say_how_long_they_are_and_are_fetched_whole(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    await a_row_in_every_table(engine)
    key = {"log": "l" * 50_000, "answer": "a" * 9_000, "task": "t" * 7_000, "check": "c" * 8_000}
    async with engine.begin() as connection:
        for statement in (
            "SET LOCAL session_replication_role = replica",  # verdicts are immutable
            "UPDATE attempts SET log = :log, answer = :answer",
            "UPDATE verdicts SET log = :log, tests = jsonb_build_array(jsonb_build_object('name', 'x', 'message', CAST(:check AS text)))",
            "UPDATE tasks SET body = jsonb_build_object('files', jsonb_build_object('instruction.md', CAST(:task AS text)))",
        ):
            await connection.execute(text(statement), {} if statement.startswith("SET") else key)
        name, rollout_id, revision = (
            await connection.execute(
                text("SELECT u.name, v.rollout_id, v.revision FROM verdicts v JOIN runs u USING (run_id)")
            )
        ).all()[0]
    async with dashboard(configured(name, database_url), tmp_path) as web:
        _, shown = await web.get(f"/api/rollouts/{rollout_id}")
        assert (len(shown["instruction"]["text"]), shown["instruction"]["length"]) == (6_000, 7_000)
        wanted = {
            "instruction": "task",
            "log": "log",
            "answer": "answer",
            f"verdict.{revision}.log": "log",
            f"verdict.{revision}.check.0": "check",
        }
        for part, named in wanted.items():
            assert await web.get(f"/api/rollouts/{rollout_id}/text?part={part}") == (
                200,
                {"text": key[named]},
            )
        for part in ("verdict.99.log", f"verdict.{revision}.check.1", "verdict.x.log", "log.1", "verdict"):
            assert (await web.get(f"/api/rollouts/{rollout_id}/text?part={part}"))[0] == 404
        async with web.session.get(
            f"{web.address}/api/rollouts/{rollout_id}.html", headers=web.bearer
        ) as answer:
            page = await answer.text()
    for length in (7_000, 50_000, 8_000):
        assert f"… {length} characters in all." in page


async def test_tokens_of_an_unreadable_tokenizer_are_shown_as_ids_and_why(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    run, rollout_id = await _hostile(engine)
    (tmp_path / "tokenizer.json").write_text("{ not json")
    async with engine.begin() as connection:
        await connection.execute(
            text(
                "UPDATE runs SET config = jsonb_set(config, '{policy,model}', to_jsonb(CAST(:path AS text)))"
            ),
            {"path": str(tmp_path)},
        )
    async with dashboard(configured(run.name, database_url), tmp_path) as web:
        status, page = await web.get(f"/api/rollouts/{rollout_id}/tokens?step=0")
        assert status == 200 and page["texts"] is None and page["ids"]
        assert "tokenizer.json cannot be read, so tokens are shown as ids" in page["note"]
        async with web.session.get(
            f"{web.address}/api/rollouts/{rollout_id}.html", headers=web.bearer
        ) as answer:
            assert answer.status == 200
            assert "tokenizer.json cannot be read, so tokens are shown as ids" in await answer.text()


def test_a_policy_version_with_the_same_tokenizer_is_not_parsed_again(tmp_path: Path) -> None:
    cache = token_text._DetokenizerCache(2)
    for version in "01":
        (tmp_path / version).mkdir()
        Tokenizer(models.BPE(vocab={"a": 0}, merges=[])).save(str(tmp_path / version / "tokenizer.json"))
    first, second = (cache.take(tmp_path / version / "tokenizer.json") for version in "01")
    assert first.detokenizer is not None and first.detokenizer is second.detokenizer
    Tokenizer(models.BPE(vocab={"b": 0}, merges=[])).save(str(tmp_path / "1" / "tokenizer.json"))
    other = cache.take(tmp_path / "1" / "tokenizer.json")
    assert (
        other.detokenizer is not None
        and other.detokenizer.texts([0]) == ["b"]
        and first.detokenizer.texts([0]) == ["a"]
    )
    assert "cannot be read" in (cache.take(tmp_path / "2" / "tokenizer.json").note or "")


def test_the_dashboard_and_python_spell_out_the_same_characters() -> None:
    written = re.search(r"const UNSEEN =\s*/(\[.*\])/gu;", (STATIC / "format.js").read_text(encoding="utf-8"))
    assert written is not None
    unseen = re.compile(re.sub(r"\\u\{(\w+)\}", lambda found: chr(int(found[1], 16)), written[1]))
    for code in (*range(0x10000), *range(0xDFFF0, 0xE1010)):
        letter = chr(code)
        if not 0xD800 <= code < 0xE000:
            assert (visible(letter) != letter) == bool(unseen.fullmatch(letter)), f"U+{code:04X}"


def test_no_page_reads_text_as_html_or_asks_another_host() -> None:
    found = [
        f"{path.relative_to(STATIC)}: {match.group()}"
        for path in sorted(STATIC.rglob("*.js"))
        if path.parent.name != "vendor"  # Preact has innerHTML in it; ours may not use its way to it
        for match in re.finditer(
            r"innerHTML|dangerouslySetInnerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function|https?://(?!www\.w3\.org/)",
            path.read_text(encoding="utf-8"),
        )
    ]
    assert [one for one in found if "router.js" not in one] == []


async def test_a_group_counts_all_files_of_a_member(engine: AsyncEngine) -> None:
    run = await a_row_in_every_table(engine)  # rollout 1 left one file
    row = {"run_id": run.run_id, "rollout_id": 1, "attempt": 1, "mode": 0o644, "body": b"7"}
    async with engine.begin() as connection:
        await connection.execute(insert(tables.artifacts), [{**row, "path": f"{n}.txt"} for n in range(250)])
        [member, *_] = (await group(connection, run.run_id, 1)).members
    assert (len(member.files), member.all_files) == (200, 251)


async def test_a_batch_is_as_stale_as_the_attempt_that_it_took(engine: AsyncEngine) -> None:
    run = await a_row_in_every_table(engine)
    async with engine.connect() as connection:
        found = await rollout(connection, run.run_id, 1)
        assert found.batch is not None and (found.batch.attempt, found.batch.staleness) == (1, 0)
        await connection.execute(text("UPDATE batch_rollouts SET attempt = 2 WHERE rollout_id = 1"))
        found = await rollout(connection, run.run_id, 1, attempt=1)
        assert found.batch is not None and (found.batch.attempt, found.batch.staleness) == (2, None)


async def test_trained_tokens_have_their_trainer_logprob_ratio_and_clip(engine: AsyncEngine) -> None:
    run = await a_row_in_every_table(engine)
    async with engine.begin() as connection:
        before = await tokens.tokens(connection, run.run_id, 1, 1, 1, None)
        assert before.trainer_logprobs is not None and before.logprobs[-1] is not None
        behavior = [value for value in before.logprobs if value is not None]
        step = await tokens.token_map(connection, run.run_id, 1, 1, 1)
        own = step.full_len - step.state_len
        trained = np.array(behavior[-own:], np.float32)
        trained[0] += 2.0  # a ratio of e² = 7.4, above the 5 of ratio_max
        trained[1] = np.nan
        row = {"run_id": run.run_id, "rollout_id": 1, "attempt": 1, "idx": 1, "batch_id": 1, "part": 0}
        await connection.execute(
            insert(tables.trained_steps).values(**row, logprobs=logprobs_to_bytes(trained))
        )
        page = await tokens.tokens(connection, run.run_id, 1, 1, 1, None, start=step.state_len, n=3)
    assert page.ratios is not None and page.clipped is not None and page.trainer_logprobs is not None
    assert page.ratios[0] == pytest.approx(np.exp(2.0), rel=1e-3) and page.clipped[0] is True
    assert page.ratios[1] is None and page.clipped[1] is None and page.trainer_logprobs[1] is None
    assert page.ratios[2] == pytest.approx(1.0, abs=1e-3) and page.clipped[2] is False


@pytest.mark.parametrize(
    ("loss", "anchor", "outside"),
    [
        ("cispo", "behavior", True),
        ("grpo", "behavior", True),
        ("dapo", "behavior", True),
        ("dapo", "proximal", None),
        ("gspo", "behavior", None),
        ("reinforce", "behavior", None),
        ("sft", "behavior", None),
    ],
)
async def test_only_a_loss_that_bounds_each_tokens_ratio_to_the_behavior_policy_has_tokens_outside_its_bounds(
    engine: AsyncEngine, loss: str, anchor: str, outside: bool | None
) -> None:
    run = await a_row_in_every_table(engine)
    async with engine.begin() as connection:
        await connection.execute(
            text(
                "UPDATE runs SET config = jsonb_set(config::jsonb, '{trainer}', (config::jsonb -> 'trainer') || CAST(:own AS jsonb))"
            ),
            {"own": json.dumps({"loss": loss, "anchor": anchor, "ratio_min": 0.8, "ratio_max": 1.2})},
        )
        step = await tokens.token_map(connection, run.run_id, 1, 1, 1)
        before = await tokens.tokens(connection, run.run_id, 1, 1, 1, None, start=step.state_len)
        trained = np.array(before.logprobs, np.float32) + 2.0
        row = {"run_id": run.run_id, "rollout_id": 1, "attempt": 1, "idx": 1, "batch_id": 1, "part": 0}
        await connection.execute(
            insert(tables.trained_steps).values(**row, logprobs=logprobs_to_bytes(trained))
        )
        page = await tokens.tokens(connection, run.run_id, 1, 1, 1, None, start=step.state_len, n=1)
    assert page.ratios is not None and page.ratios[0] == pytest.approx(np.exp(2.0), rel=1e-3)
    assert page.clipped == [outside]
