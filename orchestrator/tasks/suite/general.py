"""Everyday questions about one text file, and writing one."""

from collections.abc import Mapping
from typing import Final

from orchestrator.tasks.suite.checks import answer_is, file_is
from orchestrator.tasks.suite.family import Family, Scene, answers, changes
from orchestrator.tasks.suite.split_rng import Dice

Arguments = Mapping[str, str]


def _draw_file(dice: Dice) -> dict[str, str]:
    return {"f": dice.file_names(1)[0]}


def _counts(dice: Dice) -> tuple[str, int, int]:
    """A text whose numbers of lines and words differ, and both."""
    text = dice.content(lambda: dice.lines(3, 12), lambda t: len(t.split()) > len(t.splitlines()))
    return text, len(text.splitlines()), len(text.split())


def _build_lines(dice: Dice, given: Arguments) -> Scene:
    file, think = given["f"], "count lines"
    text, lines, _ = _counts(dice)
    return Scene(
        files={file: text},
        checks=(answer_is(str(lines)),),
        good=answers(think, f"wc -l < {file}"),
        bad=answers(think, f"wc -w < {file}", f"wc -c < {file}", f"wc -l {file}", f"cat {file}"),
    )


def _build_words(dice: Dice, given: Arguments) -> Scene:
    file, think = given["f"], "count words"
    text, _, words = _counts(dice)
    return Scene(
        files={file: text},
        checks=(answer_is(str(words)),),
        good=answers(think, f"wc -w < {file}"),
        bad=answers(think, f"wc -l < {file}", f"wc -c < {file}", f"wc -w {file}", f"cat {file}"),
    )


def _build_first(dice: Dice, given: Arguments) -> Scene:
    file, think = given["f"], "first line"
    text = dice.lines(3, 6, words=2)
    return Scene(
        files={file: text},
        checks=(answer_is(text.splitlines()[0]),),
        good=answers(think, f"head -n 1 {file}"),
        bad=answers(
            think, f"tail -n 1 {file}", f"head -n 2 {file}", f"cat {file}", f"sort {file} | tail -n 2"
        ),
    )


def _build_last(dice: Dice, given: Arguments) -> Scene:
    file, think = given["f"], "last line"
    text = dice.lines(3, 6, words=2)
    return Scene(
        files={file: text},
        checks=(answer_is(text.splitlines()[-1]),),
        good=answers(think, f"tail -n 1 {file}"),
        bad=answers(
            think, f"head -n 1 {file}", f"tail -n 2 {file}", f"cat {file}", f"sort {file} | head -n 2"
        ),
    )


def _draw_write(dice: Dice) -> dict[str, str]:
    word, stem = dice.words(2)
    return {"w": word, "f": f"{stem}.{dice.extension()}"}


def _build_write(_: Dice, given: Arguments) -> Scene:
    word, file, think = given["w"], given["f"], "write file"
    return Scene(
        checks=(file_is(file, word),),
        good=changes(think, f"echo {word} > {file}"),
        bad=changes(think, f"echo {file} > {word}", f"echo {word}", f"touch {file}", f"echo {file} > {file}"),
    )


FAMILIES: Final[tuple[Family, ...]] = (
    Family(
        name="count_lines",
        domain="general",
        level=1,
        phrasings=(
            "count the lines of {f}",
            "how many lines are in {f}",
            "{f} has one item on each line, how many items",
            "{f}: line count?",
        ),
        draw=_draw_file,
        build=_build_lines,
    ),
    Family(
        name="count_words",
        domain="general",
        level=1,
        phrasings=(
            "count the words of {f}",
            "how many words are in {f}",
            "reading {f} aloud, how many words",
            "{f}: word count?",
        ),
        draw=_draw_file,
        build=_build_words,
    ),
    Family(
        name="first_line",
        domain="general",
        level=1,
        phrasings=(
            "print the first line of {f}",
            "show line 1 of {f}",
            "how does {f} start",
            "{f}: first line?",
        ),
        draw=_draw_file,
        build=_build_first,
    ),
    Family(
        name="last_line",
        domain="general",
        level=1,
        phrasings=(
            "print the last line of {f}",
            "show the final line of {f}",
            "how does {f} end",
            "{f}: last line?",
        ),
        draw=_draw_file,
        build=_build_last,
    ),
    Family(
        name="write_word",
        domain="general",
        level=1,
        phrasings=(
            "write {w} to {f}",
            "make a file {f} with the word {w}",
            "after this {f} should hold {w}",
            "{w} goes in {f}",
        ),
        draw=_draw_write,
        build=_build_write,
    ),
)
