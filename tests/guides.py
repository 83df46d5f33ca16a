"""The guides, the runbooks and the README as their tests read them: blocks of code, inline code, and the commands in both."""

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
GUIDES = REPOSITORY / "ops/guides"
RUNBOOKS = REPOSITORY / "ops/runbooks"
PAGES = {
    path.relative_to(REPOSITORY).as_posix(): path.read_text(encoding="utf-8")
    for path in (
        *sorted(GUIDES.glob("*.md")),
        *sorted(RUNBOOKS.glob("*.md")),
        *(REPOSITORY / name for name in ("README.md", "AGENTS.md")),
        *(REPOSITORY / "ops" / name / "README.md" for name in ("demonstrations", "sglang_cpu")),
    )
}
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*) ?(?P<info>.*)\n(?P<text>[\s\S]*?)^ *```$", re.M)
INDENTED = re.compile(r"(?<=\n\n)(?: {4}.*\n(?:\n(?= {4}))?)+")
CALLED = re.compile(r"\bpenstock |\bpython -m |\bpytest |(?:^|[\s(])(?:\./)?ops/(?:test|demo|chaos|bench) ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Code between fences, or indented by four (`language` is then "indented"). `info` is the text after the language: a word for the tests."""

    page: str
    language: str
    info: str
    text: str
    place: int  # of its first character


def blocks(page: str) -> list[Block]:
    """All blocks of a page, in order."""
    text = PAGES[page]
    found = [
        Block(
            page=page,
            language=m["language"],
            info=m["info"].strip(),
            text=textwrap.dedent(m["text"]),
            place=m.start(),
        )
        for m in FENCE.finditer(text)
    ]
    rest = FENCE.sub(lambda m: re.sub(r"[^\n]", "x", m[0]), text)
    found += [
        Block(page=page, language="indented", info="", text=textwrap.dedent(m[0]), place=m.start())
        for m in INDENTED.finditer(rest)
    ]
    return sorted(found, key=lambda block: block.place)


def prose(page: str) -> str:
    """A page without its blocks."""
    return INDENTED.sub("\n", FENCE.sub("", PAGES[page]))


def inline(page: str) -> Iterator[str]:
    """Inline code, on one line each."""
    for span in re.findall(r"`([^`]+)`", prose(page)):
        yield " ".join(span.split())


def logical_lines(text: str) -> Iterator[str]:
    """Lines of a shell with commands of ours, each with the continuations of its open quotes and heredocs."""
    lines = iter(text.splitlines())
    for line in lines:
        if here := re.search(r"<<'?(\w+)'?", line):
            for inside in lines:
                if inside == here[1]:
                    break
            continue
        if not CALLED.search(line):
            continue
        whole = line
        while not balanced(whole):
            more = next(lines, None)
            assert more is not None, f"a quote that never ends: {line}"
            whole += "\n" + more
        yield whole


def balanced(line: str) -> bool:
    """Whether every quote ends."""
    try:
        shlex.split(line, comments=True)
    except ValueError:
        return False
    return True


def commands(page: str) -> list[str]:
    """The shell lines of a page's blocks that call something of ours."""
    return [
        line
        for block in blocks(page)
        if block.language in ("", "sh", "indented")
        for line in logical_lines(block.text)
    ]
