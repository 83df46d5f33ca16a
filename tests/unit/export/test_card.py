"""The card of an exported dataset is one page of Markdown, whatever the filters were."""

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from orchestrator.contracts.languages import markdown_code
from orchestrator.export.card import card
from orchestrator.export.drive import ExportSummary

TABLES = {"steps": {"rollout": ("int64", "its rollout")}}
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20) | st.text(
    "`\\ <>|*_[]()#!\n\r-ab", max_size=12
)


def read(markdown: str) -> list[Any]:
    """The inline tokens of one paragraph."""
    begin, paragraph, end = MarkdownIt("commonmark").parse(markdown)
    assert (begin.type, end.type) == ("paragraph_open", "paragraph_close")
    return list(paragraph.children or [])


def written(selection: dict[str, Any], run: str = "first") -> str:
    done = ExportSummary(
        export="parquet", run=run, out="out", attempts=2, steps=3, parts=1, selection=selection
    )
    return card(done, TABLES)


@given(text=TEXTS)
@example("`")
@example(" ` ")
@example("  ")
@example("")
@example("a\n\n# b")
@example("<!-- ``` -->")
def test_a_text_of_markdown_is_read_as_that_text(text: str) -> None:
    before, code, after = read(f"a = {markdown_code(text)}, b")
    assert (before.content, code.type, after.content) == ("a = ", "code_inline", ", b")
    assert code.content == (text.replace("\r\n", " ").replace("\r", " ").replace("\n", " ") or " ")


@given(task=st.text(max_size=20) | TEXTS, label=TEXTS)
@example("a\n\n## columns\n<script>", "`")
def test_no_filter_changes_the_form_of_the_card(task: str, label: str) -> None:
    usual, odd = (
        MarkdownIt("commonmark").parse(written(selection).partition("---\n# ")[2])
        for selection in ({"task": "a", "label": "b"}, {"task": task, "label": label})
    )
    assert [token.type for token in odd] == [token.type for token in usual]
    codes = [child.content for token in odd for child in token.children or [] if child.type == "code_inline"]
    assert [json.loads(code) for code in codes if code.startswith('"')] == [task, label]


def test_a_card_names_its_filters_as_a_person_gave_them() -> None:
    page = written({"groups": [1, 2], "task": "add", "every_attempt": True})
    assert '; groups = `[1, 2]`, task = `"add"`, every_attempt = `True`).' in page
    assert "# Trajectories of the run `first`" in page
